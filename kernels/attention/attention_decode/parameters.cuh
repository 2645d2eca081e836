#pragma once

// What a launch of attention_decode gives its kernel.

#include <cstdint>

#include "kernels/attention/attention_decode/cursor.cuh"
#include "kernels/attention/attention_decode/merge.cuh"
#include "kernels/attention/attention_decode/split.h"
#include "kernels/cuda/dtypes.h"

namespace orrery::decode {

struct Parameters {
  Work work;
  AttentionDecodeSplit split;
  Workspace workspace;
  Output output;
  const bf16* q;
  std::int64_t q_stride;  // elements from sequence to sequence
  const std::int32_t* block_table;
  std::int64_t blocks_per_sequence;
  std::int32_t block_shift;  // log2 of the block size
  std::int32_t box_keys;     // keys of one copy
  std::int32_t boxes;        // copies of one tile
  std::int32_t head_bytes;   // of a query head
  std::int32_t ratio;        // heads / kv_heads
  float scale_log2;
};

}  // namespace orrery::decode
