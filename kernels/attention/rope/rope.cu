#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/attention/rope/rope.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/vector.cuh"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kPairs = 8;  // of a thread, for each of its heads

struct Operands {
  bf16* queries;
  bf16* keys;
  const std::int32_t* positions;
  const float* cosines;
  const float* sines;
  RopeShape shape;

  // Start of a head; query heads come first.
  __device__ bf16* head(std::int64_t token, std::int64_t head) const {
    return head < shape.query_heads
               ? queries + token * shape.query_stride + head * shape.head_dim
               : keys + token * shape.key_stride + (head - shape.query_heads) * shape.head_dim;
  }
};

__device__ void rotate(float& a, float& b, float cosine, float sine) {
  const float rotated = a * cosine - b * sine;
  b = b * cosine + a * sine;
  a = rotated;
}

__device__ void load_factors(const float* table, float (&factors)[kPairs]) {
  const auto* const vectors = reinterpret_cast<const float4*>(table);
#pragma unroll
  for (int i = 0; i < kPairs / 4; ++i) {
    const float4 four = __ldg(vectors + i);
    factors[4 * i] = four.x;
    factors[4 * i + 1] = four.y;
    factors[4 * i + 2] = four.z;
    factors[4 * i + 3] = four.w;
  }
}

// A thread turns the same 8 pairs of kHeads heads of a token with cosines and sines loaded once:
//   halves:      [0 .. d/2) | [d/2 .. d)   a vector of each half
//   interleaved: two neighbouring vectors
// `per_token` threads for a token: for each group of kHeads heads, rotary_dim / 16 threads.
template <bool kInterleaved, int kHeads>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(Operands operands, unsigned items, unsigned per_token, unsigned per_head) {
  begin_dependent();
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= items) return;
  const RopeShape& shape = operands.shape;
  const unsigned token = item / per_token;
  const unsigned within = item % per_token;
  const unsigned pair = within % per_head * kPairs;
  const std::int64_t heads = shape.query_heads + shape.key_heads;
  const std::int64_t first_head = static_cast<std::int64_t>(within / per_head) * kHeads;
  const std::int64_t half = shape.rotary_dim / 2;
  const std::int64_t low_at = kInterleaved ? 2 * pair : pair;
  const std::int64_t high_at = kInterleaved ? low_at + kVectorSize : pair + half;
  uint4 low[kHeads];
  uint4 high[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (first_head + i >= heads) continue;
    const bf16* const head = operands.head(token, first_head + i);
    low[i] = load_once(head + low_at);
    high[i] = load_once(head + high_at);
  }
  const std::int64_t row = operands.positions[token] * half + pair;
  float cosines[kPairs];
  float sines[kPairs];
  load_factors(operands.cosines + row, cosines);
  load_factors(operands.sines + row, sines);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (first_head + i >= heads) continue;
    float a[kVectorSize];
    float b[kVectorSize];
    unpack(low[i], a);
    unpack(high[i], b);
    if constexpr (kInterleaved) {
#pragma unroll
      for (int j = 0; j < kVectorSize / 2; ++j) {
        rotate(a[2 * j], a[2 * j + 1], cosines[j], sines[j]);
        rotate(b[2 * j], b[2 * j + 1], cosines[j + kVectorSize / 2], sines[j + kVectorSize / 2]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kVectorSize; ++j) rotate(a[j], b[j], cosines[j], sines[j]);
    }
    bf16* const head = operands.head(token, first_head + i);
    store(head + low_at, pack(a));
    store(head + high_at, pack(b));
  }
}

// Any width and alignment: a block per token, pair by pair.
__global__ void __launch_bounds__(kThreads) rope_scalar_kernel(Operands operands) {
  begin_dependent();
  const RopeShape& shape = operands.shape;
  const std::int64_t half = shape.rotary_dim / 2;
  const std::int64_t token = blockIdx.x;
  const std::int64_t row = operands.positions[token] * half;
  for (std::int64_t i = threadIdx.x; i < (shape.query_heads + shape.key_heads) * half;
       i += kThreads) {
    bf16* const head = operands.head(token, i / half);
    const std::int64_t pair = i % half;
    const std::int64_t low = shape.interleaved ? 2 * pair : pair;
    const std::int64_t high = shape.interleaved ? low + 1 : pair + half;
    float a = __bfloat162float(head[low]);
    float b = __bfloat162float(head[high]);
    rotate(a, b, operands.cosines[row + pair], operands.sines[row + pair]);
    head[low] = __float2bfloat16_rn(a);
    head[high] = __float2bfloat16_rn(b);
  }
}

template <bool kInterleaved, int kHeads>
void launch_vectors(const cuda::Stream& stream, const Operands& operands) {
  const RopeShape& shape = operands.shape;
  const std::int64_t heads = shape.query_heads + shape.key_heads;
  const std::int64_t per_head = shape.rotary_dim / (2 * kPairs);
  const std::int64_t per_token = (heads + kHeads - 1) / kHeads * per_head;
  const std::int64_t items = shape.tokens * per_token;
  if (items > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("rope: " + std::to_string(items) +
                                " groups of pairs, expected at most 2^31 - 1");
  }
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>((items + kThreads - 1) / kThreads)),
                .block = dim3(kThreads),
                .programmatic = true},
               rope_kernel<kInterleaved, kHeads>, operands, static_cast<unsigned>(items),
               static_cast<unsigned>(per_token), static_cast<unsigned>(per_head));
}

template <bool kInterleaved>
void launch_vectors(const cuda::Stream& stream, const Operands& operands) {
  constexpr int kHeads = 4;
  constexpr std::int64_t kFewVectors = 132L * 2048 * kHeads;  // less than fills the device
  const RopeShape& shape = operands.shape;
  const std::int64_t vectors =
      shape.tokens * (shape.query_heads + shape.key_heads) * shape.rotary_dim / (2 * kPairs);
  if (vectors < kFewVectors) return launch_vectors<kInterleaved, 1>(stream, operands);
  launch_vectors<kInterleaved, kHeads>(stream, operands);
}

}  // namespace

void rope(const cuda::Stream& stream, bf16* queries, bf16* keys, const std::int32_t* positions,
          const float* cosines, const float* sines, const RopeShape& shape) {
  if (shape.rotary_dim % 2 != 0 || shape.rotary_dim > shape.head_dim) {
    throw std::invalid_argument("rope: rotary_dim is " + std::to_string(shape.rotary_dim) +
                                ", expected an even number up to head_dim, " +
                                std::to_string(shape.head_dim));
  }
  if (shape.tokens == 0 || shape.query_heads + shape.key_heads == 0 || shape.rotary_dim == 0)
    return;
  Operands operands{queries, keys, positions, cosines, sines, shape};
  RopeShape& dims = operands.shape;
  if (dims.query_stride == 0) dims.query_stride = dims.query_heads * dims.head_dim;
  if (dims.key_stride == 0) dims.key_stride = dims.key_heads * dims.head_dim;
  const bool whole = dims.rotary_dim % (2 * kPairs) == 0 &&
                     (dims.head_dim | dims.query_stride | dims.key_stride) % kVectorSize == 0;
  if (!whole || !vector_aligned(queries, keys, cosines, sines)) {
    cuda::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(dims.tokens)),
                  .block = dim3(kThreads),
                  .programmatic = true},
                 rope_scalar_kernel, operands);
  } else if (dims.interleaved) {
    launch_vectors<true>(stream, operands);
  } else {
    launch_vectors<false>(stream, operands);
  }
}

}  // namespace orrery
