#include "kernels/attention/kv_append/kv_append.h"
#include "kernels/binding/bind_operands.h"
#include "kernels/binding/context_memory.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {
namespace {

// What all context-parallel ranks have of decodes that are dealt out to them.
bool are_gathered_decodes(const Operand& rows) {
  return rows.tensor->axes.front().name == axis::kDecodes;
}

// Slots of the rows: those of decodes follow the prompts'.
const std::int64_t* slots_of(const BindContext& context, const Operand& rows) {
  const bool are_behind_prompts = are_gathered_decodes(rows);
  return context.tables.slots + (are_behind_prompts ? context.tables.prefill_rows : 0);
}

// Over context-parallel ranks dims count the rows that are stored; slots say which.
std::int64_t rows_to_append(const BindContext& context, const Operand& rows) {
  return context.tables.context_ranks > 1 ? matrix_size(*rows.tensor).rows
                                          : dim(context.op.dims, "tokens");
}

template <typename T>
Launch append(const BindContext& context, const bf16* keys, std::int64_t tokens, std::int64_t width,
              std::int64_t stride, const std::int64_t* slots) {
  const KvPool& pool = require_cache(context);
  const PagedKv<T> cache{.keys = reinterpret_cast<T*>(pool.keys(context.kv_layer)),
                         .values = reinterpret_cast<T*>(pool.values(context.kv_layer)),
                         .block_size = pool.shape().block_size,
                         .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  return [=](const cuda::Stream& stream) {
    kv_append(stream, keys, keys + width, slots, cache, tokens, width, stride);
  };
}

// Keys and values of prompts go to what the rank gives others, those of decodes to the cache.
Launch append_apart(const BindContext& context, const bf16* keys, std::int64_t tokens,
                    std::int64_t width, std::int64_t stride) {
  const KvPool& pool = require_cache(context);
  require_taken(context, pool.shape().dtype == DType::kBf16,
                "a bf16 cache for prompts over context-parallel ranks");
  const ContextTables& tables = context.tables.context;
  const ContextMemory memory = context_memory(context.tables, context.resources, width);
  const PagedKv<bf16> given{.keys = memory.own,
                            .values = memory.own + tables.given_rows() * width,
                            .block_size = 1,
                            .num_blocks = static_cast<std::int32_t>(tables.given_rows())};
  const PagedKv<bf16> cache{.keys = reinterpret_cast<bf16*>(pool.keys(context.kv_layer)),
                            .values = reinterpret_cast<bf16*>(pool.values(context.kv_layer)),
                            .block_size = pool.shape().block_size,
                            .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  const std::int64_t prompts = tables.prompt_rows;
  const std::int64_t* const slots = context.tables.slots;
  // In a ring what is cached of the prompts is given before others' keys come.
  const bool is_ring = tables.is_ring();
  const std::int64_t all_slots = pool.shape().num_blocks * pool.shape().block_size;
  const bool appends_own = context.tables.deals_decodes;
  return [=, cached_slots = tables.cached_slots,
          cached = is_ring ? tables.cached_rows : std::int64_t{0}](const cuda::Stream& stream) {
    kv_append(stream, keys, keys + width, slots, given, prompts, width, stride);
    if (cached > 0) {
      const std::int64_t at = prompts * width;
      embedding(stream, cached_slots, cache.keys, given.keys + at, cached, width, all_slots);
      embedding(stream, cached_slots, cache.values, given.values + at, cached, width, all_slots);
    }
    if (tokens == prompts || appends_own) return;
    const bf16* const decodes = keys + prompts * stride;
    kv_append(stream, decodes, decodes + width, slots + prompts, cache, tokens - prompts, width,
              stride);
  };
}

// Rows of prompts go to what the rank gives others, those of decodes to the cache.
Launch append_latents_apart(const BindContext& context, const LatentRows& rows,
                            const PagedKv<bf16>& cache, std::int64_t tokens) {
  const ContextTables& tables = context.tables.context;
  const LatentMemory memory =
      latent_memory(context.tables, context.resources, rows.latent + rows.rope);
  const PagedKv<bf16> given{.keys = memory.own,
                            .block_size = 1,
                            .num_blocks = static_cast<std::int32_t>(tables.given_rows())};
  const std::int64_t prompts = tables.prompt_rows;
  LatentRows decodes = rows;
  decodes.latents += prompts * rows.latent;
  decodes.rotated += prompts * rows.rope_stride;
  const std::int64_t* const slots = context.tables.slots;
  const bool appends_own = context.tables.deals_decodes;
  return [=](const cuda::Stream& stream) {
    kv_append_latent(stream, rows, slots, given, prompts);
    if (tokens == prompts || appends_own) return;
    kv_append_latent(stream, decodes, slots + prompts, cache, tokens - prompts);
  };
}

// reads latents and rotated keys, which may be columns of longer rows; writes a layer of a cache of
// them
Launch append_latents(const BindContext& context) {
  require_bf16(context);
  require_taken(context, has_operand(context, "rotated"), "latents and rotated keys");
  const KvPool& pool = require_cache(context);
  const std::int64_t width = pool.shape().head_dim;
  const Operand latents = operand(context, "x");
  const std::int64_t tokens = rows_to_append(context, latents);
  const Operand rotated = operand(context, "rotated");
  const std::int64_t latent = matrix_size(*latents.tensor).columns;
  require_taken(context,
                dim(context.op.dims, "width") == width && latent < width &&
                    num_columns(rotated) == width - latent && pool.shape().dtype == DType::kBf16,
                [&] {
                  return "a latent and a rotated key of a bf16 cache's width, " +
                         std::to_string(width);
                });
  const LatentRows rows{.latents = typed<bf16>(latents),
                        .rotated = first_column<bf16>(rotated),
                        .latent = latent,
                        .rope = width - latent,
                        .rope_stride = matrix_size(*rotated.tensor).columns};
  const PagedKv<bf16> cache{.keys = reinterpret_cast<bf16*>(pool.keys(context.kv_layer)),
                            .block_size = pool.shape().block_size,
                            .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  if (context.tables.context.prompt_rows > 0 && !are_gathered_decodes(latents)) {
    return append_latents_apart(context, rows, cache, tokens);
  }
  const std::int64_t* const slots = slots_of(context, latents);
  return [=](const cuda::Stream& stream) { kv_append_latent(stream, rows, slots, cache, tokens); };
}

}  // namespace

// reads rows that end in keys and values; writes a layer of the KV cache
Launch bind_kv_append(const BindContext& context) {
  if (require_cache(context).shape().is_latent) return append_latents(context);
  require_taken(context, !has_operand(context, "rotated"), "keys and values of one row");
  const KvShape& cache = require_cache(context).shape();
  require_taken(context, cache.dtype == context.op.dtype,
                [&] { return "a cache of its dtype, not " + std::string(to_text(cache.dtype)); });
  const Operand qkv = operand(context, "x");
  const std::int64_t tokens = rows_to_append(context, qkv);
  const std::int64_t width = cache.kv_heads * cache.head_dim;
  require_taken(context, dim(context.op.dims, "width") == 2 * width, [&] {
    return "keys and values of the cache's width, " + std::to_string(2 * width);
  });
  const std::int64_t stride = matrix_size(*qkv.tensor).columns;
  require_taken(context, stride >= 2 * width, [&] {
    return "rows that end in keys and values, not of " + std::to_string(stride);
  });
  const bf16* const keys = typed<bf16>(qkv) + (stride - 2 * width);
  if (context.tables.context.prompt_rows > 0 && !are_gathered_decodes(qkv)) {
    return append_apart(context, keys, tokens, width, stride);
  }
  const std::int64_t* const slots = slots_of(context, qkv);
  return cache.dtype == DType::kFp8 ? append<fp8>(context, keys, tokens, width, stride, slots)
                                    : append<bf16>(context, keys, tokens, width, stride, slots);
}

}  // namespace orrery
