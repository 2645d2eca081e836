#pragma once

// How many units, rows and partial results the blocks of attention_decode have, and what that
// takes. No CUDA.

#include <cstdint>

#include "kernels/attention/attention_decode/split.h"
#include "kernels/kernel_spec.h"

namespace orrery {

// Of the block that has most of each, where all sequences have max_context tokens.
struct AttentionDecodeBlocks {
  std::int32_t heads = 1;        // kv heads of a row
  std::int32_t units = 0;        // of kv heads together
  std::int32_t rows = 0;         // that it has a part of
  std::int32_t shared_rows = 0;  // of these, that other blocks have a part of too: at most 2
  std::int32_t parts = 1;        // blocks that share a row
};
AttentionDecodeBlocks attention_decode_blocks(const AttentionDecodeShape& shape,
                                              std::int32_t element_bytes, int num_sms);

// Of a call of `flops`, on so many SMs of an H200.
LaunchWork attention_decode_launch(const AttentionDecodeShape& shape, std::int32_t element_bytes,
                                   Flops flops, int num_sms);

}  // namespace orrery
