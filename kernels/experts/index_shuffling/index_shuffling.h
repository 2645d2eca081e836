#pragma once

// The experts of each token and the order of tokens sorted by expert, in one launch: top-k of the
// scores, a count of each expert's rows and a stable counting sort.
//
//   scores             [tokens, experts_total] fp32 or bf16
//   correction_bias    [experts_total], added to the scores for the choice only; null: none
//   slots              ExpertSlots on the device, where experts have copies or another order; then
//                      what is said of experts is of slots. Null: none
//   counts             [experts]        rows of each expert of this rank
//   num_rows           [1]              their sum
//   row_token          [rows]           token of each row; rows are sorted by expert, then token
//   row_weight         [rows]           its score, as normalised and scaled
//   token_rows         [tokens, topk]   row of each choice, best first; -1: its expert is elsewhere
//
// What row_token and row_weight hold past num_rows stays as it was; there are at most
// tokens * min(topk, experts) rows.
//
// A score of -infinity is of an expert that the token does not take: chosen where nothing else is
// left, it has no row (its token_rows is -1) and no weight. Rows that pad a step have no other.
//
// Of equal scores the lower expert wins. A score that is not a number counts as lower than any
// other, so it is chosen only where nothing else is left, and then its weight is not a number
// either (nor are the token's other weights, where weights are normalised): the fault shows in the
// token's own output, and in no other's. A token all of whose scores are such has the experts
// 0 .. topk - 1. Weights that are normalised are divided by their sum plus 1e-20, so scores that
// are all zero give zeros.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/experts/index_shuffling/choice.h"

namespace orrery {

struct IndexShufflingOutputs {
  std::int32_t* counts = nullptr;
  std::int32_t* num_rows = nullptr;
  std::int32_t* row_token = nullptr;
  float* row_weight = nullptr;
  std::int32_t* token_rows = nullptr;
};

// ExpertSlots on the device; null: experts in order.
struct IndexShufflingSlots {
  const std::int32_t* first = nullptr;
  const std::int32_t* slots = nullptr;
};

// Bytes of the workspace that launches of any shape need: zeroed once, 8-byte aligned, of launches
// on one stream.
std::size_t index_shuffling_workspace_bytes();

// The tile for the current device. Throws as choose_index_shuffling does.
IndexShufflingTile index_shuffling_tile(const IndexShufflingShape& shape, int free_sms = 0);

// Deterministic. Throws std::invalid_argument for a shape out of range, cuda::Error when the launch
// fails. T is float or bf16.
template <typename T>
void index_shuffling(const cuda::Stream& stream, const T* scores, const float* correction_bias,
                     const IndexShufflingSlots& slots, const IndexShufflingOutputs& outputs,
                     const IndexShufflingShape& shape, const IndexShufflingTile& tile,
                     std::byte* workspace);

}  // namespace orrery
