#include "kernels/binding/bind_operands.h"
#include "kernels/rows/residual_add/residual_add.h"

namespace orrery {

// reads residual, x; writes residual
Launch bind_residual_add(const BindContext& context) {
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const Operand residual = operand(context, "residual");
  const Operand x = operand(context, "x");
  require_taken(context, result(context, "sum").data == residual.data,
                "one residual, to add in place");
  return [=](const cuda::Stream& stream) {
    residual_add(stream, typed<bf16>(residual), typed<bf16>(x), tokens, hidden);
  };
}

}  // namespace orrery
