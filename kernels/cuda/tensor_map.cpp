#include "kernels/cuda/tensor_map.h"

#include <array>
#include <stdexcept>
#include <string>

#include "kernels/cuda/driver_function.h"

namespace orrery::cuda {
namespace {

CUtensorMapSwizzle to_driver(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::k32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::k64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::k128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  throw std::invalid_argument("unknown swizzle");
}

}  // namespace

CUtensorMap tensor_map(CUtensorMapDataType type, const void* data,
                       std::span<const std::uint64_t> sizes, std::span<const std::uint64_t> strides,
                       std::span<const std::uint32_t> box, Swizzle swizzle,
                       CUtensorMapL2promotion promotion) {
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  constexpr std::array<std::uint32_t, 5> kSteps{1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult code =
      encode(&map, type, static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(data),
             sizes.data(), strides.data(), box.data(), kSteps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             to_driver(swizzle), promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    std::string shape;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      shape +=
          (i ? " x " : "") + std::to_string(sizes[i]) + " (box " + std::to_string(box[i]) + ")";
    }
    throw std::runtime_error("cuTensorMapEncodeTiled refuses " + shape + ": error " +
                             std::to_string(static_cast<int>(code)));
  }
  return map;
}

CUtensorMap matrix_map(CUtensorMapDataType type, const void* data, std::uint64_t rows,
                       std::uint64_t columns, std::uint64_t row_bytes, std::uint32_t box_rows,
                       std::uint32_t box_columns, Swizzle swizzle,
                       CUtensorMapL2promotion promotion) {
  const std::array<std::uint64_t, 2> sizes{columns, rows};
  const std::array<std::uint64_t, 1> strides{row_bytes};
  const std::array<std::uint32_t, 2> box{box_columns, box_rows};
  return tensor_map(type, data, sizes, strides, box, swizzle, promotion);
}

}  // namespace orrery::cuda
