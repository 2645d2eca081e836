#pragma once

// A ring of buffers in shared memory, which a warp fills while others work on what is in them.

#include <cstdint>

namespace orrery {

// Position in a ring of kStages buffers. A reader waits for `phase`, a writer for `phase ^ 1`.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace orrery
