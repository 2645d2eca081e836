#include "kernels/attention/attention_decode/split.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/row_shape.h"

namespace orrery {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("attention_decode: " + what);
}

bool are_even(std::int32_t rows, std::int32_t blocks) {
  return rows % blocks == 0 || (blocks % rows == 0 && blocks / rows <= decode::kFanIn);
}

// Blocks that rows of equal length fill evenly, so that none begins or ends within a row of
// another, where that idles few SMs; or all.
std::int32_t blocks_for(std::int32_t rows, std::int32_t num_sms) {
  for (std::int32_t blocks = num_sms; blocks > num_sms * 15 / 16; --blocks) {
    if (rows > 0 && are_even(rows, blocks)) return blocks;
  }
  return num_sms;
}

// As many heads as leave each block a row of its own: more heads read more of a page at once and
// change rows less often, but results of a shared row cost a merge through the L2 cache that grows
// with them. Eight were slower than four.
std::int32_t heads_per_block_for(std::int32_t seqs, std::int32_t kv_heads, std::int32_t num_sms) {
  for (const std::int32_t heads : {4, 2}) {
    if (kv_heads % heads != 0) continue;
    const std::int32_t rows = seqs * (kv_heads / heads);
    if (rows >= blocks_for(rows, num_sms)) return heads;
  }
  return 1;
}

}  // namespace

AttentionDecodeSplit attention_decode_split(const AttentionDecodeShape& shape,
                                            std::int32_t element_bytes, std::int32_t num_sms) {
  require(element_bytes == 1 || element_bytes == 2,
          std::to_string(element_bytes) + " bytes per element; takes 1 (fp8) and 2 (bf16)");
  require(shape.head_dim == 64 || shape.head_dim == 128,
          "head_dim " + std::to_string(shape.head_dim) + "; takes 64 and 128");
  require(shape.seqs >= 0 && shape.max_context >= 0, "negative sequences or context");
  require(shape.window >= 1, "window " + std::to_string(shape.window) + "; takes 1 and more");
  require(shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0 &&
              shape.heads / shape.kv_heads >= 1 &&
              shape.heads / shape.kv_heads <= decode::kMaxRatio,
          std::to_string(shape.heads) + " heads on " + std::to_string(shape.kv_heads) +
              " kv heads; takes 1 to 16 heads per kv head");
  require(is_row_stride(shape.q_stride, std::int64_t{shape.heads} * shape.head_dim),
          "q_stride " + std::to_string(shape.q_stride) +
              "; takes 0 and multiples of 8 from heads * head_dim on");
  const std::int32_t heads_per_block = heads_per_block_for(shape.seqs, shape.kv_heads, num_sms);
  const std::int32_t rows = shape.seqs * (shape.kv_heads / heads_per_block);
  const double bytes = 2.0 * shape.seqs * std::min(shape.max_context, shape.window) *
                       shape.kv_heads * shape.head_dim * element_bytes;
  constexpr double kEarlyBytes = 50e6;  // above, starting early was 1 % slower on an H200
  return {.blocks = blocks_for(rows, num_sms),
          .heads_per_block = heads_per_block,
          .min_units = decode::kWarps / heads_per_block,
          .starts_early = bytes < kEarlyBytes};
}

bool is_even_split(const AttentionDecodeShape& shape, std::int32_t element_bytes,
                   std::int32_t num_sms) {
  const AttentionDecodeSplit split = attention_decode_split(shape, element_bytes, num_sms);
  const std::int32_t row = decode::units_of(shape.max_context, shape.window,
                                            decode::keys_per_unit(shape.head_dim, element_bytes))
                               .count;
  const std::int32_t rows = shape.seqs * (shape.kv_heads / split.heads_per_block);
  if (row == 0 || rows == 0) return true;
  const std::int32_t units = row * rows;
  const std::int32_t blocks = decode::blocks_used(units, split);
  for (std::int32_t block = 0; block < blocks; ++block) {
    const std::int32_t begin = decode::unit_begin(units, blocks, block);
    const std::int32_t end = decode::unit_begin(units, blocks, block + 1);
    const bool is_of_one_row = begin / row == (end - 1) / row;
    if (!is_of_one_row && (begin % row != 0 || end % row != 0)) return false;
  }
  return true;
}

std::size_t attention_decode_counter_bytes(const AttentionDecodeSplit& split) {
  return static_cast<std::size_t>(split.blocks) * 2 * 2 * sizeof(std::uint32_t);
}

std::size_t attention_decode_workspace_bytes(const AttentionDecodeShape& shape,
                                             const AttentionDecodeSplit& split) {
  const std::size_t slots = static_cast<std::size_t>(split.blocks) * 2;
  const std::size_t heads =
      static_cast<std::size_t>(split.heads_per_block) * (shape.heads / shape.kv_heads);
  return attention_decode_counter_bytes(split) +
         slots * heads * (shape.head_dim + 2) * sizeof(float);
}

}  // namespace orrery
