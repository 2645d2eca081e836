// Sequence parallelism (Korthikanti et al., arXiv 2205.05198): between an all_reduce over tp and
// the next op that needs all tokens, norms and additions work on tokens / tp per rank. The
// all_reduce becomes a reduce_scatter, and an all_gather comes before that op: the same bytes, less
// computed. The mesh may put the gather further back (sim/parallel/token_wise.h): behind
// projections to narrower rows or behind quantisation, so that less is sent too. Then all that is
// there and is needed whole later is gathered at once.

#include <algorithm>

#include "kernels/kernel_spec.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/token_wise.h"

namespace orrery {
namespace {

class SequencePass {
 public:
  SequencePass(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        tp_(mesh.tp),
        over_tp_(Place().add({.ways = mesh.tp, .stride = 1})),
        rewrite_(plan, 1),
        is_before_gather_(ops_before_gather(plan, mesh)),
        is_behind_norm_(plan.tensors().size()),
        scattered_(plan.tensors().size(), kWhole),
        is_written_(plan.tensors().size()),
        gathered_(plan.tensors().size()) {}

  Plan run() {
    find_scattered();
    rewrite_.copy_tensors([](Tensor&) {});
    add_scattered_tensors();
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      // What was gathered before a run is not so in its later copies.
      if (rewrite_.at_run_boundary(id)) {
        gathered_.assign(gathered_.size(), {});
        is_written_.assign(is_written_.size(), false);
      }
      rewrite_.begin(id);
      const Op& op = source_.ops()[static_cast<std::size_t>(id)];
      if (const auto* comm = std::get_if<CommOp>(&op.body);
          comm != nullptr && scatters(op, *comm)) {
        copy_collective(id, op, *comm);
      } else if (works_on_shares(id)) {
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
  [[nodiscard]] bool works_on_shares(OpId id) const {
    const Op& op = source_.ops()[static_cast<std::size_t>(id)];
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (is_before_gather_[static_cast<std::size_t>(id)]) {
      return std::ranges::all_of(
          op.reads, [&](TensorId read) { return !has_tokens(read) || is_scattered(read); });
    }
    return kernel != nullptr && kernel_spec(kernel->kernel).is_on_residual &&
           std::ranges::any_of(op.reads, [&](TensorId read) { return is_scattered(read); });
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
      for (OpId op_id = 0; static_cast<std::size_t>(op_id) < source_.ops().size(); ++op_id) {
        if (!works_on_shares(op_id)) continue;
        const Op& op = source_.ops()[static_cast<std::size_t>(op_id)];
        for (const auto* ids : {&op.reads, &op.writes}) {
          for (const TensorId id : *ids) {
            if (has_tokens(id) && mark(id, kToBeScattered)) has_changed = true;
            if (is_before_gather_[static_cast<std::size_t>(op_id)]) {
              is_behind_norm_[static_cast<std::size_t>(id)] = true;
            }
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
    gathered_[static_cast<std::size_t>(whole)].clear();
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
      gathered_[static_cast<std::size_t>(written.tensor)].clear();
      is_written_[static_cast<std::size_t>(written.tensor)] = true;
      written.tensor = share_of(written);
    }
    rewrite_.copy(id, std::move(op));
  }

  void copy_whole(OpId id, Op op) {
    const bool sends = sends_a_share(op);  // asked of the source's tensors, so before they change
    for (TensorView& read : op.reads) {
      if (!is_scattered(read) || is_gathered(read)) continue;
      if (sends) {
        read.tensor = share_of(read);
      } else {
        gather(pending_from(id, read), op.ranks);
      }
    }
    rewrite_.copy(id, std::move(op));
  }

  [[nodiscard]] bool is_gathered(const TensorView& view) const {
    return std::ranges::any_of(
        gathered_[static_cast<std::size_t>(view.tensor)],
        [&](const TensorView& there) { return there.is_whole() || there == view; });
  }
  // What sends rows to other ranks sends those of each token from one rank of a tp group: of equal
  // slices, the share that this rank has.
  [[nodiscard]] bool sends_a_share(const Op& op) const {
    const auto is_share = [&](TensorId read) {
      return is_behind_norm_[static_cast<std::size_t>(read)];
    };
    if (!std::ranges::any_of(op.reads, is_share)) return false;
    if (const auto* comm = std::get_if<CommOp>(&op.body)) {
      return comm->kind == CollectiveKind::kAllToAll;
    }
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) return false;
    const auto rows = std::ranges::find(kernel->dims, axis::kTokens, &Dim::axis);
    if (rows == kernel->dims.end()) return false;
    return std::ranges::any_of(op.reads, [&](TensorId read) {
      const auto& axes = source_.tensors()[static_cast<std::size_t>(read)].axes;
      const auto tokens = std::ranges::find(axes, axis::kTokens, &Axis::name);
      return tokens != axes.end() && rows->size == ceil_div(tokens->size, tp_) &&
             rows->size < tokens->size;
    });
  }

  // `read` and, where it lies behind what the mesh puts before the gather, all else that is there
  // by now and that later ops of the run need whole.
  [[nodiscard]] TensorViews pending_from(OpId id, const TensorView& read) const {
    TensorViews views{read};
    if (!is_behind_norm_[static_cast<std::size_t>(read.tensor)]) return views;
    const auto num_ops = static_cast<OpId>(source_.ops().size());
    for (OpId later = id; later < num_ops; ++later) {
      if (later > id && rewrite_.at_run_boundary(later)) break;
      const Op& op = source_.ops()[static_cast<std::size_t>(later)];
      if (works_on_shares(later) || sends_a_share(op)) continue;
      for (const TensorView& other : op.reads) {
        const auto at = static_cast<std::size_t>(other.tensor);
        if (is_scattered(other) && is_behind_norm_[at] && is_written_[at] && !is_gathered(other) &&
            std::ranges::find(views, other) == views.end()) {
          views.push_back(other);
        }
      }
    }
    return views;
  }
  void gather(const TensorViews& views, GroupId ranks) {
    TensorViews shares = views;
    Bytes bytes;
    for (TensorView& view : shares) {
      view.tensor = share_of(view);
      bytes += bytes_of_view(view);
    }
    rewrite_.insert_collectives(rewrite_.tensor(views.front()).name + ".all_gather",
                                {.kind = CollectiveKind::kAllGather,
                                 .dtype = rewrite_.tensor(shares.front()).dtype,
                                 .bytes_per_rank = bytes},
                                rewrite_.groups_of(rewrite_.group(ranks), tp_, 1), shares, views);
    for (const TensorView& view : views) {
      gathered_[static_cast<std::size_t>(view.tensor)].push_back(view);
    }
  }
  [[nodiscard]] Bytes bytes_of_view(const TensorView& view) const {
    const Tensor& tensor = rewrite_.tensor(view);
    if (view.is_whole()) return bytes_of(tensor);
    return bytes_of(tensor) / static_cast<double>(tensor.axes.back().size) *
           static_cast<double>(view.num_columns);
  }

  const Plan& source_;
  int tp_;
  Place over_tp_;
  Rewrite rewrite_;
  std::vector<bool> is_before_gather_;  // by op: works on shares although it is no norm
  std::vector<bool> is_behind_norm_;    // by tensor: what these ops read and write
  std::vector<TensorId> scattered_;     // by tensor: its share per rank, or kWhole
  std::vector<bool> is_written_;        // by tensor: its share is, since the run began
  std::vector<TensorViews> gathered_;   // by tensor: what of a scattered one is whole now
};

}  // namespace

bool sequence_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.sp && mesh.tp > 1; }

Plan sequence_pass(const Plan& plan, const Mesh& mesh) { return SequencePass(plan, mesh).run(); }

}  // namespace orrery
