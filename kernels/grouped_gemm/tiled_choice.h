#pragma once

// How the tiled grouped gemm is tiled. No CUDA.

namespace orrery {

// A work item is `rows` rows of one group's x against `columns` rows of its w. What this says is
// the one that is built: no other was faster for any load that is not better streamed.
struct TiledChoice {
  int rows = 128;
  int columns = 256;
  auto operator<=>(const TiledChoice&) const = default;
};

}  // namespace orrery
