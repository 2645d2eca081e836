// Tensor parallelism (Megatron-LM, arXiv 1909.08053): heads, FFN columns and vocabulary are split
// over tp ranks. An op that sums over a split axis leaves a partial result, which is reduced where
// it is first needed; adding two partial results gives one, so routed and shared experts share a
// reduction. Ranks of a tp group hold different experts or columns of them, so the rows that a
// scatter adds are a part of the sum whatever the mesh. A replicated shared expert is whole on each
// rank: it is added behind the reduction of the routed rows. In a mesh with cp neighbours have the
// same heads of attention; the rest is split over all of them (CpWeights::kSplit).

#include <algorithm>
#include <array>
#include <stdexcept>

#include "kernels/kernel_spec.h"
#include "sim/parallel/output_projection.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/shared_expert.h"

namespace orrery {
namespace {

// Attention of the plan before it is split. Key and value heads are replicated where there are
// fewer than ranks, so columns that hold query, key and value heads do not shrink evenly.
struct HeadLayout {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 0;
};

HeadLayout head_layout(const Plan& plan) {
  HeadLayout layout;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    HeadLayout found;
    for (const Dim& entry : kernel->dims) {
      if (entry.name == "heads" && entry.axis == axis::kHeads) found.heads = entry.size;
      if (entry.name == "kv_heads") found.kv_heads = entry.size;
      if (entry.name == "head_dim") found.head_dim = entry.size;
    }
    if (found.heads == 0) continue;
    if (layout.heads != 0 && (layout.heads != found.heads || layout.kv_heads != found.kv_heads)) {
      throw std::invalid_argument(
          "op \"" + op.name + "\" has " + std::to_string(found.heads) + " heads and " +
          std::to_string(found.kv_heads) + " kv_heads, expected those of the layers before, " +
          std::to_string(layout.heads) + " and " + std::to_string(layout.kv_heads));
    }
    layout = found;
  }
  return layout;
}

class TensorShares {
 public:
  TensorShares(const Plan& plan, const Mesh& mesh)
      : tp_(mesh.tp), cp_(mesh.cp), ways_(weights_mesh(mesh).tp), layout_(head_layout(plan)) {}

  // Ranks that sums over a split axis are over.
  [[nodiscard]] std::int64_t ways() const { return ways_; }
  // `unit`: columns per head of a fused axis. `is_merged`: behind attention, where each of the cp
  // ranks has its share of the heads.
  [[nodiscard]] std::int64_t share(std::string_view name, std::int64_t size, std::int64_t unit,
                                   bool is_merged) const {
    if (name == axis::kHeads) return exact_share(name, size, is_merged ? ways_ : tp_);
    if (name == axis::kFfn) return exact_share(name, size, ways_);
    if (name == axis::kVocab) return ceil_div(size, ways_);  // padded
    if (name == axis::kKvHeads) return kv_share(size);
    if (name != axis::kQkv) return size;
    const std::int64_t query = query_columns(size, unit);
    if (layout_.heads == 0 || size < query) {
      throw std::invalid_argument("axis qkv of size " + std::to_string(size) +
                                  " has no attention op whose heads it holds");
    }
    return exact_share(axis::kHeads, query, tp_) + kv_share(size - query);
  }
  // An axis of a tensor.
  [[nodiscard]] Axis split(Rewrite& rewrite, const Axis& axis, bool is_merged) const {
    if (!splits(axis.name)) return axis;
    const std::int64_t size = share(axis.name, axis.size, layout_.head_dim, is_merged);
    Axis result = axis.name == axis::kQkv ? rewrite.with_split(axis, split_qkv(axis.size))
                                          : rewrite.divided(axis, place(axis.name, is_merged));
    if (result.size == size) return result;
    throw std::invalid_argument("axis " + axis.name + " of size " + std::to_string(axis.size) +
                                " is " + std::to_string(result.size) + " on each of " +
                                std::to_string(ways_) + " ranks, expected " + std::to_string(size));
  }
  // Dims of one kernel call; those that must be whole stay so.
  void shard(Dims& dims, const KernelSpec& spec, bool is_merged) const {
    const bool counts_heads = std::ranges::find(dims, "head_dim", &Dim::name) != dims.end();
    const std::int64_t unit = counts_heads ? 1 : layout_.head_dim;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (i < spec.dims.size() && spec.dims[i].must_be_whole) continue;
      dims[i].size = share(dims[i].axis, dims[i].size, unit, is_merged);
    }
  }

  static bool splits(std::string_view name) {
    constexpr auto kSplit = std::to_array<std::string_view>(
        {axis::kHeads, axis::kKvHeads, axis::kQkv, axis::kFfn, axis::kVocab});
    return std::ranges::find(kSplit, name) != kSplit.end();
  }

 private:
  [[nodiscard]] Place over_heads() const {
    return Place().add({.ways = static_cast<std::int32_t>(tp_), .stride = cp_});
  }
  [[nodiscard]] Place place(std::string_view name, bool is_merged) const {
    if (name == axis::kKvHeads) return over_kv();
    if (ways_ == tp_ || (name == axis::kHeads && !is_merged)) return over_heads();
    return over_heads().add({.ways = cp_, .stride = 1});
  }
  // Neighbours have the same key and value heads where there are fewer of them than ranks.
  [[nodiscard]] Place over_kv() const {
    const std::int64_t ways = std::min(tp_, layout_.kv_heads);
    return Place().add({.ways = static_cast<std::int32_t>(ways),
                        .stride = static_cast<std::int32_t>(cp_ * tp_ / ways)});
  }
  // Queries, each with its gate where attention's output has gates: then more columns follow one
  // query of each head than keys and values have.
  [[nodiscard]] std::int64_t query_columns(std::int64_t size, std::int64_t unit) const {
    const std::int64_t query = layout_.heads * unit;
    return size - query > 2 * layout_.kv_heads * unit ? 2 * query : query;
  }
  // Query heads, then keys, then values.
  [[nodiscard]] Split split_qkv(std::int64_t size) const {
    const std::int64_t query = query_columns(size, layout_.head_dim);
    const SplitPart keys = divided(whole_part((size - query) / 2), over_kv());
    return {.parts = {divided(whole_part(query), over_heads()), keys, keys}};
  }
  [[nodiscard]] std::int64_t kv_share(std::int64_t size) const {
    if (layout_.kv_heads % tp_ == 0) return size / tp_;
    if (tp_ % layout_.kv_heads == 0) return size / layout_.kv_heads;
    return exact_share(axis::kKvHeads, layout_.kv_heads, tp_);
  }

  std::int64_t tp_;    // of attention
  std::int32_t cp_;    // ranks with the same heads of attention, neighbours
  std::int64_t ways_;  // of all behind it
  HeadLayout layout_;
};

class TensorPass {
 public:
  TensorPass(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        mesh_(mesh),
        shares_(plan, mesh),
        rewrite_(plan, mesh.tp * mesh.cp),
        is_whole_op_(plan.ops().size()),
        is_whole_tensor_(plan.tensors().size()),
        is_merged_op_(plan.ops().size()),
        is_merged_tensor_(plan.tensors().size()) {}

  Plan run() {
    find_whole();
    if (mesh_.cp > 1) find_merged();
    std::size_t at = 0;
    rewrite_.copy_tensors([&](Tensor& tensor) {
      const std::size_t id = at++;
      if (is_whole_tensor_[id]) return;
      for (Axis& entry : tensor.axes) {
        entry = shares_.split(rewrite_, entry, is_merged_tensor_[id]);
      }
    });
    const auto num_ops = static_cast<OpId>(source_.ops().size());
    for (OpId id = 0; id < num_ops; ++id) {
      const Op& op = source_.ops()[static_cast<std::size_t>(id)];
      // A run's copies must find tensors as they left them.
      if (rewrite_.at_run_boundary(id)) reduce_all();
      rewrite_.begin(id);
      copy(id, op);
    }
    if (num_ops > 0) reduce_all();
    return rewrite_.finish();
  }

 private:
  // Ops that each rank computes whole although their axes could be split, and their tensors.
  void find_whole() {
    if (mesh_.shared_expert == SharedExpert::kReplicated) {
      is_whole_op_ = shared_expert_ops(source_);
    }
    for (std::size_t id = 0; id < is_whole_op_.size(); ++id) {
      const Op& op = source_.ops()[id];
      if (is_whole_projection(op)) {
        is_whole_op_[id] = true;
        for (const TensorId read : op.reads) set_whole(read, TensorRole::kWeight);
      } else if (is_whole_head(op)) {
        is_whole_op_[id] = true;
        for (const TensorId read : op.reads) set_whole(read, TensorRole::kWeight);
        for (const TensorId written : op.writes) set_whole(written, TensorRole::kActivation);
      } else if (is_whole_op_[id]) {
        for (const auto* views : {&op.reads, &op.writes}) {
          for (const TensorId used : *views) {
            is_whole_tensor_[static_cast<std::size_t>(used)] = true;
          }
        }
      }
    }
    if (mesh_.o_proj == OProjection::kReplicated &&
        std::ranges::none_of(source_.ops(), is_output_projection)) {
      throw std::invalid_argument(
          "o_proj is replicated, but no op of the plan is an output projection alone (mla_form "
          "module has one op for all of attention); expected split");
    }
  }
  // Output projections, and what quantises for them, with all that they use but what attention has
  // written: the context pass merges that.
  void find_merged() {
    const auto mark = [&](const TensorViews& views, bool is_weight) {
      for (const TensorId id : views) {
        const TensorRole role = source_.tensors()[static_cast<std::size_t>(id)].role;
        if ((role == TensorRole::kWeight) == is_weight) {
          is_merged_tensor_[static_cast<std::size_t>(id)] = true;
        }
      }
    };
    for (std::size_t id = 0; id < is_merged_op_.size(); ++id) {
      const Op& projection = source_.ops()[id];
      if (!is_output_projection(projection)) continue;
      is_merged_op_[id] = true;
      mark(projection.reads, /*is_weight=*/true);
      for (std::size_t before = 0; before < id; ++before) {
        const Op& op = source_.ops()[before];
        if (!quantizes(op) || !reads_of(projection, op.writes.front())) continue;
        is_merged_op_[before] = true;
        mark(op.writes, /*is_weight=*/false);
      }
    }
  }
  static bool reads_of(const Op& op, TensorId id) {
    return std::ranges::find(op.reads, id, &TensorView::tensor) != op.reads.end();
  }
  static bool quantizes(const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel != nullptr && kernel_spec(kernel->kernel).prior.quantizes;
  }
  void set_whole(TensorId id, TensorRole role) {
    if (source_.tensors()[static_cast<std::size_t>(id)].role == role) {
      is_whole_tensor_[static_cast<std::size_t>(id)] = true;
    }
  }
  // Rows of sequences times the vocabulary.
  [[nodiscard]] bool is_whole_head(const Op& op) const {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (mesh_.lm_head != LmHead::kReplicated || kernel == nullptr) return false;
    return kernel_spec(kernel->kernel).prior.arithmetic == Arithmetic::kGemm &&
           std::ranges::find(kernel->dims, axis::kVocab, &Dim::axis) != kernel->dims.end();
  }
  [[nodiscard]] bool is_whole_projection(const Op& op) const {
    return mesh_.o_proj == OProjection::kReplicated && is_output_projection(op);
  }

  void copy(OpId id, Op op) {
    auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || is_whole_op_[static_cast<std::size_t>(id)]) {
      if (is_whole_projection(op)) gather(op, axis::kHeads);
      for (const TensorId read : op.reads) reduce(read);
      rewrite_.copy(id, std::move(op));
      return;
    }
    const KernelSpec& spec = kernel_spec(kernel->kernel);
    bool leaves_partial = false;
    for (std::size_t i = 0; i < kernel->dims.size() && i < spec.dims.size(); ++i) {
      const std::string& name = kernel->dims[i].axis;
      if (spec.dims[i].is_contraction && sums_over_ranks(name)) leaves_partial = true;
      if (spec.dims[i].must_be_whole && TensorShares::splits(name)) gather(op, name);
    }
    const bool scatters = spec.routed == RoutedRole::kScatter;
    const TensorId whole_base = scatters ? take_whole_base(op) : -1;
    if (scatters) check_base(op);
    const bool adds_partials = scatters || (spec.is_sum && can_add_partial(op));
    for (const TensorId read : op.reads) adds_partials ? forget(read) : reduce(read);
    for (const TensorId written : op.writes) {
      if (source_.tensors()[static_cast<std::size_t>(written)].role == TensorRole::kKvCache)
        continue;
      forget(written);
      if (leaves_partial || adds_partials) {
        pending_.push_back({.tensor = written, .ranks = op.ranks, .producer = op.name});
      }
    }
    shares_.shard(kernel->dims, spec, is_merged_op_[static_cast<std::size_t>(id)]);
    const Op copied = op;
    rewrite_.copy(id, std::move(op));
    if (whole_base >= 0) add_behind(copied, whole_base);
  }

  // The base of a scatter, if a replicated shared expert has computed it: taken off the op, since
  // the sum over ranks would have it once for each of them. -1: there is none.
  TensorId take_whole_base(Op& op) const {
    if (mesh_.shared_expert == SharedExpert::kSplit) return -1;
    const TensorId output = op.writes.front();
    const auto& axes = source_.tensors()[static_cast<std::size_t>(output)].axes;
    const auto base = std::ranges::find_if(op.reads, [&](TensorId read) {
      return source_.tensors()[static_cast<std::size_t>(read)].axes == axes;
    });
    if (base == op.reads.end()) return -1;
    auto& dims = std::get<KernelOp>(op.body).dims;
    const auto has_base = std::ranges::find(dims, "base", &Dim::name);
    if (has_base == dims.end()) {
      throw std::invalid_argument("op \"" + op.name +
                                  "\" adds rows to the shared expert's result, of which each tp "
                                  "rank has the whole; expected shared_expert split, or no "
                                  "fuse_scatter_add");
    }
    has_base->size = 0;
    const TensorId taken = *base;
    op.reads.erase(base);
    return taken;
  }
  // Reduces what `scatter` has written and adds `base` to it.
  void add_behind(const Op& scatter, TensorId base) {
    const TensorId output = scatter.writes.front();
    reduce(output);
    const auto& dims = std::get<KernelOp>(scatter.body).dims;
    rewrite_.insert(
        {.name = scatter.name + ".shared_add",
         .body = KernelOp{.kernel = std::string(residual_sum().name),
                          .dtype = DType::kBf16,
                          .dims = {{"tokens", dim(dims, "tokens"), std::string(axis::kTokens)},
                                   {"hidden", dim(dims, "hidden"), std::string(axis::kHidden)}}},
         .ranks = rewrite_.group(scatter.ranks),
         .stream = scatter.stream,
         .reads = {output, base},
         .writes = {output},
         .after = {}});
  }

  // What a scatter adds to is added up with its rows, so it must be a part of a sum too.
  void check_base(const Op& op) const {
    const Tensor& output = source_.tensors()[static_cast<std::size_t>(op.writes.front())];
    for (const TensorId read : op.reads) {
      const Tensor& tensor = source_.tensors()[static_cast<std::size_t>(read)];
      if (tensor.axes != output.axes ||
          std::ranges::find(pending_, read, &Partial::tensor) != pending_.end())
        continue;
      throw std::invalid_argument("op \"" + op.name +
                                  "\" adds a part of a sum on each tp rank to \"" + tensor.name +
                                  "\", which is whole, expected a partial result too");
    }
  }

  // Routed experts lie on tp ranks too, unless an all_to_all brings their results back whole.
  [[nodiscard]] bool sums_over_ranks(std::string_view name) const {
    if (name == axis::kExperts || name == axis::kExpertFfn) {
      return !uses_all_to_all(weights_mesh(mesh_));
    }
    return TensorShares::splits(name);
  }

  struct Partial {
    TensorId tensor;
    GroupId ranks;  // of the source
    std::string producer;
  };

  // What it reads in the shape of its result is partial, and this op is the only one to read it.
  [[nodiscard]] bool can_add_partial(const Op& op) const {
    const auto& axes = source_.tensors()[static_cast<std::size_t>(op.writes.front())].axes;
    const auto is_summed = [&](TensorId id) {
      return source_.tensors()[static_cast<std::size_t>(id)].axes == axes;
    };
    return std::ranges::any_of(op.reads, is_summed) &&
           std::ranges::all_of(op.reads, [&](TensorId id) {
             const auto reads_it = [&](const Op& other) {
               return std::ranges::find(other.reads, id, &TensorView::tensor) != other.reads.end();
             };
             return !is_summed(id) ||
                    (std::ranges::find(pending_, id, &Partial::tensor) != pending_.end() &&
                     std::ranges::count_if(source_.ops(), reads_it) == 1);
           });
  }
  void forget(TensorId id) {
    std::erase_if(pending_, [&](const Partial& entry) { return entry.tensor == id; });
  }

  void reduce(TensorId id) {
    const auto entry = std::ranges::find(pending_, id, &Partial::tensor);
    if (entry == pending_.end()) return;
    if (shares_.ways() == 1) return forget(id);
    const Tensor& tensor = rewrite_.tensor(id);
    rewrite_.insert_collectives(entry->producer + ".all_reduce",
                                {.kind = CollectiveKind::kAllReduce,
                                 .dtype = tensor.dtype,
                                 .bytes_per_rank = bytes_of(tensor)},
                                tp_groups(entry->ranks), {id}, {id});
    pending_.erase(entry);
  }
  void reduce_all() {
    while (!pending_.empty()) reduce(pending_.front().tensor);
  }

  // Replaces what `op` reads along the split axis `name` by gathered copies.
  void gather(Op& op, std::string_view name) {
    if (shares_.ways() == 1) return;
    for (TensorView& read : op.reads) {
      const Tensor& whole = source_.tensors()[static_cast<std::size_t>(read.tensor)];
      if (whole.role == TensorRole::kWeight || !has_axis(whole, name)) continue;
      if (is_whole_tensor_[static_cast<std::size_t>(read.tensor)]) continue;
      const TensorId gathered = rewrite_.add_tensor_like(
          read, ".whole", with_size_of(whole, rewrite_.tensor(read), name));
      const Tensor& part = rewrite_.tensor(read);
      rewrite_.insert_collectives(part.name + ".all_gather",
                                  {.kind = CollectiveKind::kAllGather,
                                   .dtype = part.dtype,
                                   .bytes_per_rank = bytes_of(part)},
                                  tp_groups(op.ranks), {read}, {gathered});
      read.tensor = gathered;
    }
  }

  // The axes of `part` with `name` as in `whole`.
  static std::vector<Axis> with_size_of(const Tensor& whole, const Tensor& part,
                                        std::string_view name) {
    std::vector<Axis> axes = part.axes;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].name == name) axes[i] = whole.axes[i];
    }
    return axes;
  }

  std::vector<GroupId> tp_groups(GroupId source_group) {
    const Mesh seen = weights_mesh(mesh_);
    return rewrite_.groups_of(rewrite_.group(source_group), seen.tp, seen.cp);
  }

  const Plan& source_;
  const Mesh& mesh_;
  TensorShares shares_;
  Rewrite rewrite_;
  std::vector<bool> is_whole_op_;
  std::vector<bool> is_whole_tensor_;
  std::vector<bool> is_merged_op_;  // by op and tensor: behind attention in a mesh with cp
  std::vector<bool> is_merged_tensor_;
  std::vector<Partial> pending_;  // partial tensors, in the order in which they were written
};

}  // namespace

bool tensor_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.tp * mesh.cp > 1; }

Plan tensor_pass(const Plan& plan, const Mesh& mesh) { return TensorPass(plan, mesh).run(); }

}  // namespace orrery
