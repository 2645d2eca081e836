#include "sim/parallel/shared_expert.h"

#include <algorithm>
#include <string_view>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

bool follows(const KernelOp& kernel, std::string_view axis) {
  return std::ranges::find(kernel.dims, axis, &Dim::axis) != kernel.dims.end();
}

class Finder {
 public:
  explicit Finder(const Plan& plan) : plan_(plan), found_(plan.ops().size()) {}

  std::vector<bool> run() {
    for (OpId id = 0; static_cast<std::size_t>(id) < plan_.ops().size(); ++id) {
      const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
      if (!adds_routed_rows(id, op)) continue;
      const auto& axes = tensor(op.writes.front()).axes;
      for (const TensorId read : op.reads) {
        if (tensor(read).axes == axes) mark(producer(read, id));
      }
    }
    return std::move(found_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] const KernelOp* kernel(OpId id) const {
    if (id < 0) return nullptr;
    return std::get_if<KernelOp>(&plan_.ops()[static_cast<std::size_t>(id)].body);
  }
  // The latest op before `id` that writes the tensor, or -1.
  [[nodiscard]] OpId producer(TensorId written, OpId id) const {
    for (--id; id >= 0; --id) {
      const TensorViews& writes = plan_.ops()[static_cast<std::size_t>(id)].writes;
      if (std::ranges::find(writes, written, &TensorView::tensor) != writes.end()) break;
    }
    return id;
  }
  // A scatter of rows, or a sum one of whose operands the routed experts have written.
  [[nodiscard]] bool adds_routed_rows(OpId id, const Op& op) const {
    const auto* sum = std::get_if<KernelOp>(&op.body);
    if (sum == nullptr) return false;
    const KernelSpec& spec = kernel_spec(sum->kernel);
    if (spec.routed == RoutedRole::kScatter) return true;
    return spec.is_sum && std::ranges::any_of(op.reads, [&](TensorId read) {
             const KernelOp* from = kernel(producer(read, id));
             return from != nullptr && follows(*from, axis::kExpertFfn);
           });
  }
  // `id` and the ops before it as far as they work on FFN columns or weigh what did.
  void mark(OpId id) {
    const KernelOp* const part = kernel(id);
    if (part == nullptr) return;
    const KernelSpec& spec = kernel_spec(part->kernel);
    const bool is_ffn = follows(*part, axis::kFfn);
    const bool is_gate = spec.is_sum && !spec.is_on_residual;
    if (!is_ffn && !is_gate) return;
    if (is_ffn) found_[static_cast<std::size_t>(id)] = true;
    for (const TensorId read : plan_.ops()[static_cast<std::size_t>(id)].reads) {
      if (tensor(read).role == TensorRole::kActivation) mark(producer(read, id));
    }
  }

  const Plan& plan_;
  std::vector<bool> found_;
};

}  // namespace

std::vector<bool> shared_expert_ops(const Plan& plan) { return Finder(plan).run(); }

}  // namespace orrery
