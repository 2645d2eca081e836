#include "kernels/execute/row_moves.h"

#include <algorithm>

namespace orrery {
namespace {

class FindMoves {
 public:
  explicit FindMoves(const Plan& plan) : plan_(plan), is_own_(plan.tensors().size()) {}

  RowMoves run() {
    RowMoves result{.has_even = has_even_rows(plan_)};
    find_attention();
    for (const Op& op : plan_.ops()) {
      const RowMove move = result.has_even ? move_of(op) : RowMove::kNone;
      const bool is_on_own = !result.has_even || (move == RowMove::kNone &&
                                                  (uses_own(op.reads) || uses_own(op.writes)));
      if (is_on_own || move == RowMove::kToOwn || move == RowMove::kToSampled) {
        for (const TensorId id : op.writes) is_own_[static_cast<std::size_t>(id)] = true;
      }
      result.moves.push_back(move);
      result.is_on_own.push_back(is_on_own);
    }
    return result;
  }

 private:
  // What uses a cache, and the kernels that write what it reads, up to a collective: even where
  // that is missing, or comes late.
  void find_attention() {
    const auto is_cache_of = [&](TensorId id) {
      return is_cache(plan_.tensors()[static_cast<std::size_t>(id)].role);
    };
    for (auto op = plan_.ops().rbegin(); op != plan_.ops().rend(); ++op) {
      if (!std::holds_alternative<KernelOp>(op->body)) continue;
      const bool is_own = std::ranges::any_of(op->reads, is_cache_of) ||
                          std::ranges::any_of(op->writes, is_cache_of) || uses_own(op->writes);
      if (!is_own) continue;
      for (const auto* views : {&op->reads, &op->writes}) {
        for (const TensorId id : *views) {
          const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(id)];
          if (tensor.role == TensorRole::kActivation) is_own_[static_cast<std::size_t>(id)] = true;
        }
      }
    }
  }
  [[nodiscard]] std::string_view rows_of(const TensorView& view) const {
    return plan_.tensors()[static_cast<std::size_t>(view.tensor)].axes.front().name;
  }
  [[nodiscard]] bool uses_own(const TensorViews& views) const {
    return std::ranges::any_of(views,
                               [&](TensorId id) { return is_own_[static_cast<std::size_t>(id)]; });
  }
  [[nodiscard]] RowMove move_of(const Op& op) const {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || op.reads.empty() || op.writes.empty()) return RowMove::kNone;
    const bool is_gather =
        comm->kind == CollectiveKind::kAllGather && rows_of(op.writes.back()) == axis::kAllTokens;
    if (!is_gather && comm->kind != CollectiveKind::kAllToAll) return RowMove::kNone;
    const std::string_view taken = rows_of(op.writes.front());
    if (uses_own(op.reads)) return taken == axis::kTokens ? RowMove::kToEven : RowMove::kNone;
    if (rows_of(op.reads.front()) != axis::kTokens) return RowMove::kNone;
    if (taken == axis::kSeqs) return RowMove::kToSampled;
    return is_gather ? RowMove::kToOwn : RowMove::kNone;
  }

  const Plan& plan_;
  std::vector<bool> is_own_;  // by tensor
};

}  // namespace

RowMoves row_moves(const Plan& plan) { return FindMoves(plan).run(); }

bool has_even_rows(const Plan& plan) {
  return std::ranges::any_of(plan.tensors(), [](const Tensor& tensor) {
    return !tensor.axes.empty() && tensor.axes.front().name == axis::kAllTokens;
  });
}

}  // namespace orrery
