#pragma once

// How the tiled grouped gemm is tiled. No CUDA.

#include <cstdint>
#include <string>

namespace orrery {

// Two blocks of a cluster may share what one of them reads.
enum class TiledPair : std::uint8_t {
  kNone,
  kW,  // tiles one below the other: the same columns of w
  kX   // tiles side by side: the same rows of x
};

// A work item is `rows` rows of one group's x against `columns` rows of its w.
struct TiledChoice {
  int rows = 128;
  int columns = 256;
  int stages = 4;
  TiledPair pair = TiledPair::kNone;
  int lag = 0;  // steps of 128 bytes of k by which one warpgroup follows the other
  auto operator<=>(const TiledChoice&) const = default;
};

}  // namespace orrery
