#include "sim/des/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>

#include "sim/des/levels.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"closed_form", "heap", "representative",
                                                         "all_ranks"};

void check(const des::Step& step, const SimulateOptions& options) {
  const Plan& plan = *step.priced->plan;
  if (plan.num_ranks() > step.machine->num_gpus()) {
    throw std::invalid_argument("plan has " + std::to_string(plan.num_ranks()) +
                                " ranks; machine '" + step.machine->spec.name + "' has " +
                                std::to_string(step.machine->num_gpus()) + " GPUs");
  }
  const auto& slowdown = options.rank_slowdown;
  if (!slowdown.empty() && slowdown.size() != static_cast<std::size_t>(plan.num_ranks())) {
    throw std::invalid_argument("rank_slowdown has " + std::to_string(slowdown.size()) +
                                " factors; expected one for each of the " +
                                std::to_string(plan.num_ranks()) + " ranks, or none");
  }
  for (std::size_t rank = 0; rank < slowdown.size(); ++rank) {
    if (!(slowdown[rank] > 0) || !std::isfinite(slowdown[rank])) {
      throw std::invalid_argument("rank_slowdown of rank " + std::to_string(rank) + " is " +
                                  std::to_string(slowdown[rank]) +
                                  "; expected a positive, finite factor");
    }
  }
  if (options.comm_sms < 0) {
    throw std::invalid_argument("comm_sms is " + std::to_string(options.comm_sms) +
                                "; expected 0 or more");
  }
}

Timeline run_level(const des::Step& step, const SimulateOptions& options) {
  const PricedPlan& priced = *step.priced;
  if (options.level == StepLevel::kClosedForm) return des::closed_form_timeline(step, options);
  if (options.level == StepLevel::kHeap) {
    return des::run_events(step, options, des::all_ranks(*priced.plan), des::SharingMode::kNone);
  }
  if (options.level == StepLevel::kAllRanks) {
    return des::run_events(step, options, des::all_ranks(*priced.plan),
                           des::SharingMode::kWhenContended);
  }
  std::vector<Seconds> times;
  times.reserve(priced.times.size());
  for (const Estimate& estimate : priced.times) times.push_back(estimate.time);
  return des::run_events(step, options,
                         des::representatives(*priced.plan, times, options.rank_slowdown),
                         des::SharingMode::kWhenContended);
}

}  // namespace

std::string_view to_text(StepLevel level) { return kLevelNames[static_cast<std::size_t>(level)]; }

StepLevel parse_step_level(std::string_view text) {
  const auto found = std::ranges::find(kLevelNames, text);
  if (found == kLevelNames.end()) {
    throw std::invalid_argument("unknown step level '" + shown(text) + "'; did you mean '" +
                                nearest(text, kLevelNames) +
                                "'? Known: closed_form, heap, representative, all_ranks");
  }
  return static_cast<StepLevel>(found - kLevelNames.begin());
}

Timeline des::simulate(const Step& step, const SimulateOptions& options) {
  check(step, options);
  Timeline timeline = run_level(step, options);
  const Plan& plan = *step.priced->plan;
  timeline.op_names.reserve(plan.ops().size());
  for (const Op& op : plan.ops()) timeline.op_names.push_back(printed_name(op));
  std::ranges::sort(timeline.spans, [](const Span& a, const Span& b) {
    return std::tuple(a.start.value(), a.rank, a.stream, a.op, a.copy) <
           std::tuple(b.start.value(), b.rank, b.stream, b.op, b.copy);
  });
  std::ranges::sort(timeline.link_spans, [](const LinkSpan& a, const LinkSpan& b) {
    return std::tuple(a.start.value(), a.link, a.op) < std::tuple(b.start.value(), b.link, b.op);
  });
  return timeline;
}

Timeline simulate(const PricedPlan& priced, const Machine& machine, const CostModel& cost,
                  const SimulateOptions& options) {
  des::Step step{.priced = &priced,
                 .machine = &machine,
                 .launch_mode = cost.options().launch_mode,
                 .host = cost.options().host};
  const bool shares =
      options.level == StepLevel::kRepresentative || options.level == StepLevel::kAllRanks;
  if (shares) step.demands = des::kernel_demands(*priced.plan, priced.times, machine);
  return des::simulate(step, options);
}

Timeline simulate(const Plan& plan, const Machine& machine, const CostModel& cost,
                  const SimulateOptions& options) {
  verify(plan);
  return simulate(price(plan, cost), machine, cost, options);
}

}  // namespace orrery
