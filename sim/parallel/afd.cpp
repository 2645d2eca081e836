// Attention-FFN disaggregation (Step-3, arXiv 2507.19427; MegaScale-Infer, arXiv 2504.02263):
// attention with the KV cache, norms and the router on dp x tp ranks, FFNs and experts on
// ffn_instances x ffn_tp ranks behind them. Micro-batches follow each other through both:
//
//   attention 0  A0    A1    A2    | A0 ..        A: from what comes back to the next layer's
//   router
//             2     >0    >1    >2                >: to each instance that has one of the experts
//   FFN       0        F0    F1    F2             F: FFN or experts
//             3           <0    <1    <2          <: partial results, which receivers add up
//
// The plan of one rank is taken apart into one of attention and one of FFNs, which the other passes
// split as any plan; here they are joined again. Of FFNs there is one data-parallel rank, whose
// tokens are those of all attention ranks, so they are split over columns and experts as by tensor
// parallelism. A token travels once to each instance, whose ranks gather their shares of it and
// reduce_scatter what they have computed.
//
// Weights on FFN ranks are split by the number of the rank, as everywhere: the first FFN rank need
// not have the first columns or experts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/parallel/expert_flows.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/turns.h"
#include "sim/plan/sides.h"

namespace orrery {
namespace {

constexpr int kToFfnStream = kCollectiveStream;
constexpr int kFromFfnStream = kCollectiveStream + 1;

bool is_of_ffn(std::string_view axis) {
  return axis == axis::kFfn || axis == axis::kExpertFfn || axis == axis::kExperts ||
         axis == axis::kRoutedRows;
}

// Ops [first, last) of the source, between which tokens are on FFN ranks.
struct Region {
  OpId first = 0;
  OpId last = 0;
  TensorViews inputs;
  TensorId output = -1;
  double instances = 1;  // that a token goes to, on average
};

// Finds the regions of a plan of one rank.
class Regions {
 public:
  Regions(const Plan& plan, const Mesh& mesh)
      : plan_(plan), mesh_(mesh), is_ffn_tensor_(plan.tensors().size()) {}

  std::vector<Region> run() {
    std::vector<Region> regions;
    const auto num_ops = static_cast<OpId>(plan_.ops().size());
    for (OpId id = 0; id < num_ops;) {
      Region region{.first = id, .last = id, .inputs = {}};
      for (; region.last < num_ops && take(plan_.ops()[static_cast<std::size_t>(region.last)]);
           ++region.last) {
      }
      id = std::max(region.last, id + 1);
      if (region.last == region.first) continue;
      find_sides(region);
      region.instances = instances_of_token(region);
      regions.push_back(std::move(region));
    }
    if (!regions.empty()) return regions;
    throw std::invalid_argument("ffn_instances is " + std::to_string(mesh_.ffn_instances) +
                                ", but no op of the plan is of an FFN");
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }

  // Whether the op is of an FFN: it works on columns, experts or rows of experts, or on nothing but
  // what such ops have written.
  bool take(const Op& op) {
    bool is_ffn = false;
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
      is_ffn = std::ranges::any_of(kernel->dims, is_of_ffn, &Dim::axis);
    }
    bool reads_ffn = false;
    bool reads_other = false;
    for (const TensorId read : op.reads) {
      if (tensor(read).role == TensorRole::kWeight) continue;
      (is_ffn_tensor_[static_cast<std::size_t>(read)] ? reads_ffn : reads_other) = true;
    }
    is_ffn = is_ffn || (reads_ffn && !reads_other);
    for (const TensorId written : op.writes) {
      is_ffn_tensor_[static_cast<std::size_t>(written)] = is_ffn;
    }
    return is_ffn;
  }

  void find_sides(Region& region) const {
    std::vector<bool> is_written(plan_.tensors().size());
    std::vector<TensorId> outputs;
    for (OpId id = region.first; id < region.last; ++id) {
      const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
      for (const TensorId read : op.reads) {
        const bool is_known =
            std::ranges::find(region.inputs, read, &TensorView::tensor) != region.inputs.end();
        if (tensor(read).role != TensorRole::kActivation || is_known ||
            is_written[static_cast<std::size_t>(read)]) {
          continue;
        }
        region.inputs.emplace_back(read);
      }
      for (const TensorId written : op.writes) is_written[static_cast<std::size_t>(written)] = true;
    }
    for (OpId id = 0; id < static_cast<OpId>(plan_.ops().size()); ++id) {
      if (id >= region.first && id < region.last) continue;
      for (const TensorId read : plan_.ops()[static_cast<std::size_t>(id)].reads) {
        if (!is_written[static_cast<std::size_t>(read)]) continue;
        if (std::ranges::find(outputs, read) == outputs.end()) outputs.push_back(read);
      }
    }
    if (region.inputs.empty() || outputs.size() != 1) {
      throw std::invalid_argument(
          "op \"" + plan_.ops()[static_cast<std::size_t>(region.first)].name +
          "\" begins an FFN of " + std::to_string(region.inputs.size()) + " inputs and " +
          std::to_string(outputs.size()) +
          " results, expected one result or more inputs; it cannot lie on ranks of its own");
    }
    region.output = outputs.front();
  }

  // All of them where columns of a dense FFN or of a shared expert are split over all; else those
  // with one of the token's experts, of which each has as many: n (1 - C(E - E/n, k) / C(E, k)).
  [[nodiscard]] double instances_of_token(const Region& region) const {
    const double all = mesh_.ffn_instances;
    double experts = 0;
    std::int64_t topk = 0;
    for (OpId id = region.first; id < region.last; ++id) {
      const auto* kernel = std::get_if<KernelOp>(&plan_.ops()[static_cast<std::size_t>(id)].body);
      if (kernel == nullptr) continue;
      for (const Dim& entry : kernel->dims) {
        if (entry.axis == axis::kFfn) return all;
        if (entry.name == "experts_total") experts = static_cast<double>(entry.size);
        if (entry.name == "topk") topk = entry.size;
      }
    }
    const double blocks = std::min<double>(all, mesh_.ep);
    if (experts == 0 || topk == 0) return all;
    double has_none = 1;
    for (std::int64_t i = 0; i < topk; ++i) {
      const auto taken = static_cast<double>(i);
      has_none *= std::max(0.0, experts - experts / blocks - taken) / (experts - taken);
    }
    return all * (1 - has_none);
  }

  const Plan& plan_;
  const Mesh& mesh_;
  std::vector<bool> is_ffn_tensor_;
};

// Some ops of a plan as a plan of their own, with marks for what is left out: communication without
// bytes, which other passes leave as it is.
class Part {
 public:
  explicit Part(const Plan& source) : source_(source), ids_(source.tensors().size(), -1) {
    for (const Split& split : source.splits()) plan_.add_split(split);
    rank_ = plan_.add_group({0});
    ops_.resize(source.ops().size(), -1);
  }

  void add(OpId id) {
    Op op = source_.ops()[static_cast<std::size_t>(id)];
    op.ranks = rank_;
    for (auto* views : {&op.reads, &op.writes}) {
      for (TensorView& view : *views) view.tensor = tensor(view);
    }
    std::vector<OpId> after;
    for (const OpId before : op.after) {
      if (ops_[static_cast<std::size_t>(before)] >= 0) {
        after.push_back(ops_[static_cast<std::size_t>(before)]);
      }
    }
    op.after = std::move(after);
    ops_[static_cast<std::size_t>(id)] = plan_.add_op(std::move(op));
  }
  void mark(const TensorViews& reads, const TensorViews& writes) {
    Op op{.name = "mark",
          .body = CommOp{.kind = CollectiveKind::kAllToAll},
          .ranks = rank_,
          .reads = {},
          .writes = {},
          .after = {}};
    for (const TensorId read : reads) op.reads.emplace_back(tensor(read));
    for (const TensorId written : writes) op.writes.emplace_back(tensor(written));
    plan_.add_op(std::move(op));
  }
  void add_repeat(OpId first, std::int64_t count) {
    plan_.add_repeat({.first = first, .last = size(), .count = count});
  }
  [[nodiscard]] OpId size() const { return static_cast<OpId>(plan_.ops().size()); }
  [[nodiscard]] Plan take() { return std::move(plan_); }

 private:
  TensorId tensor(TensorId id) {
    TensorId& found = ids_[static_cast<std::size_t>(id)];
    if (found >= 0) return found;
    Tensor copy = source_.tensors()[static_cast<std::size_t>(id)];
    copy.ranks = rank_;
    return found = plan_.add_tensor(std::move(copy));
  }

  const Plan& source_;
  Plan plan_;
  GroupId rank_ = 0;
  std::vector<TensorId> ids_;  // by tensor of the source
  std::vector<OpId> ops_;      // by op of the source
};

bool is_mark(const Op& op) {
  const auto* comm = std::get_if<CommOp>(&op.body);
  return comm != nullptr && comm->bytes_per_rank == Bytes(0);
}

struct Parts {
  Plan attention;  // with a mark for each region
  Plan ffn;        // with a mark before and behind each
};

Parts take_apart(const Plan& source, const std::vector<Region>& regions) {
  Part attention(source);
  Part ffn(source);
  std::size_t next_region = 0;
  std::size_t next_repeat = 0;
  OpId first_of_run = 0;
  OpId first_of_ffn_run = 0;
  const auto& repeats = source.repeats();
  for (OpId id = 0; id < static_cast<OpId>(source.ops().size());) {
    if (next_repeat < repeats.size() && repeats[next_repeat].first == id) {
      first_of_run = attention.size();
      first_of_ffn_run = ffn.size();
    }
    if (next_region < regions.size() && regions[next_region].first == id) {
      const Region& region = regions[next_region++];
      attention.mark(region.inputs, {region.output});
      ffn.mark({}, region.inputs);
      for (; id < region.last; ++id) ffn.add(id);
      ffn.mark({region.output}, {});
    } else {
      attention.add(id++);
    }
    if (next_repeat < repeats.size() && repeats[next_repeat].last <= id) {
      attention.add_repeat(first_of_run, repeats[next_repeat].count);
      if (ffn.size() > first_of_ffn_run) {
        ffn.add_repeat(first_of_ffn_run, repeats[next_repeat].count);
      }
      ++next_repeat;
    }
  }
  return {attention.take(), ffn.take()};
}

Mesh attention_mesh(const Mesh& mesh) {
  Mesh seen = mesh;
  seen.ffn_instances = 0;
  seen.ffn_tp = 1;
  seen.ep = 1;
  seen.num_redundant_experts = 0;
  seen.expert_load = {};
  return seen;
}

Mesh ffn_mesh(const Mesh& mesh) {
  return {.tp = num_ffn_ranks(mesh),
          .ep = mesh.ep,
          .num_micro_batches = mesh.num_micro_batches,
          .num_redundant_experts = mesh.num_redundant_experts,
          .expert_load = mesh.expert_load};
}

// A plan being copied into the joined one, its ranks from `first_rank` on.
class Side {
 public:
  // `has_rows`: it is its ranks that tokens are dealt out to.
  Side(const Plan& from, Plan& to, int first_rank, bool has_rows)
      : from_(from), to_(to), has_rows_(has_rows) {
    for (GroupId id = 0; id < from.num_groups(); ++id) {
      std::vector<int> ranks;
      for (const int rank : from.ranks(id)) ranks.push_back(first_rank + rank);
      groups_.push_back(to.add_group(std::move(ranks)));
    }
    for (const Split& split : from.splits()) splits_.push_back(to.add_split(split));
    ids_.assign(from.tensors().size(), -1);
    ops_.assign(from.ops().size(), -1);
  }

  // With `suffix` behind the name where it is the first to ask for the tensor.
  TensorId tensor(TensorId id, std::string_view suffix = {}) {
    TensorId& found = ids_[static_cast<std::size_t>(id)];
    if (found >= 0) return found;
    Tensor copy = from_.tensors()[static_cast<std::size_t>(id)];
    copy.name += suffix;
    copy.ranks = groups_[static_cast<std::size_t>(copy.ranks)];
    for (Axis& axis : copy.axes) {
      if (axis.split < 0) continue;
      const bool is_of_rows = axis.name == axis::kTokens || axis.name == axis::kRoutedTokens;
      axis.split =
          is_of_rows && !has_rows_ ? kNoSplit : splits_[static_cast<std::size_t>(axis.split)];
    }
    return found = to_.add_tensor(std::move(copy));
  }

  void copy(OpId id) {
    Op op = from_.ops()[static_cast<std::size_t>(id)];
    op.ranks = groups_[static_cast<std::size_t>(op.ranks)];
    for (auto* views : {&op.reads, &op.writes}) {
      for (TensorView& view : *views) view.tensor = tensor(view);
    }
    for (OpId& before : op.after) before = ops_[static_cast<std::size_t>(before)];
    ops_[static_cast<std::size_t>(id)] = to_.add_op(std::move(op));
  }
  // `op` of the joined plan stands for op `id` of this one.
  void set_copy(OpId id, OpId op) { ops_[static_cast<std::size_t>(id)] = op; }

 private:
  const Plan& from_;
  Plan& to_;
  bool has_rows_;
  std::vector<GroupId> groups_;
  std::vector<SplitId> splits_;
  std::vector<TensorId> ids_;
  std::vector<OpId> ops_;
};

class Join {
 public:
  Join(const Plan& attention, const Plan& ffn, const std::vector<Region>& regions, const Mesh& mesh)
      : attention_(attention),
        ffn_(ffn),
        regions_(regions),
        mesh_(mesh),
        num_attention_(mesh.dp * mesh.tp),
        of_attention_(attention, plan_, 0, /*has_rows=*/true),
        of_ffn_(ffn, plan_, num_attention_, /*has_rows=*/false) {
    std::vector<int> all(static_cast<std::size_t>(num_ranks(mesh)));
    std::iota(all.begin(), all.end(), 0);
    all_ = plan_.add_group(all);
    for (int i = 0; i < mesh.ffn_instances; ++i) {
      const auto first =
          all.begin() + num_attention_ + static_cast<std::ptrdiff_t>(i) * mesh.ffn_tp;
      instances_.push_back(plan_.add_group({first, first + mesh.ffn_tp}));
    }
  }

  Plan run() {
    const auto num_ops = static_cast<OpId>(attention_.ops().size());
    std::vector<OpId> begins;
    for (OpId id = 0; id < num_ops; ++id) {
      begins.push_back(static_cast<OpId>(plan_.ops().size()));
      const Op& op = attention_.ops()[static_cast<std::size_t>(id)];
      if (!is_mark(op)) {
        of_attention_.copy(id);
        continue;
      }
      add_region(op);
      of_attention_.set_copy(id, static_cast<OpId>(plan_.ops().size()) - 1);
    }
    begins.push_back(static_cast<OpId>(plan_.ops().size()));
    for (const Repeat& repeat : attention_.repeats()) {
      plan_.add_repeat({.first = begins[static_cast<std::size_t>(repeat.first)],
                        .last = begins[static_cast<std::size_t>(repeat.last)],
                        .count = repeat.count});
    }
    return std::move(plan_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_pipelined() const { return mesh_.ffn_schedule == FfnSchedule::kPipelined; }
  // "layers.3.", before the names of a layer's ops.
  [[nodiscard]] static std::string prefix_of(const std::string& name) {
    return name.substr(0, name.rfind('.') + 1);
  }

  // From the mark of attention, whose rows go to FFN ranks and come back.
  void add_region(const Op& mark) {
    const Region& region = regions_[next_region_++];
    while (!is_mark(ffn_.ops()[static_cast<std::size_t>(at_)])) ++at_;
    const Op& begin = ffn_.ops()[static_cast<std::size_t>(at_++)];
    const OpId first = at_;
    while (!is_mark(ffn_.ops()[static_cast<std::size_t>(at_)])) ++at_;
    const TensorId result = ffn_.ops()[static_cast<std::size_t>(at_++)].reads.front();
    const std::string prefix = prefix_of(ffn_.ops()[static_cast<std::size_t>(first)].name);
    // Of the tokens of an instance.
    const double share = region.instances / mesh_.ffn_instances;

    TensorViews sent;
    TensorViews whole;
    for (const TensorId read : mark.reads) sent.emplace_back(of_attention_.tensor(read));
    for (const TensorId written : begin.writes) {
      whole.emplace_back(of_ffn_.tensor(written, ".of_ffn"));
    }
    const TensorViews shares = shares_of(whole);
    exchange(prefix + "to_ffn", sent, shares, sent, shares, region.instances, kToFfnStream);
    inside(prefix + "to_ffn", CollectiveKind::kAllGather, shares, whole,
           bytes_of_all(shares) * share);
    for (OpId id = first; id + 1 < at_; ++id) {
      // What FFN ranks add up, attention does on arrival.
      if (is_sum_of(ffn_.ops()[static_cast<std::size_t>(id)], result)) continue;
      of_ffn_.copy(id);
    }
    const TensorViews computed{of_ffn_.tensor(result, ".of_ffn")};
    const TensorViews sums = shares_of(computed);
    inside(prefix + "from_ffn", CollectiveKind::kReduceScatter, computed, sums,
           bytes_of_all(computed) * share);
    const TensorViews back{of_attention_.tensor(mark.writes.front())};
    exchange(prefix + "from_ffn", sums, back, back, sums, region.instances, kFromFfnStream);
  }

  static bool is_sum_of(const Op& op, TensorId result) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return comm != nullptr && comm->kind == CollectiveKind::kAllReduce &&
           op.writes == TensorViews{TensorView(result)};
  }

  // Of each tensor of an instance's ranks the rows that one of them sends and gets.
  TensorViews shares_of(const TensorViews& views) {
    if (mesh_.ffn_tp == 1) return views;
    TensorViews shares;
    for (const TensorId id : views) {
      Tensor share = tensor(id);
      share.name += ".share";
      const auto rows = std::ranges::find(share.axes, axis::kTokens, &Axis::name);
      if (rows == share.axes.end()) {
        throw std::invalid_argument("tensor \"" + share.name +
                                    "\" goes to FFN ranks, but has no axis tokens, expected one");
      }
      *rows = {rows->name, ceil_div(rows->size, mesh_.ffn_tp)};
      shares.emplace_back(plan_.add_tensor(std::move(share)));
    }
    return shares;
  }

  [[nodiscard]] Bytes bytes_of_all(const TensorViews& views) const {
    Bytes bytes;
    for (const TensorId id : views) bytes += bytes_of(tensor(id));
    return bytes;
  }

  void inside(const std::string& name, CollectiveKind kind, const TensorViews& reads,
              const TensorViews& writes, Bytes bytes) {
    if (mesh_.ffn_tp == 1) return;
    for (std::size_t i = 0; i < instances_.size(); ++i) {
      plan_.add_op(
          {.name = name + "." + std::string(to_text(kind)) +
                   (instances_.size() > 1 ? ".f" + std::to_string(i) : ""),
           .body =
               CommOp{.kind = kind, .dtype = tensor(reads.front()).dtype, .bytes_per_rank = bytes},
           .ranks = instances_[i],
           .reads = reads,
           .writes = writes,
           .after = {}});
    }
  }

  // Of `attention`, what a rank has of its own tokens, each goes to `instances`, a part from each
  // rank of its tensor-parallel group; FFN ranks have their shares of the tokens of all.
  void exchange(const std::string& name, const TensorViews& reads, const TensorViews& writes,
                const TensorViews& attention, const TensorViews& ffn, double instances,
                int stream) {
    const Bytes of_attention = bytes_of_all(attention) * (instances / mesh_.tp);
    const Bytes of_ffn = bytes_of_all(ffn) * (instances / mesh_.ffn_instances);
    plan_.add_op({.name = name,
                  .body = CommOp{.kind = CollectiveKind::kAllToAll,
                                 .dtype = tensor(reads.front()).dtype,
                                 .bytes_per_rank = std::max(of_attention, of_ffn)},
                  .ranks = all_,
                  .stream = is_pipelined() ? stream : 0,
                  .reads = reads,
                  .writes = writes,
                  .after = {}});
  }

  const Plan& attention_;
  const Plan& ffn_;
  const std::vector<Region>& regions_;
  const Mesh& mesh_;
  int num_attention_;
  Plan plan_;
  Side of_attention_;
  Side of_ffn_;
  GroupId all_ = 0;
  std::vector<GroupId> instances_;
  std::size_t next_region_ = 0;
  OpId at_ = 0;  // in ffn_
};

bool is_between_sides(const Plan& plan, const Op& op) { return sides_of(plan, op).has_value(); }

}  // namespace

bool afd_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.ffn_instances > 0; }

Plan afd_pass(const Plan& plan, const Mesh& mesh, std::int64_t fullest_rows) {
  const std::vector<Region> regions = Regions(plan, mesh).run();
  const Parts parts = take_apart(plan, regions);
  const Plan attention = parallelize(parts.attention, attention_mesh(mesh), fullest_rows);
  const Plan ffn = parallelize(parts.ffn, ffn_mesh(mesh));
  Plan joined = Join(attention, ffn, regions, mesh).run();
  if (mesh.num_micro_batches == 1) return joined;
  return take_turns(joined, {.num_batches = mesh.num_micro_batches,
                             .is_awaited = is_between_sides,
                             .takes_turns = mesh.ffn_schedule == FfnSchedule::kPipelined});
}

}  // namespace orrery
