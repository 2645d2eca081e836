#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_prefill/kept_plan.h"
#include "kernels/attention/kv_append/kv_append.h"
#include "kernels/binding/bind_operands.h"
#include "kernels/binding/context_memory.h"
#include "kernels/cuda/check.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {
namespace {

std::int64_t rows_of(std::span<const PrefillPiece> pieces) {
  std::int64_t rows = 0;
  for (const PrefillPiece& piece : pieces) rows += piece.query;
  return rows;
}

// Of a context-parallel rank's rows over the keys of all ranks.
Launch attend_gathered(const BindContext& context, const AttentionPrefill& call,
                       std::int64_t out_rows) {
  const ContextTables& tables = context.tables.context;
  const ContextMemory memory = context_memory(context.tables, context.resources,
                                              std::int64_t{call.kv_heads} * call.head_dim);
  const std::int32_t rows = attention_prefill_tile_rows(call.head_dim);
  const auto window =
      static_cast<std::int32_t>(std::min<std::int64_t>(dim(context.op.dims, "window"), kNoWindow));
  const std::span<const PrefillPiece> pieces = tables.keys.front().pieces;
  const auto plan = context.resources.keep_for_step<PrefillPlan>(
      std::pair(rows, window), [&](std::span<const PrefillChunk> /*chunks*/) {
        return PrefillPlan(pieces, tables.prompt_rows, tables.num_keys, rows, window);
      });
  // Rows that no piece has are padding: what other kernels make of them must be finite.
  const auto bytes =
      rows_of(pieces) == out_rows
          ? std::size_t{0}
          : static_cast<std::size_t>(out_rows * call.heads * call.head_dim) * sizeof(bf16);
  return [=](const cuda::Stream& stream) {
    if (bytes > 0) ORRERY_CUDA(cudaMemsetAsync(call.out, 0, bytes, stream.get()));
    attention_prefill(stream, *plan, call, memory.keys, memory.values);
  };
}

// In a ring: over the keys of one rank, which are brought into their order and stored where they
// are new and this rank's turn.
Launch attend_in_ring(const BindContext& context, AttentionPrefill call, std::int64_t out_rows) {
  const ContextTables& tables = context.tables.context;
  const AttendedKeys& keys = tables.keys[static_cast<std::size_t>(context.rank_of_keys)];
  const Operand lse = result(context, "lse");
  require_rows(context, lse, tables.prompt_rows);
  require_columns(context, lse, call.heads);
  call.lse = typed<float>(lse);
  const std::int64_t width = std::int64_t{call.kv_heads} * call.head_dim;
  const ContextMemory memory = context_memory(context.tables, context.resources, width);
  const std::int32_t rows = attention_prefill_tile_rows(call.head_dim);
  const auto plan = context.resources.keep_for_step<PrefillPlan>(
      std::pair(rows, kNoWindow - 1 - context.rank_of_keys),
      [&](std::span<const PrefillChunk> /*chunks*/) {
        return PrefillPlan(keys.pieces, tables.prompt_rows, keys.count, rows, kNoWindow);
      });
  const KvPool& pool = require_cache(context);
  const PagedKv<bf16> cache{.keys = reinterpret_cast<bf16*>(pool.keys(context.kv_layer)),
                            .values = reinterpret_cast<bf16*>(pool.values(context.kv_layer)),
                            .block_size = pool.shape().block_size,
                            .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  const bool covers_all = rows_of(keys.pieces) == out_rows;
  return [=, given = tables.given_rows(), ranks = context.tables.context_ranks, count = keys.count,
          has_pieces = !keys.pieces.empty(), sources = tables.key_sources + keys.first,
          slots = tables.key_slots + keys.first](const cuda::Stream& stream) {
    const auto place = [&](const bf16* from, bf16* to) {
      embedding(stream, sources, from, to, count, width, (2 * ranks - 1) * given);
    };
    place(memory.all, memory.keys);
    place(memory.all + given * width, memory.values);
    kv_append(stream, memory.keys, memory.values, slots, cache, count, width);
    if (!covers_all) {
      // Rows that see none of these keys weigh nothing: a log-sum-exp of -1.7e38.
      constexpr int kLeast = 0xFE;
      const auto num_heads = static_cast<std::size_t>(out_rows * call.heads);
      const auto head_bytes = static_cast<std::size_t>(call.head_dim) * sizeof(bf16);
      ORRERY_CUDA(cudaMemsetAsync(call.out, 0, num_heads * head_bytes, stream.get()));
      ORRERY_CUDA(cudaMemsetAsync(call.lse, kLeast, num_heads * sizeof(float), stream.get()));
    }
    if (has_pieces) attention_prefill(stream, *plan, call, memory.keys, memory.values);
  };
}

}  // namespace

// reads rows that begin with queries, a layer of the KV cache (or, over context-parallel ranks,
// what was gathered of it: context_memory.h); writes out. The sequences are those of the step's
// tables: the op knows them as a uniform batch of as many tokens.
Launch bind_attention_prefill(const BindContext& context) {
  const KvPool& pool = require_cache(context);
  const Dims& dims = context.op.dims;
  const std::int64_t heads = dim(dims, "heads");
  const std::int64_t kv_heads = dim(dims, "kv_heads");
  const std::int64_t head_dim = dim(dims, "head_dim");
  require_taken(context,
                pool.shape().kv_heads == kv_heads && pool.shape().head_dim == head_dim &&
                    pool.shape().dtype == DType::kBf16,
                "a bf16 cache of its kv_heads and head_dim");
  const bool is_gathered = context.tables.context.prompt_rows > 0;
  const bool is_ring = context.tables.context.is_ring();
  require_taken(context, is_ring || has_operand(context, "shards") == is_gathered,
                "keys of other ranks for prompts over context-parallel ranks alone");
  require_taken(context, has_result(context, "lse") == is_ring,
                "log-sum-exps of prompts in a ring alone");
  std::int64_t tokens = context.tables.context.prompt_rows;
  if (!is_gathered) {
    for (const PrefillChunk& sequence : context.tables.prefill) tokens += sequence.query;
  }
  const std::int64_t columns = heads * head_dim;
  const Operand q = operand(context, "q");
  const Operand out = result(context, "out");
  require_rows(context, q, tokens);
  require_rows(context, out, tokens);
  const std::int64_t stride = matrix_size(*q.tensor).columns;
  require_taken(context, stride >= columns, "rows that begin with queries");
  const AttentionPrefill call{.q = typed<bf16>(q),
                              .out = typed<bf16>(out),
                              .heads = static_cast<std::int32_t>(heads),
                              .kv_heads = static_cast<std::int32_t>(kv_heads),
                              .head_dim = static_cast<std::int32_t>(head_dim),
                              .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                              .q_stride = stride};
  const std::int64_t out_rows = matrix_size(*out.tensor).rows;
  if (is_ring) return attend_in_ring(context, call, out_rows);
  if (is_gathered) return attend_gathered(context, call, out_rows);
  const PagedKv<const bf16> cache{
      .keys = reinterpret_cast<const bf16*>(pool.keys(context.kv_layer)),
      .values = reinterpret_cast<const bf16*>(pool.values(context.kv_layer)),
      .block_table = context.tables.prefill_blocks,
      .blocks_per_sequence = context.tables.blocks_per_sequence,
      .block_size = pool.shape().block_size,
      .num_blocks = static_cast<std::int32_t>(pool.shape().num_blocks)};
  const auto plan = kept_prefill_plan(
      context.resources, attention_prefill_tile_rows(call.head_dim),
      static_cast<std::int32_t>(std::min<std::int64_t>(dim(dims, "window"), kNoWindow)));
  // Rows past the sequences are padding: what other kernels make of them must be finite.
  bf16* const padding = typed<bf16>(out) + tokens * columns;
  const auto bytes = static_cast<std::size_t>((out_rows - tokens) * columns) * sizeof(bf16);
  return [plan, call, cache, padding, bytes](const cuda::Stream& stream) {
    attention_prefill(stream, *plan, call, cache);
    if (bytes > 0) ORRERY_CUDA(cudaMemsetAsync(padding, 0, bytes, stream.get()));
  };
}

}  // namespace orrery
