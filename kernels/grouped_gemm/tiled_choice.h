#pragma once

// How the tiled grouped gemm is tiled. No CUDA.

#include <string>

namespace orrery {

// A work item is `rows` rows of one group's x against `columns` rows of its w.
struct TiledChoice {
  int rows = 128;
  int columns = 128;
  int stages = 4;
  auto operator<=>(const TiledChoice&) const = default;
};

}  // namespace orrery
