#include "kernels/binding/bind_operands.h"
#include "kernels/rows/add_rms_norm/add_rms_norm.h"

namespace orrery {

// reads x, residual, gain; writes y, residual
Launch bind_add_rms_norm(const BindContext& context) {
  const DType dtype = context.op.dtype;
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const Operand x = operand(context, "x");
  const Operand residual = operand(context, "residual");
  const Operand gain = operand(context, "gain");
  const Operand y = result(context, "y");
  require_taken(context, result(context, "sum").data == residual.data,
                "one residual, to add in place");
  const NormOptions options{.epsilon = static_cast<float>(context.numbers.norm_epsilon)};
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      add_rms_norm_fp8(stream, typed<bf16>(residual), typed<bf16>(x), typed<bf16>(gain),
                       typed<fp8>(y), y.scales, tokens, hidden, options);
    } else {
      add_rms_norm(stream, typed<bf16>(residual), typed<bf16>(x), typed<bf16>(gain), typed<bf16>(y),
                   tokens, hidden, options);
    }
  };
}

}  // namespace orrery
