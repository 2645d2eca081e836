#include <stdexcept>
#include <string>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/index_shuffling/choose.cuh"
#include "kernels/experts/index_shuffling/index_shuffling.h"

namespace orrery {
namespace {

// Each block takes a stretch of tokens. One pass over the scores, one exchange of counts:
//
//   block                     cluster                    all clusters (if several)
//   top-k, a bit per          its counts to every        the cluster's counts to global memory,
//   (expert, token) ------->  block of the cluster --->  everyone waits for everyone's
//   counts = bits set         (shared memory)            |
//   rows: first row of the expert + rows of the tokens before <--+
//
// - A token chooses an expert once, so a bit says all: the rank of a row among its expert's is the
//   number of bits below. That is stable without sorting.
// - A count travels as a word with the number of the launch beside it: whoever waits for it reads
//   it by the same load, and nothing has to be cleared between launches.
// - The last block to have read all counts advances the number for the next launch.
// - One block or cluster needs no other and starts sooner; several are launched cooperatively, for
//   they wait for each other.
//
// H200, graph, cold L2, top-1: 16 experts 1.8 us at 1 token, 3.8 at 4,096, 5.5 at 16,384; 128
// experts 2.1, 5.9 and 9.8 us; top-8 of 256 2.9, 12.3 and 27.3 us. Start and the waits bind up to
// some 1,000 tokens, then instructions: per choice a lane looks at all that it holds. Up to 64
// registers, none spilled.

constexpr unsigned kThreads = 1024;
constexpr std::uint16_t kElsewhere = 0xFFFF;
constexpr int kMostClusters = 64;
constexpr float kLeastSum = 1e-20f;

struct Workspace {
  unsigned long long counts[kMostClusters * kMostExperts];  // count, launch << 32
  std::uint32_t launches;
  std::uint32_t blocks;  // that have read all counts
};

template <typename T>
struct Arguments {
  Scores<T> scores;
  IndexShufflingSlots slots;
  IndexShufflingOutputs out;
  Workspace* workspace;
  int tokens;
  int topk;
  int first_expert;
  int experts;
  int block_tokens;
  int cluster;
  int clusters;
  bool normalises;
  float scale;
};

// Of a block (index_shuffling_shared_bytes).
struct Shared {
  std::uint32_t* counts;     // [cluster, experts]
  std::uint32_t* bits;       // [words, experts], a bit for each token
  std::uint32_t* first_row;  // [experts]
  std::uint32_t* sums;       // [warps]
  float* weights;            // [block_tokens, topk]
  std::uint16_t* before;     // [words, experts]: rows of the words before
  std::uint16_t* chosen;     // [block_tokens, topk]

  template <typename T>
  __device__ Shared(std::uint32_t* memory, const Arguments<T>& a) {
    const int bitmap = (a.block_tokens + kWarpSize - 1) / kWarpSize * a.experts;
    counts = memory;
    bits = counts + a.cluster * a.experts;
    first_row = bits + bitmap;
    sums = first_row + a.experts;
    weights = reinterpret_cast<float*>(sums + kWarpSize);
    before = reinterpret_cast<std::uint16_t*>(weights + a.block_tokens * a.topk);
    chosen = before + bitmap;
  }
};

__device__ inline int slot_of(const IndexShufflingSlots& slots, int expert, int token) {
  if (slots.first == nullptr) return expert;
  const int first = slots.first[expert];
  return slots.slots[first + token % (slots.first[expert + 1] - first)];
}

// The experts of tokens first .. first + count - 1, into `shared`. The scores of a warp's next
// tokens are on their way while it chooses.
template <typename T, int kLanes, int kVectors>
__device__ void choose_experts(const Arguments<T>& a, const Shared& shared, int first, int count) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int segment = static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
  const int step = static_cast<int>(blockDim.x) / kLanes;
  const int warp_first = static_cast<int>(threadIdx.x) / kWarpSize * (kWarpSize / kLanes);
  float next[kVectors][kScores];
  const auto load = [&](int local) {
    const int token = first + min(local, count - 1);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      a.scores.load(next[i], token, (i * kLanes + lane) * kScores);
    }
  };
  if (warp_first < count) load(warp_first + segment);
  for (int from = warp_first; from < count; from += step) {
    const int local = from + segment;
    const int token = first + min(local, count - 1);
    TokenChoice<kLanes, kVectors> choice(a.scores, next, token, lane);
    if (from + step < count) load(local + step);
    for (int k = 0; k < a.topk; ++k) choice.choose(k, lane, k + 1 < a.topk);
    const bool is_choice = lane < a.topk && local < count;
    float weight = is_choice ? a.scores.at(token, choice.picked) : 0.0f;
    const bool is_taken = weight != -INFINITY;
    if (!is_taken) weight = 0;
    if (a.normalises) {
      float sum = weight;
#pragma unroll
      for (int lanes = 1; lanes < min(kLanes, static_cast<int>(kMostExpertsPerToken)); lanes *= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
      }
      weight /= sum + kLeastSum;
    }
    if (!is_choice) continue;
    const int expert = slot_of(a.slots, choice.picked, token) - a.first_expert;
    const bool is_here = is_taken && expert >= 0 && expert < a.experts;
    const int at = local * a.topk + lane;
    shared.chosen[at] = is_here ? static_cast<std::uint16_t>(expert) : kElsewhere;
    shared.weights[at] = weight * a.scale;
    if (is_here) {
      atomicOr(&shared.bits[local / kWarpSize * a.experts + expert], 1U << local % kWarpSize);
    }
  }
}

// The block's count of `expert`, and those of each of its words before.
template <typename T>
__device__ std::uint32_t count_bits(const Arguments<T>& a, const Shared& shared, int expert) {
  std::uint32_t sum = 0;
  for (int at = expert; at < (a.block_tokens + kWarpSize - 1) / kWarpSize * a.experts;
       at += a.experts) {
    shared.before[at] = static_cast<std::uint16_t>(sum);
    sum += __popc(shared.bits[at]);
  }
  return sum;
}

struct Counts {
  std::uint32_t before = 0;  // rows of tokens of earlier blocks
  std::uint32_t total = 0;
};

__device__ unsigned long long load_word(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ void store_word(unsigned long long* word, unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// Of one expert: those of this cluster made those of all clusters.
template <typename T>
__device__ Counts exchange(const Arguments<T>& a, Counts of_cluster, int expert, int rank,
                           std::uint32_t launch) {
  constexpr int kBatch = 8;  // loads in flight
  const int mine = static_cast<int>(blockIdx.x) / a.cluster;
  unsigned long long* words = a.workspace->counts + expert;
  if (expert % a.cluster == rank) {
    store_word(words + mine * a.experts,
               static_cast<unsigned long long>(launch) << 32 | of_cluster.total);
  }
  Counts all{.before = of_cluster.before};
  for (int first = 0; first < a.clusters; first += kBatch) {
    unsigned long long found[kBatch];
    bool complete = false;
    while (!complete) {
      complete = true;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        found[i] = load_word(words + min(first + i, a.clusters - 1) * a.experts);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) complete &= found[i] >> 32 == launch;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= a.clusters) break;
      const auto count = static_cast<std::uint32_t>(found[i]);
      all.total += count;
      if (first + i < mine) all.before += count;
    }
  }
  return all;
}

// Sum of `value` over the threads before; all threads call it.
__device__ std::uint32_t sum_before(std::uint32_t value, std::uint32_t* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  std::uint32_t inclusive = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
    const std::uint32_t other = __shfl_up_sync(0xFFFFFFFFU, inclusive, lanes);
    if (lane >= lanes) inclusive += other;
  }
  if (lane == kWarpSize - 1) sums[warp] = inclusive;
  __syncthreads();
  return inclusive - value + __reduce_add_sync(0xFFFFFFFFU, lane < warp ? sums[lane] : 0);
}

// Rows of the block's tokens.
template <typename T>
__device__ void scatter(const Arguments<T>& a, const Shared& shared, int first, int count) {
  const int items = count * a.topk;
  for (int at = static_cast<int>(threadIdx.x); at < items; at += static_cast<int>(blockDim.x)) {
    const int local = at / a.topk;
    const std::uint16_t expert = shared.chosen[at];
    int row = -1;
    if (expert != kElsewhere) {
      const int word = local / kWarpSize * a.experts + expert;
      const std::uint32_t below = shared.bits[word] & ((1U << local % kWarpSize) - 1);
      row = static_cast<int>(shared.first_row[expert] + shared.before[word] + __popc(below));
      a.out.row_token[row] = first + local;
      a.out.row_weight[row] = shared.weights[at];
    }
    a.out.token_rows[static_cast<std::int64_t>(first) * a.topk + at] = row;
  }
}

template <typename T, int kLanes, int kVectors>
__global__ void __launch_bounds__(kThreads) index_shuffling_kernel(const Arguments<T> a) {
  extern __shared__ std::uint32_t memory[];
  const Shared shared(memory, a);
  const int thread = static_cast<int>(threadIdx.x);
  const int expert = thread;  // of the phases between choosing and scattering
  if (a.cluster > 1) sm90::cluster_arrive_relaxed();
  const int words = (a.block_tokens + kWarpSize - 1) / kWarpSize * a.experts;
  for (int at = thread; at < words; at += static_cast<int>(blockDim.x)) shared.bits[at] = 0;
  if (thread < kWarpSize) shared.sums[thread] = 0;
  __syncthreads();
  cudaTriggerProgrammaticLaunchCompletion();  // what follows waits until this one has waited
  cudaGridDependencySynchronize();
  const std::uint32_t launch = a.clusters > 1 ? a.workspace->launches + 1 : 0;

  const int first = static_cast<int>(blockIdx.x) * a.block_tokens;
  const int count = max(min(a.tokens - first, a.block_tokens), 0);
  choose_experts<T, kLanes, kVectors>(a, shared, first, count);
  __syncthreads();

  const int rank = a.cluster > 1 ? static_cast<int>(sm90::cluster_rank()) : 0;
  std::uint32_t of_block = expert < a.experts ? count_bits(a, shared, expert) : 0;
  Counts counts{.total = of_block};
  if (a.cluster > 1) {
    sm90::cluster_wait();  // all blocks of the cluster have started
    if (expert < a.experts) {
      for (int block = 0; block < a.cluster; ++block) {
        *static_cast<std::uint32_t*>(
            __cluster_map_shared_rank(&shared.counts[rank * a.experts + expert], block)) = of_block;
      }
    }
    sm90::cluster_sync();
    counts.total = 0;
    if (expert < a.experts) {
      for (int block = 0; block < a.cluster; ++block) {
        const std::uint32_t of = shared.counts[block * a.experts + expert];
        counts.total += of;
        if (block < rank) counts.before += of;
      }
    }
  }
  if (a.clusters > 1 && expert < a.experts) {
    counts = exchange(a, counts, expert, rank, launch);
  }
  const std::uint32_t first_row = sum_before(counts.total, shared.sums);
  if (expert < a.experts) {
    shared.first_row[expert] = first_row + counts.before;
    if (blockIdx.x == 0) {
      a.out.counts[expert] = static_cast<std::int32_t>(counts.total);
      if (expert == a.experts - 1) {
        *a.out.num_rows = static_cast<std::int32_t>(first_row + counts.total);
      }
    }
  }
  __syncthreads();
  if (a.clusters > 1 && thread == 0 &&
      atomicInc(&a.workspace->blocks, gridDim.x - 1) == gridDim.x - 1) {
    a.workspace->launches = launch;
  }
  scatter(a, shared, first, count);
}

template <typename T>
using Kernel = void (*)(Arguments<T>);

template <typename T, int kLanes>
Kernel<T> kernel_of(int vectors) {
  return vectors == 1   ? index_shuffling_kernel<T, kLanes, 1>
         : vectors == 2 ? index_shuffling_kernel<T, kLanes, 2>
                        : index_shuffling_kernel<T, kLanes, 4>;
}

template <typename T>
Kernel<T> kernel_of(const IndexShufflingTile& tile) {
  switch (tile.lanes) {
    case 4:
      return kernel_of<T, 4>(tile.vectors);
    case 8:
      return kernel_of<T, 8>(tile.vectors);
    case 16:
      return kernel_of<T, 16>(tile.vectors);
    default:
      return kernel_of<T, 32>(tile.vectors);
  }
}

void require_tile(const IndexShufflingShape& shape, const IndexShufflingTile& tile) {
  const bool covers =
      std::int64_t{tile.block_tokens} * tile.cluster * tile.clusters >= shape.tokens;
  if (!covers || tile.threads < shape.experts || tile.threads > static_cast<int>(kThreads) ||
      tile.threads % kWarpSize != 0 || tile.clusters > kMostClusters ||
      tile.lanes * tile.vectors * kScores < shape.experts_total || tile.lanes < shape.topk ||
      (shape.groups > 1 && tile.lanes != kWarpSize)) {
    throw std::invalid_argument(
        "index_shuffling: a tile of " + std::to_string(tile.clusters) + " x " +
        std::to_string(tile.cluster) + " blocks of " + std::to_string(tile.threads) +
        " threads and " + std::to_string(tile.block_tokens) + " tokens does not fit the shape");
  }
}

}  // namespace

std::size_t index_shuffling_workspace_bytes() { return sizeof(Workspace); }

IndexShufflingTile index_shuffling_tile(const IndexShufflingShape& shape, int free_sms) {
  require_index_shuffling_shape(shape);
  return choose_index_shuffling(shape, cuda::most_clusters(), free_sms);
}

template <typename T>
void index_shuffling(const cuda::Stream& stream, const T* scores, const float* correction_bias,
                     const IndexShufflingSlots& slots, const IndexShufflingOutputs& outputs,
                     const IndexShufflingShape& shape, const IndexShufflingTile& tile,
                     std::byte* workspace) {
  require_index_shuffling_shape(shape);
  require_tile(shape, tile);
  constexpr std::uintptr_t kVectorBytes = 4 * sizeof(T);
  const int experts_total = static_cast<int>(shape.experts_total);
  const Arguments<T> arguments{
      .scores = {.data = scores,
                 .bias = correction_bias,
                 .experts = experts_total,
                 .groups = static_cast<int>(shape.groups),
                 .topk_groups = static_cast<int>(shape.topk_groups),
                 .best_two = shape.group_score == GroupScore::kBestTwo,
                 .aligned = experts_total % 4 == 0 &&
                            reinterpret_cast<std::uintptr_t>(scores) % kVectorBytes == 0},
      .slots = slots,
      .out = outputs,
      .workspace = reinterpret_cast<Workspace*>(workspace),
      .tokens = static_cast<int>(shape.tokens),
      .topk = static_cast<int>(shape.topk),
      .first_expert = static_cast<int>(shape.first_expert),
      .experts = static_cast<int>(shape.experts),
      .block_tokens = tile.block_tokens,
      .cluster = tile.cluster,
      .clusters = tile.clusters,
      .normalises = shape.normalises,
      .scale = static_cast<float>(shape.scale)};
  const Kernel<T> kernel = kernel_of<T>(tile);
  constexpr int kPortable = 8;
  if (tile.cluster > kPortable) {
    ORRERY_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(tile.cluster * tile.clusters)),
                .block = dim3(static_cast<unsigned>(tile.threads)),
                .shared_bytes = index_shuffling_shared_bytes(shape, tile),
                .cluster = static_cast<unsigned>(tile.cluster),
                .programmatic = true,
                .cooperative = tile.clusters > 1},
               kernel, arguments);
}

template void index_shuffling(const cuda::Stream&, const float*, const float*,
                              const IndexShufflingSlots&, const IndexShufflingOutputs&,
                              const IndexShufflingShape&, const IndexShufflingTile&, std::byte*);
template void index_shuffling(const cuda::Stream&, const bf16*, const float*,
                              const IndexShufflingSlots&, const IndexShufflingOutputs&,
                              const IndexShufflingShape&, const IndexShufflingTile&, std::byte*);

}  // namespace orrery
