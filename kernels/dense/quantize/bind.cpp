#include "kernels/binding/bind_operands.h"
#include "kernels/dense/quantize/quantize.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {

// reads x (one or several parts); writes y with a scale for each row
Launch bind_quantize(const BindContext& context) {
  require_dtype(context);
  require_operands(context, context.reads.size(), 1);
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const InputRows x(context, context.reads, DType::kBf16, {tokens, hidden});
  const Operand y = require_operand(
      context, context.writes[0],
      {.what = "y", .dtype = DType::kFp8, .size = {tokens, hidden}, .more_rows = true});
  return [x, y, tokens, hidden](const cuda::Stream& stream) {
    x.gather(stream);
    quantize_rowwise(stream, static_cast<const bf16*>(x.data()), typed<fp8>(y), y.scales, tokens,
                     hidden);
  };
}

}  // namespace orrery
