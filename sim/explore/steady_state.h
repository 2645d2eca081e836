#pragma once

// A service in closed form: replicas alike, mean lengths, a batch that stays as it is.
//
//   tpot(b) = T(b) / (1 - l X)      T(b): a decode step of b sequences; X: what a prompt adds to
//   b       = l O tpot(b)           the steps it runs in; l: requests per second and replica; O:
//   l_max   = 1 / (X + O T(b) / b)  output tokens
//
// The largest b is what seats and KV blocks hold. Prefill and decode apart, a replica has one of X
// and T.

#include <string>
#include <vector>

#include "sim/scenario/scenario.h"
#include "sim/scenario/service.h"
#include "sim/serve/serve.h"
#include "sim/units/energy.h"
#include "sim/units/units.h"

namespace orrery {

// Where the steady state of mean lengths lies.
struct SteadyState {
  double capacity_requests_per_s = 0;  // of the whole service
  double offered_requests_per_s = 0;   // 0: requests do not come at times of their own
  double utilisation = 0;              // offered over that; of a closed loop 1
  double requests_per_s = 0;           // that it serves
  double output_tokens_per_s = 0;
  double batch = 0;  // sequences that decode on a replica
  Seconds ttft;
  Seconds tpot;
  Joules per_output_token;  // of all boards; 0: not known
  // No service of this shape and size can meet the SLO: why. Empty where one may. What is bounded
  // is bounded from below by steps alone on a GPU, at kBoundSlack of their time.
  std::string impossible;
};
// Step times of tables may fall where work grows, by less than this.
inline constexpr double kBoundSlack = 0.9;

SteadyState steady_state(const Scenario& scenario, const Workload& workload,
                         const ServiceModel& model);

// One point of a replica's curve: closed loops of so many sequences on each.
struct OperatingPoint {
  double batch = 0;  // sequences on a replica, waiting for their first token or decoding
  Seconds ttft;
  Seconds tpot;
  double output_tokens_per_s_per_gpu = 0;
  Joules per_output_token;
};
// At the batches 1, 2, 4, ... up to what seats and KV blocks hold.
std::vector<OperatingPoint> load_curve(const Scenario& scenario, const Workload& workload,
                                       const ServiceModel& model);

}  // namespace orrery
