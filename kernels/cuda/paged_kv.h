#pragma once

// A paged KV cache as kernels see it, and its layout, shared by kv_append and the attention
// kernels.

#include <cstdint>

namespace orrery {

// Keys and values of one layer in blocks of `block_size` tokens:
//   keys, values   [num_blocks, block_size, kv_heads, head_dim] of T (bf16 or fp8), contiguous
//   block_table    [sequences, blocks_per_sequence] int32: token t of sequence s lies in block
//                  block_table[s][t / block_size] at row t % block_size; entries past a sequence's
//                  last block are not read
//   key_scale, value_scale   what an fp8 element is multiplied by; 1 for bf16
// MLA keeps one tensor: keys are [num_blocks, block_size, kv_lora_rank + rope_dim], values unused.
template <typename T>
struct PagedKv {
  T* keys = nullptr;
  T* values = nullptr;
  const std::int32_t* block_table = nullptr;
  std::int64_t blocks_per_sequence = 0;
  std::int32_t block_size = 64;  // 16, 32, 64 or 128
  std::int32_t num_blocks = 0;
  float key_scale = 1;
  float value_scale = 1;
};

inline constexpr std::int32_t kDefaultBlockSize = 64;

}  // namespace orrery
