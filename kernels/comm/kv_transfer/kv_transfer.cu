#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/comm/kv_transfer/kv_transfer.h"
#include "kernels/comm/kv_transfer/runs.h"
#include "kernels/cuda/launch.h"

namespace orrery {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // 16-byte loads in flight per thread

struct SmCopy {
  const std::byte* source;
  std::byte* destination;
  const std::int32_t* source_blocks;
  const std::int32_t* destination_blocks;
  std::int64_t source_stride;
  std::int64_t destination_stride;
  std::int64_t block_bytes;
  std::int64_t blocks;
  std::int64_t pieces_per_block;
  std::int64_t pieces;  // of all blocks and layers
};

// The transfer in pieces of kThreads * kUnroll vectors (32 KiB) within one KV block; thread blocks
// take pieces in turn.
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ SmCopy copy) {
  constexpr std::int64_t kPiece = kThreads * kUnroll;
  const std::int64_t vectors = copy.block_bytes / sizeof(uint4);
  for (std::int64_t piece = blockIdx.x; piece < copy.pieces; piece += gridDim.x) {
    const std::int64_t block = piece / copy.pieces_per_block;
    const std::int64_t layer = block / copy.blocks;
    const std::int64_t index = block % copy.blocks;
    const auto* const from = reinterpret_cast<const uint4*>(
        copy.source + layer * copy.source_stride + copy.source_blocks[index] * copy.block_bytes);
    auto* const to = reinterpret_cast<uint4*>(copy.destination + layer * copy.destination_stride +
                                              copy.destination_blocks[index] * copy.block_bytes);
    const std::int64_t first = piece % copy.pieces_per_block * kPiece + threadIdx.x;
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < vectors) values[i] = __ldcs(from + first + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < vectors) to[first + i * kThreads] = values[i];
    }
  }
}

}  // namespace

void kv_transfer_engine(const cuda::Stream& stream, const KvTransfer& transfer) {
  const std::vector<BlockRun> runs =
      block_runs(transfer.source.blocks, transfer.destination.blocks);
  if (runs.empty() || transfer.block_bytes == 0) return;
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> sizes;
  for (int layer = 0; layer < transfer.layers; ++layer) {
    for (const BlockRun& run : runs) {
      from.push_back(transfer.source.pool + layer * transfer.source.layer_stride +
                     run.source * transfer.block_bytes);
      to.push_back(transfer.destination.pool + layer * transfer.destination.layer_stride +
                   run.destination * transfer.block_bytes);
      sizes.push_back(run.count * transfer.block_bytes);
    }
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  ORRERY_CUDA(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), sizes.size(), &attributes,
                                   &first, 1, stream.get()));
}

void kv_transfer_sm(const cuda::Stream& stream, const KvTransfer& transfer, int thread_blocks) {
  const KvTransferSide& source = transfer.source;
  const KvTransferSide& destination = transfer.destination;
  if (source.blocks.size() != destination.blocks.size() || thread_blocks < 1) {
    throw std::invalid_argument(
        "kv_transfer: " + std::to_string(source.blocks.size()) + " blocks to read, " +
        std::to_string(destination.blocks.size()) + " to write, " + std::to_string(thread_blocks) +
        " thread blocks; expected equal lists and at least one thread block");
  }
  const auto bits = reinterpret_cast<std::uintptr_t>(source.pool) |
                    reinterpret_cast<std::uintptr_t>(destination.pool) |
                    static_cast<std::uintptr_t>(source.layer_stride | destination.layer_stride |
                                                transfer.block_bytes);
  if (bits % sizeof(uint4) != 0) {
    throw std::invalid_argument("kv_transfer by SMs: pools, strides and block_bytes (" +
                                std::to_string(transfer.block_bytes) + ") must be multiples of 16");
  }
  if (source.blocks.empty() || transfer.block_bytes == 0) return;
  constexpr std::int64_t kPieceBytes = kThreads * kUnroll * sizeof(uint4);
  SmCopy copy{.source = source.pool,
              .destination = destination.pool,
              .source_blocks = source.device_blocks,
              .destination_blocks = destination.device_blocks,
              .source_stride = source.layer_stride,
              .destination_stride = destination.layer_stride,
              .block_bytes = transfer.block_bytes,
              .blocks = static_cast<std::int64_t>(source.blocks.size()),
              .pieces_per_block = (transfer.block_bytes + kPieceBytes - 1) / kPieceBytes,
              .pieces = 0};
  copy.pieces = copy.blocks * transfer.layers * copy.pieces_per_block;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(thread_blocks, copy.pieces));
  cuda::launch(stream, {.grid = dim3(grid), .block = dim3(kThreads)}, copy_kernel, copy);
}

void kv_transfer(const cuda::Stream& stream, const KvTransfer& transfer) {
  constexpr int kThreadBlocks = 64;
  const auto runs = block_runs(transfer.source.blocks, transfer.destination.blocks);
  const auto copies = static_cast<std::int64_t>(runs.size()) * transfer.layers;
  const auto blocks = static_cast<std::int64_t>(transfer.source.blocks.size()) * transfer.layers;
  if (copy_engine_is_faster(copies, blocks * transfer.block_bytes)) {
    kv_transfer_engine(stream, transfer);
  } else {
    kv_transfer_sm(stream, transfer, kThreadBlocks);
  }
}

}  // namespace orrery
