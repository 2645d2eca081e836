#pragma once

// Replays of a graph of all-reduces whose data changes by itself and whose ranks come late.

#include <cstdint>

#include "kernels/comm/collectives/peer_group.h"

namespace orrery {

// Number of wrong elements over all ranks in `replays` replays of a graph that makes calls of
// several sizes and both algorithms. Inputs are small integers drawn from (replay, rank, call,
// element), so that sums are exact; each output is poisoned after it was compared. Ranks wait up to
// about 10 us before each call, drawn likewise.
std::int64_t replay_errors(PeerGroup& group, int replays);

}  // namespace orrery
