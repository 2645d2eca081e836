#pragma once

// The device's element types by the names used here.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace orrery {

using bf16 = __nv_bfloat16;
using fp16 = __half;
using fp8 = __nv_fp8_e4m3;  // 4 exponent bits, 3 mantissa bits, finite up to kFp8Max

inline constexpr float kFp8Max = 448.0f;

}  // namespace orrery
