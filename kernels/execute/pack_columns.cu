#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/execute/pack_columns.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;

struct Matrices {
  ColumnParts of[kMostPacked];
};

// Of units that divide columns and addresses.
template <typename Unit>
__device__ void pack(const ColumnParts& matrix) {
  const Unit* const from = reinterpret_cast<const Unit*>(matrix.from);
  Unit* const to = reinterpret_cast<Unit*>(matrix.to);
  const std::int64_t columns = matrix.columns / static_cast<std::int64_t>(sizeof(Unit));
  const std::int64_t count = matrix.rows * matrix.parts * columns;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::int64_t row = i / columns % matrix.rows;
    const std::int64_t part = i / columns / matrix.rows;
    to[i] = from[(row * matrix.parts + part) * columns + i % columns];
  }
}

__global__ void __launch_bounds__(kThreads) pack_kernel(const Matrices matrices) {
  const ColumnParts& matrix = matrices.of[blockIdx.y];
  const auto addresses = reinterpret_cast<std::uintptr_t>(matrix.from) |
                         reinterpret_cast<std::uintptr_t>(matrix.to) |
                         static_cast<std::uintptr_t>(matrix.columns);
  if (addresses % sizeof(uint4) == 0) {
    pack<uint4>(matrix);
  } else if (addresses % sizeof(std::uint32_t) == 0) {
    pack<std::uint32_t>(matrix);
  } else {
    pack<std::uint8_t>(matrix);
  }
}

}  // namespace

void pack_columns(const cuda::Stream& stream, std::span<const ColumnParts> matrices) {
  if (matrices.size() > kMostPacked) {
    throw std::invalid_argument(std::to_string(matrices.size()) +
                                " matrices to pack at once, expected at most " +
                                std::to_string(kMostPacked));
  }
  Matrices given{};
  std::ranges::copy(matrices, given.of);
  std::int64_t most = 0;
  for (const ColumnParts& matrix : matrices) {
    most = std::max(most, matrix.rows * matrix.parts * matrix.columns);
  }
  if (most == 0) return;
  constexpr std::int64_t kBytes = kThreads * std::int64_t{sizeof(uint4)};  // of a block
  const auto wave = static_cast<std::int64_t>(cuda::device_properties().multiProcessorCount) * 8;
  const auto blocks = static_cast<unsigned>(std::min((most + kBytes - 1) / kBytes, wave));
  cuda::launch(
      stream,
      {.grid = dim3(blocks, static_cast<unsigned>(matrices.size())), .block = dim3(kThreads)},
      pack_kernel, given);
}

}  // namespace orrery
