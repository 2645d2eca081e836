#pragma once

// sum = residual + x, all bf16 [tokens, hidden].

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// Contiguous; sum may be residual, else none overlap; sums in fp32, rounded once. 16-byte aligned
// pointers and a hidden that is a multiple of 8 go by vectors; anything else is correct but slow.
// Throws cuda::Error when the launch fails.
void residual_add(const cuda::Stream& stream, const bf16* residual, const bf16* x, bf16* sum,
                  std::int64_t tokens, std::int64_t hidden);

}  // namespace orrery
