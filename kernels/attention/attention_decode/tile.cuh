#pragma once

// Attention of up to 8 kHeadTiles query heads over one tile of keys and one of values in shared
// memory, by one warp. Keys take the 16-row side of the MMAs and heads the 8-column side, so that
// few heads per kv head waste little:
//
//   S^T [keys, heads] = K Q^T        A = K as it lies, 16 bytes of a row per lane
//   P^T                               S^T's fragment turned into a B fragment by movmatrix
//   O^T [dims, heads] += V^T P^T     A = V through the transposing ldmatrix
//
// A tile holds keys_per_unit() rows in halves of 128 bytes per row (64 where a row is that short),
// with the swizzle of the same width. Lane (g, t) reads chunks 2t and 2t+1 of each half of rows g
// and g+8: the order of dims that this gives the MMAs is the same in Q, and free of bank conflicts.
// fp8 is widened to fp16 (exactly); its queries are scaled to fp16's range by a power of two per
// head.

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/attention/attention_decode/split.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sm90.cuh"

namespace orrery::decode {

template <typename T, int kHeadDim>
struct TileShape {
  static constexpr int kKeys = kTileBytes / (kHeadDim * static_cast<int>(sizeof(T)));
  static constexpr int kKeyTiles = kKeys / 16;
  static constexpr int kDimTiles = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * sizeof(T) < 128 ? kHeadDim * sizeof(T) : 128;
  static constexpr int kHalves = kHeadDim * sizeof(T) / kRowBytes;
  static constexpr int kHalfBytes = kTileBytes / kHalves;
  static constexpr int kChunks = kRowBytes / 64;  // 16-byte chunks of a row's half per lane
  static constexpr int kHalfDims = kHeadDim / kHalves;
  static constexpr int kChunkDims = 16 / sizeof(T);

  // Offset in a tile of 16-byte chunk `chunk` of `row` in a half.
  __device__ static int at(int half, int row, int chunk) {
    constexpr int kMask = kRowBytes / 16 - 1;
    return half * kHalfBytes + row * kRowBytes + (chunk ^ (row * kRowBytes / 128 & kMask)) * 16;
  }
};

template <typename T>
inline constexpr bool kIsFp8 = std::is_same_v<T, fp8>;

template <typename T>
__device__ inline void mma(float (&d)[4], const std::uint32_t (&a)[4],
                           const std::uint32_t (&b)[2]) {
  if constexpr (kIsFp8<T>) {
    sm90::mma_f16(d, a, b);
  } else {
    sm90::mma_bf16(d, a, b);
  }
}

// Two values rounded to the MMAs' format, `low` in the low half.
template <typename T>
__device__ inline std::uint32_t pack(float low, float high) {
  if constexpr (kIsFp8<T>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

// The running softmax of a warp over the keys it has seen, in base 2. Lane (g, t) holds of head
// 8 n + 2t + i, i = 0 and 1:
//   max[n][i]; sum[n][i] of its own keys; acc[n][d][i] and [2 + i], two dims of dim tile d.
template <typename T, int kHeadDim, int kHeadTiles>
struct WarpSoftmax {
  using Shape = TileShape<T, kHeadDim>;

  std::uint32_t queries[kHeadTiles][Shape::kDimTiles][2];
  float score_scale[kHeadTiles][2];
  float max[kHeadTiles][2];
  float sum[kHeadTiles][2];
  float acc[kHeadTiles][Shape::kDimTiles][4];

  // Asks for the queries. q: the first of `heads` rows of kHeadDim; rows past them are zero.
  __device__ void load(const bf16* q, int heads) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      load_queries(q, n, heads, [](const uint4* vector) { return __ldg(vector); });
    }
  }
  // The same from shared memory.
  __device__ void load_shared(const bf16* q, int heads) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      load_queries(q, n, heads, [](const uint4* vector) { return *vector; });
    }
  }
  // Waits for the queries, and starts with no keys.
  __device__ void start(float scale_log2) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      float scale = scale_log2;
      if constexpr (kIsFp8<T>) scale *= normalise_queries(n);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        score_scale[n][i] = __shfl_sync(0xFFFFFFFF, scale, (2 * (threadIdx.x % 4) + i) * 4);
        max[n][i] = -INFINITY;
        sum[n][i] = 0;
      }
#pragma unroll
      for (int d = 0; d < Shape::kDimTiles; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][d][i] = 0;
      }
    }
  }

  // scores[m][n] = S^T of keys 16 m .. 16 m + 15.
  __device__ void score(const char* keys, float (&scores)[Shape::kKeyTiles][kHeadTiles][4]) const {
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < Shape::kKeyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
      }
      int step = 0;
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
          const int column = Shape::kChunks * t + chunk;
          const auto row = [&](int key) {
            return *reinterpret_cast<const uint4*>(keys + Shape::at(half, key, column));
          };
          const uint4 low = row(16 * m + g);
          const uint4 high = row(16 * m + g + 8);
          multiply_words(low.x, low.y, high.x, high.y, step, scores[m]);
          multiply_words(low.z, low.w, high.z, high.w, step, scores[m]);
        }
      }
    }
  }

  // Takes the scores' weights into max and sum, scales acc to the new max, and gives the weights.
  __device__ void weigh(const float (&scores)[Shape::kKeyTiles][kHeadTiles][4],
                        std::uint32_t (&weights)[Shape::kKeyTiles][kHeadTiles][2]) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      float scaled[Shape::kKeyTiles][4];
      float newest[2] = {max[n][0], max[n][1]};
#pragma unroll
      for (int m = 0; m < Shape::kKeyTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scaled[m][i] = scores[m][n][i] * score_scale[n][i % 2];
          newest[i % 2] = fmaxf(newest[i % 2], scaled[m][i]);
        }
      }
      float keep[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          newest[i] = fmaxf(newest[i], __shfl_xor_sync(0xFFFFFFFF, newest[i], distance));
        }
        keep[i] = exp2f(max[n][i] - newest[i]);
        max[n][i] = newest[i];
        sum[n][i] *= keep[i];
      }
#pragma unroll
      for (int m = 0; m < Shape::kKeyTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scaled[m][i] = exp2f(scaled[m][i] - newest[i % 2]);
          sum[n][i % 2] += scaled[m][i];
        }
        weights[m][n][0] = sm90::transpose_matrix(pack<T>(scaled[m][0], scaled[m][1]));
        weights[m][n][1] = sm90::transpose_matrix(pack<T>(scaled[m][2], scaled[m][3]));
      }
      if (__any_sync(0xFFFFFFFF, keep[0] != 1 || keep[1] != 1)) {
#pragma unroll
        for (int d = 0; d < Shape::kDimTiles; ++d) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[n][d][i] *= keep[i % 2];
        }
      }
    }
  }

  // acc += V^T P^T
  __device__ void accumulate(const char* values,
                             const std::uint32_t (&weights)[Shape::kKeyTiles][kHeadTiles][2]) {
    const std::uint32_t base = static_cast<std::uint32_t>(__cvta_generic_to_shared(values));
    const int row = threadIdx.x % 8;
    const int matrix = threadIdx.x % 32 / 8;
#pragma unroll
    for (int m = 0; m < Shape::kKeyTiles; ++m) {
      if constexpr (kIsFp8<T>) {
        // Matrices: keys 0-7 and 8-15 of the 16 dims of tile d, then of tile d + 1. Row g of a dim
        // tile is dim 2g, row g + 8 dim 2g + 1.
        const int key = 16 * m + matrix % 2 * 8 + row;
#pragma unroll
        for (int d = 0; d < Shape::kDimTiles; d += 2) {
          std::uint32_t pairs[4];
          sm90::load_matrix_transposed(pairs, base + Shape::at(0, key, d + matrix / 2));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            std::uint32_t a[4];
            constexpr unsigned kKeyMinor = 0x3120;  // dim 2g of both keys, then dim 2g + 1
            sm90::widen_fp8(__byte_perm(pairs[2 * i], 0, kKeyMinor), a[0], a[1]);
            sm90::widen_fp8(__byte_perm(pairs[2 * i + 1], 0, kKeyMinor), a[2], a[3]);
#pragma unroll
            for (int n = 0; n < kHeadTiles; ++n) mma<T>(acc[n][d + i], a, weights[m][n]);
          }
        }
      } else {
        // Matrices: keys 0-7 of dims 0-7 and 8-15 of the tile, then keys 8-15.
        const int key = 16 * m + matrix / 2 * 8 + row;
#pragma unroll
        for (int d = 0; d < Shape::kDimTiles; ++d) {
          const int chunk = 2 * d + matrix % 2;
          std::uint32_t a[4];
          sm90::load_matrix_transposed(a, base + Shape::at(d / 4, key, chunk % 8));
#pragma unroll
          for (int n = 0; n < kHeadTiles; ++n) mma<T>(acc[n][d], a, weights[m][n]);
        }
      }
    }
  }

  // sum becomes that of all of the warp's keys.
  __device__ void finish() {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          sum[n][i] += __shfl_xor_sync(0xFFFFFFFF, sum[n][i], distance);
        }
      }
    }
  }

  // The dim of acc[n][d][i] in this lane.
  __device__ static int dim_of(int d, int i) {
    const int g = threadIdx.x % 32 / 4;
    return 16 * d + (kIsFp8<T> ? 2 * g + i / 2 : g + i / 2 * 8);
  }

 private:
  // One word of keys of rows g and g + 8 is a step of 8 dims per lane pair in fp8, two are one step
  // in bf16.
  __device__ void multiply_words(std::uint32_t low0, std::uint32_t low1, std::uint32_t high0,
                                 std::uint32_t high1, int& step,
                                 float (&scores)[kHeadTiles][4]) const {
    if constexpr (kIsFp8<T>) {
      multiply_fp8(low0, high0, step++, scores);
      multiply_fp8(low1, high1, step++, scores);
    } else {
      const std::uint32_t a[4] = {low0, high0, low1, high1};
#pragma unroll
      for (int n = 0; n < kHeadTiles; ++n) mma<T>(scores[n], a, queries[n][step]);
      ++step;
    }
  }
  __device__ void multiply_fp8(std::uint32_t low, std::uint32_t high, int step,
                               float (&scores)[kHeadTiles][4]) const {
    std::uint32_t a[4];
    sm90::widen_fp8(low, a[0], a[2]);
    sm90::widen_fp8(high, a[1], a[3]);
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) mma<T>(scores[n], a, queries[n][step]);
  }

  template <typename Load>
  __device__ void load_queries(const bf16* q, int n, int heads, const Load& load) {
    const int t = threadIdx.x % 4;
    const int head = 8 * n + threadIdx.x % 32 / 4;
    constexpr int kWords = Shape::kChunkDims / 2;  // bf16 pairs of a chunk
    int step = 0;
    int half_step = 0;
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half) {
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
        const int dim = half * Shape::kHalfDims + (Shape::kChunks * t + chunk) * Shape::kChunkDims;
#pragma unroll
        for (int word = 0; word < kWords; word += 4) {
          uint4 value{};
          if (head < heads) {
            value = load(reinterpret_cast<const uint4*>(q + head * kHeadDim + dim + 2 * word));
          }
          const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            queries[n][step][half_step] = words[i];
            step += half_step;
            half_step ^= 1;
          }
        }
      }
    }
  }

  // Queries of head g as fp16 times a power of two that brings the largest into [1, 2); gives what
  // undoes it.
  __device__ float normalise_queries(int n) {
    float largest = 0;
    const auto values = [](std::uint32_t word) {
      return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
    };
#pragma unroll
    for (int step = 0; step < Shape::kDimTiles; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 pair = values(queries[n][step][i]);
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 2));
    const int exponent = largest > 0 && largest < INFINITY ? ilogbf(largest) : 0;
#pragma unroll
    for (int step = 0; step < Shape::kDimTiles; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 pair = values(queries[n][step][i]);
        queries[n][step][i] = pack<T>(ldexpf(pair.x, -exponent), ldexpf(pair.y, -exponent));
      }
    }
    return ldexpf(1, exponent);
  }
};

// Keys of the unit that the token does not see get weight zero: their scores become -infinity, and
// their values, which may be anything, zero. `first` and `end`: keys seen, counted from the unit's.
template <typename T, int kHeadDim, int kHeadTiles>
__device__ inline void mask(float (&scores)[TileShape<T, kHeadDim>::kKeyTiles][kHeadTiles][4],
                            int first, int end) {
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int m = 0; m < TileShape<T, kHeadDim>::kKeyTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 16 * m + g + i / 2 * 8;
        if (key < first || key >= end) scores[m][n][i] = -INFINITY;
      }
    }
  }
}
template <typename T, int kHeadDim>
__device__ inline void zero_unseen(char* values, int first, int end) {
  using Shape = TileShape<T, kHeadDim>;
  constexpr int kRowChunks = Shape::kRowBytes / 16;
  for (int i = threadIdx.x % 32; i < kTileBytes / 16; i += 32) {
    const int row = i / kRowChunks % Shape::kKeys;
    if (row < first || row >= end) reinterpret_cast<uint4*>(values)[i] = uint4{};
  }
  sm90::fence_async_shared();
  __syncwarp();
}

}  // namespace orrery::decode
