#include "kernels/binding/bind_operands.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/executable.h"

namespace orrery {
namespace {

std::string to_text(const MatrixSize& size) {
  return "[" + std::to_string(size.rows) + ", " + std::to_string(size.columns) + "]";
}

}  // namespace

MatrixSize matrix_size(const Tensor& tensor) {
  MatrixSize size;
  if (!tensor.axes.empty()) size.columns = tensor.axes.back().size;
  for (std::size_t i = 0; i + 1 < tensor.axes.size(); ++i) size.rows *= tensor.axes[i].size;
  return size;
}

std::int64_t num_columns(const Operand& operand) {
  return operand.num_columns > 0 ? operand.num_columns : matrix_size(*operand.tensor).columns;
}

void refuse(const BindContext& context, std::string_view what) {
  throw std::invalid_argument((context.op.kernel + " takes ").append(what));
}

void require_operands(const BindContext& context, std::size_t reads, std::size_t writes) {
  require_taken(context, context.reads.size() == reads && context.writes.size() == writes, [&] {
    return std::to_string(reads) + " reads and " + std::to_string(writes) + " writes, not " +
           std::to_string(context.reads.size()) + " and " + std::to_string(context.writes.size());
  });
}

void require_dtype(const BindContext& context) {
  require_dtype(context, executed_dtypes(context.op.kernel));
}

void require_dtype(const BindContext& context, std::span<const DType> dtypes) {
  if (std::ranges::find(dtypes, context.op.dtype) != dtypes.end()) return;
  std::string known;
  for (const DType dtype : dtypes) {
    known.append(known.empty() ? "" : " and ").append(to_text(dtype));
  }
  refuse(context, known + ", not " + std::string(to_text(context.op.dtype)));
}

const KvPool& require_cache(const BindContext& context, bool has_layer) {
  if (context.kv == nullptr || (has_layer && context.kv_layer < 0)) {
    throw std::invalid_argument(context.op.kernel + " takes a KV cache that has its heads" +
                                (has_layer ? " and layer" : ""));
  }
  return *context.kv;
}

Operand require_operand(const BindContext& context, const Operand& operand,
                        const OperandRule& rule) {
  const Tensor& tensor = *operand.tensor;
  const auto named = [&] { return rule.what + std::string(" (") + tensor.name + ")"; };
  require_taken(context, tensor.dtype == rule.dtype, [&] {
    return std::string(to_text(rule.dtype)) + " as " + named() + ", not " +
           std::string(to_text(tensor.dtype));
  });
  const MatrixSize size = matrix_size(tensor);
  const bool fits = size.columns == rule.size.columns &&
                    (size.rows == rule.size.rows || (rule.more_rows && size.rows > rule.size.rows));
  require_taken(context, fits,
                [&] { return to_text(rule.size) + " as " + named() + ", not " + to_text(size); });
  require_taken(context, operand.data != nullptr,
                [&] { return named() + " in memory, not in the KV cache"; });
  require_taken(context, rule.dtype != DType::kFp8 || operand.scales != nullptr,
                [&] { return named() + " with a scale for each row"; });
  return operand;
}

}  // namespace orrery
