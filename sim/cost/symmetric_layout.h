#pragma once

// The memory of FlashDMoE's symmetric layout L[P, R, B, E, C, H], which each rank has a copy of:
// peers, two rounds (dispatch, combine), two buffers (outgoing, incoming), experts of a rank, rows
// of an expert from a peer, hidden (arXiv 2506.04667, section 3.2).

#include <cstdint>

#include "sim/units/units.h"

namespace orrery {

struct SymmetricLayout {
  std::int64_t tokens = 0;       // S, of a rank
  std::int64_t hidden = 0;       // H
  std::int64_t experts = 0;      // of all ranks
  Bytes element{4};              // FP32, the paper's
  std::int64_t tile_rows = 128;  // bM
};

// The paper's Size(L) (section 3.2.1), with Size(T) = S H elements:
//   4 Size(T) where S / experts >= bM, else 4 (bM experts / S) Size(T).
// Throws std::invalid_argument unless all are positive.
Bytes symmetric_layout_estimate(const SymmetricLayout& layout);

// The layout itself, 4 experts C H elements: C is S / experts rounded up to whole tiles, whatever
// top-k is; rows beyond C are dropped. Throws as above.
Bytes symmetric_layout_size(const SymmetricLayout& layout);

}  // namespace orrery
