#pragma once

// residual += x, both bf16 [tokens, hidden].

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// 16-byte aligned, contiguous, not overlapping; sums in fp32, rounded once. Throws
// std::invalid_argument for pointers that are not aligned, cuda::Error when the launch fails.
void residual_add(const cuda::Stream& stream, bf16* residual, const bf16* x, std::int64_t tokens,
                  std::int64_t hidden);

}  // namespace orrery
