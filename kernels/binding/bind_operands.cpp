#include "kernels/binding/bind_operands.h"

#include <algorithm>
#include <stdexcept>
#include <variant>
#include <vector>

#include "kernels/executable.h"

namespace orrery {
namespace {

// Tensors of one slot follow each other.
std::span<const Operand> tensors_of(const BindContext& context, std::string_view slot,
                                    bool is_result) {
  const std::vector<std::uint8_t>& slots = is_result ? context.slots.writes : context.slots.reads;
  std::size_t first = 0;
  while (first < slots.size() && context.spec.slots[slots[first]].name != slot) ++first;
  std::size_t last = first;
  while (last < slots.size() && slots[last] == slots[first]) ++last;
  return (is_result ? context.writes : context.reads).subspan(first, last - first);
}

std::span<const Operand> in_memory(const BindContext& context, std::string_view slot,
                                   std::span<const Operand> tensors) {
  require_taken(context, !tensors.empty(), [&] { return "an operand " + std::string(slot); });
  for (const Operand& tensor : tensors) {
    const auto named = [&] { return std::string(slot) + " (" + tensor.tensor->name + ")"; };
    require_taken(context, tensor.data != nullptr,
                  [&] { return named() + " in memory, not in the KV cache"; });
    require_taken(context, tensor.tensor->dtype != DType::kFp8 || tensor.scales != nullptr,
                  [&] { return named() + " with a scale for each row"; });
  }
  return tensors;
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

OperandSlots executed_slots(const Plan& plan, const Op& op) {
  const auto& kernel = std::get<KernelOp>(op.body);
  const auto refused = [&](const std::string& what) {
    throw std::invalid_argument(kernel.kernel + " takes " + what);
  };
  const KernelSpec& spec = kernel_spec(kernel.kernel);
  if (std::ranges::find(spec.executed, kernel.dtype) == spec.executed.end()) {
    std::string known;
    for (const DType dtype : spec.executed) {
      known.append(known.empty() ? "" : " and ").append(to_text(dtype));
    }
    refused(known + ", not " + std::string(to_text(kernel.dtype)));
  }
  if (const std::string reason = refused_operand(plan, op); !reason.empty()) refused(reason);
  return operand_slots(plan, op);
}

Operand operand(const BindContext& context, std::string_view slot) {
  return in_memory(context, slot, tensors_of(context, slot, /*is_result=*/false)).front();
}

Operand result(const BindContext& context, std::string_view slot) {
  return in_memory(context, slot, tensors_of(context, slot, /*is_result=*/true)).front();
}

std::span<const Operand> parts(const BindContext& context, std::string_view slot) {
  return in_memory(context, slot, tensors_of(context, slot, /*is_result=*/false));
}

bool has_operand(const BindContext& context, std::string_view slot) {
  return !tensors_of(context, slot, /*is_result=*/false).empty();
}

bool has_result(const BindContext& context, std::string_view slot) {
  return !tensors_of(context, slot, /*is_result=*/true).empty();
}

void require_rows(const BindContext& context, const Operand& operand, std::int64_t rows) {
  const std::int64_t found = matrix_size(*operand.tensor).rows;
  require_taken(context, found >= rows, [&] {
    return std::to_string(rows) + " rows of " + operand.tensor->name + ", not " +
           std::to_string(found);
  });
}

void require_columns(const BindContext& context, const Operand& operand, std::int64_t columns) {
  const std::int64_t found = num_columns(operand);
  require_taken(context, found == columns, [&] {
    return std::to_string(columns) + " columns of " + operand.tensor->name + ", not " +
           std::to_string(found);
  });
}

void require_bf16(const BindContext& context) {
  require_taken(context, context.op.dtype == DType::kBf16,
                [&] { return "bf16, not " + std::string(to_text(context.op.dtype)); });
}

const KvPool& require_cache(const BindContext& context, bool has_layer) {
  if (context.kv == nullptr || (has_layer && context.kv_layer < 0)) {
    throw std::invalid_argument(context.op.kernel + " takes a KV cache that has its heads" +
                                (has_layer ? " and layer" : ""));
  }
  return *context.kv;
}

}  // namespace orrery
