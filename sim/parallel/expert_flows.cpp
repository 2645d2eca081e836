#include "sim/parallel/expert_flows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/parallel/flow_writer.h"
#include "sim/parallel/routed_layer.h"

namespace orrery {
namespace {

using Ids = FlowWriter::Ids;
using Size = FlowWriter::Size;

// Names of a layer's ops start with what stands before "shuffle".
std::string prefix_of(const Op& shuffle) {
  constexpr std::string_view kShuffle = "shuffle";
  const std::string& name = shuffle.name;
  return name.ends_with(kShuffle) ? name.substr(0, name.size() - kShuffle.size()) : name + ".";
}

void check_flow(const Mesh& mesh) {
  if (mesh.dp == 1) return;
  const std::string name(kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)]);
  if (mesh.expert_comm == ExpertComm::kAllToAll || mesh.expert_comm == ExpertComm::kAllGather) {
    throw std::invalid_argument("expert_comm is " + name +
                                ", which exchanges rows of a fused moe op; expected eager, graph, "
                                "dedup or dedup_graph for design shuffling");
  }
  if (mesh.expert_comm == ExpertComm::kEager || mesh.expert_comm == ExpertComm::kGraph) return;
  if (mesh.tp > 1 && mesh.ep == mesh.dp && !mesh.sp) return;
  throw std::invalid_argument("expert_comm is " + name + " with tp " + std::to_string(mesh.tp) +
                              " and ep " + std::to_string(mesh.ep) + (mesh.sp ? " and sp" : "") +
                              ", expected two levels: tp of at least 2 inside a node, ep = dp = " +
                              std::to_string(mesh.dp) + " across nodes, no sp");
}

class FlowsPass {
 public:
  FlowsPass(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        mesh_(mesh),
        rewrite_(plan, 1),
        write_(rewrite_, mesh),
        is_graph_(mesh.expert_comm == ExpertComm::kGraph ||
                  mesh.expert_comm == ExpertComm::kDedupGraph),
        is_dedup_(mesh.dp > 1 && (mesh.expert_comm == ExpertComm::kDedup ||
                                  mesh.expert_comm == ExpertComm::kDedupGraph)),
        ways_(is_dedup_ ? mesh.tp : 1) {}

  Plan run() {
    const auto num_ops = static_cast<OpId>(source_.ops().size());
    for (OpId id = 0; id < num_ops; ++id) {
      const auto* kernel = std::get_if<KernelOp>(&op_at(id).body);
      if (kernel == nullptr || kernel->kernel != "index_shuffling") continue;
      layers_.push_back(routed_layer(source_, id));
      grids_.emplace_back(mesh_, dim(kernel->dims, "experts_total"), dim(kernel->dims, "topk"),
                          dim(kernel->dims, "tokens"));
    }
    copy_tensors();
    std::size_t next = 0;
    for (OpId id = 0; id < num_ops; ++id) {
      if (next == layers_.size() || id != layers_[next].shuffle) {
        copy_other(id);
        continue;
      }
      begin_layer(next++);
      mesh_.dp > 1 ? exchange() : select();
      id = layer_->scatter >= 0 ? layer_->scatter : layer_->experts.back();
    }
    return rewrite_.finish();
  }

 private:
  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }

  // What a rank's shuffle and gather write is of its range of experts and its own tokens; what the
  // experts' ops write, of its block and the tokens of all ranks.
  void copy_tensors() {
    struct Owner {
      const ExpertGrid* grid = nullptr;
      bool is_sender = false;
    };
    std::map<TensorId, Owner> owners;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto own = [&](OpId id, bool is_sender) {
        for (const TensorId written : op_at(id).writes) owners[written] = {&grids_[i], is_sender};
      };
      own(layers_[i].shuffle, true);
      own(layers_[i].gather, true);
      for (const OpId id : layers_[i].experts) own(id, false);
    }
    TensorId id = 0;
    rewrite_.copy_tensors([&](Tensor& tensor) {
      const auto found = owners.find(id++);
      const Owner owner = found == owners.end() ? Owner{} : found->second;
      shard_axes(tensor, [&](std::string_view name, std::int64_t size) {
        if (owner.grid == nullptr) return share_of(name, size);
        if (name == axis::kExperts && owner.is_sender) return owner.grid->range_experts();
        if (name != axis::kRoutedRows) return share_of(name, size);
        return owner.is_sender ? owner.grid->range_bound() : owner.grid->block_bound() * mesh_.dp;
      });
    });
  }

  [[nodiscard]] std::int64_t share_of(std::string_view name, std::int64_t size) const {
    if (name == axis::kExperts) {
      return exact_share(name, size + mesh_.num_redundant_experts, mesh_.ep);
    }
    if (name == axis::kExpertFfn) {
      return exact_share(name, size, static_cast<std::int64_t>(mesh_.dp) * mesh_.tp / mesh_.ep);
    }
    return size;
  }

  // The source's op with its dims as this mesh splits them.
  [[nodiscard]] Op sharded(OpId id) const {
    Op op = op_at(id);
    if (auto* kernel = std::get_if<KernelOp>(&op.body)) {
      for (Dim& entry : kernel->dims) entry.size = share_of(entry.axis, entry.size);
    }
    return op;
  }

  void copy_other(OpId id) {
    rewrite_.begin(id);
    Op op = sharded(id);
    if (is_reduced_already(op)) {
      // A slice of the sum's columns is on each rank of the group.
      if (!is_output_gathered_) {
        write_.inside(
            "scatter.columns", CollectiveKind::kAllGather,
            [&](int) { return write_.whole(output_slice_); }, {output_slice_}, {output_}, 0);
      }
      is_output_gathered_ = true;
      rewrite_.drop(id);
      return;
    }
    output_ = -1;
    rewrite_.copy(id, std::move(op));
  }
  [[nodiscard]] bool is_reduced_already(const Op& op) const {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return output_ >= 0 && comm != nullptr && comm->kind == CollectiveKind::kAllReduce &&
           op.reads == Ids{output_};
  }

  void begin_layer(std::size_t index) {
    layer_ = &layers_[index];
    grid_ = &grids_[index];
    const Op& shuffle = op_at(layer_->shuffle);
    const Op& gather = op_at(layer_->gather);
    ranks_ = rewrite_.group(shuffle.ranks);
    prefix_ = prefix_of(shuffle);
    write_.begin_layer(prefix_, ranks_, dim(std::get<KernelOp>(gather.body).dims, "hidden"));
    counts_ = shuffle.writes[0];
    num_rows_ = shuffle.writes[1];
    rows_ = gather.writes.front();
    rows_dtype_ = rewrite_.tensor(rows_).dtype;
    bound_ = grid_->block_bound() * mesh_.dp;
    place_shuffle();
  }

  // Of the range's experts, less redundant copies: the router does not tell them apart.
  void place_shuffle() {
    Op op = op_at(layer_->shuffle);
    for (Dim& entry : std::get<KernelOp>(op.body).dims) {
      if (entry.axis == axis::kExperts) entry.size = ceil_div(entry.size, mesh_.ep / mesh_.dp);
    }
    const auto placed = write_.place(layer_->shuffle, op, [](int) { return std::vector<Size>(); });
    shuffle_op_ = placed.front();
  }

  [[nodiscard]] std::vector<Size> sent(int rank) const {
    return {{axis::kRoutedRows, std::llround(grid_->rows_to_range(rank))}};
  }
  [[nodiscard]] std::vector<Size> computed(int rank) const {
    const ExpectedDims dims = grid_->computed_on(rank);
    return {{axis::kRoutedRows, dims.rows}, {axis::kActiveExperts, dims.active}};
  }
  // At least one row: a collective moves something.
  [[nodiscard]] double computed_rows(int rank) const {
    return static_cast<double>(std::max<std::int64_t>(1, grid_->computed_on(rank).rows));
  }
  // An all_to_all of equal parts in which as much leaves a rank as leaves or reaches the busiest.
  [[nodiscard]] Bytes travelling(int rank, DType dtype) const {
    const double n = mesh_.dp;
    return write_.row_bytes(dtype, ways_) * (grid_->most_travelling(rank) * n / (n - 1));
  }

  // One data-parallel rank: its tokens are all there are.
  void select() {
    for (const OpId id : layer_->shared) copy_other(id);
    write_.place(layer_->gather, op_at(layer_->gather), [&](int rank) { return sent(rank); });
    for (const OpId id : layer_->experts) {
      write_.place(id, sharded(id), [&](int rank) { return computed(rank); });
    }
    if (layer_->scatter < 0) return;
    write_.place(layer_->scatter, op_at(layer_->scatter), [&](int rank) { return sent(rank); });
  }

  void exchange() {
    if (layer_->scatter < 0) {
      throw std::invalid_argument("op \"" + op_at(layer_->experts.back()).name +
                                  "\" adds rows to tokens that lie on other ranks, expected no "
                                  "fuse_scatter_add with dp " +
                                  std::to_string(mesh_.dp));
    }
    exchange_counts();
    write_.place(layer_->gather, op_at(layer_->gather), [&](int rank) { return sent(rank); });
    if (is_graph_) dispatch_padded();
    place_shared_part_1();
    if (!is_graph_) dispatch_exact();
    compute();
    collect();
    scatter();
  }

  void exchange_counts() {
    const auto bytes = [&](int) { return write_.whole(counts_); };
    recv_counts_ = write_.add(
        "recv_counts", DType::kInt32,
        {write_.peers(),
         FlowWriter::experts(is_graph_ ? grid_->range_experts() : grid_->block_experts())});
    if (is_graph_) {
      write_.across("counts.all_gather", CollectiveKind::kAllGather, bytes, {counts_},
                    {recv_counts_});
    } else {
      write_.across("counts.all_to_all", CollectiveKind::kAllToAll, bytes, {counts_},
                    {recv_counts_});
    }
  }

  void dispatch_exact() {
    rewrite_.insert({.name = prefix_ + "sync",
                     .body = HostOp{.kind = HostKind::kD2hSync},
                     .ranks = ranks_,
                     .stream = kExchangeStream,
                     .reads = {counts_, recv_counts_},
                     .writes = {},
                     .after = {}});
    received_ =
        write_.add("received", rows_dtype_, {FlowWriter::rows(bound_), write_.hidden(ways_)});
    write_.across("dispatch.all_to_all", CollectiveKind::kAllToAll,
                  [&](int rank) { return travelling(rank, rows_dtype_); },
                  {rows_, counts_, recv_counts_}, {received_});
    if (!is_dedup_) return;
    const TensorId slice = std::exchange(
        received_,
        write_.add("received.whole", rows_dtype_, {FlowWriter::rows(bound_), write_.hidden(1)}));
    write_.inside(
        "dispatch.columns", CollectiveKind::kAllGather,
        [&](int rank) { return write_.row_bytes(rows_dtype_, ways_) * computed_rows(rank); },
        {slice, recv_counts_}, {received_}, kExchangeStream);
  }

  void dispatch_padded() {
    const Axis rows = FlowWriter::rows(grid_->range_bound());
    received_ = write_.add("received", rows_dtype_, {write_.peers(), rows, write_.hidden(ways_)});
    write_.across("dispatch.all_gather", CollectiveKind::kAllGather,
                  [&](int) { return write_.whole(received_) / mesh_.dp; }, {rows_}, {received_});
    if (!is_dedup_) return;
    const TensorId slice = std::exchange(
        received_,
        write_.add("received.whole", rows_dtype_, {write_.peers(), rows, write_.hidden(1)}));
    write_.inside(
        "dispatch.columns", CollectiveKind::kAllGather, [&](int) { return write_.whole(slice); },
        {slice}, {received_}, kExchangeStream);
  }

  // All but the last op of the shared expert; the first waits for the shuffle, so that they run
  // beside the sync and the exchange.
  void place_shared_part_1() {
    for (const OpId id : layer_->shared) {
      if (id == layer_->shared.back()) return;
      rewrite_.begin(id);
      place_shared(id, ranks_, id == layer_->shared.front() ? shuffle_op_ : -1, "");
      rewrite_.drop(id);
    }
  }

  // The last op, beside the exchange of results.
  void place_shared_part_2() {
    if (layer_->shared.empty()) return;
    const OpId id = layer_->shared.back();
    rewrite_.begin(id);
    for (const OpId split : split_ops_) {
      const GroupId ranks = rewrite_.ranks_of(split);
      const bool is_whole = split_ops_.size() == 1;
      place_shared(id, ranks, split,
                   is_whole ? "" : ".r" + std::to_string(rewrite_.ranks(ranks).front()));
    }
    rewrite_.drop(id);
  }

  void place_shared(OpId id, GroupId ranks, OpId after, const std::string& suffix) {
    Op op = sharded(id);
    op.ranks = ranks;
    op.name += suffix;
    op.after.clear();
    if (after >= 0 && op.stream != 0) op.after = {after};
    rewrite_.insert(std::move(op));
  }

  // combine_shuffling or split_shuffling.
  [[nodiscard]] Op shuffling(std::string_view name, std::string_view kernel, DType dtype, Ids reads,
                             Ids writes) const {
    return {.name = prefix_ + std::string(name),
            .body = KernelOp{.kernel = std::string(kernel),
                             .dtype = dtype,
                             .dims = {{"rows", 0, std::string(axis::kRoutedRows)},
                                      {"hidden", write_.hidden(1).size, std::string(axis::kHidden)},
                                      {"ranks", mesh_.dp, ""},
                                      {"groups", grid_->block_experts(), ""}}},
            .ranks = ranks_,
            .stream = 0,
            .reads = std::move(reads),
            .writes = std::move(writes),
            .after = {}};
  }

  void compute() {
    const auto sizes = [&](int rank) { return computed(rank); };
    const Axis rows = FlowWriter::rows(bound_);
    const TensorId combined = write_.add("combine", rows_dtype_, {rows, write_.hidden(1)});
    const TensorId counts =
        write_.add("combine.counts", DType::kInt32, {FlowWriter::experts(grid_->block_experts())});
    const TensorId num_rows = write_.add("combine.num_rows", DType::kInt32, {{"one", 1}});
    write_.place(shuffling("combine", "combine_shuffling", rows_dtype_, {received_, recv_counts_},
                           {combined, counts, num_rows}),
                 sizes);
    for (const OpId id : layer_->experts) {
      Op op = sharded(id);
      std::ranges::replace(op.reads, rows_, combined);
      std::ranges::replace(op.reads, counts_, counts);
      std::ranges::replace(op.reads, num_rows_, num_rows);
      write_.place(id, op, sizes);
    }
    results_ = op_at(layer_->experts.back()).writes.front();
    std::vector<Axis> axes{rows, write_.hidden(1)};
    if (is_graph_) {
      axes = {write_.peers(), FlowWriter::rows(grid_->block_bound()), write_.hidden(1)};
    }
    const DType dtype = rewrite_.tensor(results_).dtype;
    split_ = write_.add("split", dtype, std::move(axes));
    split_ops_ = write_.place(
        shuffling("split", "split_shuffling", dtype, {results_, recv_counts_}, {split_}), sizes);
  }

  void collect() {
    const DType dtype = rewrite_.tensor(split_).dtype;
    TensorId sent = split_;
    if (is_dedup_) {
      sent = write_.add_slice("split.slice", split_);
      const auto bytes = [&](int rank) {
        return is_graph_ ? write_.whole(split_) : write_.row_bytes(dtype, 1) * computed_rows(rank);
      };
      write_.inside("return.columns", CollectiveKind::kReduceScatter, bytes,
                    is_graph_ ? Ids{split_} : Ids{split_, recv_counts_}, {sent}, kExchangeStream);
    }
    if (is_graph_) {
      returned_ = write_.add("returned", dtype, rewrite_.tensor(sent).axes);
      write_.across("return.all_to_all", CollectiveKind::kAllToAll,
                    [&](int) { return write_.whole(sent); }, {sent}, {returned_});
    } else {
      returned_ = write_.add("returned", dtype,
                             {FlowWriter::rows(grid_->range_bound()), write_.hidden(ways_)});
      write_.across("return.all_to_all", CollectiveKind::kAllToAll,
                    [&](int rank) { return travelling(rank, dtype); },
                    {sent, recv_counts_, counts_}, {returned_});
    }
    place_shared_part_2();
  }

  void scatter() {
    Op op = op_at(layer_->scatter);
    std::ranges::replace(op.reads, results_, returned_);
    // Rows that come from a rank are found by the counts of what was sent to it.
    if (is_graph_) op.reads.insert(op.reads.begin() + 2, counts_);
    if (is_dedup_) slice_columns(op);
    write_.place(layer_->scatter, op, [&](int rank) {
      std::vector<Size> sizes = sent(rank);
      sizes.emplace_back(axis::kHidden, write_.hidden(ways_).size);
      return sizes;
    });
  }

  // Base and output of the scatter as slices of columns, their sum over tp done.
  void slice_columns(Op& op) {
    if (!layer_->shared.empty()) {
      const TensorId base = op_at(layer_->shared.back()).writes.front();
      const TensorId slice = write_.add_slice("shared.slice", base);
      write_.inside(
          "shared.columns", CollectiveKind::kReduceScatter, [&](int) { return write_.whole(base); },
          {base}, {slice}, kExchangeStream);
      std::ranges::replace(op.reads, base, slice);
    }
    output_ = op.writes.front();
    output_slice_ = write_.add_slice("scatter.slice", output_);
    is_output_gathered_ = false;
    op.writes.front() = output_slice_;
  }

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite rewrite_;
  FlowWriter write_;
  bool is_graph_;
  bool is_dedup_;
  int ways_;  // in how many slices a row travels
  std::vector<RoutedLayer> layers_;
  std::vector<ExpertGrid> grids_;

  // Of the layer in hand, in terms of the new plan.
  const RoutedLayer* layer_ = nullptr;
  const ExpertGrid* grid_ = nullptr;
  std::string prefix_;
  GroupId ranks_ = 0;
  std::int64_t bound_ = 0;  // rows that a rank may receive from all
  OpId shuffle_op_ = -1;
  std::vector<OpId> split_ops_;
  DType rows_dtype_ = DType::kBf16;
  TensorId counts_ = -1;
  TensorId num_rows_ = -1;
  TensorId rows_ = -1;
  TensorId recv_counts_ = -1;
  TensorId received_ = -1;
  TensorId results_ = -1;
  TensorId split_ = -1;
  TensorId returned_ = -1;
  // With dedup: the output that the source reduces next, of which ranks have slices; else -1.
  TensorId output_ = -1;
  TensorId output_slice_ = -1;
  bool is_output_gathered_ = false;
};

}  // namespace

Plan expert_flows_pass(const Plan& plan, const Mesh& mesh) {
  check_flow(mesh);
  return FlowsPass(plan, mesh).run();
}

}  // namespace orrery
