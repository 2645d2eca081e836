#pragma once

// How much of a run is its begin, when the service fills, and its end, when it empties: figures of
// both are of another service than the one that stays full.

#include <cstdint>
#include <optional>
#include <span>

#include "sim/serve/serve.h"

namespace orrery {

struct RunPhases {
  // From the first arrival until as many requests have finished as are in service on average while
  // requests come: the next one meets a service that neither began empty nor all at once. At most
  // until the last arrival, as in a service that never settles.
  Seconds ramp;
  Seconds drain;                      // from the last arrival to the last finish
  Seconds whole;                      // first arrival to last finish
  std::int64_t ramp_requests = 0;     // that came in the ramp
  std::int64_t drained_requests = 0;  // that finished in the drain
};

// Of all records, measured or not; nothing where all requests came at once.
std::optional<RunPhases> run_phases(std::span<const RequestRecord> records);

}  // namespace orrery
