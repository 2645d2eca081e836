#include "kernels/binding/bind_operands.h"
#include "kernels/rows/silu_mul/silu_mul.h"

namespace orrery {

// reads gates and ups and, where the device knows it, the number of rows [1]; writes y
Launch bind_silu_mul(const BindContext& context) {
  require_dtype(context);
  const bool is_counted = context.reads.size() > 1;
  require_operands(context, is_counted ? 2 : 1, 1);
  const DType dtype = context.op.dtype;
  // Counted: there is room for more rows than are expected.
  const std::int64_t tokens =
      is_counted ? matrix_size(*context.reads[0].tensor).rows : dim(context.op.dims, "tokens");
  const std::int64_t ffn = dim(context.op.dims, "ffn");
  const Operand x = require_operand(context, context.reads[0],
                                    {.what = "gates and ups", .size = {tokens, 2 * ffn}});
  const Operand y = require_operand(context, context.writes[0],
                                    {.what = "y", .dtype = dtype, .size = {tokens, ffn}});
  const std::int32_t* num_rows = nullptr;
  if (is_counted) {
    num_rows = typed<std::int32_t>(require_operand(
        context, context.reads[1], {.what = "num_rows", .dtype = DType::kInt32, .size = {1, 1}}));
  }
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      silu_mul_fp8(stream, typed<bf16>(x), typed<fp8>(y), y.scales, tokens, ffn, num_rows);
    } else {
      silu_mul(stream, typed<bf16>(x), typed<bf16>(y), tokens, ffn, num_rows);
    }
  };
}

}  // namespace orrery
