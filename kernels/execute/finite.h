#pragma once

// Counts values that are not finite, to find the op that made the first one.

#include <cstdint>

#include "kernels/cuda/handles.h"
#include "sim/plan/plan.h"

namespace orrery {

// Adds to *found how many of `count` elements are infinite or NaN. data: [count] of bf16, fp16,
// fp32 or fp8 (NaN alone: e4m3 has no infinity); other dtypes have none. Enqueues one kernel that
// reads them once.
void count_non_finite(const cuda::Stream& stream, DType dtype, const void* data, std::int64_t count,
                      std::uint32_t* found);

}  // namespace orrery
