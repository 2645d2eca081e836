#pragma once

// The first part of a workload, and what it already says of the whole.

#include <span>

#include "sim/serve/serve.h"
#include "sim/serve/slo.h"

namespace orrery {

// The first eighth, at least 100 requests, and in a closed loop twice those in flight.
Workload first_part(const Workload& workload);

// A typical latency of the first part, a mean or a percentile of at most kTypical, that is so far
// above its limit is above it in the whole, where replicas are fuller: of 1,309 that missed a limit
// in services of 97 random questions, none was nearer to it by more than a factor of 1.13 in the
// whole (of 4,463 at p99: 1.42).
inline constexpr double kTypical = 90;
inline constexpr double kFarAbove = 1 / 0.85;

// Whether so many of `records`, a service of the first part, lie above a limit of `slo` that the
// whole workload cannot meet it, whatever becomes of all others (a request that comes later never
// makes one before it faster, so those above stay above), or a typical latency is far above.
bool is_lost(const Slo& slo, const Workload& whole, std::span<const RequestRecord> records);

}  // namespace orrery
