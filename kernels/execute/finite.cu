#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/execute/finite.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;

// An element is not finite when all bits of its mask are set.
template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const Bits* data, std::int64_t count, Bits mask, std::uint32_t* found) {
  std::uint32_t own = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    if ((data[i] & mask) == mask) ++own;
  }
  if (own != 0) atomicAdd(found, own);
}

template <typename Bits>
void launch(const cuda::Stream& stream, const void* data, std::int64_t count, Bits mask,
            std::uint32_t* found) {
  const auto most = static_cast<std::int64_t>(cuda::device_properties().multiProcessorCount) * 8;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, most));
  cuda::launch(stream, {.grid = dim3(blocks), .block = dim3(kThreads)}, count_kernel<Bits>,
               static_cast<const Bits*>(data), count, mask, found);
}

}  // namespace

void count_non_finite(const cuda::Stream& stream, DType dtype, const void* data, std::int64_t count,
                      std::uint32_t* found) {
  if (count == 0) return;
  switch (dtype) {
    case DType::kBf16:
      return launch<std::uint16_t>(stream, data, count, 0x7F80, found);
    case DType::kFp16:
      return launch<std::uint16_t>(stream, data, count, 0x7C00, found);
    case DType::kFp32:
      return launch<std::uint32_t>(stream, data, count, 0x7F800000U, found);
    case DType::kFp8:
      return launch<std::uint8_t>(stream, data, count, 0x7F, found);
    default:
      return;
  }
}

}  // namespace orrery
