#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/probe_stream/probe_stream.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kStages = 12;
constexpr int kTileBytes = 16 * 1024;
constexpr int kLeastTileBytes = 512;
constexpr int kUnroll = 8;

// Bulk copies. Block b moves tiles b, b + grid, … through a ring in shared memory:
//
//   global ──bulk──► stage 0 … kStages-1 ──► registers (read) or ──bulk──► global (copy)
//
// One thread keeps kStages copies in flight; 12 x 16 KiB are 192 KiB per SM, four times what one
// microsecond of latency at 4.8 TB/s needs (36 KiB).
struct Ring {
  unsigned char* tiles;
  std::uint64_t* full;
};

__device__ Ring make_ring() {
  extern __shared__ __align__(128) unsigned char shared[];
  Ring ring{.tiles = shared,
            .full = reinterpret_cast<std::uint64_t*>(shared + kStages * kTileBytes)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) sm90::barrier_init(&ring.full[stage], 1);
    sm90::fence_barrier_init();
  }
  __syncthreads();
  return ring;
}

__device__ void load_tile(const Ring& ring, int stage, const unsigned char* source,
                          std::uint32_t tile_bytes, std::uint64_t policy) {
  sm90::barrier_arrive_expect(&ring.full[stage], tile_bytes);
  sm90::copy_bulk(ring.tiles + stage * kTileBytes, source, tile_bytes, &ring.full[stage], policy);
}

__global__ void __launch_bounds__(kThreads)
    read_bulk(const unsigned char* source, std::int64_t tiles, std::uint32_t tile_bytes, int rounds,
              std::uint32_t* sum) {
  const Ring ring = make_ring();
  const std::uint64_t policy = sm90::evict_first();
  const std::int64_t mine = tiles > blockIdx.x ? (tiles - blockIdx.x - 1) / gridDim.x + 1 : 0;
  const std::int64_t count = mine * rounds;
  const auto tile_at = [&](std::int64_t i) {
    return source + (blockIdx.x + i % mine * gridDim.x) * static_cast<std::int64_t>(tile_bytes);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages && i < count; ++i) {
      load_tile(ring, i, tile_at(i), tile_bytes, policy);
    }
  }
  uint4 all{};
  for (std::int64_t i = 0; i < count; ++i) {
    const int stage = static_cast<int>(i % kStages);
    sm90::barrier_wait(&ring.full[stage], i / kStages & 1);
    const auto* tile = reinterpret_cast<const uint4*>(ring.tiles + stage * kTileBytes);
    for (unsigned at = threadIdx.x; at < tile_bytes / sizeof(uint4); at += kThreads) {
      const uint4 value = tile[at];
      all.x ^= value.x;
      all.y ^= value.y;
      all.z ^= value.z;
      all.w ^= value.w;
    }
    __syncthreads();  // the stage has been read by all
    if (threadIdx.x == 0 && i + kStages < count) {
      load_tile(ring, stage, tile_at(i + kStages), tile_bytes, policy);
    }
  }
  const std::uint32_t word = __reduce_xor_sync(0xFFFFFFFF, all.x ^ all.y ^ all.z ^ all.w);
  if (threadIdx.x % 32 == 0) atomicXor(sum, word);
}

__global__ void __launch_bounds__(kThreads)
    write_bulk(unsigned char* target, std::int64_t tiles, std::uint32_t tile_bytes, int rounds) {
  const Ring ring = make_ring();
  auto* words = reinterpret_cast<std::uint32_t*>(ring.tiles);
  for (unsigned i = threadIdx.x; i < tile_bytes / 4; i += kThreads) words[i] = stream_pattern(i);
  sm90::fence_async_shared();
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      sm90::store_bulk(target + tile * tile_bytes, ring.tiles, tile_bytes);
      sm90::store_commit();
      sm90::store_wait_read<kStages>();
    }
  }
  sm90::store_wait<0>();
}

__global__ void __launch_bounds__(kThreads)
    copy_bulk(const unsigned char* source, unsigned char* target, std::int64_t tiles,
              std::uint32_t tile_bytes, int rounds) {
  const Ring ring = make_ring();
  if (threadIdx.x != 0) return;
  const std::uint64_t policy = sm90::evict_first();
  const std::int64_t mine = tiles > blockIdx.x ? (tiles - blockIdx.x - 1) / gridDim.x + 1 : 0;
  const std::int64_t count = mine * rounds;
  const auto offset = [&](std::int64_t i) {
    return (blockIdx.x + i % mine * gridDim.x) * static_cast<std::int64_t>(tile_bytes);
  };
  constexpr int kAhead = kStages / 2;  // loads in flight; the other stages drain to memory
  for (int i = 0; i < kAhead && i < count; ++i) {
    load_tile(ring, i, source + offset(i), tile_bytes, policy);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const int stage = static_cast<int>(i % kStages);
    sm90::barrier_wait(&ring.full[stage], i / kStages & 1);
    sm90::store_bulk(target + offset(i), ring.tiles + stage * kTileBytes, tile_bytes);
    sm90::store_commit();
    sm90::store_wait_read<kStages - kAhead>();  // the stage of tile i + kAhead is free again
    if (i + kAhead < count) {
      load_tile(ring, static_cast<int>((i + kAhead) % kStages), source + offset(i + kAhead),
                tile_bytes, policy);
    }
  }
  sm90::store_wait<0>();
}

// 16-byte accesses. Block b moves stretches b, b + grid, … of kThreads * kUnroll vectors.
template <StreamKind kKind>
__global__ void __launch_bounds__(kThreads)
    stream_loads(const uint4* source, uint4* target, std::int64_t vectors, int rounds,
                 std::uint32_t* sum) {
  constexpr std::int64_t kStretch = static_cast<std::int64_t>(kThreads) * kUnroll;
  std::uint32_t all = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t first = blockIdx.x * kStretch + threadIdx.x; first < vectors;
         first += gridDim.x * kStretch) {
      uint4 values[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = first + i * kThreads;
        if constexpr (kKind == StreamKind::kWrite) {
          values[i] = {stream_pattern(4 * at), stream_pattern(4 * at + 1),
                       stream_pattern(4 * at + 2), stream_pattern(4 * at + 3)};
        } else {
          values[i] = at < vectors ? __ldcs(source + at) : uint4{};
        }
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = first + i * kThreads;
        if constexpr (kKind == StreamKind::kRead) {
          all ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
        } else if (at < vectors) {
          __stcs(target + at, values[i]);
        }
      }
    }
  }
  if constexpr (kKind == StreamKind::kRead) {
    const std::uint32_t word = __reduce_xor_sync(0xFFFFFFFF, all);
    if (threadIdx.x % 32 == 0) atomicXor(sum, word);
  }
}

void launch_bulk(const cuda::Stream& stream, StreamKind kind, const StreamOperands& operands,
                 const StreamShape& shape) {
  const int sms = cuda::device_properties().multiProcessorCount;
  const auto bytes = static_cast<std::int64_t>(operands.bytes);
  std::int64_t tile = kTileBytes;
  while (tile > kLeastTileBytes && bytes / tile < sms) tile /= 2;
  const std::int64_t tiles = bytes / tile;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(shape.blocks > 0 ? shape.blocks : sms, tiles));
  const cuda::LaunchShape launch{.grid = dim3(blocks),
                                 .block = dim3(kThreads),
                                 .shared_bytes = kStages * (kTileBytes + sizeof(std::uint64_t))};
  const auto tile_bytes = static_cast<std::uint32_t>(tile);
  const auto* source = static_cast<const unsigned char*>(operands.source);
  auto* target = static_cast<unsigned char*>(operands.target);
  switch (kind) {
    case StreamKind::kRead:
      cuda::launch(stream, launch, read_bulk, source, tiles, tile_bytes, shape.rounds,
                   operands.sum);
      return;
    case StreamKind::kWrite:
      cuda::launch(stream, launch, write_bulk, target, tiles, tile_bytes, shape.rounds);
      return;
    case StreamKind::kCopy:
      cuda::launch(stream, launch, copy_bulk, source, target, tiles, tile_bytes, shape.rounds);
      return;
  }
}

void launch_loads(const cuda::Stream& stream, StreamKind kind, const StreamOperands& operands,
                  const StreamShape& shape) {
  const auto vectors = static_cast<std::int64_t>(operands.bytes / sizeof(uint4));
  constexpr std::int64_t kStretch = static_cast<std::int64_t>(kThreads) * kUnroll;
  const std::int64_t stretches = (vectors + kStretch - 1) / kStretch;
  const auto blocks = static_cast<unsigned>(
      shape.blocks > 0 ? std::min<std::int64_t>(shape.blocks, stretches) : stretches);
  const cuda::LaunchShape launch{.grid = dim3(blocks), .block = dim3(kThreads)};
  const auto* source = static_cast<const uint4*>(operands.source);
  auto* target = static_cast<uint4*>(operands.target);
  const auto kernel = kind == StreamKind::kRead    ? stream_loads<StreamKind::kRead>
                      : kind == StreamKind::kWrite ? stream_loads<StreamKind::kWrite>
                                                   : stream_loads<StreamKind::kCopy>;
  cuda::launch(stream, launch, kernel, source, target, vectors, shape.rounds, operands.sum);
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
  } else {
    launch_loads(stream, kind, operands, shape);
  }
}

}  // namespace orrery
