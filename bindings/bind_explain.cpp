// How the times of a step come about, as plain data.

#include <pybind11/stl.h>

#include <string>
#include <string_view>

#include "bindings/bind.h"
#include "sim/cost/corrections.h"
#include "sim/scenario/explain.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

py::dict as_dict(const ExplainedOp& op) {
  const PriceExplanation& price = op.price;
  py::list corrections;
  for (const AppliedCorrection& correction : price.corrections) {
    py::dict one;
    one["name"] = std::string(correction.name);
    one["source"] = std::string(correction.source);
    one["before_s"] = correction.before.time.value();
    one["after_s"] = correction.after.time.value();
    corrections.append(one);
  }
  py::dict found;
  found["name"] = op.name;
  found["call"] = op.call;
  found["copies"] = op.copies;
  found["time_s"] = price.price.time.value();
  found["limited_s"] = price.price.limited.value();
  found["arithmetic_s"] = price.price.arithmetic.value();
  found["basis"] = std::string(to_text(price.price.basis));
  found["spread"] = price.price.spread;
  found["provider"] = price.provider;
  found["device"] = price.device;
  found["file"] = price.file.string();
  found["kernel"] = price.kernel;
  found["rows"] = price.rows;
  found["way"] = price.way;
  found["row_s"] = price.row_time.value();
  found["corrections"] = corrections;
  return found;
}

py::dict explain(const Scenario& scenario, const Batch& batch, bool is_attention_seen,
                 bool are_rows_seen) {
  StepExplanation explanation;
  {
    const py::gil_scoped_release release;
    explanation =
        explain_step(scenario, batch, {.rows = are_rows_seen, .attention = is_attention_seen});
  }
  py::list ops;
  for (const ExplainedOp& op : explanation.ops) ops.append(as_dict(op));
  py::list corrections;
  for (const AppliedStepCorrection& correction : explanation.corrections) {
    py::dict one;
    one["name"] = std::string(correction.name);
    one["source"] = std::string(correction.source);
    one["before_s"] = correction.before.value();
    one["after_s"] = correction.after.value();
    corrections.append(one);
  }
  py::dict found;
  found["mode"] = std::string(to_text(explanation.mode));
  found["plans_attention"] = explanation.plans_attention;
  found["prepares"] = explanation.prepares;
  found["ops"] = ops;
  found["weights_bytes"] = explanation.weights.value();
  found["o_proj_bytes"] = explanation.output_projections.value();
  found["device_s"] = explanation.device.value();
  py::dict deviations;
  for (const auto& [name, deviation] : explanation.deviations) {
    deviations[py::str(name)] = deviation.value();
  }
  found["deviations_s"] = deviations;
  found["corrections"] = corrections;
  found["duration_s"] = explanation.duration.value();
  py::list sides;
  for (const StepSide& side : explanation.sides) {
    py::dict one;
    one["side"] = side.side;
    one["num_gpus"] = side.num_ranks;
    one["bubble_s"] = side.bubble.value();
    one["bubble_share"] = side.share;
    one["exposed_transfer_s"] = side.exposed.value();
    one["turn_s"] = side.turn.value();
    one["way_s"] = side.way.value();
    sides.append(one);
  }
  found["sides"] = sides;
  return found;
}

py::list list_of_corrections() {
  py::list list;
  const auto add = [&](std::string_view of, std::string_view name, std::string_view source) {
    py::dict one;
    one["of"] = std::string(of);
    one["name"] = std::string(name);
    one["source"] = std::string(source);
    list.append(one);
  };
  for (const Correction& correction : corrections()) add("op", correction.name, correction.source);
  for (const StepCorrection& correction : step_corrections()) {
    add("step", correction.name, correction.source);
  }
  return list;
}

}  // namespace

void bind_explain(py::module_& module) {
  module.def("explain_step", &explain, py::arg("scenario"), py::arg("batch"),
             py::arg("is_attention_seen") = false, py::arg("are_rows_seen") = true,
             "How the time of one step of a replica at the full clock comes about: its ops (of the "
             "first rank, in order) with the rows that they are from and what each correction did, "
             "and what the corrections of a step did to their sum; of an engine that plans "
             "attention for each shape, the first of its shape unless that was seen; its numbers "
             "of rows came before unless they did not.");
  module.def("price_corrections", &list_of_corrections,
             "The corrections of a price, in the order in which they act: first those of an op, "
             "then those of a step.");
}

}  // namespace orrery::bindings
