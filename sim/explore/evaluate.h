#pragma once

// What a candidate does with a workload: estimated in closed form, or served in simulated time.

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/explore/peak_use.h"
#include "sim/explore/space.h"
#include "sim/explore/steady_state.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/service.h"
#include "sim/serve/serve.h"

namespace orrery {

enum class Fidelity : std::uint8_t {
  kEstimate,  // closed form: a steady state of mean lengths
  kShort,     // the first part of the workload
  kFull       // all of it; longer where an endless one has not settled
};
inline constexpr std::array<std::string_view, 3> kFidelityNames{"estimate", "short", "full"};

// One service.
struct Outcome {
  Fidelity fidelity = Fidelity::kFull;
  double load = 1;  // multiplies the rate of arrivals, or the concurrency
  std::int64_t num_requests = 0;
  int num_gpus = 0;
  ServingMetrics metrics;
  std::optional<ServiceEnergy> energy;
  // Of a short run: the whole workload cannot meet the SLO any more.
  bool is_lost = false;
  // Of a service that no limit of the engine held up.
  std::optional<PeakUse> peak_use;
  std::string error;  // why it cannot be served; the rest is empty then

  // Not overloaded, settled, and all limits of the SLO met.
  [[nodiscard]] bool meets() const;
  // The least of its checks; 0 where it is overloaded or cannot be served.
  [[nodiscard]] double headroom() const;
};

// The highest load at which a service meets its SLO.
struct Saturation {
  double load = 0;  // times the workload's own; 0: none does
  double low = 0;   // over seeds: the least and the most
  double high = 0;
  int num_seeds = 0;
  Outcome at_most;  // of the first seed: the last load that meets, and the first that does not
  Outcome above;
};

// A part of the machine or the engine made larger, to see what limits a service.
struct Change {
  std::string_view name;
  std::string_view what;  // "25 % more HBM bandwidth"
  void (*apply)(Scenario& scenario);
};
std::span<const Change> changes();
// With a name of its own.
Scenario changed(Scenario scenario, const Change& change);

// Serves candidates. Keeps the models of shapes and workloads that it used last. Thread safe; what
// comes out does not depend on what was asked before.
class Evaluator {
 public:
  Evaluator() = default;

  // Throws ScenarioError where the workload cannot be made.
  SteadyState estimate(const Scenario& scenario);
  Outcome serve(const Scenario& scenario, Fidelity fidelity, double load = 1);
  std::vector<OperatingPoint> curve(const Scenario& scenario);
  // A full service of an operating point: requests of the scenario's lengths in a closed loop of
  // `concurrency` in all, the first so many left out of the figures.
  Outcome serve_closed(const Scenario& scenario, std::int64_t concurrency);
  // To within 1 %. `num_seeds` above 1 for workloads that are drawn from a seed.
  Saturation saturate(const Scenario& scenario, int num_seeds = 1);

 private:
  using SharedWorkload = std::shared_ptr<const Workload>;
  SharedWorkload workload(const Scenario& scenario, std::int64_t times_longer);
  std::shared_ptr<StepModel> steps(const Scenario& side, bool contexts_differ);
  ServiceModel model(const Scenario& scenario, bool contexts_differ);
  double highest_load(const Scenario& scenario, double guess, Saturation* found);

  std::mutex mutex_;
  // Most recent first.
  std::list<std::pair<std::string, std::shared_ptr<StepModel>>> models_;
  std::map<std::string, SharedWorkload> workloads_;
};

}  // namespace orrery
