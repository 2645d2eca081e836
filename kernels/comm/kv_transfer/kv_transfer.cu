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

struct SmCopySide {
  std::byte* pool;
  const std::int32_t* blocks;
  std::int64_t layer_stride;
  std::int64_t block_stride;
  std::int64_t row_stride;
};

struct SmCopy {
  SmCopySide source;
  SmCopySide destination;
  std::int64_t vectors_per_block;
  std::int64_t vectors_per_row;
  std::int64_t blocks;
  std::int64_t pieces_per_block;
  std::int64_t pieces;  // of all blocks and layers
};

__device__ std::byte* block_of(const SmCopySide& side, std::int64_t layer, std::int64_t index) {
  return side.pool + layer * side.layer_stride + side.blocks[index] * side.block_stride;
}

// Vector `vector` of a block.
template <bool kRows>
__device__ uint4* vector_of(const SmCopy& copy, const SmCopySide& side, std::byte* block,
                            std::int64_t vector) {
  if constexpr (!kRows) return reinterpret_cast<uint4*>(block) + vector;
  const auto at = static_cast<unsigned>(vector);
  const auto width = static_cast<unsigned>(copy.vectors_per_row);
  const unsigned row = at / width;
  return reinterpret_cast<uint4*>(block + row * side.row_stride) + (at - row * width);
}

// The transfer in pieces of kThreads * kUnroll vectors (32 KiB) within one KV block; thread blocks
// take pieces in turn.
template <bool kRows>
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ SmCopy copy) {
  constexpr std::int64_t kPiece = kThreads * kUnroll;
  const std::int64_t vectors = copy.vectors_per_block;
  for (std::int64_t piece = blockIdx.x; piece < copy.pieces; piece += gridDim.x) {
    const std::int64_t block = piece / copy.pieces_per_block;
    const std::int64_t layer = block / copy.blocks;
    const std::int64_t index = block % copy.blocks;
    std::byte* const from = block_of(copy.source, layer, index);
    std::byte* const to = block_of(copy.destination, layer, index);
    const std::int64_t first = piece % copy.pieces_per_block * kPiece + threadIdx.x;
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t vector = first + i * kThreads;
      if (vector < vectors) values[i] = __ldcs(vector_of<kRows>(copy, copy.source, from, vector));
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t vector = first + i * kThreads;
      if (vector < vectors) *vector_of<kRows>(copy, copy.destination, to, vector) = values[i];
    }
  }
}

std::int64_t block_stride(const KvTransfer& transfer, const KvTransferSide& side) {
  return side.block_stride > 0 ? side.block_stride : transfer.block_bytes;
}
std::int64_t row_stride(const KvTransfer& transfer, const KvTransferSide& side) {
  return side.row_stride > 0 ? side.row_stride : transfer.block_bytes / transfer.rows;
}

// Whether a block is one stretch of bytes on both sides.
bool is_whole(const KvTransfer& transfer) {
  const std::int64_t width = transfer.block_bytes / transfer.rows;
  return transfer.rows == 1 || (row_stride(transfer, transfer.source) == width &&
                                row_stride(transfer, transfer.destination) == width);
}

std::vector<BlockRun> single_blocks(std::span<const std::int32_t> source,
                                    std::span<const std::int32_t> destination) {
  std::vector<BlockRun> runs;
  for (std::size_t i = 0; i < source.size(); ++i) {
    runs.push_back({.source = source[i], .destination = destination[i], .count = 1});
  }
  return runs;
}

// Each block of each layer by itself.
void copy_rows(const cuda::Stream& stream, const KvTransfer& transfer) {
  const KvTransferSide& source = transfer.source;
  const KvTransferSide& destination = transfer.destination;
  const auto at = [&](const KvTransferSide& side, int layer, std::size_t i) {
    return side.pool + layer * side.layer_stride + side.blocks[i] * block_stride(transfer, side);
  };
  for (int layer = 0; layer < transfer.layers; ++layer) {
    for (std::size_t i = 0; i < source.blocks.size(); ++i) {
      ORRERY_CUDA(cudaMemcpy2DAsync(
          at(destination, layer, i), static_cast<std::size_t>(row_stride(transfer, destination)),
          at(source, layer, i), static_cast<std::size_t>(row_stride(transfer, source)),
          static_cast<std::size_t>(transfer.block_bytes / transfer.rows),
          static_cast<std::size_t>(transfer.rows), cudaMemcpyDefault, stream.get()));
    }
  }
}

}  // namespace

void kv_transfer_engine(const cuda::Stream& stream, const KvTransfer& transfer) {
  std::vector<BlockRun> runs = block_runs(transfer.source.blocks, transfer.destination.blocks);
  if (runs.empty() || transfer.block_bytes == 0) return;
  if (!is_whole(transfer)) {
    copy_rows(stream, transfer);
    return;
  }
  const std::int64_t from_stride = block_stride(transfer, transfer.source);
  const std::int64_t to_stride = block_stride(transfer, transfer.destination);
  if (from_stride != transfer.block_bytes || to_stride != transfer.block_bytes) {
    runs = single_blocks(transfer.source.blocks, transfer.destination.blocks);
  }
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> sizes;
  for (int layer = 0; layer < transfer.layers; ++layer) {
    for (const BlockRun& run : runs) {
      from.push_back(transfer.source.pool + layer * transfer.source.layer_stride +
                     run.source * from_stride);
      to.push_back(transfer.destination.pool + layer * transfer.destination.layer_stride +
                   run.destination * to_stride);
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
  const std::int64_t width = transfer.block_bytes / transfer.rows;
  auto bits = static_cast<std::uintptr_t>(width);
  for (const KvTransferSide* side : {&source, &destination}) {
    bits |= reinterpret_cast<std::uintptr_t>(side->pool) |
            static_cast<std::uintptr_t>(side->layer_stride | block_stride(transfer, *side) |
                                        row_stride(transfer, *side));
  }
  if (bits % sizeof(uint4) != 0) {
    throw std::invalid_argument("kv_transfer by SMs: pools, strides and bytes of a row (" +
                                std::to_string(width) + ") must be multiples of 16");
  }
  if (source.blocks.empty() || transfer.block_bytes == 0) return;
  constexpr std::int64_t kPieceBytes = kThreads * kUnroll * sizeof(uint4);
  const auto side_of = [&](const KvTransferSide& side) {
    return SmCopySide{.pool = side.pool,
                      .blocks = side.device_blocks,
                      .layer_stride = side.layer_stride,
                      .block_stride = block_stride(transfer, side),
                      .row_stride = row_stride(transfer, side)};
  };
  constexpr auto kVector = static_cast<std::int64_t>(sizeof(uint4));
  SmCopy copy{.source = side_of(source),
              .destination = side_of(destination),
              .vectors_per_block = transfer.block_bytes / kVector,
              .vectors_per_row = width / kVector,
              .blocks = static_cast<std::int64_t>(source.blocks.size()),
              .pieces_per_block = (transfer.block_bytes + kPieceBytes - 1) / kPieceBytes,
              .pieces = 0};
  copy.pieces = copy.blocks * transfer.layers * copy.pieces_per_block;
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(thread_blocks, copy.pieces));
  cuda::launch(stream, {.grid = dim3(grid), .block = dim3(kThreads)},
               is_whole(transfer) ? copy_kernel<false> : copy_kernel<true>, copy);
}

void kv_transfer(const cuda::Stream& stream, const KvTransfer& transfer) {
  constexpr int kThreadBlocks = 64;
  const auto runs = block_runs(transfer.source.blocks, transfer.destination.blocks);
  const auto copies = static_cast<std::int64_t>(runs.size()) * transfer.layers;
  const auto blocks = static_cast<std::int64_t>(transfer.source.blocks.size()) * transfer.layers;
  if (is_whole(transfer) && copy_engine_is_faster(copies, blocks * transfer.block_bytes)) {
    kv_transfer_engine(stream, transfer);
  } else {
    kv_transfer_sm(stream, transfer, kThreadBlocks);
  }
}

}  // namespace orrery
