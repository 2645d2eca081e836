// Sequence parallelism (Korthikanti et al., arXiv 2205.05198): between an all_reduce over tp and
// the next op that needs all tokens, norms and additions work on tokens / tp per rank. The
// all_reduce becomes a reduce_scatter, and an all_gather comes before that op: the same bytes, less
// computed.

#include <algorithm>

#include "kernels/kernel_spec.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

class SequencePass {
 public:
  SequencePass(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        tp_(mesh.tp),
        over_tp_(Place().add({.ways = mesh.tp, .stride = 1})),
        rewrite_(plan, 1),
        scattered_(plan.tensors().size(), kWhole),
        is_gathered_(plan.tensors().size()) {}

  Plan run() {
    find_scattered();
    rewrite_.copy_tensors([](Tensor&) {});
    add_scattered_tensors();
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      // What was gathered before a run is not so in its later copies.
      if (rewrite_.at_run_boundary(id)) is_gathered_.assign(is_gathered_.size(), false);
      rewrite_.begin(id);
      const Op& op = source_.ops()[static_cast<std::size_t>(id)];
      if (const auto* comm = std::get_if<CommOp>(&op.body);
          comm != nullptr && scatters(op, *comm)) {
        copy_collective(id, op, *comm);
      } else if (works_on_shares(op)) {
        copy_share(id, op);
      } else {
        copy_whole(id, op);
      }
    }
    return rewrite_.finish();
  }

 private:
  static constexpr TensorId kWhole = -1;
  static constexpr TensorId kToBeScattered = -2;

  [[nodiscard]] bool has_tokens(TensorId id) const {
    const Tensor& tensor = source_.tensors()[static_cast<std::size_t>(id)];
    return tensor.role != TensorRole::kWeight && has_axis(tensor, axis::kTokens);
  }
  [[nodiscard]] bool is_scattered(TensorId id) const {
    return scattered_[static_cast<std::size_t>(id)] != kWhole;
  }
  [[nodiscard]] TensorId share_of(TensorId id) const {
    return is_scattered(id) ? scattered_[static_cast<std::size_t>(id)] : id;
  }
  [[nodiscard]] bool works_on_shares(const Op& op) const {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel != nullptr && kernel_spec(kernel->kernel).is_on_residual &&
           std::ranges::any_of(op.reads, [&](TensorId id) { return is_scattered(id); });
  }
  // An all_reduce over tp, or an all_gather over tp, whose input is the share already.
  [[nodiscard]] bool scatters(const Op& op, const CommOp& comm) const {
    if (static_cast<int>(source_.ranks(op.ranks).size()) != tp_) return false;
    if (comm.kind != CollectiveKind::kAllReduce && comm.kind != CollectiveKind::kAllGather) {
      return false;
    }
    const auto ranks = source_.ranks(op.ranks);
    return ranks.back() - ranks.front() == tp_ - 1 && has_tokens(op.writes.front());
  }

  // Tensors that exist as shares: what collectives leave, and what token-wise ops touch with it.
  void find_scattered() {
    const auto mark = [&](TensorId id, TensorId share) {
      TensorId& entry = scattered_[static_cast<std::size_t>(id)];
      if (entry != kWhole) return false;
      entry = share;
      return true;
    };
    for (const Op& op : source_.ops()) {
      const auto* comm = std::get_if<CommOp>(&op.body);
      if (comm == nullptr || !scatters(op, *comm)) continue;
      const bool has_share = comm->kind == CollectiveKind::kAllGather;
      mark(op.writes.front(), has_share ? op.reads.front().tensor : kToBeScattered);
    }
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const Op& op : source_.ops()) {
        if (!works_on_shares(op)) continue;
        for (const auto* ids : {&op.reads, &op.writes}) {
          for (const TensorId id : *ids) {
            if (has_tokens(id) && mark(id, kToBeScattered)) has_changed = true;
          }
        }
      }
    }
  }

  void add_scattered_tensors() {
    for (std::size_t i = 0; i < scattered_.size(); ++i) {
      if (scattered_[i] != kToBeScattered) continue;
      std::vector<Axis> axes = source_.tensors()[i].axes;
      for (Axis& entry : axes) {
        if (entry.name == axis::kTokens) entry = rewrite_.divided(entry, over_tp_);
      }
      scattered_[i] = rewrite_.add_tensor_like(static_cast<TensorId>(i), ".share", axes);
    }
  }

  void copy_collective(OpId id, Op op, const CommOp& comm) {
    const TensorId whole = op.writes.front();
    const TensorId share = share_of(whole);
    is_gathered_[static_cast<std::size_t>(whole)] = false;
    if (comm.kind == CollectiveKind::kAllGather) {
      rewrite_.drop(id);  // readers that need more than the share gather it themselves
      return;
    }
    op.writes = {share};
    rewrite_.copy_as(id, std::move(op), CollectiveKind::kReduceScatter);
  }

  void copy_share(OpId id, Op op) {
    auto& kernel = std::get<KernelOp>(op.body);
    for (Dim& entry : kernel.dims) {
      if (entry.axis == axis::kTokens) entry.size = ceil_div(entry.size, tp_);
    }
    for (TensorView& read : op.reads) read.tensor = share_of(read);
    for (TensorView& written : op.writes) {
      is_gathered_[static_cast<std::size_t>(written.tensor)] = false;
      written.tensor = share_of(written);
    }
    rewrite_.copy(id, std::move(op));
  }

  void copy_whole(OpId id, const Op& op) {
    for (const TensorId read : op.reads) {
      if (!is_scattered(read) || is_gathered_[static_cast<std::size_t>(read)]) continue;
      const Tensor& share = rewrite_.tensor(share_of(read));
      rewrite_.insert_collectives(rewrite_.tensor(read).name + ".all_gather",
                                  {.kind = CollectiveKind::kAllGather,
                                   .dtype = share.dtype,
                                   .bytes_per_rank = bytes_of(share)},
                                  rewrite_.groups_of(rewrite_.group(op.ranks), tp_, 1),
                                  {share_of(read)}, {read});
      is_gathered_[static_cast<std::size_t>(read)] = true;
    }
    rewrite_.copy(id, op);
  }

  const Plan& source_;
  int tp_;
  Place over_tp_;
  Rewrite rewrite_;
  std::vector<TensorId> scattered_;  // by tensor: its share per rank, or kWhole
  std::vector<bool> is_gathered_;    // by tensor: the whole of a scattered one is there now
};

}  // namespace

bool sequence_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.sp && mesh.tp > 1; }

Plan sequence_pass(const Plan& plan, const Mesh& mesh) { return SequencePass(plan, mesh).run(); }

}  // namespace orrery
