#include "kernels/binding/bind_operands.h"
#include "kernels/rows/silu_mul/silu_mul.h"

namespace orrery {

// reads gates and ups and, where the device knows it, the number of rows [1]; writes y
Launch bind_silu_mul(const BindContext& context) {
  const bool is_counted = has_operand(context, "num_rows");
  const Operand x = operand(context, "x");
  const Operand y = result(context, "y");
  const DType dtype = context.op.dtype;
  // Counted: there is room for more rows than are expected.
  const std::int64_t tokens =
      is_counted ? matrix_size(*x.tensor).rows : dim(context.op.dims, "tokens");
  const std::int64_t ffn = dim(context.op.dims, "ffn");
  require_taken(context, matrix_size(*x.tensor).rows == matrix_size(*y.tensor).rows,
                "as many rows of y as of x");
  const std::int32_t* const num_rows =
      is_counted ? typed<std::int32_t>(operand(context, "num_rows")) : nullptr;
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      silu_mul_fp8(stream, typed<bf16>(x), typed<fp8>(y), y.scales, tokens, ffn, num_rows);
    } else {
      silu_mul(stream, typed<bf16>(x), typed<bf16>(y), tokens, ffn, num_rows);
    }
  };
}

}  // namespace orrery
