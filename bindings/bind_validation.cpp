// What `orrery validate` predicts and writes, and plans as tables of ops for comparing timelines.

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bind.h"
#include "kernels/kernel_spec.h"
#include "sim/des/network_simgrid.h"
#include "sim/plan/plan.h"
#include "sim/scenario/executable.h"
#include "sim/scenario/validation.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

ValidationPrediction predict_reporting(const Scenario& scenario, const Callback& progress) {
  const Progress report = throttled(progress);
  const py::gil_scoped_release release;
  return predict_validation(scenario, report);
}

std::vector<py::dict> step_dicts(const ValidationPrediction& prediction) {
  std::vector<py::dict> steps;
  for (const StepPrediction& step : prediction.steps) {
    py::dict found;
    found["name"] = step.name;
    found["mode"] = std::string(to_text(step.mode));
    found["layers"] = step.layers ? step.layers->count : 0;
    found["duration_s"] = step.duration.value();
    found["low_s"] = step.low.value();
    found["high_s"] = step.high.value();
    found["host_s"] = step.host.value();
    steps.push_back(std::move(found));
  }
  return steps;
}

// Kind, and what is called: "gemm bf16 m=1 n=2 k=3", "all_reduce bf16 4096 B".
py::dict body_dict(const OpBody& body) {
  py::dict found;
  py::dict dims;
  if (const auto* kernel = std::get_if<KernelOp>(&body)) {
    found["kind"] = "kernel";
    found["name"] = kernel->kernel;
    found["dtype"] = std::string(to_text(kernel->dtype));
    for (const Dim& dim : kernel->dims) dims[py::str(dim.name)] = dim.size;
  } else if (const auto* comm = std::get_if<CommOp>(&body)) {
    found["kind"] = "comm";
    found["name"] = std::string(to_text(comm->kind));
    found["dtype"] = std::string(to_text(comm->dtype));
    dims["bytes"] = static_cast<std::int64_t>(comm->bytes_per_rank.value());
  } else {
    found["kind"] = "host";
    found["name"] = std::string(to_text(std::get<HostOp>(body).kind));
    found["dtype"] = "";
  }
  found["dims"] = dims;
  return found;
}

// The least that a kernel must compute and move.
py::dict work_dict(const KernelOp& op) {
  const Work work = work_of(op);
  py::dict found;
  found["flops"] = work.flops.value();
  found["read_bytes"] = work.bytes_read.value();
  found["written_bytes"] = work.bytes_written.value();
  return found;
}

// One entry per op of the plan with its repeats written out, in order.
std::vector<py::dict> plan_ops(const std::string& text) {
  const Plan plan = parse_plan(text);
  const Plan flat = unroll(plan);
  // unroll() names copies "<name>#<copy>"; here the two stand apart, as in spans.
  std::vector<std::pair<std::string, std::int64_t>> names;
  const auto add = [&](OpId id, std::int64_t copy) {
    names.emplace_back(printed_name(plan.ops()[static_cast<std::size_t>(id)]), copy);
  };
  OpId id = 0;
  for (const Repeat& run : plan.repeats()) {
    while (id < run.first) add(id++, 0);
    for (std::int64_t copy = 0; copy < run.count; ++copy) {
      for (id = run.first; id < run.last; ++id) add(id, copy);
    }
  }
  while (static_cast<std::size_t>(id) < plan.ops().size()) add(id++, 0);
  std::vector<py::dict> ops;
  for (std::size_t i = 0; i < flat.ops().size(); ++i) {
    const Op& op = flat.ops()[i];
    py::dict found;
    found["op"] = names[i].first;
    found["copy"] = names[i].second;
    found["body"] = body_dict(op.body);
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) found["work"] = work_dict(*kernel);
    const auto ranks = flat.ranks(op.ranks);
    found["ranks"] = std::vector<int>(ranks.begin(), ranks.end());
    found["stream"] = op.stream;
    found["reads"] = std::vector<TensorId>(op.reads.begin(), op.reads.end());
    found["writes"] = std::vector<TensorId>(op.writes.begin(), op.writes.end());
    found["after"] = op.after;
    ops.push_back(std::move(found));
  }
  return ops;
}

}  // namespace

void bind_validation(py::module_& module) {
  py::class_<ValidationPrediction>(module, "ValidationPrediction",
                                   "Steps, memory and service of a scenario, to be held against "
                                   "GPUs.")
      .def_readonly("scenario", &ValidationPrediction::scenario)
      .def_property_readonly("steps", &step_dicts)
      .def_property_readonly(
          "serves",
          [](const ValidationPrediction& prediction) { return prediction.run.has_value(); })
      .def_readonly("warnings", &ValidationPrediction::warnings)
      .def(
          "write",
          [](const ValidationPrediction& prediction, const std::string& directory) {
            const py::gil_scoped_release release;
            write_validation(prediction, directory);
          },
          py::arg("directory"), "Writes what the GPU side runs from into an existing directory.");
  module.def("predict_validation", &predict_reporting, py::arg("scenario"),
             py::arg("progress") = py::none(),
             "Predicts the steps that the scenario's `validate:` names, and its service.");
  module.def(
      "check_executed_step",
      [](const Scenario& scenario, const Batch& batch) {
        const ValidationStep step{.name = step_name(batch), .batch = batch};
        const py::gil_scoped_release release;
        check_executed_steps(scenario, {&step, 1});
      },
      py::arg("scenario"), py::arg("batch"),
      "Raises ScenarioError where this step is simulated and not executed on GPUs.");
  module.def("plan_ops", &plan_ops, py::arg("text"),
             "Ops of a plan's text form with repeats written out: op, copy, body (kind, name, "
             "dtype, dims), of kernels work (flops, read_bytes, written_bytes: the least), ranks, "
             "stream, reads, writes, after (indices into the list).");
  module.def("has_simgrid", &des::has_simgrid, "Whether steps can be simulated with SimGrid.");
}

}  // namespace orrery::bindings
