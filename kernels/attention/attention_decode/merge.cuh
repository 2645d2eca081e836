#pragma once

// From the warps' softmaxes over parts of a row to its attention: first the warps of a block
// through shared memory, then the blocks that share the row through the workspace. The block that
// arrives last merges; where more than kFanIn share a row, the last of each kFanIn does so first
// and the last of those merges their results, so that no block reads more than kFanIn partial
// results per level.
//
// A partial result of a query head is acc (not divided by the sum), max and sum, in base 2.

#include <cstdint>

#include "kernels/attention/attention_decode/cursor.cuh"
#include "kernels/attention/attention_decode/tile.cuh"
#include "kernels/cuda/sm90.cuh"

namespace orrery::decode {

static_assert(kFanIn == 32, "a lane for each partial result");

struct Workspace {
  std::uint32_t* group_arrivals;  // [slots], zero between launches
  std::uint32_t* row_arrivals;    // [slots], zero between launches
  float2* stats;                  // [slots, heads of a group]: max, sum
  float* acc;                     // [slots, heads of a group, head_dim]
};

struct Output {
  bf16* out;   // [seqs, heads, head_dim]
  float* lse;  // [seqs, heads] or null
  float value_scale;
  std::int32_t heads;
};

// kPerLane consecutive dims of a head in each lane, and the head's max and sum.
template <int kPerLane>
struct HeadPart {
  float acc[kPerLane];
  float max;
  float sum;
};

template <int kPerLane>
__device__ inline void load_floats(float (&to)[kPerLane], const float* from) {
  if constexpr (kPerLane == 4) {
    const float4 value = __ldcg(reinterpret_cast<const float4*>(from));
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
  } else {
    const float2 value = __ldcg(reinterpret_cast<const float2*>(from));
    to[0] = value.x, to[1] = value.y;
  }
}

template <int kPerLane>
__device__ inline void write_partial(const Workspace& workspace, int heads_per_slot, int slot,
                                     int head, const HeadPart<kPerLane>& part) {
  const int lane = threadIdx.x % 32;
  const std::int64_t at = static_cast<std::int64_t>(slot) * heads_per_slot + head;
  float* acc = workspace.acc + (at * 32 + lane) * kPerLane;
  if constexpr (kPerLane == 4) {
    __stcg(reinterpret_cast<float4*>(acc),
           make_float4(part.acc[0], part.acc[1], part.acc[2], part.acc[3]));
  } else {
    __stcg(reinterpret_cast<float2*>(acc), make_float2(part.acc[0], part.acc[1]));
  }
  if (lane == 0) __stcg(workspace.stats + at, make_float2(part.max, part.sum));
}

// head: of all query heads.
template <int kPerLane>
__device__ inline void write_output(const Output& output, int seq, int head,
                                    const HeadPart<kPerLane>& part) {
  const int lane = threadIdx.x % 32;
  const std::int64_t at = static_cast<std::int64_t>(seq) * output.heads + head;
  const float scale = output.value_scale / part.sum;
  __nv_bfloat162 pairs[kPerLane / 2];
#pragma unroll
  for (int i = 0; i < kPerLane / 2; ++i) {
    pairs[i] = __floats2bfloat162_rn(part.acc[2 * i] * scale, part.acc[2 * i + 1] * scale);
  }
  bf16* out = output.out + (at * 32 + lane) * kPerLane;
  if constexpr (kPerLane == 4) {
    *reinterpret_cast<uint2*>(out) = reinterpret_cast<const uint2&>(pairs);
  } else {
    *reinterpret_cast<std::uint32_t*>(out) = reinterpret_cast<const std::uint32_t&>(pairs);
  }
  constexpr float kLn2 = 0.693147180559945f;
  if (output.lse && lane == 0) output.lse[at] = (part.max + log2f(part.sum)) * kLn2;
}

// One head of `count` <= kFanIn partial results: those of blocks first, first + stride, ….
template <int kPerLane>
__device__ inline HeadPart<kPerLane> merge_head(const Workspace& workspace, int heads_per_slot,
                                                int head, int row_first, int first, int stride,
                                                int count) {
  const int lane = threadIdx.x % 32;
  const auto index = [&](int part) {
    return static_cast<std::int64_t>(slot_of(row_first, first + part * stride)) * heads_per_slot +
           head;
  };
  constexpr int kBatch = 16;  // loads in flight
  float parts[kBatch][kPerLane];
  const auto load_batch = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (begin + i < count) {
        load_floats(parts[i], workspace.acc + (index(begin + i) * 32 + lane) * kPerLane);
      }
    }
  };
  float2 stats = make_float2(-INFINITY, 0);
  if (lane < count) stats = __ldcg(workspace.stats + index(lane));
  load_batch(0);
  HeadPart<kPerLane> merged{};
  merged.max = stats.x;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    merged.max = fmaxf(merged.max, __shfl_xor_sync(0xFFFFFFFF, merged.max, distance));
  }
  const float weight = exp2f(stats.x - merged.max);
  merged.sum = weight * stats.y;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    merged.sum += __shfl_xor_sync(0xFFFFFFFF, merged.sum, distance);
  }
  for (int begin = 0; begin < count; begin += kBatch) {
    if (begin > 0) load_batch(begin);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float part_weight = __shfl_sync(0xFFFFFFFF, weight, begin + i);
      if (begin + i >= count) continue;
#pragma unroll
      for (int dim = 0; dim < kPerLane; ++dim) merged.acc[dim] += part_weight * parts[i][dim];
    }
  }
  return merged;
}

// True in all threads of the block that arrives last of `expected`; what all of them wrote before
// is visible then, and the counter is zero again.
__device__ inline bool arrive_last(std::uint32_t* counter, int expected, bool& shared_flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = sm90::add_acquire_release(counter, 1) + 1 == static_cast<unsigned>(expected);
    if (last) *counter = 0;
    shared_flag = last;
  }
  __syncthreads();
  return shared_flag;
}

// Called by all threads of a block that has written its partial result of a row it shares.
template <int kPerLane>
__device__ inline void merge_row(const Workspace& workspace, const Output& output,
                                 const Cursor& row, int heads_per_slot, bool& shared_flag) {
  const int warp = threadIdx.x / 32;
  const int row_first = row.first_block();
  const int parts = row.last_block() - row_first + 1;
  const int group = (static_cast<int>(blockIdx.x) - row_first) / kFanIn;
  const int group_first = row_first + group * kFanIn;
  const int group_parts = min(kFanIn, parts - group * kFanIn);
  const int group_slot = slot_of(row_first, group_first);
  if (!arrive_last(workspace.group_arrivals + group_slot, group_parts, shared_flag)) return;
  const auto finish = [&](int first, int stride, int count, bool is_output) {
    for (int head = warp; head < heads_per_slot; head += kWarps) {
      const auto merged =
          merge_head<kPerLane>(workspace, heads_per_slot, head, row_first, first, stride, count);
      if (is_output) {
        write_output(output, row.seq(), row.group() * heads_per_slot + head, merged);
      } else {
        write_partial(workspace, heads_per_slot, group_slot, head, merged);
      }
    }
  };
  const int groups = (parts + kFanIn - 1) / kFanIn;
  finish(group_first, 1, group_parts, groups == 1);
  if (groups == 1) return;
  std::uint32_t* counter = workspace.row_arrivals + slot_of(row_first, row_first);
  if (arrive_last(counter, groups, shared_flag)) finish(row_first, kFanIn, groups, true);
}

}  // namespace orrery::decode
