#include <array>

#include "kernels/execute/bind_operands.h"
#include "kernels/silu_mul/silu_mul.h"

namespace orrery {

// reads gates and ups; writes y
Launch bind_silu_mul(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16, DType::kFp8});
  require_operands(context, 1, 1);
  const DType dtype = context.op.dtype;
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t ffn = dim(context.op.dims, "ffn");
  const Operand x = require_operand(context, context.reads[0],
                                    {.what = "gates and ups", .size = {tokens, 2 * ffn}});
  const Operand y = require_operand(context, context.writes[0],
                                    {.what = "y", .dtype = dtype, .size = {tokens, ffn}});
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      silu_mul_fp8(stream, typed<bf16>(x), typed<fp8>(y), y.scales, tokens, ffn);
    } else {
      silu_mul(stream, typed<bf16>(x), typed<bf16>(y), tokens, ffn);
    }
  };
}

}  // namespace orrery
