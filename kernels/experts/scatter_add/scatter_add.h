#pragma once

// The rows of each token added up, a gather per token without atomics:
//   out[t] = base[t] + sum over k of row_weight[r] y[r],  r = token_rows[t, k]
// in fp32, from base over k ascending, rounded once. A row that is negative or not there (the
// choice was another rank's) adds nothing. Contiguous; 16-byte aligned pointers and a hidden that
// is a multiple of 8 (in groups up to 32,768) go by vectors; anything else is correct but slow.
//
//   dense    y [rows, hidden]
//   groups   y [groups, bound, hidden], the rows of a group from its begin on: a group is
//            num_counts / groups consecutive counts (an expert of the padding design, the experts
//            of a rank in expert parallelism), and rows are numbered without the padding

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

inline constexpr std::int64_t kMostTopk = 8;

struct TokenRowSums {
  const bf16* y = nullptr;
  const std::int32_t* token_rows = nullptr;  // [tokens, topk]
  const float* row_weight = nullptr;         // [rows]; null: not weighed
  const bf16* base = nullptr;                // [tokens, hidden], may be out; null: none
  const std::int32_t* counts = nullptr;      // [num_counts], groups only
  std::int64_t tokens = 0;
  std::int64_t topk = 0;  // 1 to kMostTopk
  std::int64_t rows = 0;  // dense: of y; groups: of row_weight
  std::int64_t hidden = 0;
  std::int64_t groups = 0;  // 0: dense; up to 512
  std::int64_t bound = 0;
  std::int64_t num_counts = 0;  // a multiple of groups
};

// out bf16 [tokens, hidden]. Throws std::invalid_argument for a topk or groups out of range,
// cuda::Error when the launch fails.
void scatter_add(const cuda::Stream& stream, const TokenRowSums& sums, bf16* out);

}  // namespace orrery
