#pragma once

// Rows of x in the order of their experts: xs[row] = x[row_token[row]], times row_weight[row] where
// there are weights. Computed in fp32 and rounded to bf16, from which fp8 goes on. Contiguous;
// 16-byte aligned pointers and a hidden that is a multiple of 8, up to 32,768, go by vectors;
// anything else is correct but slow. A token outside of 0 .. tokens - 1 gives zeros.
//
//   dense    rows 0 .. *num_rows - 1 of xs [rows, hidden]; those past it cost nothing and are not
//            written; of them row_token and row_weight are read, which need not be set
//   padded   xs [experts, capacity, hidden]: the counts[e] rows of an expert and zeros behind them;
//            rows beyond the capacity are left out

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

struct GatheredTokens {
  const bf16* x = nullptr;                  // [tokens, hidden]
  const std::int32_t* row_token = nullptr;  // [rows]
  const float* row_weight = nullptr;        // [rows]; null: not weighed
  const std::int32_t* num_rows = nullptr;   // [1], dense only; null: all `rows`
  const std::int32_t* counts = nullptr;     // [experts], padded only
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  std::int64_t experts = 0;   // padded: 1 to 512; dense: 0
  std::int64_t capacity = 0;  // padded
};

// Throws std::invalid_argument for more experts than 512, cuda::Error when the launch fails.
void gather_mul(const cuda::Stream& stream, const GatheredTokens& rows, bf16* xs);
// With a scale for each row of xs: its largest value / 448.
void gather_mul_fp8(const cuda::Stream& stream, const GatheredTokens& rows, fp8* xs, float* scales);

}  // namespace orrery
