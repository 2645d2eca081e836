#pragma once

// KV blocks from one GPU's paged cache to another's, by the copy engines or by SMs.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/handles.h"

namespace orrery {

// One side: `layers` pools of blocks, layer_stride bytes apart, and which block of each pool is
// next.
struct KvTransferSide {
  std::byte* pool = nullptr;  // the first byte that moves of block 0
  std::int64_t layer_stride = 0;
  std::int64_t block_stride = 0;                // between blocks; 0: KvTransfer::block_bytes
  std::int64_t row_stride = 0;                  // between rows of a block; 0: as wide as they are
  std::span<const std::int32_t> blocks;         // host
  const std::int32_t* device_blocks = nullptr;  // the same on the GPU that copies
};
struct KvTransfer {
  KvTransferSide source;
  KvTransferSide destination;    // as many blocks
  std::int64_t block_bytes = 0;  // that move of a block, in
  std::int64_t rows = 1;         // so many rows: of a part of the KV heads one for each token
  int layers = 1;
};

// Copies block source.blocks[i] to destination.blocks[i] in every layer, on the current device,
// which has peer access to the other. Blocks of the destination are distinct; source and
// destination do not overlap. Each throws std::invalid_argument when the lists differ in length,
// cuda::Error.

// By the copy engines: runs of neighbouring blocks (contiguous on both sides) are one copy each,
// all queued as one batch; blocks in rows are a copy each. Not capturable.
void kv_transfer_engine(const cuda::Stream& stream, const KvTransfer& transfer);

// By `thread_blocks` thread blocks that read 16 bytes per thread and store them to the peer.
// Besides: pools, strides and bytes of a row are multiples of 16; reads device_blocks. Capturable.
void kv_transfer_sm(const cuda::Stream& stream, const KvTransfer& transfer, int thread_blocks);

// By the faster of both (runs.h), SMs with 64 thread blocks, which blocks in rows always are.
void kv_transfer(const cuda::Stream& stream, const KvTransfer& transfer);

}  // namespace orrery
