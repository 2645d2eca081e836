// Data-parallel ranks with even parts of all ranks' rows (DpRows). Sequences, and the KV cache, are
// a rank's own, so attention takes as long as they are; all else is as much on each rank:
//
//   even rows   norm, projections to latents
//   all_gather  over dp; the rank takes the rows of its own sequences out of it
//   own rows    other projections, rope, kv_append, attention
//   all_to_all  over dp, of attention's results
//   even rows   output projection, residual, FFN, experts
//
// Of decodes alone results are gathered too, and each rank takes the rows of its even part: such
// steps are captured, and a graph does not know how many rows go where.
//
// With attention_gather norm all projections are on own rows, and hidden rows are gathered. Behind
// the last layer sampled rows go back to the ranks of their sequences. The data pass says which
// rows an op has; this one moves them where an op reads rows of the other kind.

#include "sim/parallel/balanced_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/kernel_spec.h"
#include "sim/parallel/context_rows.h"
#include "sim/parallel/output_projection.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

bool quantizes(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr && kernel_spec(kernel->kernel).prior.quantizes;
}

class FindOwnRows {
 public:
  FindOwnRows(const Plan& plan, const Mesh& mesh) : plan_(plan), mesh_(mesh) {
    own_.ops.resize(plan.ops().size());
    own_.tensors.resize(plan.tensors().size());
  }

  OwnRows run() {
    find_attention();
    find_needed();
    std::vector<bool> is_written(plan_.tensors().size());
    for (std::size_t i = 0; i < own_.ops.size(); ++i) {
      for (const TensorId id : plan_.ops()[i].writes) {
        const auto at = static_cast<std::size_t>(id);
        if (!is_written[at]) own_.tensors[at] = own_.ops[i];
        is_written[at] = true;
      }
    }
    return std::move(own_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool uses_cache(const Op& op) const {
    const auto is_of_cache = [&](TensorId id) { return is_cache(tensor(id).role); };
    return std::ranges::any_of(op.reads, is_of_cache) ||
           std::ranges::any_of(op.writes, is_of_cache);
  }
  // Attention, and all behind it up to the output projection and what quantises for that.
  void find_attention() {
    std::set<TensorId> results;
    for (std::size_t i = 0; i < own_.ops.size(); ++i) {
      const Op& op = plan_.ops()[i];
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr) continue;
      if (kernel_spec(kernel->kernel).prior.composite == Composite::kAttentionModule) {
        throw std::invalid_argument("op \"" + op.name + "\" (" + kernel->kernel +
                                    ") has all of attention in one op, which dp_rows balanced "
                                    "cannot divide; expected mla_form auto, or dp_rows own");
      }
      const bool is_behind =
          !is_output_projection(op) && !quantizes(op) &&
          std::ranges::any_of(op.reads, [&](TensorId id) { return results.contains(id); });
      if (!is_attention(op) && !uses_cache(op) && !is_behind) continue;
      own_.ops[i] = true;
      for (const TensorId id : op.writes) {
        if (!is_cache(tensor(id).role)) results.insert(id);
      }
    }
  }
  // What makes the operands of these out of what is gathered.
  void find_needed() {
    std::set<TensorId> needed;
    for (std::size_t i = own_.ops.size(); i-- > 0;) {
      const Op& op = plan_.ops()[i];
      if (!std::holds_alternative<KernelOp>(op.body)) continue;
      own_.ops[i] = own_.ops[i] || is_behind_gather(op, needed);
      if (!own_.ops[i]) continue;
      for (const TensorId id : op.reads) needed.insert(id);
    }
  }
  [[nodiscard]] bool is_behind_gather(const Op& op, const std::set<TensorId>& needed) const {
    const auto writes_some = [&](std::string_view axis) {
      return std::ranges::any_of(op.writes,
                                 [&](TensorId id) { return has_axis(tensor(id), axis); });
    };
    if (writes_some(axis::kHidden)) return false;
    if (std::ranges::none_of(op.writes, [&](TensorId id) { return needed.contains(id); })) {
      return false;
    }
    return mesh_.attention_gather == AttentionGather::kNorm || writes_some(axis::kHeads) ||
           writes_some(axis::kQkv);
  }

  const Plan& plan_;
  const Mesh& mesh_;
  OwnRows own_;
};

class BalancedRows {
 public:
  BalancedRows(const Plan& plan, const Mesh& mesh)
      : source_(plan), mesh_(mesh), own_(own_rows(plan, mesh)), rewrite_(plan, 1) {
    has_prompts_ = std::ranges::any_of(plan.ops(), [](const Op& op) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      return kernel != nullptr && kernel->kernel.ends_with("_prefill");
    });
  }

  Plan run() {
    rewrite_.copy_tensors([](Tensor&) {});
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      if (rewrite_.at_run_boundary(id)) forget();
      rewrite_.begin(id);
      Op op = source_.ops()[static_cast<std::size_t>(id)];
      if (own_.ops[static_cast<std::size_t>(id)]) {
        read_own(id, op);
      } else {
        read_even(op);
        sample(op);
        for (const TensorId written : op.writes) forget(written);
      }
      rewrite_.copy(id, std::move(op));
    }
    return rewrite_.finish();
  }

 private:
  using Columns = std::pair<TensorId, std::int32_t>;  // a tensor and its first column

  [[nodiscard]] const Tensor& source_tensor(TensorId id) const {
    return source_.tensors()[static_cast<std::size_t>(id)];
  }
  // Rows that a rank has an even part of.
  [[nodiscard]] bool is_even(TensorId id) const {
    const Tensor& tensor = source_tensor(id);
    return tensor.role == TensorRole::kActivation && has_axis(tensor, axis::kTokens) &&
           !own_.tensors[static_cast<std::size_t>(id)];
  }
  // What was moved before a run is not so in its later copies.
  void forget() {
    gathered_.clear();
    returned_.clear();
    sampled_.clear();
    written_.clear();
  }
  void forget(TensorId written) {
    std::erase_if(gathered_, [&](const auto& known) { return known.first.first == written; });
    sampled_.erase(written);
    written_.insert(written);
  }

  // The rows of own sequences in place of even parts, those that others of these ops need as well
  // brought by the same all_gather.
  void read_own(OpId id, Op& op) {
    if (std::ranges::any_of(op.reads, [&](const TensorView& read) { return is_missing(read); })) {
      gather(id, op);
    }
    for (auto* views : {&op.reads, &op.writes}) {
      for (TensorView& view : *views) {
        const auto found = gathered_.find({view.tensor, view.first_column});
        if (found != gathered_.end()) view = found->second;
      }
    }
    for (const TensorId written : op.writes) returned_.erase(written);
  }
  [[nodiscard]] bool is_missing(const TensorView& view) const {
    return is_even(view) && !gathered_.contains({view.tensor, view.first_column});
  }
  void gather(OpId id, const Op& op) {
    TensorViews even;
    const auto num_ops = static_cast<OpId>(source_.ops().size());
    for (OpId later = id; later < num_ops; ++later) {
      if (later > id && rewrite_.at_run_boundary(later)) break;
      if (!own_.ops[static_cast<std::size_t>(later)]) continue;
      for (const TensorView& read : source_.ops()[static_cast<std::size_t>(later)].reads) {
        const bool is_there = written_.contains(read.tensor) || later == id;
        if (is_missing(read) && is_there && std::ranges::find(even, read) == even.end()) {
          even.push_back(read);
        }
      }
    }
    const Axis& own = rows_of(op.writes.front());
    TensorViews results;
    TensorViews all;
    Bytes bytes;
    for (const TensorView& view : even) {
      const auto [rows, columns] = axes_of(view);
      const std::string suffix = view.is_whole() ? "" : std::to_string(view.first_column);
      const Axis of_all{std::string(axis::kAllTokens), rows.size * mesh_.dp};
      results.emplace_back(rewrite_.add_tensor_like(view, ".own" + suffix, {own, columns}));
      all.emplace_back(rewrite_.add_tensor_like(view, ".all" + suffix, {of_all, columns}));
      bytes += bytes_of(rewrite_.tensor(all.back())) / mesh_.dp;
      gathered_.emplace(Columns{view.tensor, view.first_column}, results.back());
    }
    results.insert(results.end(), all.begin(), all.end());
    collective(op, CollectiveKind::kAllGather, bytes, even, results);
  }

  // Even parts in place of what ops on own rows have written.
  void read_even(Op& op) {
    TensorViews own;
    for (const TensorView& read : op.reads) {
      if (own_.tensors[static_cast<std::size_t>(read.tensor)]) own.push_back(read);
    }
    if (own.empty()) return;
    TensorId& even = returned_.try_emplace(own.front().tensor, -1).first->second;
    if (even < 0) {
      even = rewrite_.add_tensor_like(own.front(), ".even",
                                      {rows_of(op.writes.front()), axes_of(own.front()).second});
      Bytes bytes;
      for (const TensorId id : own) bytes += bytes_of(rewrite_.tensor(id));
      exchange(op, bytes, own, even);
    }
    const auto first = std::ranges::find(op.reads, own.front());
    *first = even;
    op.reads.erase(std::remove_if(first + 1, op.reads.end(),
                                  [&](const TensorView& read) {
                                    return std::ranges::find(own, read) != own.end();
                                  }),
                   op.reads.end());
  }

  // The sampled rows of a rank's own sequences in place of all of an even part.
  void sample(Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) return;
    const auto rows = std::ranges::find(kernel->dims, axis::kSeqs, &Dim::axis);
    if (rows == kernel->dims.end()) return;
    for (TensorView& read : op.reads) {
      if (!is_even(read)) continue;
      TensorId& own = sampled_.try_emplace(read.tensor, -1).first->second;
      if (own < 0) {
        own = rewrite_.add_tensor_like(
            read, ".sampled", {rows_of(op.writes.front()), rewrite_.tensor(read).axes.back()});
        exchange(op, bytes_of(rewrite_.tensor(own)), {read}, own);
      }
      read = own;
    }
  }

  // Of `bytes`: those of the rows that change ranks.
  void exchange(const Op& before, Bytes bytes, const TensorViews& from, TensorId to) {
    if (has_prompts_ || from.size() > 1) {
      collective(before, CollectiveKind::kAllToAll, bytes, from, {to});
      return;
    }
    const auto [rows, columns] = axes_of(from.front());
    const Axis of_all{std::string(axis::kAllTokens), rows.size * mesh_.dp};
    const TensorId all = rewrite_.add_tensor_like(from.front(), ".all", {of_all, columns});
    collective(before, CollectiveKind::kAllGather, bytes_of(rewrite_.tensor(all)) / mesh_.dp, from,
               {to, all});
  }

  [[nodiscard]] const Axis& rows_of(TensorId id) const { return rewrite_.tensor(id).axes.front(); }
  // Rows and columns of a view.
  [[nodiscard]] std::pair<Axis, Axis> axes_of(const TensorView& view) const {
    const auto& axes = rewrite_.tensor(view).axes;
    return {axes.front(), view.is_whole() ? axes.back() : Axis{axes.back().name, view.num_columns}};
  }
  void collective(const Op& before, CollectiveKind kind, Bytes bytes, const TensorViews& reads,
                  const TensorViews& writes) {
    rewrite_.insert_collectives(
        before.name + "." + std::string(to_text(kind)),
        {.kind = kind, .dtype = rewrite_.tensor(reads.front()).dtype, .bytes_per_rank = bytes},
        rewrite_.groups_of(rewrite_.group(before.ranks), mesh_.dp, mesh_.tp), reads, writes);
  }

  const Plan& source_;
  const Mesh& mesh_;
  OwnRows own_;
  Rewrite rewrite_;
  bool has_prompts_ = false;
  std::map<Columns, TensorId> gathered_;   // own rows of even ones
  std::map<TensorId, TensorId> returned_;  // even rows, by the first of the own tensors
  std::map<TensorId, TensorId> sampled_;   // own sampled rows of even ones
  std::set<TensorId> written_;             // even rows, since the run began
};

}  // namespace

OwnRows own_rows(const Plan& plan, const Mesh& mesh) {
  if (mesh.dp_rows == DpRows::kBalanced) return FindOwnRows(plan, mesh).run();
  return {.ops = std::vector<bool>(plan.ops().size()),
          .tensors = std::vector<bool>(plan.tensors().size())};
}

bool balanced_rows_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.dp > 1 && mesh.dp_rows == DpRows::kBalanced;
}

Plan balanced_rows_pass(const Plan& plan, const Mesh& mesh) {
  return BalancedRows(plan, mesh).run();
}

}  // namespace orrery
