#include "kernels/attention/rope/rope.h"
#include "kernels/binding/bind_operands.h"

namespace orrery {
namespace {

// reads and writes rows of query heads, of which the last head_dim elements turn in place, and a
// key head, columns of longer rows
Launch bind_apart(const BindContext& context) {
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t rotary = dim(context.op.dims, "head_dim");
  require_taken(context, context.numbers.head_dim == rotary, [&] {
    return "heads that turn " + std::to_string(context.numbers.head_dim) + " elements";
  });
  const Operand queries = operand(context, "q");
  const Operand keys = operand(context, "k");
  const std::int64_t query_stride = matrix_size(*queries.tensor).columns;
  const std::int64_t key_stride = matrix_size(*keys.tensor).columns;
  const std::int64_t query_heads = dim(context.op.dims, "heads") - 1;
  require_taken(context, query_heads > 0 && query_stride % query_heads == 0,
                "rows of query heads, one less than its heads");
  const std::int64_t head = query_stride / query_heads;
  require_taken(context, head >= rotary && num_columns(keys) == rotary,
                "query heads that end in what turns, and keys that turn");
  require_taken(context,
                result(context, "rotated_q").data == queries.data &&
                    result(context, "rotated_k").data == keys.data,
                "q and k to turn in place");
  const RopeShape shape{.tokens = tokens,
                        .query_heads = query_heads,
                        .key_heads = 1,
                        .head_dim = head,
                        .rotary_dim = rotary,
                        .query_stride = query_stride,
                        .key_stride = key_stride};
  bf16* const rotated_queries = typed<bf16>(queries) + (head - rotary);
  bf16* const rotated_keys = first_column<bf16>(keys);
  const StepTables tables = context.tables;
  return [=](const cuda::Stream& stream) {
    rope(stream, rotated_queries, rotated_keys, tables.positions, tables.cosines, tables.sines,
         shape);
  };
}

}  // namespace

// reads and writes rows of query, key and value heads, of which queries and keys turn in place
Launch bind_rope(const BindContext& context) {
  if (has_operand(context, "k")) return bind_apart(context);
  const KvShape& cache = require_cache(context, /*has_layer=*/false).shape();
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t heads = dim(context.op.dims, "heads");
  const std::int64_t head_dim = dim(context.op.dims, "head_dim");
  const std::int64_t key_heads = cache.kv_heads;
  require_taken(context, heads > key_heads && context.numbers.head_dim == head_dim, [&] {
    return "heads of " + std::to_string(context.numbers.head_dim) +
           " elements, more than the key heads, " + std::to_string(key_heads);
  });
  const std::int64_t stride = (heads + key_heads) * head_dim;
  const Operand qkv = operand(context, "q");
  require_columns(context, qkv, stride);
  require_taken(context, result(context, "rotated_q").data == qkv.data,
                "q, k and v to turn in place");
  const RopeShape shape{.tokens = tokens,
                        .query_heads = heads - key_heads,
                        .key_heads = key_heads,
                        .head_dim = head_dim,
                        .rotary_dim = head_dim,
                        .query_stride = stride,
                        .key_stride = stride};
  bf16* const queries = typed<bf16>(qkv);
  const StepTables tables = context.tables;
  return [=](const cuda::Stream& stream) {
    rope(stream, queries, queries + shape.query_heads * head_dim, tables.positions, tables.cosines,
         tables.sines, shape);
  };
}

}  // namespace orrery
