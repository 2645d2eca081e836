#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_merge/attention_merge.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/vector.cuh"

namespace orrery {
namespace {

constexpr unsigned kThreads = 256;

// A thread per vector of the result. Bound by HBM: each vector is read and written once; threads of
// a head read the same log-sum-exps, which lie in the L1 cache after the first.
__global__ void __launch_bounds__(kThreads)
    attention_merge_kernel(const __grid_constant__ MergedParts parts, std::int64_t num_parts,
                           std::int64_t heads, std::int64_t head_dim, bf16* out) {
  begin_dependent();
  const std::int64_t at =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVectorSize;
  const std::int64_t head = at / head_dim;  // of all rows
  if (head >= heads) return;
  float largest = -INFINITY;
  for (std::int64_t part = 0; part < num_parts; ++part) {
    largest = fmaxf(largest, parts.lse[part][head]);
  }
  float merged[kVectorSize] = {};
  float sum = 0;
#pragma unroll 4
  for (std::int64_t part = 0; part < num_parts; ++part) {
    const uint4 vector = load_once(parts.x[part] + at);
    const float logarithm = parts.lse[part][head];
    if (logarithm == -INFINITY) continue;
    const float weight = expf(logarithm - largest);
    float values[kVectorSize];
    unpack(vector, values);
    sum += weight;
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) merged[i] += weight * values[i];
  }
  const float scale = sum > 0 ? 1 / sum : 0;
#pragma unroll
  for (float& value : merged) value *= scale;
  store(out + at, pack(merged));
}

}  // namespace

MergedParts parts_in_order(const bf16* x, const float* lse, const AttentionMergeShape& shape) {
  MergedParts parts;
  const std::int64_t heads = shape.tokens * shape.heads;
  for (std::int64_t part = 0; part < std::min(shape.parts, kMostMergedParts); ++part) {
    const auto at = static_cast<std::size_t>(part);
    parts.x[at] = x + part * heads * shape.head_dim;
    parts.lse[at] = lse + part * heads;
  }
  return parts;
}

void attention_merge(const cuda::Stream& stream, const MergedParts& parts,
                     const AttentionMergeShape& shape, bf16* out) {
  const std::int64_t heads = shape.tokens * shape.heads;
  if (heads == 0) return;
  if (shape.parts < 1 || shape.parts > kMostMergedParts || shape.head_dim < kVectorSize ||
      shape.head_dim % kVectorSize != 0) {
    throw std::invalid_argument("attention_merge: " + std::to_string(shape.parts) +
                                " parts of heads with " + std::to_string(shape.head_dim) +
                                " elements, takes 1 to " + std::to_string(kMostMergedParts) +
                                " and multiples of 8");
  }
  for (std::int64_t part = 0; part < shape.parts; ++part) {
    if (vector_aligned(parts.x[static_cast<std::size_t>(part)], out)) continue;
    throw std::invalid_argument("attention_merge: parts and result must be 16-byte aligned");
  }
  const std::int64_t vectors = heads * shape.head_dim / kVectorSize;
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>((vectors + kThreads - 1) / kThreads)),
                .block = dim3(kThreads),
                .programmatic = true},
               attention_merge_kernel, parts, shape.parts, heads, shape.head_dim, out);
}

}  // namespace orrery
