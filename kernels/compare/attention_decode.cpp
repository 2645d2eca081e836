#include "kernels/attention/attention_decode/attention_decode.h"

#include <cmath>
#include <cstdint>

#include "kernels/compare/c_api.h"
#include "kernels/cuda/launch.h"

namespace orrery::compare {
namespace {

AttentionDecodeShape shape(std::int64_t seqs, std::int64_t heads, std::int64_t kv_heads,
                           std::int64_t head_dim, std::int64_t max_context) {
  return {.seqs = static_cast<std::int32_t>(seqs),
          .heads = static_cast<std::int32_t>(heads),
          .kv_heads = static_cast<std::int32_t>(kv_heads),
          .head_dim = static_cast<std::int32_t>(head_dim),
          .max_context = static_cast<std::int32_t>(max_context)};
}

AttentionDecodeSplit split(const AttentionDecodeShape& shape, std::int64_t element_bytes) {
  return attention_decode_split(shape, static_cast<std::int32_t>(element_bytes),
                                cuda::device_properties().multiProcessorCount);
}

}  // namespace

// *bytes on the host: of a workspace that must be all zero before its first use.
extern "C" int orrery_attention_decode_workspace(void* stream, std::int64_t* bytes,
                                                 std::int64_t element_bytes, std::int64_t seqs,
                                                 std::int64_t heads, std::int64_t kv_heads,
                                                 std::int64_t head_dim, std::int64_t max_context) {
  return guarded(stream, [&](const cuda::Stream&) {
    const AttentionDecodeShape of = shape(seqs, heads, kv_heads, head_dim, max_context);
    *bytes =
        static_cast<std::int64_t>(attention_decode_workspace_bytes(of, split(of, element_bytes)));
  });
}

// keys, values: bf16 (element_bytes 2) or fp8 (1), [num_blocks, block_size, kv_heads, head_dim];
// scale 1 / sqrt(head_dim).
extern "C" int orrery_attention_decode(
    void* stream, void* out, void* lse, const void* q, const void* keys, const void* values,
    const void* block_table, const void* context_lens, void* workspace, std::int64_t element_bytes,
    std::int64_t seqs, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
    std::int64_t max_context, std::int64_t block_size, std::int64_t num_blocks,
    std::int64_t blocks_per_sequence, float key_scale, float value_scale) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const AttentionDecodeShape of = shape(seqs, heads, kv_heads, head_dim, max_context);
    const auto run = [&]<typename T>() {
      const PagedKv<const T> cache{.keys = static_cast<const T*>(keys),
                                   .values = static_cast<const T*>(values),
                                   .block_table = static_cast<const std::int32_t*>(block_table),
                                   .blocks_per_sequence = blocks_per_sequence,
                                   .block_size = static_cast<std::int32_t>(block_size),
                                   .num_blocks = static_cast<std::int32_t>(num_blocks),
                                   .key_scale = key_scale,
                                   .value_scale = value_scale};
      attention_decode(
          on, {.out = static_cast<bf16*>(out), .lse = static_cast<float*>(lse)},
          static_cast<const bf16*>(q), cache, static_cast<const std::int32_t*>(context_lens), of,
          1 / std::sqrt(static_cast<float>(head_dim)), split(of, element_bytes), workspace);
    };
    element_bytes == 1 ? run.operator()<fp8>() : run.operator()<bf16>();
  });
}

}  // namespace orrery::compare
