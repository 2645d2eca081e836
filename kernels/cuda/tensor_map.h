#pragma once

// Tensor maps of the bulk copy engine (TMA). Pass them as `const __grid_constant__ CUtensorMap`.

#include <cuda.h>

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/cuda/dtypes.h"

namespace orrery::cuda {

// Of a map's elements; fp8 as bytes.
template <typename T>
inline constexpr CUtensorMapDataType kMapType =
    std::is_same_v<T, fp8>    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
    : std::is_same_v<T, fp16> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

enum class Swizzle : std::uint8_t { kNone, k32, k64, k128 };  // bytes of the swizzle atom's row

// One map of a tensor in device memory, sizes and strides innermost first.
//   data     16-byte aligned
//   sizes    elements per dim, 1 to 5 dims
//   strides  bytes per step of dims 1.. (one fewer than sizes), multiples of 16
//   box      elements per dim of one copy, at most 256 each; the innermost at most the swizzle
//   width
//   promotion  bytes that a miss of the L2 cache fetches; what lies beside a row of the box should
//   be wanted soon too
// Reads outside of `sizes` give zeros. Throws std::runtime_error when the driver refuses the map.
CUtensorMap tensor_map(CUtensorMapDataType type, const void* data,
                       std::span<const std::uint64_t> sizes, std::span<const std::uint64_t> strides,
                       std::span<const std::uint32_t> box, Swizzle swizzle,
                       CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

// The map of a row-major matrix [rows, columns] whose rows are `row_bytes` apart.
CUtensorMap matrix_map(CUtensorMapDataType type, const void* data, std::uint64_t rows,
                       std::uint64_t columns, std::uint64_t row_bytes, std::uint32_t box_rows,
                       std::uint32_t box_columns, Swizzle swizzle,
                       CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

}  // namespace orrery::cuda
