// Context parallelism. Decodes as Helix has them (arXiv 2507.07120): the KV cache lies over cp
// ranks, each of which attends to its part with all queries; results and their log-sum-exps are
// exchanged and merged, so that each rank has its share of the heads (CpWeights::kSplit), or all.
//
//   kv_append (1 / cp of the tokens) | attention (context / cp) | all_to_all | merge | o_proj
//
// Prompts are split along their tokens (context_rows.h). Keys and values of other ranks are
// gathered before attention (Llama 3, arXiv 2407.21783, section 3.3.2), or exchanged by pairs of
// ranks, round by round, while attention over what is there runs, as in a ring (arXiv 2310.01889);
// the results over parts of the keys are merged then too. Latents are gathered and expanded by each
// rank for all tokens. With weights split over cp what lies
// between the norm and attention is computed on tokens / cp, and an all_to_all brings all tokens
// with heads / cp to the output projection (Ulysses, arXiv 2309.14509); with replicated weights the
// whole model is computed on tokens / cp.
//
// With decodes dealt out (CpDecodes) ranks have rows of their own, as data-parallel ranks do, but
// one page table. Queries, new keys and values of a rank's decodes are gathered, and what each rank
// finds in its part of the contexts goes back to the rows' rank:
//
//   all_gather | kv_append | attention (all decodes, context / cp) | all_to_all of rows | merge

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "kernels/kernel_spec.h"
#include "sim/parallel/context_rows.h"
#include "sim/parallel/expert_flows.h"
#include "sim/parallel/gathered_decodes.h"
#include "sim/parallel/output_projection.h"
#include "sim/parallel/rank_rows.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

// The kernel that weighs results over parts of the keys by their log-sum-exps.
const KernelSpec& merging_kernel() {
  return *std::ranges::find_if(kernel_specs(), [](const KernelSpec& spec) {
    return std::ranges::any_of(
        spec.slots, [](const Slot& slot) { return slot.name == "lse" && !slot.is_result; });
  });
}

class ContextPass {
 public:
  ContextPass(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        mesh_(mesh),
        over_cp_(Place().add({.ways = mesh.cp, .stride = 1})),
        rows_(plan, mesh),
        shares_(plan, rows_of_rank(), mesh.expert_load),
        rewrite_(plan, 1),
        decodes_(rewrite_, rows_, mesh.cp),
        is_local_(plan.ops().size()),
        is_local_tensor_(plan.tensors().size()),
        is_of_all_decodes_(plan.tensors().size()) {}

  Plan run() {
    if (rows_.has_prefill() || rows_.deals_decodes()) find_local();
    if (rows_.deals_decodes()) find_all_decodes();
    std::size_t at = 0;
    rewrite_.copy_tensors([&](Tensor& tensor) { change(tensor, at++); });
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      if (rewrite_.at_run_boundary(id)) forget();
      rewrite_.begin(id);
      copy(id, source_.ops()[static_cast<std::size_t>(id)]);
    }
    return rewrite_.finish();
  }

 private:
  // What attention has written: over part of the keys (with a log-sum-exp), or of 1 / cp of the
  // tokens.
  struct Result {
    TensorId lse = -1;
    std::int64_t heads = 0;
  };
  // A layer's cache and what its rows are made of: latents and rotated keys.
  struct Latents {
    TensorId cache = -1;
    TensorViews views;
  };

  [[nodiscard]] const Tensor& source_tensor(TensorId id) const {
    return source_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_split() const { return mesh_.cp_weights == CpWeights::kSplit; }
  // Ranks have rows as data-parallel ranks do.
  [[nodiscard]] bool is_dealt() const { return mesh_.cp_decodes == CpDecodes::kDealt; }
  [[nodiscard]] RankRows rows_of_rank() const {
    Mesh mesh;
    mesh.dp = is_dealt() ? mesh_.cp : 1;
    return {mesh, rows_.tokens(), rows_.prefill_local(), rows_.own_decodes()};
  }
  static bool is_rows(std::string_view name) {
    return name == axis::kTokens || name == axis::kRoutedTokens;
  }
  static bool is_routed(std::string_view name) {
    return name == axis::kRoutedRows || name == axis::kActiveExperts;
  }
  [[nodiscard]] bool appends(const Op& op) const {
    return !op.writes.empty() && source_tensor(op.writes.front()).role == TensorRole::kKvCache;
  }
  // Keys and values of a prompt that are expanded from latents, and what their ops read: heads are
  // of the whole prompt on each rank, latents are gathered.
  [[nodiscard]] std::set<TensorId> expanded_keys() const {
    std::set<TensorId> keys;
    for (const Op& op : source_.ops()) {
      if (!is_prefill_attention(op) || reads_cache(op)) continue;
      for (std::size_t i = 1; i < op.reads.size(); ++i) {
        if (has_axis(source_tensor(op.reads[i]), axis::kHeads)) keys.insert(op.reads[i].tensor);
      }
    }
    return keys;
  }
  [[nodiscard]] bool reads_cache(const Op& op) const {
    return std::ranges::any_of(
        op.reads, [&](TensorId read) { return source_tensor(read).role == TensorRole::kKvCache; });
  }
  [[nodiscard]] bool is_expansion(const Op& op) const {
    return !op.writes.empty() && keys_.contains(op.writes.front().tensor);
  }
  // It takes latents of prompts out of the cache, which a gather of those of all ranks does.
  [[nodiscard]] bool takes_latents(const Op& op) const {
    return !keys_.empty() && std::holds_alternative<KernelOp>(op.body) && !is_attention(op) &&
           !appends(op) && reads_cache(op);
  }

  // Ops that work on 1 / cp of the tokens of prompts: all, or those from a norm to attention.
  void find_local() {
    keys_ = expanded_keys();
    std::set<TensorId> needed;
    for (std::size_t i = source_.ops().size(); i-- > 0;) {
      const Op& op = source_.ops()[i];
      if (std::holds_alternative<KernelOp>(op.body)) is_local_[i] = is_local(op, needed);
      if (is_local_[i] || is_expansion(op)) {
        for (const TensorId read : op.reads) needed.insert(read);
      }
    }
    for (std::size_t i = 0; i < source_.ops().size(); ++i) {
      const Op& op = source_.ops()[i];
      for (const TensorId id : op.writes) {
        if (is_local_[i]) is_local_tensor_[static_cast<std::size_t>(id)] = true;
      }
    }
    if (is_split()) return;
    for (std::size_t id = 0; id < is_local_tensor_.size(); ++id) {
      is_local_tensor_[id] = !keys_.contains(static_cast<TensorId>(id));
    }
  }
  [[nodiscard]] bool is_local(const Op& op, const std::set<TensorId>& needed) const {
    if (is_expansion(op)) return false;
    if (!is_split() || is_attention(op)) return true;
    return std::ranges::any_of(op.writes, [&](TensorId id) { return needed.contains(id); }) &&
           std::ranges::none_of(
               op.writes, [&](TensorId id) { return has_axis(source_tensor(id), axis::kHidden); });
  }

  // What is between attention to decodes and the exchange of its results has a row of each decode.
  void find_all_decodes() {
    for (const Op& op : source_.ops()) {
      if (!std::holds_alternative<KernelOp>(op.body)) continue;
      const bool is_begin = is_attention(op) && !is_prefill_attention(op);
      if (is_begin || (is_on_all_decodes(op) && !ends_block(op))) {
        for (const TensorId id : op.writes) is_of_all_decodes_[static_cast<std::size_t>(id)] = true;
      }
    }
  }
  [[nodiscard]] bool is_on_all_decodes(const Op& op) const {
    return std::ranges::any_of(
        op.reads, [&](TensorId id) { return is_of_all_decodes_[static_cast<std::size_t>(id)]; });
  }
  // What it reads is merged first.
  static bool ends_block(const Op& op) {
    return is_output_projection(op) ||
           kernel_spec(std::get<KernelOp>(op.body).kernel).prior.quantizes;
  }

  void change(Tensor& tensor, std::size_t id) {
    for (Axis& entry : tensor.axes) {
      if (is_of_all_decodes_[id] && entry.name == axis::kSeqs) {
        entry.size = rows_.gathered_decodes();
      } else if (entry.name == axis::kSeqs) {
        entry = rows_.sampled(rewrite_, entry);
      } else if (is_dealt() && is_routed(entry.name)) {
        entry.size = shares_(entry.name, entry.size);
      }
      if (!is_rows(entry.name) || (is_dealt() && entry.name == axis::kRoutedTokens)) continue;
      if (tensor.role == TensorRole::kKvCache) {
        // Positions decide which rows of a step a rank keeps.
        entry = {std::string(axis::kContext), rows_.stored(entry.size), kUnknownSplit};
      } else if (is_local_tensor_[id]) {
        entry = rows_.local(rewrite_, entry);
      }
    }
    const bool is_sorted = has_axis(tensor, axis::kRoutedRows) && rows_.has_prefill();
    if (!is_sorted || is_split() || is_dealt()) return;
    throw std::invalid_argument("tensor \"" + tensor.name +
                                "\" has a row for each expert of a token, which cp with "
                                "cp_weights replicated does not split; expected cp_weights split, "
                                "or moe_design fused");
  }

  // A run's copies find results of their own.
  void forget() {
    results_.clear();
    replaced_.clear();
    decodes_.forget();
    latents_ = {};
  }

  void copy(OpId id, Op op) {
    if (auto* comm = std::get_if<CommOp>(&op.body); comm != nullptr && !op.reads.empty()) {
      const TensorId read = op.reads.front();
      comm->bytes_per_rank =
          comm->bytes_per_rank * (bytes_of(rewrite_.tensor(read)) / bytes_of(source_tensor(read)));
    }
    if (!std::holds_alternative<KernelOp>(op.body)) return rewrite_.copy(id, std::move(op));
    if (is_attention(op)) {
      copy_attention(id, std::move(op));
      return;
    }
    if (appends(op)) {
      latents_ = {.cache = op.writes.front(), .views = op.reads};
      gathered_.clear();
      if (rows_.deals_decodes()) {
        append_dealt(id, std::move(op));
        return;
      }
    } else if (takes_latents(op)) {
      latents_.views = op.writes;
      rewrite_.drop(id);
      return;
    }
    const bool is_on_all = is_on_all_decodes(op) && !ends_block(op);  // by reads of the source
    if (is_expansion(op)) gather_read(op, op.reads.front());
    auto& kernel = std::get<KernelOp>(op.body);
    const bool is_on_part = is_local_[static_cast<std::size_t>(id)];
    for (Dim& entry : kernel.dims) {
      if (appends(op) && is_rows(entry.axis)) {
        entry.size = rows_.stored(entry.size);
      } else if (is_on_part) {
        entry.size = local_size(entry, is_on_all);
      }
    }
    for (TensorView& read : op.reads) {
      const auto found = results_.find(read.tensor);
      if (found == results_.end()) continue;
      if (ends_block(op)) {
        read.tensor = merged(op, read.tensor, found->second);
      } else {
        results_.emplace(op.writes.front().tensor, found->second);
      }
    }
    rewrite_.copy(id, std::move(op));
  }

  // What a rank has of a dim of an op on its rows, or on those of all decodes.
  [[nodiscard]] std::int64_t local_size(const Dim& entry, bool is_on_all) const {
    if (is_dealt() && (is_routed(entry.axis) || entry.axis == axis::kRoutedTokens)) {
      return shares_(entry.axis, entry.size);
    }
    if (entry.axis == axis::kSeqs) {
      return is_on_all ? rows_.gathered_decodes() : rows_.sampled(entry.size);
    }
    return is_rows(entry.axis) ? rows_.local(entry.size) : entry.size;
  }

  // New tokens of prompts are the rank's own, those of decodes come from all ranks.
  void append_dealt(OpId id, Op op) {
    const auto with_tokens = [](Op part, std::int64_t tokens) {
      for (Dim& entry : std::get<KernelOp>(part.body).dims) {
        if (is_rows(entry.axis)) entry.size = tokens;
      }
      return part;
    };
    if (rows_.has_prefill()) {
      Op prompts = with_tokens(op, rows_.prefill_local());
      prompts.ranks = rewrite_.group(op.ranks);
      prompts.after = {};
      rewrite_.insert(std::move(prompts));
      op.name += ".decodes";
    }
    decodes_.gather(op, op.reads);
    rewrite_.copy(id, with_tokens(std::move(op), rows_.own_decodes()));
  }
  void copy_attention(OpId id, Op op) {
    const TensorId out = op.writes.front();
    auto& dims = std::get<KernelOp>(op.body).dims;
    Result result{.heads = dim(dims, "heads")};
    if (!is_prefill_attention(op)) {
      size_of(dims, "context") = ceil_div(dim(dims, "context"), mesh_.cp);
      result.lse = add_lse(out, result.heads);
      op.writes.emplace_back(result.lse);
      results_.emplace(out, result);
      if (rows_.deals_decodes()) {
        // What pads the last rank's rows has no context.
        std::int64_t& batch = size_of(dims, "batch");
        std::int64_t& context = size_of(dims, "context");
        context = ceil_div(context * batch, rows_.gathered_decodes());
        batch = rows_.gathered_decodes();
        decodes_.gather(op, op.reads);
      }
      rewrite_.copy(id, std::move(op));
      return;
    }
    results_.emplace(out, result);
    const std::int64_t query = dim(dims, "query");
    const std::int64_t context = dim(dims, "context");
    size_of(dims, "query") = rows_.query(query);
    if (reads_cache(op) && mesh_.cp_prefill == CpPrefill::kRing) {
      size_of(dims, "context") = ceil_div(context, mesh_.cp);
      copy_rounds(id, op, context + query);
      return;
    }
    size_of(dims, "context") = rows_.context(query, context);
    if (reads_cache(op)) {
      op.reads.emplace_back(gathered_cache(op, context + query));
    } else {
      for (std::size_t i = 1; i < op.reads.size(); ++i) gather_read(op, op.reads[i]);
    }
    rewrite_.copy(id, std::move(op));
  }

  static std::int64_t& size_of(Dims& dims, std::string_view name) {
    return std::ranges::find(dims, name, &Dim::name)->size;
  }

  // The log-sum-exp of each row and head of `out`.
  TensorId add_lse(TensorId out, std::int64_t heads) {
    Tensor lse = rewrite_.tensor(out);
    lse.name += ".lse";
    lse.dtype = DType::kFp32;
    const Place over_tp = Place().add({.ways = mesh_.tp, .stride = mesh_.cp});
    lse.axes.back() = rewrite_.divided({std::string(axis::kHeads), heads * mesh_.tp}, over_tp);
    return rewrite_.add_tensor(std::move(lse));
  }

  void collective(const std::string& name, const Op& op, CommOp body, const TensorViews& reads,
                  const TensorViews& writes) {
    for (const TensorId read : reads) body.bytes_per_rank += bytes_of(rewrite_.tensor(read));
    rewrite_.insert_collectives(
        name, body, rewrite_.groups_of(rewrite_.group(op.ranks), mesh_.cp, 1), reads, writes);
  }

  // Of `id`, which attention has written, all rows over all keys, with the heads that `op` takes.
  TensorId merged(const Op& op, TensorId id, const Result& result) {
    if (result.lse < 0 && !is_split()) return id;
    if (const auto found = replaced_.find(id); found != replaced_.end()) return found->second;
    const std::string name = rewrite_.tensor(id).name;
    std::vector<Axis> axes = result.lse < 0 ? source_tensor(id).axes : rewrite_.tensor(id).axes;
    deal_out(axes);
    const TensorId whole =
        rewrite_.add_tensor_like(id, result.lse < 0 ? ".whole" : ".merged", axes);
    replaced_.emplace(id, whole);
    if (result.lse < 0) {
      collective(name + ".all_to_all", op,
                 {.kind = CollectiveKind::kAllToAll, .dtype = rewrite_.tensor(id).dtype}, {id},
                 {whole});
      return whole;
    }
    const TensorViews parts{of_ranks(id), of_ranks(result.lse)};
    const CollectiveKind kind =
        is_split() || is_dealt() ? CollectiveKind::kAllToAll : CollectiveKind::kAllGather;
    collective(name + "." + std::string(to_text(kind)), op,
               {.kind = kind, .dtype = rewrite_.tensor(id).dtype}, {id, result.lse}, parts);
    insert_merge(op, name, parts, whole, is_split() ? result.heads / mesh_.cp : result.heads);
    return whole;
  }
  // Of results with a row of each decode, the heads or the rows that one rank merges.
  void deal_out(std::vector<Axis>& axes) {
    if (is_split()) axes.back() = rewrite_.divided(axes.back(), over_cp_);
    if (is_dealt()) axes.front() = rewrite_.divided(axes.front(), over_cp_);
  }
  // What all cp ranks have of it, of what each of them merges.
  TensorId of_ranks(TensorId id) {
    std::vector<Axis> axes = rewrite_.tensor(id).axes;
    deal_out(axes);
    axes.insert(axes.begin(), {"parts", mesh_.cp});
    return rewrite_.add_tensor_like(id, ".parts", axes);
  }
  void insert_merge(const Op& op, const std::string& name, const TensorViews& parts, TensorId out,
                    std::int64_t heads) {
    const auto& axes = rewrite_.tensor(out).axes;
    rewrite_.insert({.name = name + ".merge",
                     .body = KernelOp{.kernel = std::string(merging_kernel().name),
                                      .dtype = DType::kBf16,
                                      .dims = {{"parts", mesh_.cp, ""},
                                               {"tokens", axes.front().size, axes.front().name},
                                               {"heads", heads, std::string(axis::kHeads)},
                                               {"head_dim", axes.back().size / heads, ""}}},
                     .ranks = rewrite_.group(op.ranks),
                     .reads = parts,
                     .writes = {out},
                     .after = {}});
  }

  // Keys and values of prompts and what was cached before them, `tokens` of each, of all ranks.
  TensorId gathered_cache(const Op& op, std::int64_t tokens) {
    const TensorId cache = cache_of(op);
    const TensorId shards = add_shards(op, cache, ".shards", tokens);
    const Bytes bytes = bytes_of(rewrite_.tensor(shards)) / mesh_.cp;
    rewrite_.insert_collectives(op.name + ".all_gather",
                                {.kind = CollectiveKind::kAllGather,
                                 .dtype = rewrite_.tensor(cache).dtype,
                                 .bytes_per_rank = bytes},
                                rewrite_.groups_of(rewrite_.group(op.ranks), mesh_.cp, 1), {cache},
                                {shards});
    return shards;
  }
  [[nodiscard]] TensorId cache_of(const Op& op) const {
    return *std::ranges::find_if(
        op.reads, [&](TensorId read) { return source_tensor(read).role == TensorRole::kKvCache; });
  }
  // Room for keys and values of `tokens` tokens of each prompt of `op`.
  TensorId add_shards(const Op& op, TensorId cache, std::string_view suffix, std::int64_t tokens) {
    Tensor shards = rewrite_.tensor(cache);
    shards.name += suffix;
    shards.role = TensorRole::kActivation;
    shards.axes.front() = {std::string(axis::kContext),
                           dim(std::get<KernelOp>(op.body).dims, "batch") * tokens};
    return rewrite_.add_tensor(std::move(shards));
  }

  // Latents, or rotated keys, of the whole prompt and what was cached before it in place of `read`:
  // one collective brings both.
  void gather_read(const Op& op, TensorView& read) {
    if (keys_.contains(read.tensor)) return;
    if (gathered_.empty()) gather_latents(op);
    const auto found = std::ranges::find(latents_.views, read);
    read = gathered_.at(static_cast<std::size_t>(found - latents_.views.begin()));
  }
  void gather_latents(const Op& op) {
    const Tensor& cache = rewrite_.tensor(latents_.cache);
    const DType dtype = cache.dtype;
    const std::string name = cache.name + ".all_gather";
    double elements = 0;
    for (const TensorView& view : latents_.views) {
      const Axis& columns = rewrite_.tensor(view).axes.back();
      Tensor whole = rewrite_.tensor(view);
      whole.name += view.is_whole() ? ".gathered" : ".gathered" + std::to_string(view.first_column);
      whole.axes = {{std::string(axis::kContext), source_tensor(view).axes.front().size},
                    {columns.name, view.is_whole() ? columns.size : view.num_columns}};
      elements += static_cast<double>(whole.axes.front().size * whole.axes.back().size);
      gathered_.emplace_back(rewrite_.add_tensor(std::move(whole)));
    }
    rewrite_.insert_collectives(
        name,
        {.kind = CollectiveKind::kAllGather,
         .dtype = dtype,
         .bytes_per_rank = Bytes(elements / mesh_.cp * bytes_per_element(dtype))},
        rewrite_.groups_of(rewrite_.group(op.ranks), mesh_.cp, 1), {latents_.cache}, gathered_);
  }

  // Attention over the keys of this rank, then over those of the partner of each round, which come
  // on a stream of their own meanwhile. In every round a rank computes as many pairs as between its
  // own queries and keys: what zig-zag is for.
  void copy_rounds(OpId id, const Op& op, std::int64_t tokens) {
    const TensorId cache = cache_of(op);
    const TensorId out = op.writes.front();
    const std::int64_t heads = dim(std::get<KernelOp>(op.body).dims, "heads");
    TensorViews parts;
    TensorViews logs;
    std::vector<TensorId> shards;
    for (int round = 1; round < mesh_.cp; ++round) {
      shards.push_back(exchange(op, cache, round, tokens));
    }
    for (int round = 0; round < mesh_.cp; ++round) {
      Op piece = op;
      const std::string suffix = ".round" + std::to_string(round);
      parts.emplace_back(rewrite_.add_tensor_like(out, suffix, rewrite_.tensor(out).axes));
      logs.emplace_back(add_lse(parts.back(), heads));
      piece.name += suffix;
      piece.writes = {parts.back(), logs.back()};
      if (round > 0) piece.reads.emplace_back(shards[static_cast<std::size_t>(round - 1)]);
      if (round + 1 == mesh_.cp) {
        rewrite_.copy(id, std::move(piece));
        break;
      }
      piece.ranks = rewrite_.group(op.ranks);
      piece.after = {};
      rewrite_.insert(std::move(piece));
    }
    parts.insert(parts.end(), logs.begin(), logs.end());
    insert_merge(op, op.name, parts, out, heads);
  }
  // All pairs of cp ranks meet in cp - 1 rounds (cp even): the circle method, in which the last
  // rank stands still and the others move on by one.
  TensorId exchange(const Op& op, TensorId cache, int round, std::int64_t tokens) {
    const TensorId shard =
        add_shards(op, cache, ".round" + std::to_string(round), ceil_div(tokens, mesh_.cp));
    const int others = mesh_.cp - 1;
    const std::vector<GroupId> groups = rewrite_.groups_of(rewrite_.group(op.ranks), mesh_.cp, 1);
    for (const GroupId group : groups) {
      const std::vector<int> ranks(rewrite_.ranks(group).begin(), rewrite_.ranks(group).end());
      const auto pair = [&](int a, int b) {
        const int first = ranks[static_cast<std::size_t>(std::min(a, b))];
        const int second = ranks[static_cast<std::size_t>(std::max(a, b))];
        rewrite_.insert({.name = op.name + ".round" + std::to_string(round) + ".send_recv.r" +
                                 std::to_string(first),
                         .body = CommOp{.kind = CollectiveKind::kSendRecv,
                                        .dtype = rewrite_.tensor(cache).dtype,
                                        .bytes_per_rank = bytes_of(rewrite_.tensor(shard))},
                         .ranks = rewrite_.add_group({first, second}),
                         .stream = kCollectiveStream,
                         .reads = {cache},
                         .writes = {shard},
                         .after = {}});
      };
      pair(round % others, others);
      for (int i = 1; i <= (mesh_.cp - 2) / 2; ++i) {
        pair((round + i) % others, (round - i + others) % others);
      }
    }
    return shard;
  }

  const Plan& source_;
  const Mesh& mesh_;
  Place over_cp_;
  ContextRows rows_;
  RowShares shares_;
  Rewrite rewrite_;
  GatheredDecodes decodes_;
  std::vector<bool> is_local_;           // by op
  std::vector<bool> is_local_tensor_;    // by tensor
  std::vector<bool> is_of_all_decodes_;  // by tensor of the source
  std::set<TensorId> keys_;              // expanded
  std::map<TensorId, Result> results_;   // of attention of this run, and what follows from it
  std::map<TensorId, TensorId> replaced_;
  Latents latents_;
  TensorViews gathered_;  // of them, of all cp ranks
};

}  // namespace

bool context_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.cp > 1; }

Plan context_pass(const Plan& plan, const Mesh& mesh) { return ContextPass(plan, mesh).run(); }

}  // namespace orrery
