// Scenarios: loading, running, writing; and ScenarioError with its place.

#include <pybind11/functional.h>
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/traces.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/outputs.h"
#include "sim/scenario/reader.h"
#include "sim/scenario/run.h"
#include "sim/scenario/scenario.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

// Raises orrery.ScenarioError with file, line, column and the message without its place.
void set_scenario_error(const py::object& type, const ScenarioError& error) {
  const py::object instance = type(error.what());
  instance.attr("file") = error.file();
  instance.attr("line") = error.line();
  instance.attr("column") = error.column();
  instance.attr("message") = error.message();
  PyErr_SetObject(type.ptr(), instance.ptr());
}

Scenario read(const YamlNode& root, const std::string& name, const std::string& directory,
              const std::string& project, const std::optional<Requests>& requests) {
  const py::gil_scoped_release release;
  Scenario scenario =
      read_scenario(root, std::filesystem::path(directory) / "scenario.yaml",
                    project_paths(project), requests ? requests->workload : nullptr);
  scenario.name = name;
  return scenario;
}

RunResult run(const Scenario& scenario, int threads, const Callback& progress,
              const std::string& spill) {
  Scenario own = scenario;
  own.threads = threads;
  const Progress report = throttled(progress);
  const py::gil_scoped_release release;
  return run_scenario(own, report, spill);
}

StepResult step(const Scenario& scenario, const Batch& batch, const std::string& level) {
  const StepLevel parsed = parse_step_level(level);
  const py::gil_scoped_release release;
  return simulate_step(scenario, batch, parsed);
}

std::vector<double> replayed(const Scenario& scenario, const std::vector<int>& replicas,
                             const std::vector<double>& start_s,
                             const std::vector<Batch>& batches) {
  if (replicas.size() != batches.size() || start_s.size() != batches.size()) {
    throw std::invalid_argument("replayed_durations: found " + std::to_string(batches.size()) +
                                " batches, " + std::to_string(replicas.size()) + " replicas and " +
                                std::to_string(start_s.size()) + " starts; expected as many");
  }
  const py::gil_scoped_release release;
  std::vector<ReplicaStep> steps;
  steps.reserve(batches.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    steps.push_back({.replica = replicas[i], .start = Seconds(start_s[i]), .batch = batches[i]});
  }
  std::vector<double> durations;
  durations.reserve(steps.size());
  for (const Seconds duration : replayed_durations(scenario, steps)) {
    durations.push_back(duration.value());
  }
  return durations;
}

void bind_step(py::module_& module) {
  py::class_<StepResult>(module, "StepResult", "One engine step simulated in detail.")
      .def_readonly("batch", &StepResult::batch)
      .def_property_readonly(
          "level", [](const StepResult& result) { return std::string(to_text(result.level)); })
      .def_readonly("timeline", &StepResult::timeline)
      .def_property_readonly(
          "plan_text", [](const StepResult& result) { return to_text(result.plan); },
          "The plan in its text form, one line per op.");
}

}  // namespace

// Calls `callback` at most twenty times a second, and lets Ctrl-C through.
Progress throttled(const Callback& callback) {
  using Clock = std::chrono::steady_clock;
  struct State {
    std::mutex mutex;
    Clock::time_point last;
  };
  // Shared because std::function copies its target.
  return [&callback, state = std::make_shared<State>()](std::int64_t done, std::int64_t total) {
    const std::scoped_lock guard(state->mutex);
    const Clock::time_point now = Clock::now();
    if (done < total && now - state->last < std::chrono::milliseconds(50)) {
      return;
    }
    state->last = now;
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
    if (callback) {
      (*callback)(done, total);
    }
  };
}

void bind_scenario(py::module_& module) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> error_type;
  error_type.call_once_and_store_result([&]() -> py::object {
    return py::exception<ScenarioError>(module, "ScenarioError", PyExc_ValueError);
  });
  error_type.get_stored().attr("__doc__") =
      "A scenario that cannot be: .file, .line, .column (0: no place), .message.";
  // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11 gives the type.
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const ScenarioError& error) {
      set_scenario_error(error_type.get_stored(), error);
    }
  });

  py::class_<Scenario>(module, "Scenario",
                       "A question about serving a model, checked and resolved.")
      .def(py::init(&read), py::arg("root"), py::kw_only(), py::arg("name"), py::arg("directory"),
           py::arg("project"), py::arg("requests") = py::none(),
           "Checks `root`; relative paths start at `directory`, else at `project`.")
      .def_readonly("name", &Scenario::name)
      .def_readonly("question", &Scenario::question)
      .def_readonly("model", &Scenario::model_config)
      .def_readonly("machine", &Scenario::machine)
      .def_readonly("provider", &Scenario::provider)
      .def_readonly("replicas", &Scenario::replicas)
      .def_property_readonly("gpus_per_replica",
                             [](const Scenario& scenario) { return num_ranks(scenario.mesh); })
      .def_readonly("seed", &Scenario::seed)
      .def_property_readonly(
          "has_sides", [](const Scenario& scenario) { return scenario.disaggregation.has_value(); },
          "Whether prefill and decode have replicas of their own.")
      .def("side", &side_alone, py::arg("name"),
           "One side, prefill or decode, of a disaggregated scenario as a scenario by itself.")
      .def_property_readonly(
          "moe_design",
          [](const Scenario& scenario) { return std::string(to_text(scenario.moe.design)); })
      .def_property_readonly(
          "has_host_syncs",
          [](const Scenario& scenario) { return has_host_syncs(scenario.moe, scenario.mesh); },
          "Whether the host reads counts of routed experts in the middle of a step.")
      .def_property_readonly(
          "validation_repeats",
          [](const Scenario& scenario) { return scenario.validation.repeats; },
          "Timed runs of each step of `validate:`.")
      .def(
          "to_yaml",
          [](const Scenario& scenario, const std::string& requests_file) {
            return to_yaml(scenario, requests_file);
          },
          py::arg("requests_file") = "",
          "The scenario with every default spelled out; requests in memory are those of "
          "`requests_file` where it is named.")
      .def(
          "__eq__", [](const Scenario& a, const Scenario& b) { return to_yaml(a) == to_yaml(b); },
          py::arg("other"), py::is_operator())  // another type is unequal, no error
      .def("__repr__", [](const Scenario& scenario) {
        return "Scenario(" + scenario.name + ": " + scenario.model + " on " + scenario.machine +
               ")";
      });
  bind_step(module);
  py::class_<RunResult>(module, "RunResult", "A simulated service.")
      .def_readonly("scenario", &RunResult::scenario)
      .def_readonly("service", &RunResult::service)
      .def_readonly("step", &RunResult::step)
      .def_readonly("warnings", &RunResult::warnings)
      .def(
          "summary_json", [](const RunResult& result) { return summary_json(result); },
          "Content of summary.json.")
      .def(
          "write",
          [](const RunResult& result, const std::filesystem::path& directory) {
            const py::gil_scoped_release release;
            write_outputs(result, directory);
          },
          py::arg("directory"), "Writes the run's files into an existing directory.");

  module.def("run_scenario", &run, py::arg("scenario"), py::arg("threads") = 1,
             py::arg("progress") = py::none(), py::arg("spill") = "",
             "Simulates the service; where `spill` names a directory, steps lie in an unnamed file "
             "there instead of in memory.");
  module.def("simulate_step", &step, py::arg("scenario"), py::arg("batch"), py::arg("level"),
             "Simulates one engine step of one replica.");
  module.def("replayed_durations", &replayed, py::arg("scenario"), py::kw_only(),
             py::arg("replicas"), py::arg("start_s"), py::arg("batches"),
             "Seconds that the simulated replicas would have taken for steps that were executed, "
             "given in order of time.");
}

}  // namespace orrery::bindings
