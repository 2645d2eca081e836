#include "kernels/binding/bind_operands.h"
#include "kernels/rows/residual_add/residual_add.h"

namespace orrery {

// reads residual, x; writes sum, which may be residual
Launch bind_residual_add(const BindContext& context) {
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const Operand residual = operand(context, "residual");
  const Operand x = operand(context, "x");
  const Operand sum = result(context, "sum");
  return [=](const cuda::Stream& stream) {
    residual_add(stream, typed<bf16>(residual), typed<bf16>(x), typed<bf16>(sum), tokens, hidden);
  };
}

}  // namespace orrery
