#include "sim/grammar/first_form.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace orrery {
namespace {

// "s1.m3.norm", "s1.norm"
template <typename Owner>
void take_stage_off_name(Owner& owner) {
  std::string_view rest = owner.name;
  const auto take_number = [&](char letter, std::int16_t& number) {
    if (!rest.starts_with(letter)) return false;
    std::int16_t found = 0;
    const char* const last = rest.data() + rest.size();
    const auto [end, error] = std::from_chars(rest.data() + 1, last, found);
    if (error != std::errc{} || found < 0 || end == last || *end != '.') return false;
    number = found;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
    return true;
  };
  if (!take_number('s', owner.stage)) return;
  take_number('m', owner.micro_batch);
  owner.name = std::string(rest);
}

std::int64_t columns_of(const Plan& plan, const TensorView& view) {
  const Tensor& tensor = plan.tensors()[static_cast<std::size_t>(view.tensor)];
  return tensor.axes.empty() ? 1 : tensor.axes.back().size;
}

std::int64_t size_of(const KernelOp& kernel, std::string_view name) {
  const auto found = std::ranges::find(kernel.dims, name, &Dim::name);
  return found == kernel.dims.end() ? 0 : found->size;
}

// Rows that a projection of latent attention makes: [what the query's norm takes |] what the
// norm of keys and values takes | rotated keys. The norms take theirs in the order of the ops.
class Columns {
 public:
  explicit Columns(const Plan& plan) : plan_(plan), taken_(plan.tensors().size()) {}

  void set_views(Op& op) {
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) set_views(*kernel, op);
    for (const TensorId id : op.writes) taken(id) = 0;
  }

 private:
  // Ops that lack operands or dims stay as they are: `verify` says what they lack.
  void set_views(const KernelOp& kernel, Op& op) {
    if (op.writes.empty() || op.reads.empty()) return;
    const bool is_apart = op.reads.size() == 2;
    if (kernel.kernel == "rms_norm") take(op, size_of(kernel, "hidden"));
    if (kernel.kernel == "rope" && is_apart) {
      set_last(op.reads[1], size_of(kernel, "head_dim"));
      op.writes.back() = op.reads[1];
    }
    if (kernel.kernel == "kv_append" && is_apart) {
      set_last(op.reads[1], size_of(kernel, "width") - columns_of(plan_, op.reads[0]));
    }
  }

  std::int64_t& taken(TensorId id) { return taken_[static_cast<std::size_t>(id)]; }

  void take(Op& op, std::int64_t count) {
    TensorView& x = op.reads.front();
    if (op.writes.front() == x.tensor || count < 1 || columns_of(plan_, x) <= count) return;
    std::int64_t& first = taken(x.tensor);
    x.first_column = static_cast<std::int32_t>(first);
    x.num_columns = static_cast<std::int32_t>(count);
    first += count;
  }
  void set_last(TensorView& view, std::int64_t count) const {
    const std::int64_t columns = columns_of(plan_, view);
    if (count < 1 || columns <= count) return;
    view.first_column = static_cast<std::int32_t>(columns - count);
    view.num_columns = static_cast<std::int32_t>(count);
  }

  const Plan& plan_;
  std::vector<std::int64_t>
      taken_;  // by tensor: columns that norms have taken since it was written
};

}  // namespace

Plan meaning_of_first_form(const Plan& plan) {
  Plan found;
  for (GroupId group = 0; group < plan.num_groups(); ++group) {
    const auto ranks = plan.ranks(group);
    found.add_group({ranks.begin(), ranks.end()});
  }
  for (Tensor tensor : plan.tensors()) {
    take_stage_off_name(tensor);
    if (plan.num_ranks() > 1) {
      for (Axis& axis : tensor.axes) axis.split = kUnknownSplit;
    }
    found.add_tensor(std::move(tensor));
  }
  Columns columns(plan);
  for (Op op : plan.ops()) {
    take_stage_off_name(op);
    columns.set_views(op);
    found.add_op(std::move(op));
  }
  for (const Repeat& repeat : plan.repeats()) found.add_repeat(repeat);
  return found;
}

}  // namespace orrery
