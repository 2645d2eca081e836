#pragma once

// How the tiled grouped gemm is tiled. No CUDA.

namespace orrery {

// A work item is `rows` rows of one group's x against `columns` rows of its w.
struct TiledChoice {
  int rows = 128;
  int columns = 256;
  auto operator<=>(const TiledChoice&) const = default;
};

}  // namespace orrery
