#include "kernels/binding/kernel_call.h"

#include <algorithm>
#include <stdexcept>

namespace orrery::reference {
namespace {

std::size_t place_of(const KernelCall& call, const std::vector<std::uint8_t>& slots,
                     std::string_view slot) {
  const auto found =
      std::ranges::find(slots, slot, [&](std::uint8_t of) { return call.spec.slots[of].name; });
  if (found == slots.end()) refuse(call, "has no operand " + std::string(slot));
  return static_cast<std::size_t>(found - slots.begin());
}

const Tensor& tensor_of(const KernelCall& call, TensorId id) {
  return call.plan.tensors()[static_cast<std::size_t>(id)];
}

}  // namespace

void refuse(const KernelCall& call, const std::string& why) {
  throw std::invalid_argument("op \"" + printed_name(call.op) + "\": " + why);
}

std::int64_t size_of(const KernelCall& call, std::string_view name) {
  return dim(call.kernel.dims, name);
}

const TensorView& view_read(const KernelCall& call, std::string_view slot) {
  return call.op.reads[place_of(call, call.slots.reads, slot)];
}

const Tensor& tensor_read(const KernelCall& call, std::string_view slot) {
  return tensor_of(call, view_read(call, slot));
}

const Values& read(const KernelCall& call, std::string_view slot) {
  const Values* const found = call.reads[place_of(call, call.slots.reads, slot)];
  if (found == nullptr) refuse(call, "has no values of " + std::string(slot));
  return *found;
}

std::int64_t columns_read(const KernelCall& call, std::string_view slot) {
  return tensor_read(call, slot).axes.back().size;
}

Values columns_of_view(const KernelCall& call, std::string_view slot) {
  const TensorView& view = view_read(call, slot);
  if (view.has_all_columns()) return read(call, slot);
  return columns_of(read(call, slot), columns_read(call, slot), view.first_column,
                    view.num_columns);
}

bool has_operand(const KernelCall& call, std::string_view slot) {
  return std::ranges::any_of(call.slots.reads,
                             [&](std::uint8_t of) { return call.spec.slots[of].name == slot; });
}

Values optional_read(const KernelCall& call, std::string_view slot) {
  return has_operand(call, slot) ? read(call, slot) : Values{};
}

std::vector<std::int32_t> integers_read(const KernelCall& call, std::string_view slot) {
  const Values& values = read(call, slot);
  std::vector<std::int32_t> result(values.size());
  std::ranges::transform(values, result.begin(),
                         [](double value) { return static_cast<std::int32_t>(value); });
  return result;
}

Values rows_read(const KernelCall& call, std::string_view slot, std::int64_t rows,
                 std::int64_t columns) {
  Values x;
  for (std::size_t i = 0; i < call.reads.size(); ++i) {
    if (call.spec.slots[call.slots.reads[i]].name != slot) continue;
    x.insert(x.end(), call.reads[i]->begin(), call.reads[i]->end());
  }
  const auto found = static_cast<std::int64_t>(x.size()) / columns;
  if (found == rows) return x;
  const auto gathered_rows = [&](const std::vector<std::int64_t>& of) {
    Values gathered;
    for (const std::int64_t row : of) {
      const auto begin = x.begin() + row * columns;
      gathered.insert(gathered.end(), begin, begin + columns);
    }
    return gathered;
  };
  if (rows == std::ssize(call.part.of_step)) return gathered_rows(call.part.of_step);
  if (rows != call.part.rows.seqs || found < rows) {
    refuse(call, "reads " + std::to_string(found) + " rows, expected " + std::to_string(rows));
  }
  return gathered_rows(call.part.sampled);
}

const Tensor& tensor_written(const KernelCall& call, std::string_view slot) {
  return tensor_of(call, call.op.writes[place_of(call, call.slots.writes, slot)]);
}

Values zeros_written(const KernelCall& call, std::string_view slot) {
  return Values(static_cast<std::size_t>(num_elements(tensor_written(call, slot))));
}

Values columns_of(std::span<const double> x, std::int64_t stride, std::int64_t first,
                  std::int64_t count) {
  Values result;
  for (auto row = x.begin(); row != x.end(); row += stride) {
    result.insert(result.end(), row + first, row + first + count);
  }
  return result;
}

void put_columns(Values& x, std::int64_t stride, std::int64_t first, const Values& columns,
                 std::int64_t count) {
  for (std::int64_t row = 0; row * count < std::ssize(columns); ++row) {
    std::copy_n(columns.begin() + row * count, count, x.begin() + row * stride + first);
  }
}

}  // namespace orrery::reference
