// A plan by its text form, simulated with the machine and tables of a scenario: layers by
// themselves, which no scenario describes.

#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings/bind.h"
#include "sim/des/simulate.h"
#include "sim/memory/buffers.h"
#include "sim/plan/plan.h"
#include "sim/scenario/assembly.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

struct PlanPrediction {
  Seconds duration;   // of one copy of the plan, the mean over all
  Timeline timeline;  // of all copies
  std::int64_t buffer_bytes = 0;
  BasisSeconds basis;
};

PlanPrediction predict(const Scenario& scenario, const std::string& text, bool graph,
                       std::int64_t copies) {
  if (copies < 1) {
    throw std::invalid_argument("found " + std::to_string(copies) + " copies; expected 1 or more");
  }
  Plan plan = parse_plan(text);
  PlanPrediction prediction;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    prediction.buffer_bytes =
        std::max(prediction.buffer_bytes, plan_buffers(plan, rank).arena_bytes);
  }
  if (copies > 1 && plan.repeats().empty()) {
    plan.add_repeat({.first = 0, .last = static_cast<OpId>(plan.ops().size()), .count = copies});
  }
  const Assembly assembly(scenario);
  const CostModel& cost = graph ? assembly.graph_cost() : assembly.eager_cost();
  const PricedPlan priced = price(plan, cost, Clock::kLimited);
  prediction.timeline = simulate(priced, assembly.machine(), cost, {.level = StepLevel::kAllRanks});
  prediction.duration = makespan(prediction.timeline) / static_cast<double>(copies);
  prediction.basis = priced.basis;
  return prediction;
}

py::dict predict_plan(const Scenario& scenario, const std::string& text, bool graph,
                      std::int64_t copies) {
  PlanPrediction prediction;
  {
    const py::gil_scoped_release release;
    prediction = predict(scenario, text, graph, copies);
  }
  py::dict found;
  found["duration_s"] = prediction.duration.value();
  found["buffer_bytes"] = prediction.buffer_bytes;
  found["timeline"] = std::move(prediction.timeline);
  const BasisShares basis = shares(prediction.basis);
  found["measured_share"] = basis.measured;
  found["interpolated_share"] = basis.interpolated + basis.borrowed;
  return found;
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("predict_plan", &predict_plan, py::arg("scenario"), py::arg("text"), py::kw_only(),
             py::arg("graph"), py::arg("copies") = 1,
             "Simulates a plan on the scenario's machine with its tables, `copies` of it one after "
             "the other: duration_s of one of them, the timeline of all, buffer_bytes of the rank "
             "that needs most, and the shares of the first rank's summed op times that were "
             "measured or interpolated "
             "(measured_share, interpolated_share).");
}

}  // namespace orrery::bindings
