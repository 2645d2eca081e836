#include "kernels/binding/bind_operands.h"
#include "kernels/rows/rms_norm/rms_norm.h"

namespace orrery {
namespace {

// reads rows of query, key and value heads, gains of query and key heads; norms these in place
Launch bind_heads(const BindContext& context) {
  require_bf16(context);
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
  const Operand heads = operand(context, "x");
  const Operand gains = operand(context, "gain");
  require_columns(context, heads, stride);
  require_columns(context, gains, 2 * head_dim);
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
  const Operand x = operand(context, "x");
  const Operand gain = operand(context, "gain");
  const Operand y = result(context, "y");
  if (y.data == x.data) return bind_heads(context);
  const DType dtype = context.op.dtype;
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  require_columns(context, x, hidden);
  require_columns(context, gain, hidden);
  require_columns(context, y, hidden);
  const bf16* const from = first_column<bf16>(x);
  const NormOptions options{.epsilon = static_cast<float>(context.numbers.norm_epsilon),
                            .x_stride = matrix_size(*x.tensor).columns};
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
