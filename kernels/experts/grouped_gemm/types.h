#pragma once

// The element types of grouped gemms: of x and w, and of the y that comes of them.

#include <type_traits>

#include "kernels/cuda/dtypes.h"
#include "sim/plan/plan.h"

namespace orrery {

// Of y where x and w are of T.
template <typename T>
using GroupedGemmResult = std::conditional_t<std::is_same_v<T, fp16>, fp16, bf16>;

// body.operator()<T>() for the T of a dtype that require_grouped_gemm_shape() takes.
template <typename Body>
auto with_grouped_gemm_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFp8:
      return body.template operator()<fp8>();
    case DType::kFp16:
      return body.template operator()<fp16>();
    default:
      return body.template operator()<bf16>();
  }
}

}  // namespace orrery
