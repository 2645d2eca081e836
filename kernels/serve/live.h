#pragma once

// A service in real time: what sim/serve/serve.h simulates, with the steps run by backends that
// take as long as they take (kernels/serve/executed_steps.h) and requests sent when the clock says
// so. The same replicas decide the batches, each on a thread of its own.

#include <exception>
#include <functional>
#include <memory>

#include "kernels/serve/live_clock.h"
#include "sim/serve/serve.h"

namespace orrery {

struct LiveResult {
  // Requests that finished, steps that ran, metrics over them.
  ServiceResult service;
  bool is_complete = false;  // every request finished
  std::exception_ptr error;  // what ended it early, unless it was asked to
};

// As serve(): the same arguments, the same order of events, the same exceptions for what cannot be
// served, and std::invalid_argument for a router that asks for prefix caches. `clock` is the one
// that the backends read; it restarts here. Closed loops and open ones. When `is_stopped` (may be
// empty; asked 50 times a second) says so, or a backend throws, steps that run are finished and no
// others begun.
LiveResult serve_live(const Workload& workload, const ServiceConfig& config, const Slo& slo,
                      const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
                      LiveClock& clock, const Progress& progress = {},
                      const std::function<bool()>& is_stopped = {});

}  // namespace orrery
