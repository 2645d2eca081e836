#pragma once

// How arg-max spreads rows of logits over the device.

#include <cstdint>

namespace orrery {

struct ArgmaxShape {
  unsigned cluster = 1;  // blocks that share a row: 1, 2, 4 or 8
  unsigned threads = 256;
};

inline constexpr unsigned kMostArgmaxCluster = 8;
inline constexpr unsigned kMostArgmaxThreads = 512;

// `parts` pieces of a row that a thread loads at a time (vectors of 16 bytes, or single logits).
// Few rows: as many blocks and threads as find four pieces each; many rows: a block for each.
ArgmaxShape argmax_shape(std::int64_t seqs, std::int64_t parts);

}  // namespace orrery
