#pragma once

// The best experts of a token, by some lanes of a warp that each hold a part of its scores.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/reduce.cuh"

namespace orrery {

// A score as a number that orders likewise, all NaN below all others. 0: no score. A sum of floats
// is not -0 when one of them is not, and if not a number it is 0x7FFFFFFF (PTX ISA, add.f32).
constexpr std::uint32_t kNoScore = 0;
constexpr std::uint32_t kOrderBias = 0x80000002U;  // wraps for NaN alone, to 1
__device__ inline std::uint32_t order_of(float score, float bias = 0.0f) {
  const int bits = __float_as_int(score + bias);
  return static_cast<std::uint32_t>(bits ^ (bits >> 31 & 0x7FFFFFFF)) + kOrderBias;
}
__device__ inline float score_of(std::uint32_t order) {
  const int bits = static_cast<int>(order - kOrderBias);
  return __int_as_float(bits ^ (bits >> 31 & 0x7FFFFFFF));
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
  __device__ float bias_of(int expert) const { return bias != nullptr ? bias[expert] : 0.0f; }
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
    const std::uint32_t order =
        order_of(scores.at(token, group * size + i), scores.bias_of(group * size + i));
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
template <int kLanes, int kVectors>
struct TokenChoice {
  static constexpr int kHeld = kVectors * kScores;
  std::uint32_t orders[kHeld];  // kNoScore: chosen, or not to be chosen
  int picked = 0;               // in lane k, the k-th choice

  // The expert of place `i` less that of place 0.
  static __device__ constexpr int offset(int i) {
    return i / kScores * kLanes * kScores + i % kScores;
  }

  template <typename T>
  __device__ TokenChoice(const Scores<T>& scores, const float (&values)[kVectors][kScores],
                         int token, int lane) {
    const int first = lane * kScores;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) orders[i] = order_of(values[i / kScores][i % kScores]);
    if (scores.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int expert = min(first + offset(i), scores.experts - 1);
        orders[i] = order_of(values[i / kScores][i % kScores], scores.bias[expert]);
      }
    }
    if (scores.experts != kLanes * kHeld) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (first + offset(i) >= scores.experts) orders[i] = kNoScore;
      }
    }
    if constexpr (kLanes == kWarpSize) {
      if (scores.groups > 1) keep_groups(scores, token, lane);
    }
  }
  template <typename T>
  __device__ void keep_groups(const Scores<T>& scores, int token, int lane) {
    const int size = scores.experts / scores.groups;
    const int run = size / kScores;  // lanes that hold a group's scores
    if (size % kScores == 0 && (run & (run - 1)) == 0 && run <= kWarpSize) {
      keep_runs(scores, run, lane);
      return;
    }
    const std::uint32_t kept = kept_groups(scores, token, lane);
    const int shift = lanes_per_group(scores.groups);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int group = (lane * kScores + offset(i)) / size;
      if (group < scores.groups && (kept >> group * shift & 1) == 0) orders[i] = kNoScore;
    }
  }
  // Where each group lies in `run` lanes of a vector, 1, 2, 4 .. 32 of them.
  template <typename T>
  __device__ void keep_runs(const Scores<T>& scores, int run, int lane) {
    std::uint32_t best[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t* of = orders + i * kScores;
      best[i] = max(of[0], of[1]);
      std::uint32_t second = min(of[0], of[1]);
#pragma unroll
      for (int j = 2; j < kScores; ++j) {
        second = max(second, min(best[i], of[j]));
        best[i] = max(best[i], of[j]);
      }
      for (int lanes = 1; lanes < run; lanes *= 2) {
        const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, best[i], lanes);
        const std::uint32_t other_second = __shfl_xor_sync(0xFFFFFFFFU, second, lanes);
        second = max(max(second, other_second), min(best[i], other));
        best[i] = max(best[i], other);
      }
      if (scores.best_two && best[i] != kNoScore) {
        best[i] = order_of(score_of(best[i]) + score_of(second));
      }
    }
    int better[kVectors] = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      for (int from = 0; from < kWarpSize; from += run) {
        const std::uint32_t other = __shfl_sync(0xFFFFFFFFU, best[j], from);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const bool is_lower = j < i || (j == i && from < (lane & -run));
          better[i] += other > best[i] || (other == best[i] && is_lower) ? 1 : 0;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (better[i / kScores] >= scores.topk_groups) orders[i] = kNoScore;
    }
  }
  // The best of all lanes becomes choice `k`, and is out of those that follow, if any do.
  __device__ void choose(int k, int lane, bool more) {
    std::uint32_t mine = orders[0];
#pragma unroll
    for (int i = 1; i < kHeld; ++i) mine = max(mine, orders[i]);
    std::uint32_t most = mine;
    if constexpr (kLanes == kWarpSize) {
      most = __reduce_max_sync(0xFFFFFFFFU, mine);
    } else {
#pragma unroll
      for (int lanes = 1; lanes < kLanes; lanes *= 2) {
        most = max(most, __shfl_xor_sync(0xFFFFFFFFU, most, lanes));
      }
    }
    int expert = lane * kScores;
#pragma unroll
    for (int i = kHeld - 1; i >= 0; --i) {
      if (orders[i] == most) expert = lane * kScores + offset(i);
    }
    const std::uint32_t lane_of_warp = threadIdx.x % kWarpSize;
    const std::uint32_t holders =
        __ballot_sync(0xFFFFFFFFU, mine == most) >> (lane_of_warp & ~(kLanes - 1U)) &
        (0xFFFFFFFFU >> (kWarpSize - kLanes));
    if (__any_sync(0xFFFFFFFFU, (holders & (holders - 1)) != 0)) {
      if (mine != most) expert = 0x7FFFFFFF;
#pragma unroll
      for (int lanes = 1; lanes < kLanes; lanes *= 2) {
        expert = min(expert, __shfl_xor_sync(0xFFFFFFFFU, expert, lanes));
      }
    } else {
      expert = __shfl_sync(0xFFFFFFFFU, expert, __ffs(static_cast<int>(holders)) - 1, kLanes);
    }
    if (lane == k) picked = expert;
    if (!more) return;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (expert - lane * kScores == offset(i)) orders[i] = kNoScore;
    }
  }
};

}  // namespace orrery
