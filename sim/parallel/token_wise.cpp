#include "sim/parallel/token_wise.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "kernels/kernel_spec.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

constexpr std::string_view kChoices = "topk";  // axis of what a token has for each expert it chose

class BeforeGather {
 public:
  BeforeGather(const Plan& plan, const Mesh& mesh)
      : plan_(plan), mesh_(mesh), is_token_wise_(plan.ops().size()), is_before_(plan.ops().size()) {
    for (std::size_t id = 0; id < plan.ops().size(); ++id) {
      is_token_wise_[id] = is_token_wise(plan.ops()[id]);
    }
  }

  std::vector<bool> run() {
    if (mesh_.attention_gather == AttentionGather::kProjected &&
        !add_seeds([&](const Op& op) { return writes_latents(op); })) {
      throw std::invalid_argument(
          "attention_gather is projected, but no op of the plan projects tokens down to latents "
          "(mla_form module has one op for all); expected norm");
    }
    if (mesh_.moe_gather == MoeGather::kRouted) {
      add_seeds([&](const Op& op) { return feeds_experts(op); });
    }
    while (grow()) {
    }
    while (drop_idle_copies()) {
    }
    return std::move(is_before_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] static const Axis* tokens_of(const Tensor& tensor) {
    const auto found = std::ranges::find(tensor.axes, axis::kTokens, &Axis::name);
    return found == tensor.axes.end() ? nullptr : &*found;
  }
  [[nodiscard]] bool is_on_residual(const Op& op) const {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel != nullptr && kernel_spec(kernel->kernel).is_on_residual;
  }
  // Whether ranks have parts of an axis other than of tokens.
  [[nodiscard]] bool is_split(const Tensor& tensor) const {
    return std::ranges::any_of(tensor.axes, [&](const Axis& axis) {
      const Split* const split = plan_.split_of(axis);
      return axis.name != axis::kTokens && split != nullptr &&
             split->parts.front().place.size() > 0;
    });
  }
  // All that it reads and writes but weights are rows of the same tokens.
  [[nodiscard]] bool is_token_wise(const Op& op) const {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || is_on_residual(op)) return false;
    if (std::ranges::find(kernel->dims, axis::kTokens, &Dim::axis) == kernel->dims.end()) {
      return false;
    }
    const Axis* const tokens = tokens_of(tensor(op.writes.front()));
    for (const auto* views : {&op.reads, &op.writes}) {
      for (const TensorId id : *views) {
        const Tensor& used = tensor(id);
        if (is_cache(used.role) || is_split(used)) return false;
        if (used.role == TensorRole::kWeight) continue;
        const Axis* const rows = tokens_of(used);
        if (tokens == nullptr || rows == nullptr || *rows != *tokens) return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool writes_latents(const Op& op) const {
    return std::ranges::any_of(op.writes,
                               [&](TensorId id) { return has_axis(tensor(id), axis::kLatent); });
  }
  // Its result says which experts tokens go to, or is what they are sorted by.
  [[nodiscard]] bool feeds_experts(const Op& op) const {
    if (std::ranges::any_of(op.writes,
                            [&](TensorId id) { return has_axis(tensor(id), kChoices); })) {
      return true;
    }
    return std::ranges::any_of(plan_.ops(), [&](const Op& reader) {
      const auto* kernel = std::get_if<KernelOp>(&reader.body);
      return kernel != nullptr && routed_role(*kernel) == RoutedRole::kSort &&
             std::ranges::any_of(op.writes, [&](TensorId id) { return reads(reader, id); });
    });
  }
  static bool reads(const Op& op, TensorId id) {
    return std::ranges::find(op.reads, id, &TensorView::tensor) != op.reads.end();
  }
  template <typename IsSeed>
  bool add_seeds(const IsSeed& is_seed) {
    bool has_any = false;
    for (std::size_t id = 0; id < is_before_.size(); ++id) {
      if (!is_token_wise_[id] || !is_seed(plan_.ops()[id])) continue;
      is_before_[id] = true;
      has_any = true;
    }
    return has_any;
  }

  // Token-wise ops that share tokens with one that is in, as input or as result.
  bool grow() {
    std::vector<bool> is_touched(plan_.tensors().size());
    for (std::size_t id = 0; id < is_before_.size(); ++id) {
      if (is_before_[id])
        visit_tokens(plan_.ops()[id], [&](TensorId used) { touch(used, is_touched); });
    }
    bool has_grown = false;
    for (std::size_t id = 0; id < is_before_.size(); ++id) {
      if (is_before_[id] || !is_token_wise_[id]) continue;
      bool shares = false;
      visit_tokens(plan_.ops()[id], [&](TensorId used) {
        shares = shares || is_touched[static_cast<std::size_t>(used)];
      });
      if (shares) is_before_[id] = has_grown = true;
    }
    return has_grown;
  }
  static void touch(TensorId id, std::vector<bool>& is_touched) {
    is_touched[static_cast<std::size_t>(id)] = true;
  }
  template <typename Visit>
  void visit_tokens(const Op& op, const Visit& visit) const {
    for (const auto* views : {&op.reads, &op.writes}) {
      for (const TensorId id : *views) {
        if (tensor(id).role != TensorRole::kWeight) visit(id);
      }
    }
  }

  // A quantised copy whose source is gathered as well saves nothing and is gathered besides.
  bool drop_idle_copies() {
    for (std::size_t id = 0; id < is_before_.size(); ++id) {
      if (!is_before_[id]) continue;
      const Op& op = plan_.ops()[id];
      const auto& kernel = std::get<KernelOp>(op.body);
      if (!kernel_spec(kernel.kernel).prior.quantizes) continue;
      if (!is_needed_whole(op.reads.front()) || !is_needed_whole(op.writes.front())) continue;
      is_before_[id] = false;
      return true;
    }
    return false;
  }
  [[nodiscard]] bool is_needed_whole(TensorId id) const {
    for (std::size_t reader = 0; reader < is_before_.size(); ++reader) {
      const Op& op = plan_.ops()[reader];
      if (!is_before_[reader] && !is_on_residual(op) && reads(op, id)) return true;
    }
    return false;
  }

  const Plan& plan_;
  const Mesh& mesh_;
  std::vector<bool> is_token_wise_;
  std::vector<bool> is_before_;
};

}  // namespace

std::vector<bool> ops_before_gather(const Plan& plan, const Mesh& mesh) {
  if (mesh.attention_gather == AttentionGather::kNorm && mesh.moe_gather == MoeGather::kNorm) {
    return std::vector<bool>(plan.ops().size());
  }
  return BeforeGather(plan, mesh).run();
}

}  // namespace orrery
