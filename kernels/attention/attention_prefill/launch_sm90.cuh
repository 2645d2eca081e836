#pragma once

// Host side of the prefill kernel: the plan's arguments and the maps of the operands.

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/prefill_sm90.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace orrery::prefill {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}
inline void require_aligned(const char* kernel, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    require(pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0,
            std::string(kernel) + ": q, out, keys and values must be 16-byte aligned");
  }
}

// Boxes of `box_rows` rows of one head of a bf16 tensor [rows, heads, dim], rows `stride` and heads
// `head_stride` elements apart (multiples of 8; 0: contiguous): the 128-byte panels of a row lie
// `box_rows` rows apart in shared memory, each panel swizzled.
inline CUtensorMap rows_map(const bf16* data, std::int64_t rows, std::int64_t heads, int dim,
                            int box_rows, std::int64_t stride = 0, std::int64_t head_stride = 0) {
  const auto size = [](std::int64_t count) { return static_cast<std::uint64_t>(count); };
  const std::array sizes{size(kPanel), size(rows), size(dim / kPanel), size(heads)};
  if (stride == 0) stride = heads * dim;
  if (head_stride == 0) head_stride = dim;
  const std::array strides{size(stride) * sizeof(bf16), size(kPanel) * sizeof(bf16),
                           size(head_stride) * sizeof(bf16)};
  const std::array box{static_cast<std::uint32_t>(kPanel), static_cast<std::uint32_t>(box_rows),
                       static_cast<std::uint32_t>(dim / kPanel), 1U};
  return cuda::tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, sizes, strides, box,
                          cuda::Swizzle::k128);
}

// Boxes of one panel of one page of bf16 pages [num_blocks,
// block_size, heads, dim].
inline CUtensorMap pages_map(const bf16* data, std::int64_t num_blocks, int block_size,
                             std::int64_t heads, int dim) {
  const auto size = [](std::int64_t count) { return static_cast<std::uint64_t>(count); };
  const std::array sizes{size(dim), size(heads), size(block_size), size(num_blocks)};
  const std::array strides{size(dim) * sizeof(bf16), size(heads * dim) * sizeof(bf16),
                           size(block_size * heads * dim) * sizeof(bf16)};
  const std::array box{static_cast<std::uint32_t>(kPanel), 1U,
                       static_cast<std::uint32_t>(block_size), 1U};
  return cuda::tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, sizes, strides, box,
                          cuda::Swizzle::k128);
}

// What does not depend on where keys and values lie.
inline Arguments arguments(const PrefillPlan& plan, bf16* out, float* lse, int heads, int kv_heads,
                           float scale) {
  constexpr double kLog2E = 1.4426950408889634;
  return {.tiles = plan.tiles(),
          .num_tiles = plan.num_tiles(),
          .counters = plan.counters(),
          .out = out,
          .lse = lse,
          .heads = heads,
          .heads_per_kv = heads / kv_heads,
          .scale_log2 = static_cast<float>(scale * kLog2E),
          .window = plan.window()};
}

// One block per SM, each taking tiles until none are left.
template <typename C>
void launch(const cuda::Stream& stream, const Maps& maps, const Arguments& a) {
  const std::int64_t total = std::int64_t{a.num_tiles} * a.heads;
  require(total <= std::numeric_limits<std::int32_t>::max() / 2, "prefill: too many tiles");
  const auto blocks = std::min<std::int64_t>(cuda::device_properties().multiProcessorCount, total);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(Shared<C>)},
               prefill_kernel<C>, maps, a);
}

}  // namespace orrery::prefill
