#include "kernels/binding/bind_operands.h"
#include "kernels/rows/residual_add/residual_add.h"

namespace orrery {

// reads residual, x; writes residual
Launch bind_residual_add(const BindContext& context) {
  require_dtype(context);
  require_operands(context, 2, 1);
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const MatrixSize rows{tokens, hidden};
  const Operand residual =
      require_operand(context, context.reads[0], {.what = "residual", .size = rows});
  const Operand x = require_operand(context, context.reads[1], {.what = "x", .size = rows});
  require_taken(context, context.writes[0].data == residual.data, "one residual, to add in place");
  return [=](const cuda::Stream& stream) {
    residual_add(stream, typed<bf16>(residual), typed<bf16>(x), tokens, hidden);
  };
}

}  // namespace orrery
