#include <algorithm>
#include <cmath>

#include "kernels/attention/mla_decode/mla_decode.h"
#include "kernels/binding/bind_operands.h"

namespace orrery {
namespace {

constexpr std::int32_t kSharedSequences = 1024;

}  // namespace

// reads queries that meet latents, rows of queries whose heads end in what meets rotated keys, a
// layer of the cache of latents; writes out, a latent for each head, and over a part of the context
// the log-sum-exp of each head. The rows of decodes follow those of the step's prefill.
Launch bind_mla_decode(const BindContext& context) {
  const KvPool& pool = require_cache(context);
  const Dims& dims = context.op.dims;
  const std::int64_t heads = dim(dims, "heads");
  const std::int64_t seqs = dim(dims, "batch");
  require_taken(context,
                dim(dims, "kv_lora_rank") == kMlaLatent && dim(dims, "rope_dim") == kMlaRope &&
                    pool.shape().is_latent && pool.shape().head_dim == kMlaKey &&
                    pool.shape().dtype == DType::kBf16,
                "a bf16 cache of latents of 512 and rotated keys of 64");
  require_taken(context, seqs == context.tables.num_decodes,
                "decodes alone: mla_form auto, where prefill attends expanded keys");
  const std::int64_t first_row = context.tables.deals_decodes ? 0 : context.tables.prefill_rows;
  const Operand latent = operand(context, "latent");
  require_taken(context, matrix_size(*latent.tensor).rows == seqs, "a row for each sequence");
  const Operand q = operand(context, "q");
  require_rows(context, q, first_row + seqs);
  const Operand out = result(context, "out");
  float* log_sums = nullptr;
  if (has_result(context, "lse")) {
    const Operand lse = result(context, "lse");
    require_rows(context, lse, seqs);
    require_columns(context, lse, heads);
    log_sums = typed<float>(lse);
  }
  const std::int64_t stride = matrix_size(*q.tensor).columns;
  const std::int64_t head = stride / heads;
  require_taken(context, head * heads == stride && head >= kMlaRope, "rows of its heads as q");
  const MlaQueries queries{.latent = typed<bf16>(latent),
                           .rotated = typed<bf16>(q) + first_row * stride + (head - kMlaRope),
                           .rotated_head_stride = head};
  const MlaDecodeDims shape{.sequences = static_cast<std::int32_t>(seqs),
                            .heads = static_cast<std::int32_t>(heads)};
  // Of all steps but those of very many sequences, so that they share it.
  const MlaDecodeDims largest{.sequences = std::max(shape.sequences, kSharedSequences),
                              .heads = shape.heads};
  std::byte* const workspace =
      context.resources.scratch("mla_decode", mla_decode_workspace_bytes(largest));
  const PagedKv<const bf16> cache{
      .keys = reinterpret_cast<const bf16*>(pool.keys(context.kv_layer)),
      .block_table = context.tables.decode_blocks,
      .blocks_per_sequence = context.tables.blocks_per_sequence,
      .block_size = pool.shape().block_size,
      .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  const std::int32_t* const lengths = context.tables.decode_lengths;
  const float scale = 1 / std::sqrt(static_cast<float>(head));
  return [=](const cuda::Stream& stream) {
    mla_decode(stream, queries, cache, lengths, shape, scale, typed<bf16>(out), log_sums,
               workspace);
  };
}

}  // namespace orrery
