#pragma once

// Which tokens are a block's, and the logits of the router: of its own tokens, or where these are
// few a part of those of 64.

#include <cmath>
#include <cstdint>

#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/index_shuffling/choose.cuh"

namespace orrery::fused_moe {

constexpr int kRouted = static_cast<int>(kFusedLogitRows);  // tokens whose logits are made together
constexpr int kBoxBytes = 64 * 128;

// Tokens of a block: [first, first + count).
struct Stretch {
  int first;
  int count;
};
__device__ inline Stretch stretch_of(const Arguments& a) {
  const int first = static_cast<int>(blockIdx.x) * a.block_tokens;
  return {.first = first, .count = max(min(a.tokens - first, a.block_tokens), 0)};
}

// Logits that a block makes: of tokens [first, first + count) by steps of columns [begin, end), and
// where they go, [tokens, routed]. Of many tokens those of its own by all columns; of few those of
// 64 tokens by a part of the columns, so that a router is not read by each block.
struct LogitWork {
  int first;
  int count;
  int begin;
  int end;
  float* logits;
};
__device__ inline LogitWork logit_work(const Arguments& a, const Stretch& own) {
  if (a.logit_parts == 1) return {own.first, own.count, 0, a.router_steps, a.scores};
  const int first = static_cast<int>(blockIdx.x) / a.logit_parts * kRouted;
  const int part = static_cast<int>(blockIdx.x) % a.logit_parts;
  const int begin = part * a.logit_steps;
  return {first, max(min(a.tokens - first, kRouted), 0), begin,
          min(begin + a.logit_steps, a.router_steps),
          a.logits + static_cast<std::int64_t>(part) * a.tokens * a.routed};
}

constexpr int kRouterRows = Config::kColumns;  // of the router in a stage

// By one thread: x and the router, 64 tokens by 256 experts after the other.
__device__ inline void copy_for_logits(Shared& shared, const Maps& maps, const Arguments& a,
                                       const LogitWork& work, Ring<Config::kStages>& ring) {
  for (int token = 0; token < work.count; token += kRouted) {
    for (int expert = 0; expert < a.routed; expert += kRouterRows) {
      const int boxes = (min(a.routed - expert, kRouterRows) + 63) / 64;
#pragma unroll 1
      for (int step = work.begin; step < work.end; ++step) {
        std::uint64_t* const full = &shared.gemm.stages.full[ring.stage];
        sm90::barrier_wait(&shared.gemm.stages.empty[ring.stage], ring.phase ^ 1);
        sm90::barrier_arrive_expect(full, static_cast<std::uint32_t>((boxes + 1) * kBoxBytes));
        sm90::load_2d(shared.gemm.x[ring.stage], &maps.x, step * Config::kK, work.first + token,
                      full);
        for (int box = 0; box < boxes; ++box) {
          sm90::load_2d(shared.gemm.w[ring.stage] + box * kBoxBytes, &maps.router,
                        step * Config::kK, expert + box * 64, full);
        }
        ring.advance();
      }
    }
  }
}

// By a warpgroup: those of 128 experts each. Rows of the router that are not there multiply what
// happens to lie in the stage, and nobody looks.
__device__ inline void make_logits(Shared& shared, const Arguments& a, const LogitWork& work,
                                   Ring<Config::kStages>& ring, int group) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int steps = work.end - work.begin;
  for (int token = 0; token < work.count; token += kRouted) {
    for (int expert = group * 128; expert < a.routed + group * 128; expert += kRouterRows) {
      sm90::barrier_wait(&shared.gemm.stages.full[ring.stage], ring.phase);
      if (expert >= a.routed) {
        tiles::skip(shared.gemm.stages, ring, steps);
        continue;
      }
      swap_ab::Sums<Config, kRouted> d;
      swap_ab::multiply<Config, kRouted>(d, shared.gemm, ring, steps, group);
      const int rows = min(work.count - token, kRouted);
      float* const logits = work.logits + static_cast<std::int64_t>(work.first + token) * a.routed;
#pragma unroll
      for (int i = 0; i < Config::kBlocks * kRouted / 2; ++i) {
        const int block = i / (kRouted / 2);
        const int at = i % (kRouted / 2);
        const int column =
            expert + block * 64 + thread / 32 * 16 + thread % 32 / 4 + at / 2 % 2 * 8;
        const int row = at / 4 * 8 + thread % 4 * 2 + at % 2;
        if (column < a.routed && row < rows) logits[row * a.routed + column] = d[block][at];
      }
    }
  }
}

// By all threads, once the block's part is made: until those of its own tokens are.
__device__ inline void exchange_logits(const Arguments& a, const Stretch& own,
                                       const LogitWork& work, std::uint32_t launch) {
  if (a.logit_parts == 1) return;
  if (threadIdx.x == 0 && work.count > 0) {
    __threadfence();
    sm90::store_release(&a.logits_made[blockIdx.x], launch);
  }
  if (own.count > 0) {
    const int begin = own.first / kRouted * a.logit_parts;
    const int end = ((own.first + own.count - 1) / kRouted + 1) * a.logit_parts;
    for (int block = begin + static_cast<int>(threadIdx.x); block < end; block += kThreads) {
      await(a.control, &a.logits_made[block], launch, Wait::kLogits, block);
    }
  }
  __syncthreads();
}

// A lane's logits of a token, of parts the sum; behind the last expert none. Where parts are many
// they are loaded some at a time.
template <int kVectors>
__device__ inline void load_logits(const Arguments& a, int token, int lane,
                                   float (&values)[kVectors][kScores]) {
  constexpr int kAhead = 8;
  const float* const first =
      (a.logit_parts == 1 ? a.scores : a.logits) + static_cast<std::int64_t>(token) * a.routed;
  const std::int64_t part = static_cast<std::int64_t>(a.tokens) * a.routed;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (float& value : values[i]) value = -INFINITY;
    const int expert = (32 * i + lane) * kScores;
    if (a.routed % kScores != 0) {
#pragma unroll 1
      for (int next = 0; next < a.logit_parts; ++next) {
#pragma unroll
        for (int at = 0; at < kScores; ++at) {
          if (expert + at >= a.routed) continue;
          const float more = __ldcg(first + next * part + expert + at);
          values[i][at] = next == 0 ? more : values[i][at] + more;
        }
      }
    } else if (expert < a.routed) {
      const float4 of_first = __ldcg(reinterpret_cast<const float4*>(first + expert));
      float4 sum = of_first;
#pragma unroll 1
      for (int next = 1; next < a.logit_parts; next += kAhead) {
        float4 more[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          more[j] =
              next + j < a.logit_parts
                  ? __ldcg(reinterpret_cast<const float4*>(first + (next + j) * part + expert))
                  : float4{};
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          sum = {sum.x + more[j].x, sum.y + more[j].y, sum.z + more[j].z, sum.w + more[j].w};
        }
      }
      values[i][0] = sum.x;
      values[i][1] = sum.y;
      values[i][2] = sum.z;
      values[i][3] = sum.w;
    }
  }
}

// Adds what is imposed on a token's logits to a lane's, once they are whole; behind the last expert
// they stay.
template <int kVectors>
__device__ inline void add_logit_bias(const Arguments& a, int lane,
                                      float (&values)[kVectors][kScores]) {
#pragma unroll
  for (int i = 0; i < kVectors * kScores; ++i) {
    const int expert = (i / kScores * 32 + lane) * kScores + i % kScores;
    if (expert < a.routed) {
      values[i / kScores][i % kScores] += static_cast<float>(a.logit_bias[expert]);
    }
  }
}

}  // namespace orrery::fused_moe
