#pragma once

// Scores of all experts for each token: soft-max or sigmoid of a linear layer, in one launch. Sums,
// logits and scores are fp32.
//
// H200, graph, cold L2, hidden 5120: 16 experts 3.3 us at 1 token, 3.9 at 64, 43 at 16,384 (3.9
// TB/s of x); 128 experts 4.6, 5.9 and 53 us. With few tokens the start and the exchange in a
// cluster bind, with many HBM, then what an SM takes from the L2. 40 to 154 registers, none
// spilled.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/experts/routing_scores/choice.h"

namespace orrery {

// Device pointers, row-major and contiguous; x and w 16-byte aligned.
struct RoutingScoresOperands {
  const bf16* x = nullptr;     // [tokens, hidden]
  const bf16* w = nullptr;     // [experts_total, hidden]
  const bf16* bias = nullptr;  // [experts_total], or null for none
  // [tokens], or null: a row whose slot is negative pads the step. Its scores are -infinity, with
  // which it takes no expert (index_shuffling.h).
  const std::int64_t* slots = nullptr;
  float* scores = nullptr;  // [tokens, experts_total]
};

// The tile for the current device. Throws as require_routing_scores_shape does.
RoutingScoresTile routing_scores_tile(const RoutingScoresShape& shape);

// With `overlap`, w is fetched while the kernel ahead in the stream still runs (programmatic
// dependent launch): only where nothing queued on the stream writes w. No tokens launch nothing.
// Deterministic. Throws std::invalid_argument for a shape out of range, a tile that is not built or
// operands that are not aligned, cuda::Error when the launch fails.
void routing_scores(const cuda::Stream& stream, const RoutingScoresOperands& operands,
                    const RoutingScoresShape& shape, const RoutingScoresTile& tile,
                    bool overlap = false);

}  // namespace orrery
