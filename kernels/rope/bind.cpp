#include <array>

#include "kernels/execute/bind_operands.h"
#include "kernels/rope/rope.h"

namespace orrery {

// reads and writes rows of query, key and value heads, of which queries and keys turn in place
Launch bind_rope(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16});
  require_operands(context, 1, 1);
  const KvShape& cache = require_cache(context, /*has_layer=*/false).shape();
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t heads = dim(context.op.dims, "heads");
  const std::int64_t head_dim = dim(context.op.dims, "head_dim");
  const std::int64_t key_heads = cache.kv_heads;
  require_taken(context, heads > key_heads && context.numbers.head_dim == head_dim,
                "heads of " + std::to_string(context.numbers.head_dim) +
                    " elements, more than the key heads, " + std::to_string(key_heads));
  const std::int64_t stride = (heads + key_heads) * head_dim;
  const Operand qkv =
      require_operand(context, context.reads[0], {.what = "q, k and v", .size = {tokens, stride}});
  require_taken(context, context.writes[0].data == qkv.data, "q, k and v to turn in place");
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
