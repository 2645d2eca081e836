#pragma once

// A service in real time: what sim/serve/serve.h and sim/serve/disaggregated.h simulate, with the
// steps run by backends that take as long as they take (kernels/serve/executed_steps.h), KV caches
// that move from GPU to GPU, and requests sent when the clock says so. The same loop over the same
// replicas decides.

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/serve/executed_steps.h"
#include "kernels/serve/live_clock.h"
#include "kernels/serve/live_transfers.h"
#include "kernels/serve/step_runner.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

struct LiveSide {
  ServiceConfig service;  // round_robin or least_loaded
  ExecutedStepsConfig steps;
  std::vector<StepRunner*> runners;  // of each replica
};

struct LiveSetup {
  LiveSide first;                  // serves whole requests, or the prompts of a service apart
  std::optional<LiveSide> decode;  // the other tokens; as in DisaggregatedConfig
  KvMover* mover = nullptr;        // of a service apart
  Bytes kv_block;                  // likewise; all that move
  bool moves_layers = false;       // likewise; while later ones are computed
};

struct LiveResult {
  // Requests that finished, steps that ran, metrics over them.
  ServiceResult service;
  // By request: prompt and outputs of those that have made all of them.
  std::vector<std::vector<std::int32_t>> tokens;
  bool is_complete = false;  // every request finished
  std::exception_ptr error;  // what ended it early, unless it was asked to
};

// Whether prompts find each other's blocks: what ExecutedStepsConfig::caches_prefixes is to say.
bool caches_prefixes(const EngineConfig& engine, const Workload& workload);

// As serve() and serve_disaggregated(): the same order of events, the same exceptions for what
// cannot be served, and std::invalid_argument for what is not executed. Whatever `setup` points to
// outlives the call; `clock` restarts. Closed loops and open ones. When `is_stopped` (may be empty;
// asked at least 50 times a second) says so, or a backend throws, steps that run are finished and
// no others begun.
LiveResult serve_live(const Workload& workload, const LiveSetup& setup, const Slo& slo,
                      LiveClock& clock, const Progress& progress = {},
                      const std::function<bool()>& is_stopped = {});

}  // namespace orrery
