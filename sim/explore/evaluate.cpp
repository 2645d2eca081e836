#include "sim/explore/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "sim/explore/short_run.h"
#include "sim/explore/steady_state.h"
#include "sim/scenario/service_costs.h"
#include "sim/serve/workload.h"

namespace orrery {

namespace {

constexpr std::size_t kMostModels = 64;
constexpr std::size_t kMostWorkloads = 64;
constexpr std::int64_t kMostTimesLonger = 64;

bool is_endless(const WorkloadSpec& spec) {
  return std::holds_alternative<ArrivalWorkload>(spec.source);
}

// The same traffic for `times` as long.
WorkloadSpec longer(WorkloadSpec spec, std::int64_t times) {
  if (auto* arrivals = std::get_if<ArrivalWorkload>(&spec.source)) arrivals->num_requests *= times;
  return spec;
}

void scale(Workload& workload, double load) {
  if (load == 1) return;
  if (workload.closed_loop_concurrency > 0) {
    const double scaled = std::round(static_cast<double>(workload.closed_loop_concurrency) * load);
    workload.closed_loop_concurrency = std::max<std::int64_t>(1, std::llround(scaled));
  } else {
    scale_rate(workload, load);
  }
}

// Figures of `requests` served, which are those of `whole` or the first of them, or the error and
// false where they cannot be.
bool serve_requests(const Scenario& scenario, const Workload& whole, const Workload& requests,
                    const ServiceModel& service, Outcome& outcome) {
  try {
    const ServiceResult served =
        serve_scenario(scenario, requests, service, {.record_steps = false}).result;
    outcome.metrics = served.metrics;
    outcome.peak_use = peak_use(scenario, requests, served);
    outcome.is_lost =
        outcome.fidelity == Fidelity::kShort && is_lost(scenario.slo, whole, served.requests);
  } catch (const ScenarioError& error) {
    outcome.error = error.message();
    return false;
  }
  outcome.energy = service_energy(scenario, num_gpus(scenario), outcome.metrics);
  return true;
}

}  // namespace

bool Outcome::meets() const {
  return error.empty() && !metrics.load.is_overloaded && metrics.load.is_settled &&
         std::ranges::all_of(metrics.slo, &SloCheck::is_met);
}

double Outcome::headroom() const {
  if (!error.empty() || metrics.load.is_overloaded) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const SloCheck& check : metrics.slo) least = std::min(least, check.headroom());
  return metrics.slo.empty() ? 1 : least;
}

Evaluator::SharedWorkload Evaluator::workload(const Scenario& scenario, std::int64_t times_longer) {
  const WorkloadSpec spec = longer(scenario.workload, times_longer);
  const std::string key = to_yaml(spec, scenario.paths.root) + std::to_string(scenario.seed);
  const std::scoped_lock lock(mutex_);
  SharedWorkload& found = workloads_[key];
  if (!found) {
    if (workloads_.size() > kMostWorkloads) {
      const auto other =
          workloads_.begin()->first == key ? std::next(workloads_.begin()) : workloads_.begin();
      workloads_.erase(other);
    }
    SharedWorkload& made = workloads_[key];
    made = at_key(scenario, "workload", [&] {
      return std::make_shared<const Workload>(make_workload(spec, scenario.seed));
    });
    return made;
  }
  return found;
}

std::shared_ptr<StepModel> Evaluator::steps(const Scenario& side, bool contexts_differ) {
  std::string key = StepModel::key(side, contexts_differ);
  {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find(models_, key, [](const auto& kept) { return kept.first; });
    if (found != models_.end()) {
      models_.splice(models_.begin(), models_, found);
      return found->second;
    }
  }
  auto made = std::make_shared<StepModel>(side, contexts_differ);  // two may make the same
  const std::scoped_lock lock(mutex_);
  models_.emplace_front(std::move(key), made);
  if (models_.size() > kMostModels) models_.pop_back();
  return made;
}

ServiceModel Evaluator::model(const Scenario& scenario, bool contexts_differ) {
  return {scenario, contexts_differ,
          [this](const Scenario& side, bool differ) { return steps(side, differ); }};
}

SteadyState Evaluator::estimate(const Scenario& scenario) {
  const SharedWorkload requests = workload(scenario, 1);
  return steady_state(scenario, *requests, model(scenario, contexts_differ(*requests)));
}

std::vector<OperatingPoint> Evaluator::curve(const Scenario& scenario) {
  const SharedWorkload requests = workload(scenario, 1);
  return load_curve(scenario, *requests, model(scenario, contexts_differ(*requests)));
}

Outcome Evaluator::serve(const Scenario& scenario, Fidelity fidelity, double load) {
  Outcome outcome{.fidelity = fidelity, .load = load, .num_gpus = num_gpus(scenario)};
  for (std::int64_t times = 1;; times *= 4) {
    const SharedWorkload all = workload(scenario, times);
    Workload requests = fidelity == Fidelity::kShort ? first_part(*all) : *all;
    scale(requests, load);
    const ServiceModel service = model(scenario, contexts_differ(*all));
    outcome.num_requests = static_cast<std::int64_t>(requests.requests.size());
    if (!serve_requests(scenario, *all, requests, service, outcome)) return outcome;
    const bool is_open = outcome.metrics.load.is_settled || outcome.metrics.load.is_overloaded;
    const bool may_meet = std::ranges::all_of(outcome.metrics.slo, &SloCheck::is_met);
    if (fidelity == Fidelity::kShort || is_open || !may_meet || !is_endless(scenario.workload) ||
        times >= kMostTimesLonger) {
      return outcome;
    }
  }
}

Outcome Evaluator::serve_closed(const Scenario& scenario, std::int64_t concurrency) {
  constexpr std::int64_t kLeast = 64;
  const std::int64_t wanted = 3 * concurrency + kLeast;
  Outcome outcome{.num_gpus = num_gpus(scenario)};
  SharedWorkload all = workload(scenario, 1);
  for (std::int64_t times = 4; std::ssize(all->requests) < wanted &&
                               is_endless(scenario.workload) && times <= kMostTimesLonger;
       times *= 4) {
    all = workload(scenario, times);
  }
  Workload requests = *all;
  const std::int64_t count = std::min(wanted, std::ssize(requests.requests));
  requests.requests.resize(static_cast<std::size_t>(count));
  requests.closed_loop_concurrency = concurrency;
  requests.warmup_requests = std::min(concurrency, count / 2);
  requests.drain_requests = 0;
  const ServiceModel service = model(scenario, contexts_differ(*all));
  outcome.num_requests = count;
  static_cast<void>(serve_requests(scenario, *all, requests, service, outcome));
  return outcome;
}

double Evaluator::highest_load(const Scenario& scenario, double guess, Saturation* found) {
  constexpr double kFarthest = 1024;
  constexpr double kTolerance = 1.01;
  const auto meets = [&](double load) {
    const Outcome outcome = serve(scenario, Fidelity::kFull, load);
    const bool is_met = outcome.meets();
    if (found != nullptr) (is_met ? found->at_most : found->above) = outcome;
    return is_met;
  };
  double low = guess;
  double high = guess;
  if (meets(guess)) {
    for (double step = 1.3; meets(high *= step); step = 2) {
      low = high;
      if (high > kFarthest) return high;
    }
  } else {
    for (double step = 1.3; !meets(low /= step); step = 2) {
      high = low;
      if (low < 1 / kFarthest) return 0;
    }
  }
  while (high / low > kTolerance) {
    const double middle = std::sqrt(low * high);
    (meets(middle) ? low : high) = middle;
  }
  return low;
}

Saturation Evaluator::saturate(const Scenario& scenario, int num_seeds) {
  Saturation found{.num_seeds = 1};
  found.load = found.low = found.high = highest_load(scenario, 1, &found);
  const bool is_drawn = !std::holds_alternative<TraceWorkload>(scenario.workload.source);
  std::vector<double> loads{found.load};
  for (int i = 1; i < num_seeds && is_drawn && found.load > 0; ++i) {
    Scenario other = scenario;
    other.seed += static_cast<std::uint64_t>(i);
    loads.push_back(highest_load(other, found.load, nullptr));
  }
  std::ranges::sort(loads);
  found.num_seeds = static_cast<int>(loads.size());
  found.low = loads.front();
  found.high = loads.back();
  found.load = loads[(loads.size() - 1) / 2];
  return found;
}

}  // namespace orrery
