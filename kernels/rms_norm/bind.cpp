#include <array>

#include "kernels/execute/bind_operands.h"
#include "kernels/rms_norm/rms_norm.h"

namespace orrery {

// reads x, gain; writes y
Launch bind_rms_norm(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16, DType::kFp8});
  require_operands(context, 2, 1);
  const DType dtype = context.op.dtype;
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const MatrixSize rows{tokens, hidden};
  const Operand& x = require_operand(context, context.reads[0], {.what = "x", .size = rows});
  const Operand& gain =
      require_operand(context, context.reads[1], {.what = "gain", .size = {1, hidden}});
  const Operand& y =
      require_operand(context, context.writes[0], {.what = "y", .dtype = dtype, .size = rows});
  const NormOptions options{.epsilon = static_cast<float>(context.numbers.norm_epsilon)};
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      rms_norm_fp8(stream, typed<bf16>(x), typed<bf16>(gain), typed<fp8>(y), y.scales, tokens,
                   hidden, options);
    } else {
      rms_norm(stream, typed<bf16>(x), typed<bf16>(gain), typed<bf16>(y), tokens, hidden, options);
    }
  };
}

}  // namespace orrery
