#include <array>

#include "kernels/binding/bind_operands.h"
#include "kernels/rows/rms_norm/rms_norm.h"

namespace orrery {
namespace {

// reads rows of query, key and value heads, gains of query and key heads; norms these in place
Launch bind_heads(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16});
  const KvShape& cache = require_cache(context, /*has_layer=*/false).shape();
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const std::int64_t head_dim = cache.head_dim;
  const std::int64_t key_heads = cache.kv_heads;
  require_taken(context, hidden % head_dim == 0 && hidden > key_heads * head_dim, [&] {
    return "query and key heads of " + std::to_string(head_dim) + ", not " +
           std::to_string(hidden) + " elements";
  });
  const std::int64_t stride = hidden + key_heads * head_dim;
  const Operand heads =
      require_operand(context, context.reads[0], {.what = "q, k and v", .size = {tokens, stride}});
  const Operand gains =
      require_operand(context, context.reads[1], {.what = "gains", .size = {1, 2 * head_dim}});
  const HeadNormShape shape{.tokens = tokens,
                            .query_heads = hidden / head_dim - key_heads,
                            .key_heads = key_heads,
                            .head_dim = head_dim,
                            .stride = stride};
  const NormOptions options{.epsilon = static_cast<float>(context.numbers.norm_epsilon)};
  return [=](const cuda::Stream& stream) {
    rms_norm_heads(stream, typed<bf16>(heads), typed<bf16>(gains), shape, options);
  };
}

}  // namespace

// reads x, which may be columns of longer rows, and gain; writes y
Launch bind_rms_norm(const BindContext& context) {
  require_operands(context, 2, 1);
  if (context.writes[0].data == context.reads[0].data) return bind_heads(context);
  require_dtype(context);
  const DType dtype = context.op.dtype;
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const MatrixSize rows{tokens, hidden};
  const std::int64_t stride = matrix_size(*context.reads[0].tensor).columns;
  const Operand x =
      require_operand(context, context.reads[0], {.what = "x", .size = {tokens, stride}});
  require_taken(context, num_columns(x) == hidden, [&] {
    return "x of " + std::to_string(hidden) + " columns, not " + std::to_string(num_columns(x));
  });
  const Operand gain =
      require_operand(context, context.reads[1], {.what = "gain", .size = {1, hidden}});
  const Operand y =
      require_operand(context, context.writes[0], {.what = "y", .dtype = dtype, .size = rows});
  const bf16* const from = first_column<bf16>(x);
  const NormOptions options{.epsilon = static_cast<float>(context.numbers.norm_epsilon),
                            .x_stride = stride};
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      rms_norm_fp8(stream, from, typed<bf16>(gain), typed<fp8>(y), y.scales, tokens, hidden,
                   options);
    } else {
      rms_norm(stream, from, typed<bf16>(gain), typed<bf16>(y), tokens, hidden, options);
    }
  };
}

}  // namespace orrery
