#pragma once

// What sim/serve/disaggregated.h simulates, in real time: prefill and decode replicas each on a
// thread of its own, KV blocks moved from one to the other while both compute.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/serve/executed_steps.h"
#include "kernels/serve/live.h"
#include "kernels/serve/live_clock.h"
#include "kernels/serve/step_runner.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

// Moves KV blocks between instances: GPUs (kernels/serve/kv_mover.h), or something else in tests.
class KvMover {
 public:
  virtual ~KvMover() = default;
  // Copies block source[i] of prefill replica `prefill` to block destination[i] of decode replica
  // `decode`, on all ranks and layers, and waits; how long it took on the device. Called by one
  // thread for each pair of replicas.
  virtual Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
                       std::span<const std::int32_t> destination) = 0;
};

struct LiveDisaggregatedSetup {
  // As in DisaggregatedConfig; neither side caches prefixes, routers are round_robin or
  // least_loaded.
  ServiceConfig prefill;
  ServiceConfig decode;
  ExecutedStepsConfig prefill_steps;
  ExecutedStepsConfig decode_steps;
  std::vector<StepRunner*> runners;  // prefill replicas, then decode replicas
  KvMover* mover = nullptr;
  Bytes kv_block;  // over all ranks of an instance
};

struct LiveDisaggregatedResult {
  LiveResult live;
  // Prompt and outputs of each request as far as it came, by id.
  std::vector<std::vector<std::int32_t>> tokens;
};

// Serves as serve_disaggregated() and serve_live() do; `clock` restarts here. A transfer's times in
// the records: its end as the host saw it, its start that less what it took on the device.
LiveDisaggregatedResult serve_live_disaggregated(const Workload& workload,
                                                 const LiveDisaggregatedSetup& setup,
                                                 const Slo& slo, LiveClock& clock,
                                                 const Progress& progress = {},
                                                 const std::function<bool()>& is_stopped = {});

}  // namespace orrery
