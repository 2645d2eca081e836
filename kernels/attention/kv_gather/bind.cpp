#include "kernels/attention/kv_gather/kv_gather.h"
#include "kernels/binding/bind_operands.h"

namespace orrery {

// reads a layer of a cache of latents; writes latents and rotated keys of all tokens that the
// sequences of the step's prefill see, one sequence behind the other
Launch bind_kv_gather(const BindContext& context) {
  const KvPool& pool = require_cache(context);
  const StepTables& tables = context.tables;
  KvGatherShape shape{.sequences = static_cast<std::int64_t>(tables.prefill.size()),
                      .latent = dim(context.op.dims, "kv_lora_rank"),
                      .rope = dim(context.op.dims, "rope_dim")};
  require_taken(context,
                pool.shape().is_latent && pool.shape().head_dim == shape.latent + shape.rope,
                "a cache of latents and rotated keys of its sizes");
  for (const PrefillChunk& sequence : tables.prefill) {
    shape.tokens += sequence.context + sequence.query;
  }
  const Operand latents = result(context, "latents");
  const Operand rotated = result(context, "rotated");
  require_rows(context, latents, shape.tokens);
  require_rows(context, rotated, shape.tokens);
  const PagedKv<const bf16> cache{
      .keys = reinterpret_cast<const bf16*>(pool.keys(context.kv_layer)),
      .block_table = tables.prefill_blocks,
      .blocks_per_sequence = tables.blocks_per_sequence,
      .block_size = pool.shape().block_size,
      .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  return [=, starts = tables.prefill_key_starts](const cuda::Stream& stream) {
    kv_gather(stream, cache, starts, shape, typed<bf16>(latents), typed<bf16>(rotated));
  };
}

}  // namespace orrery
