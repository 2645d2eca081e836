#pragma once

// Timing of communication among the GPUs of this host.

#include <span>
#include <string_view>

namespace orrery::tool {

bool is_peer_timing(std::string_view what);
// what: "collectives", "links", "kv_transfer", "hops" or "fused_moe_ranks"; options: --gpus N[,N…]
// (default: 2 and all), -o DIR to write tables there. Throws std::invalid_argument for other
// options or more GPUs than there are.
int time_peers(std::string_view what, std::span<const std::string_view> options);

}  // namespace orrery::tool
