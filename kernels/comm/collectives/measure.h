#pragma once

// Times collectives on the GPUs of a group, competitors interleaved.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/comm/collectives/peer_group.h"
#include "kernels/harness/measure.h"

namespace orrery {

// One competitor: enqueues one call of `rank` on `stream`.
using EnqueueCollective = std::function<void(int rank, const cuda::Stream& stream)>;

// Time of one call of each competitor. A sample is `launches` calls back to back on every rank,
// queued behind a gate that opens on all GPUs at once, after one more call that lines the ranks up;
// it counts the slowest rank's time between its first and last call. Every competitor is called
// once before, and samples go round them in turn. Graph mode replays one graph of all calls of a
// sample; eager mode launches them one by one before the gate opens. Operands stay where they are
// (warm L2 up to its size). Throws cuda::Error, cuda::NcclError.
std::vector<Measurement> measure_collectives(const cuda::DeviceTeam& team,
                                             std::span<const EnqueueCollective> competitors,
                                             LaunchMode mode);

}  // namespace orrery
