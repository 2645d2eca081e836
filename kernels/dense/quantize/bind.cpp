#include "kernels/binding/bind_operands.h"
#include "kernels/dense/quantize/quantize.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {

// reads x (one or several parts); writes y with a scale for each row
Launch bind_quantize(const BindContext& context) {
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const InputRows x(context, "x", {tokens, hidden});
  const Operand y = result(context, "y");
  return [x, y, tokens, hidden](const cuda::Stream& stream) {
    x.gather(stream);
    quantize_rowwise(stream, static_cast<const bf16*>(x.data()), typed<fp8>(y), y.scales, tokens,
                     hidden);
  };
}

}  // namespace orrery
