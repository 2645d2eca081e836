#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/attention/mla_decode/part.cuh"
#include "kernels/attention/mla_decode/producer.cuh"
#include "kernels/attention/mla_decode/scores.cuh"
#include "kernels/attention/mla_decode/values.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace orrery {
namespace {

using namespace mla;

constexpr int kThreads = 4 * kWarpGroup;
// The four warpgroups' shares of an SM's 65,536 registers: 24 + 168 + 2 x 160 = 512 for each of 128
// threads.
constexpr int kProducerRegisters = 24;
constexpr int kScoreRegisters = 168;
constexpr int kValueRegisters = 160;

// A block works on 64 heads of a sequence at a time and on tiles of 64 tokens, which lie in shared
// memory once, as keys and as values (576 and 512 of the same elements). Four roles:
//
//   producer   Q | K0 | K1 |        K2      |        K3      | ...         TMA
//   scores         Q K0 | softmax P0 | Q K1 | softmax P1 | Q K2 | ...      64 x 64 each
//   values 0                         | O += P0 V0        | O += P1 V1      columns 0 .. 255
//   values 1                         | O += P0 V0        | O += P1 V1      columns 256 .. 511
//
// 64 x 512 sums are 256 registers in each of 128 threads, so two warpgroups hold half of the
// columns each, and a third makes the weights of both. It holds 5/9 of the queries in registers,
// the rest in shared memory: an MMA of 64 x 64 x 16 with both operands from there needs all its
// bandwidth. The weights P take the place of the keys' rotated part, which nobody needs any more.
// The sums are rescaled only when a row's maximum grows by more than a factor of 2^8. More than 64
// heads: two blocks read the same tiles, the second from L2. Fewer are padded to 64.
//
// Shared memory, 210 KiB: columns 0 .. 255 of three tiles (32 KiB each), the rest of two tiles (40
// KiB each), 4/9 of the queries (32 KiB). The third first side hides part of a load's latency
// behind the MMAs of the tile before; a third whole tile has no room.
//
// A tile is 73,728 bytes and 8.9 MFLOP: 15.4 ns of the device's 4.8 TB/s, 9.0 ns of its 989
// TFLOP/s. So up to 64 heads memory binds, at 128 the tensor cores. Measured on an H200 at batch
// 128, context 4,096 (docs/kernels/h200.json): 3.89, 3.90 and 3.84 TB/s with 16, 32 and 64 heads,
// and 536 TFLOP/s with 128.
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_kernel(const __grid_constant__ CUtensorMap query_map,
                      const __grid_constant__ CUtensorMap rotated_map,
                      const __grid_constant__ CUtensorMap cache_map,
                      const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) std::uint8_t dynamic_shared[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
  const int unit = static_cast<int>(blockIdx.x) / p.groups;
  const int group = static_cast<int>(blockIdx.x) % p.groups;
  if (threadIdx.x == 0) {
    constexpr int kWarps = kWarpGroup / 32;
    for (int stage = 0; stage < kFirstStages; ++stage) {
      barrier_init(&shared.full_first[stage], 1);
      barrier_init(&shared.empty_first[stage], kWarps);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&shared.full[stage], 1);
      barrier_init(&shared.empty[stage], 2 * kWarps);  // both value warpgroups read the weights
      barrier_init(&shared.ready[stage], kWarps);
    }
    fence_barrier_init();
    prefetch_tensor_map(&query_map);
    prefetch_tensor_map(&rotated_map);
    prefetch_tensor_map(&cache_map);
  }
  cudaGridDependencySynchronize();
  if (threadIdx.x < 32) {
    const Part part = part_of(p.lengths, p.sequences, p.units, unit);
    if (threadIdx.x == 0) shared.part = part;
  }
  __syncthreads();
  cudaTriggerProgrammaticLaunchCompletion();
  const int role = static_cast<int>(threadIdx.x) / kWarpGroup;
  if (role == 0) {
    registers_decrease<kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer{shared, &query_map, &rotated_map, &cache_map, p, group, unit, evict_first(), {}, {}}
          .run();
    }
  } else if (role == 1) {
    registers_increase<kScoreRegisters>();
    Scores{shared, p, group, {}, {}}.run();
  } else {
    registers_increase<kValueRegisters>();
    Values{shared, p, group, role - 2, {}, {}}.run();
  }
}

int groups_of(std::int32_t heads) { return (heads + kRows - 1) / kRows; }
int units_of(std::int32_t heads) {
  return std::min(cuda::device_properties().multiProcessorCount, kMlaMaxUnits) / groups_of(heads);
}

std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

MlaWorkspace workspace_at(void* memory, const MlaDecodeDims& dims) {
  const std::size_t slots = 2 * static_cast<std::size_t>(units_of(dims.heads));
  const std::size_t rows = slots * static_cast<std::size_t>(dims.heads);
  auto* bytes = static_cast<std::uint8_t*>(memory);
  MlaWorkspace workspace;
  workspace.out = reinterpret_cast<float*>(bytes);
  bytes += round_up(rows * kMlaLatent * sizeof(float));
  workspace.lse = reinterpret_cast<float*>(bytes);
  bytes += round_up(rows * sizeof(float));
  workspace.pieces = reinterpret_cast<MlaPieceRange*>(bytes);
  return workspace;
}

void check(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument("mla_decode: " + message);
}

void check_dims(const MlaDecodeDims& dims) {
  check(dims.sequences >= 0, "sequences is " + std::to_string(dims.sequences) + ", below 0");
  check(dims.heads >= 1 && dims.heads <= kMaxGroups * kRows,
        "heads is " + std::to_string(dims.heads) + ", expected 1 to 128");
}

// Boxes of 64 columns of up to 64 heads of one sequence.
CUtensorMap query_map(const bf16* q, std::uint64_t columns, std::int64_t head_stride,
                      const MlaDecodeDims& dims) {
  const std::uint64_t sizes[] = {columns, static_cast<std::uint64_t>(dims.heads),
                                 static_cast<std::uint64_t>(dims.sequences)};
  const std::uint64_t head_bytes = static_cast<std::uint64_t>(head_stride) * sizeof(bf16);
  const std::uint64_t strides[] = {head_bytes, static_cast<std::uint64_t>(dims.heads) * head_bytes};
  const std::uint32_t box[] = {64, kRows, 1};
  return cuda::tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, q, sizes, strides, box,
                          cuda::Swizzle::k128);
}

}  // namespace

std::size_t mla_decode_workspace_bytes(const MlaDecodeDims& dims) {
  check_dims(dims);
  const MlaWorkspace end = workspace_at(nullptr, dims);
  return reinterpret_cast<std::uintptr_t>(end.pieces) +
         static_cast<std::size_t>(dims.sequences) * sizeof(MlaPieceRange);
}

void mla_decode(const cuda::Stream& stream, const MlaQueries& q, const PagedKv<const bf16>& cache,
                const std::int32_t* lengths, const MlaDecodeDims& dims, float scale, bf16* out,
                float* lse, void* workspace) {
  check_dims(dims);
  const std::int32_t block = cache.block_size;
  check(block == 16 || block == 32 || block == 64 || block == 128,
        "block_size is " + std::to_string(block) + ", expected 16, 32, 64 or 128");
  check(scale > 0, "scale must be positive");
  const auto aligned = [](const void* pointer, std::uintptr_t bytes) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
  };
  check(aligned(q.latent, 16) && aligned(q.rotated, 16) && aligned(cache.keys, 16) &&
            aligned(workspace, 16) && aligned(out, 4),
        "q, cache and workspace must be 16-byte aligned, out 4-byte");
  check(q.latent_head_stride % 8 == 0 && q.latent_head_stride >= kMlaLatent &&
            q.rotated_head_stride % 8 == 0 && q.rotated_head_stride >= kMlaRope,
        "heads of q must lie a multiple of 8 elements apart and not overlap");
  if (dims.sequences == 0) return;
  const Parameters parameters{.block_table = cache.block_table,
                              .blocks_per_sequence = cache.blocks_per_sequence,
                              .block_size = block,
                              .lengths = lengths,
                              .sequences = dims.sequences,
                              .heads = dims.heads,
                              .groups = groups_of(dims.heads),
                              .units = units_of(dims.heads),
                              .scale_log2 = scale * 1.44269504089f,
                              .out = out,
                              .lse = lse,
                              .workspace = workspace_at(workspace, dims)};
  const CUtensorMap cache_map = cuda::matrix_map(
      CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, cache.keys,
      static_cast<std::uint64_t>(cache.num_blocks) * static_cast<std::uint64_t>(block), kMlaKey,
      kMlaKey * sizeof(bf16), static_cast<std::uint32_t>(std::min(block, kMlaTileTokens)), 64,
      cuda::Swizzle::k128);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(parameters.units * parameters.groups)),
                .block = dim3(kThreads),
                .shared_bytes = sizeof(Shared),
                .programmatic = true},
               mla_decode_kernel, query_map(q.latent, kMlaLatent, q.latent_head_stride, dims),
               query_map(q.rotated, kMlaRope, q.rotated_head_stride, dims), cache_map, parameters);
  mla_merge(stream, parameters.workspace, lengths, dims, out, lse);
}

}  // namespace orrery
