#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/probes/stream.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStages = 12;
constexpr int kTileBytes = 16 * 1024;
constexpr int kReadStages = 6;
constexpr int kReadTileBytes = 4 * 1024;
static_assert(kWarps * kReadStages * kReadTileBytes == kStages * kTileBytes);
constexpr int kLeastTileBytes = 512;
constexpr int kUnroll = 8;                                 // 16-byte accesses in flight per thread
constexpr std::size_t kSmallBytes = std::size_t{4} << 20;  // up to here one per thread, more blocks

// Bulk copies. Tiles go round through rings in shared memory, 192 KiB in flight per SM: five times
// what one microsecond of latency at 4.8 TB/s needs (36 KiB).
//
//   read    each warp has a ring of its own, so that no warp waits for another:
//           global ──bulk──► stage 0 … 5 ──► registers; tiles w, w + warps, … of the grid
//   copy    one thread per block drives one ring:
//           global ──bulk──► stage 0 … 11 ──bulk──► global; tiles b, b + blocks, …
__device__ void load_tile(unsigned char* stage, const unsigned char* source,
                          std::uint32_t tile_bytes, std::uint64_t* full, std::uint64_t policy) {
  sm90::barrier_arrive_expect(full, tile_bytes);
  sm90::copy_bulk(stage, source, tile_bytes, full, policy);
}

__device__ unsigned char* ring_memory() {
  extern __shared__ __align__(128) unsigned char shared[];
  return shared;
}

__device__ void make_barriers(std::uint64_t* full, int count) {
  for (int stage = 0; stage < count; ++stage) sm90::barrier_init(&full[stage], 1);
  sm90::fence_barrier_init();
}

// One atomic per block: more of them on one address take longer than the bytes.
__device__ void add_to_sum(std::uint32_t word, std::uint32_t* sum) {
  __shared__ std::uint32_t block_sum;
  if (threadIdx.x == 0) block_sum = 0;
  __syncthreads();
  word = __reduce_xor_sync(0xFFFFFFFF, word);
  if (threadIdx.x % 32 == 0) atomicXor(&block_sum, word);
  __syncthreads();
  if (threadIdx.x == 0) atomicXor(sum, block_sum);
}

// Tiles first, first + step, … of `tiles`, `rounds` times over.
struct Turn {
  std::int64_t first;
  std::int64_t step;
  std::int64_t mine;
  __device__ Turn(std::int64_t tiles, std::int64_t begin, std::int64_t stride)
      : first(begin), step(stride), mine(tiles > begin ? (tiles - begin - 1) / stride + 1 : 0) {}
  __device__ std::int64_t tile(std::int64_t i) const { return first + i % mine * step; }
};

__global__ void __launch_bounds__(kThreads)
    read_bulk(const unsigned char* source, std::int64_t tiles, std::uint32_t tile_bytes, int rounds,
              std::uint32_t* sum) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned lane = threadIdx.x % 32;
  unsigned char* const ring = ring_memory() + warp * kReadStages * kReadTileBytes;
  auto* const full =
      reinterpret_cast<std::uint64_t*>(ring_memory() + kStages * kTileBytes) + warp * kReadStages;
  const std::uint64_t policy = sm90::evict_first();
  const Turn turn(tiles, blockIdx.x + static_cast<std::int64_t>(warp) * gridDim.x,
                  static_cast<std::int64_t>(gridDim.x) * kWarps);
  const std::int64_t count = turn.mine * rounds;
  const auto load = [&](std::int64_t i, int stage) {
    load_tile(ring + stage * kReadTileBytes, source + turn.tile(i) * tile_bytes, tile_bytes,
              &full[stage], policy);
  };
  if (lane == 0) {
    make_barriers(full, kReadStages);
    for (int i = 0; i < kReadStages && i < count; ++i) load(i, i);
  }
  __syncwarp();
  uint4 all{};
  int stage = 0;
  int phase = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sm90::barrier_wait(&full[stage], phase);
    const auto* tile = reinterpret_cast<const uint4*>(ring + stage * kReadTileBytes);
#pragma unroll 8
    for (unsigned at = lane; at < tile_bytes / sizeof(uint4); at += 32) {
      const uint4 value = tile[at];
      all.x ^= value.x;
      all.y ^= value.y;
      all.z ^= value.z;
      all.w ^= value.w;
    }
    __syncwarp();  // the stage has been read by all
    if (lane == 0 && i + kReadStages < count) load(i + kReadStages, stage);
    if (++stage == kReadStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  add_to_sum(all.x ^ all.y ^ all.z ^ all.w, sum);
}

__global__ void __launch_bounds__(kThreads)
    copy_bulk(const unsigned char* source, unsigned char* target, std::int64_t tiles,
              std::uint32_t tile_bytes, int rounds) {
  if (threadIdx.x != 0) return;
  unsigned char* const ring = ring_memory();
  auto* const full = reinterpret_cast<std::uint64_t*>(ring + kStages * kTileBytes);
  make_barriers(full, kStages);
  const std::uint64_t policy = sm90::evict_first();
  const Turn turn(tiles, blockIdx.x, gridDim.x);
  const std::int64_t count = turn.mine * rounds;
  const auto load = [&](std::int64_t i) {
    const int stage = static_cast<int>(i % kStages);
    load_tile(ring + stage * kTileBytes, source + turn.tile(i) * tile_bytes, tile_bytes,
              &full[stage], policy);
  };
  constexpr int kAhead = kStages / 2;  // loads in flight; the other stages drain to memory
  for (int i = 0; i < kAhead && i < count; ++i) load(i);
  for (std::int64_t i = 0; i < count; ++i) {
    const int stage = static_cast<int>(i % kStages);
    sm90::barrier_wait(&full[stage], i / kStages & 1);
    sm90::store_bulk(target + turn.tile(i) * tile_bytes, ring + stage * kTileBytes, tile_bytes);
    sm90::store_commit();
    sm90::store_wait_read<kStages - kAhead>();  // the stage of tile i + kAhead is free again
    if (i + kAhead < count) load(i + kAhead);
  }
  sm90::store_wait<0>();
}

// Volatile, so that all loads of a stretch are issued before the first is used.
__device__ uint4 load_once(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// 16-byte accesses. Block b moves stretches b, b + grid, … of kThreads * kVectors vectors, at most
// 32 KiB, which divide the bytes.
template <StreamKind kKind, int kVectors>
__global__ void __launch_bounds__(kThreads)
    stream_loads(const uint4* source, uint4* target, std::int64_t vectors, int rounds,
                 std::uint32_t* sum) {
  constexpr std::int64_t kStretch = static_cast<std::int64_t>(kThreads) * kVectors;
  std::uint32_t all = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t first = blockIdx.x * kStretch + threadIdx.x; first < vectors;
         first += gridDim.x * kStretch) {
      uint4 values[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t at = first + i * kThreads;
        if constexpr (kKind == StreamKind::kWrite) {
          values[i] = {stream_pattern(4 * at), stream_pattern(4 * at + 1),
                       stream_pattern(4 * at + 2), stream_pattern(4 * at + 3)};
        } else {
          values[i] = load_once(source + at);
        }
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const std::int64_t at = first + i * kThreads;
        if constexpr (kKind == StreamKind::kRead) {
          all ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
        } else {
          __stcs(target + at, values[i]);
        }
      }
    }
  }
  if constexpr (kKind == StreamKind::kRead) {
    add_to_sum(all, sum);
  }
}

void launch_bulk(const cuda::Stream& stream, StreamKind kind, const StreamOperands& operands,
                 const StreamShape& shape) {
  const int sms = cuda::device_properties().multiProcessorCount;
  const auto bytes = static_cast<std::int64_t>(operands.bytes);
  // Small sizes have smaller tiles, so that every SM, and every warp of a read, gets one.
  const bool reads = kind == StreamKind::kRead;
  std::int64_t tile = reads ? kReadTileBytes : kTileBytes;
  while (tile > kLeastTileBytes && bytes / tile < sms * (reads ? kWarps : 1)) tile /= 2;
  const std::int64_t tiles = bytes / tile;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(shape.blocks > 0 ? shape.blocks : sms, tiles));
  const cuda::LaunchShape launch{
      .grid = dim3(blocks),
      .block = dim3(kThreads),
      .shared_bytes = kStages * kTileBytes + kWarps * kReadStages * sizeof(std::uint64_t)};
  const auto tile_bytes = static_cast<std::uint32_t>(tile);
  const auto* source = static_cast<const unsigned char*>(operands.source);
  auto* target = static_cast<unsigned char*>(operands.target);
  switch (kind) {
    case StreamKind::kRead:
      cuda::launch(stream, launch, read_bulk, source, tiles, tile_bytes, shape.rounds,
                   operands.sum);
      return;
    case StreamKind::kWrite:
      throw std::invalid_argument("stream_memory: writes have no bulk method");
    case StreamKind::kCopy:
      cuda::launch(stream, launch, copy_bulk, source, target, tiles, tile_bytes, shape.rounds);
      return;
  }
}

template <int kVectors>
void launch_loads(const cuda::Stream& stream, StreamKind kind, const StreamOperands& operands,
                  const StreamShape& shape) {
  const auto vectors = static_cast<std::int64_t>(operands.bytes / sizeof(uint4));
  constexpr std::int64_t kStretch = static_cast<std::int64_t>(kThreads) * kVectors;
  constexpr std::int64_t kStretchesPerBlock = kVectors == 1 ? 1 : 4;
  const std::int64_t stretches = vectors / kStretch;
  const auto blocks = static_cast<unsigned>(
      shape.blocks > 0 ? std::min<std::int64_t>(shape.blocks, stretches)
                       : (stretches + kStretchesPerBlock - 1) / kStretchesPerBlock);
  const auto* source = static_cast<const uint4*>(operands.source);
  auto* target = static_cast<uint4*>(operands.target);
  const auto kernel = kind == StreamKind::kRead    ? stream_loads<StreamKind::kRead, kVectors>
                      : kind == StreamKind::kWrite ? stream_loads<StreamKind::kWrite, kVectors>
                                                   : stream_loads<StreamKind::kCopy, kVectors>;
  ORRERY_CUDA(cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
      shape.split == MemorySplit::kShared ? cudaSharedmemCarveoutMaxShared
                                          : cudaSharedmemCarveoutDefault));
  cuda::launch(stream, {.grid = dim3(blocks), .block = dim3(kThreads)}, kernel, source, target,
               vectors, shape.rounds, operands.sum);
}

}  // namespace

std::string_view to_text(StreamKind kind) {
  switch (kind) {
    case StreamKind::kRead:
      return "read";
    case StreamKind::kWrite:
      return "write";
    case StreamKind::kCopy:
      return "copy";
  }
  return "";
}

void stream_memory(const cuda::Stream& stream, StreamKind kind, const StreamOperands& operands,
                   const StreamShape& shape) {
  constexpr std::size_t kGranule = 64 * 1024;
  if (operands.bytes % kGranule != 0) {
    throw std::invalid_argument("stream_memory: " + std::to_string(operands.bytes) +
                                " bytes are no multiple of 65536");
  }
  if (operands.bytes == 0) return;
  if (shape.method == StreamMethod::kBulk) {
    launch_bulk(stream, kind, operands, shape);
  } else if (operands.bytes <= kSmallBytes) {
    launch_loads<1>(stream, kind, operands, shape);
  } else {
    launch_loads<kUnroll>(stream, kind, operands, shape);
  }
}

}  // namespace orrery
