#pragma once

// Units of the prefix cache that move between GPU and host for a step. No CUDA.

#include <cstdint>
#include <vector>

namespace orrery {

// One unit: its KV blocks on the GPU, in the order of its tokens, and its place on the host.
struct UnitMove {
  std::vector<std::int32_t> blocks;
  std::int64_t slot = 0;
  bool operator==(const UnitMove&) const = default;
};

// What a step does besides computing. Its writes are a batch; batches are counted from 1 and leave
// one after the other.
struct KvMoves {
  std::vector<UnitMove> writes;    // to the host, as they are when the step begins
  std::vector<UnitMove> loads;     // from the host, before a layer uses its part
  std::vector<UnitMove> computed;  // to the host, when the step has ended
  std::int64_t batch = 0;          // of `writes` and `computed`; 0: there are none
  // Blocks that the step writes to or loads into are read by batches up to this one, perhaps its
  // own `writes`; and what it loads was written by batches up to that one. 0: by none.
  std::int64_t overwrites = 0;
  std::int64_t loads_after = 0;
  std::int64_t num_slots = 0;  // on the host, of which those above are some
  [[nodiscard]] bool is_empty() const {
    return writes.empty() && loads.empty() && computed.empty() && overwrites == 0;
  }
};

}  // namespace orrery
