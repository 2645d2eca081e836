// Each all_reduce over tp as the two collectives that it is made of: a reduce_scatter along tokens
// and an all_gather right behind it. What moves is the same; which is faster depends on the
// algorithms and tables of either. Between the two, sequence parallelism puts the norms.

#include <map>

#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

class SplitReduce {
 public:
  SplitReduce(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        tp_(mesh.tp),
        over_tp_(Place().add({.ways = mesh.tp, .stride = 1})),
        rewrite_(plan, 1) {}

  Plan run() {
    rewrite_.copy_tensors([](Tensor&) {});
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      const Op& op = source_.ops()[static_cast<std::size_t>(id)];
      rewrite_.begin(id);
      if (is_reduced_over_tp(op)) {
        split(id, op);
      } else {
        rewrite_.copy(id, op);
      }
    }
    return rewrite_.finish();
  }

 private:
  [[nodiscard]] bool is_reduced_over_tp(const Op& op) const {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || comm->kind != CollectiveKind::kAllReduce) return false;
    const auto ranks = source_.ranks(op.ranks);
    return static_cast<int>(ranks.size()) == tp_ && ranks.back() - ranks.front() == tp_ - 1 &&
           has_axis(source_.tensors()[static_cast<std::size_t>(op.writes.front())], axis::kTokens);
  }

  void split(OpId id, Op op) {
    const TensorId whole = op.writes.front();
    const TensorId share = share_of(whole);
    Op gather = op;
    const auto word = op.name.rfind(to_text(CollectiveKind::kAllReduce));
    if (word != std::string::npos) {
      gather.name.replace(word, to_text(CollectiveKind::kAllReduce).size(),
                          to_text(CollectiveKind::kAllGather));
    }
    op.writes = {share};
    rewrite_.copy_as(id, std::move(op), CollectiveKind::kReduceScatter);
    auto& comm = std::get<CommOp>(gather.body);
    comm.kind = CollectiveKind::kAllGather;
    comm.bytes_per_rank = bytes_of(rewrite_.tensor(share));
    gather.ranks = rewrite_.group(gather.ranks);
    gather.reads = {share};
    gather.writes = {whole};
    gather.after = {};
    rewrite_.insert(std::move(gather));
  }

  TensorId share_of(TensorId whole) {
    if (const auto found = shares_.find(whole); found != shares_.end()) return found->second;
    std::vector<Axis> axes = rewrite_.tensor(whole).axes;
    for (Axis& entry : axes) {
      if (entry.name == axis::kTokens) entry = rewrite_.divided(entry, over_tp_);
    }
    return shares_[whole] = rewrite_.add_tensor_like(whole, ".share", axes);
  }

  const Plan& source_;
  int tp_;
  Place over_tp_;
  Rewrite rewrite_;
  std::map<TensorId, TensorId> shares_;  // by tensor that is reduced
};

}  // namespace

bool split_reduce_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.split_all_reduce && mesh.tp > 1 && !mesh.sp;
}

Plan split_reduce_pass(const Plan& plan, const Mesh& mesh) { return SplitReduce(plan, mesh).run(); }

}  // namespace orrery
