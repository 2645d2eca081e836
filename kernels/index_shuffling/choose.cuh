#pragma once

// The best experts of a token, by some lanes of a warp that each hold a part of its scores.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/reduce.cuh"

namespace orrery {

// A score as a number that orders likewise, NaN below all others. 0: no score.
constexpr std::uint32_t kNoScore = 0;
constexpr std::uint32_t kNanScore = 1;
__device__ inline std::uint32_t order_of(float score) {
  const std::uint32_t bits = __float_as_uint(score + 0.0f);  // -0 is 0
  if (score != score) return kNanScore;
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}
__device__ inline float score_of(std::uint32_t order) {
  if (order == kNanScore) return __uint_as_float(0x7FFFFFFFU);
  return __uint_as_float(order & 0x80000000U ? order & 0x7FFFFFFFU : ~order);
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) { return __bfloat162float(value); }

constexpr int kScores = 4;  // of a vector

template <typename T>
struct Scores {
  const T* data;      // [tokens, experts]
  const float* bias;  // [experts] or null
  int experts;
  int groups;
  int topk_groups;
  bool best_two;  // of a group count, or the best alone
  bool aligned;   // vectors may be read

  __device__ float at(int token, int expert) const {
    return to_float(data[static_cast<std::int64_t>(token) * experts + expert]);
  }
  __device__ float biased(int token, int expert) const {
    return at(token, expert) + (bias != nullptr ? bias[expert] : 0.0f);
  }
  // Of experts `first` .. `first` + 3 as far as there are so many.
  __device__ void load(float (&values)[kScores], int token, int first) const {
    const T* from = data + static_cast<std::int64_t>(token) * experts + first;
    if (aligned && first < experts) {
      if constexpr (std::is_same_v<T, float>) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        values[0] = four.x;
        values[1] = four.y;
        values[2] = four.z;
        values[3] = four.w;
      } else {
        const uint2 four = *reinterpret_cast<const uint2*>(from);
        values[0] = __uint_as_float(four.x << 16);
        values[1] = __uint_as_float(four.x & 0xFFFF0000U);
        values[2] = __uint_as_float(four.y << 16);
        values[3] = __uint_as_float(four.y & 0xFFFF0000U);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      values[i] = first + i < experts ? to_float(from[i]) : 0.0f;
    }
  }
};

// The groups of `token` that are kept, as bits group * lanes per group; by all lanes of a warp,
// which share the groups among them. Equal groups: the lower one is kept.
__device__ inline int lanes_per_group(int groups) {
  return kWarpSize >> (kWarpSize - __clz(groups - 1));
}
template <typename T>
__device__ std::uint32_t kept_groups(const Scores<T>& scores, int token, int lane) {
  const int lanes = lanes_per_group(scores.groups);
  const int group = lane / lanes;
  const int size = scores.experts / scores.groups;
  std::uint32_t best = kNoScore;
  std::uint32_t second = kNoScore;
  for (int i = lane % lanes; i < size && group < scores.groups; i += lanes) {
    const std::uint32_t order = order_of(scores.biased(token, group * size + i));
    second = max(second, min(best, order));
    best = max(best, order);
  }
  for (int other = 1; other < lanes; other *= 2) {
    const std::uint32_t other_best = __shfl_xor_sync(0xFFFFFFFFU, best, other);
    const std::uint32_t other_second = __shfl_xor_sync(0xFFFFFFFFU, second, other);
    second = max(max(second, other_second), min(best, other_best));
    best = max(best, other_best);
  }
  if (scores.best_two && second != kNoScore) best = order_of(score_of(best) + score_of(second));
  int better = 0;
  for (int other = 0; other < scores.groups; ++other) {
    const std::uint32_t order = __shfl_sync(0xFFFFFFFFU, best, other * lanes);
    better += order > best || (order == best && other < group) ? 1 : 0;
  }
  return __ballot_sync(0xFFFFFFFFU, group < scores.groups && better < scores.topk_groups);
}

// One token's scores: lane l of kLanes holds the experts 4 (i kLanes + l) .. + 3 of vector i.
template <typename T, int kLanes, int kVectors>
struct TokenChoice {
  float values[kVectors][kScores];
  std::uint32_t orders[kVectors * kScores];  // kNoScore: chosen, or not to be chosen
  std::uint32_t best;                        // of this lane
  int best_expert;
  int token;
  int picked = 0;  // in lane k, the k-th choice

  __device__ void load(const Scores<T>& scores, int of_token, int lane) {
    token = of_token;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      scores.load(values[i], token, (i * kLanes + lane) * kScores);
    }
  }
  __device__ void rank(const Scores<T>& scores, int lane) {
    std::uint32_t kept = 0xFFFFFFFFU;
    int shift = 0;
    int size = scores.experts;
    if constexpr (kLanes == kWarpSize) {
      if (scores.groups > 1) {
        kept = kept_groups(scores, token, lane);
        shift = lanes_per_group(scores.groups);
        size = scores.experts / scores.groups;
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors * kScores; ++i) {
      const int expert = (i / kScores * kLanes + lane) * kScores + i % kScores;
      orders[i] = kNoScore;
      if (expert >= scores.experts) continue;
      if (shift != 0 && (kept >> expert / size * shift & 1) == 0) continue;
      const float bias = scores.bias != nullptr ? scores.bias[expert] : 0.0f;
      orders[i] = order_of(values[i / kScores][i % kScores] + bias);
    }
    rank_lane(lane);
  }
  // The best of the lane's own; of equal ones the lowest expert.
  __device__ void rank_lane(int lane) {
    best = orders[0];
    int at = 0;
#pragma unroll
    for (int i = 1; i < kVectors * kScores; ++i) {
      if (orders[i] > best) {
        best = orders[i];
        at = i;
      }
    }
    best_expert = (at / kScores * kLanes + lane) * kScores + at % kScores;
  }
  // The best of all lanes becomes choice `k`, and is out of those that follow, if any do.
  __device__ void choose(int k, int lane, bool more) {
    std::uint32_t order = best;
    auto expert = static_cast<std::uint32_t>(best_expert);
    if constexpr (kLanes == kWarpSize) {
      order = __reduce_max_sync(0xFFFFFFFFU, best);
      expert = __reduce_min_sync(0xFFFFFFFFU, best == order ? expert : 0xFFFFFFFFU);
    } else {
#pragma unroll
      for (int lanes = 1; lanes < kLanes; lanes *= 2) {
        const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, order, lanes);
        const std::uint32_t other_expert = __shfl_xor_sync(0xFFFFFFFFU, expert, lanes);
        if (other > order || (other == order && other_expert < expert)) {
          order = other;
          expert = other_expert;
        }
      }
    }
    if (lane == k) picked = static_cast<int>(expert);
    if (!more) return;
    const int relative = static_cast<int>(expert) - lane * kScores;
#pragma unroll
    for (int i = 0; i < kVectors * kScores; ++i) {
      if (relative == i / kScores * kLanes * kScores + i % kScores) orders[i] = kNoScore;
    }
    rank_lane(lane);
  }
};

}  // namespace orrery
