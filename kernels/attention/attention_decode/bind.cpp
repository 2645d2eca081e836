#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/launch.h"

namespace orrery {
namespace {

constexpr std::int64_t kWidestWindow = 1 << 30;

template <typename T>
Launch attend(const BindContext& context, const bf16* q, const AttentionDecodeOutput& output,
              const AttentionDecodeShape& shape) {
  const KvPool& pool = require_cache(context);
  const AttentionDecodeSplit split = attention_decode_split(
      shape, sizeof(T), cuda::device_properties().multiProcessorCount - context.op.free_sms);
  // Counters lie ahead of partial results, and how many there are follows from the blocks: splits
  // of other blocks would find results where they expect zeros.
  std::byte* const workspace =
      context.resources.scratch("attention_decode " + std::to_string(split.blocks),
                                attention_decode_workspace_bytes(shape, split));
  const PagedKv<const T> cache{.keys = reinterpret_cast<const T*>(pool.keys(context.kv_layer)),
                               .values = reinterpret_cast<const T*>(pool.values(context.kv_layer)),
                               .block_table = context.tables.decode_blocks,
                               .blocks_per_sequence = context.tables.blocks_per_sequence,
                               .block_size = pool.shape().block_size,
                               .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  const std::int32_t* const lengths = context.tables.decode_lengths;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  return [=](const cuda::Stream& stream) {
    attention_decode<T>(stream, output, q, cache, lengths, shape, scale, split, workspace);
  };
}

}  // namespace

// reads rows that begin with queries, a layer of the KV cache; writes out and, of a part of the
// context, the log-sum-exp of each head. The rows of decodes follow those of the step's prefill.
Launch bind_attention_decode(const BindContext& context) {
  const KvShape& pool = require_cache(context).shape();
  const Dims& dims = context.op.dims;
  const std::int64_t seqs = dim(dims, "batch");
  const std::int64_t heads = dim(dims, "heads");
  const std::int64_t kv_heads = dim(dims, "kv_heads");
  const std::int64_t head_dim = dim(dims, "head_dim");
  require_taken(
      context,
      pool.kv_heads == kv_heads && pool.head_dim == head_dim && pool.dtype == context.op.dtype,
      "a cache of its kv_heads, head_dim and dtype");
  const std::int64_t first_row = context.tables.deals_decodes ? 0 : context.tables.prefill_rows;
  const Operand q = operand(context, "q");
  const Operand out = result(context, "out");
  require_rows(context, q, first_row + seqs);
  const std::int64_t stride = matrix_size(*q.tensor).columns;
  const AttentionDecodeShape shape{
      .seqs = static_cast<std::int32_t>(seqs),
      .heads = static_cast<std::int32_t>(heads),
      .kv_heads = static_cast<std::int32_t>(kv_heads),
      .head_dim = static_cast<std::int32_t>(head_dim),
      .max_context = static_cast<std::int32_t>(context.tables.max_context),
      .window = static_cast<std::int32_t>(std::min(dim(dims, "window"), kWidestWindow)),
      .q_stride = stride};
  const bf16* const first = typed<bf16>(q) + first_row * stride;
  AttentionDecodeOutput output{.out = typed<bf16>(out)};
  if (has_result(context, "lse")) {
    const Operand lse = result(context, "lse");
    require_rows(context, lse, seqs);
    require_columns(context, lse, heads);
    output.lse = typed<float>(lse);
  }
  return pool.dtype == DType::kFp8 ? attend<fp8>(context, first, output, shape)
                                   : attend<bf16>(context, first, output, shape);
}

}  // namespace orrery
