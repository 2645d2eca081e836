#pragma once

// Commands on communication among the GPUs of this host.

#include <span>
#include <string_view>

namespace orrery::tool {

struct CheckCount {
  int passed = 0;
  int failed = 0;
};

// Collectives and transfers between 2 GPUs and among all (at most 8), printing a line per call;
// with fewer than two GPUs prints that they were skipped.
CheckCount check_peers();

bool is_peer_timing(std::string_view what);
// what: "collectives", "links" or "kv_transfer"; options: --gpus N[,N…] (default: 2 and all), -o
// DIR to write tables there. Throws std::invalid_argument for other options or more GPUs than there
// are.
int time_peers(std::string_view what, std::span<const std::string_view> options);

}  // namespace orrery::tool
