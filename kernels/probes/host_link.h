#pragma once

// What moves between a GPU and the host's memory, by the copy engines, as KV blocks do
// (kernels/serve/host_tier.h): the figures of a tier in a scenario (docs/kv_tiers.md).

#include <vector>

#include "kernels/harness/probe.h"

namespace orrery {

// Runs on the current device, with 2.6 GiB of its memory and 0.5 GiB that the host locks, about
// four seconds. Directions are to_gpu, to_host, and both at once: the bytes of one way over the
// time of both. Throws cuda::Error.
//   host_pieces    GB/s of 256 MiB, or 2,048 pieces, scattered, in batches of 64 or each by itself
//   host_layer     GB/s and us of one layer of units of 512 tokens of Llama-3.1-8B in BF16 (2 MiB
//                  each), layer by layer, with a unit's blocks of `block` tokens neighbours on the
//                  GPU or scattered
//   host_first     us from the end of a kernel on one stream until a copy of 4 KiB on another,
//                  which waits for it, has been waited for by the first
//   host_enqueue   us of the host for each copy of a batch
std::vector<ProbeRow> probe_host_link();

}  // namespace orrery
