#include "sim/parallel/dispatch_combine.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "kernels/kernel_spec.h"
#include "sim/parallel/expert_flows.h"

namespace orrery {

namespace {

void read_instead(Op& op, TensorId id, TensorId other) {
  std::ranges::replace(op.reads, TensorView(id), TensorView(other));
}

}  // namespace

DispatchKind dispatch_kind(const Mesh& mesh) {
  if (mesh.dp == 1) return {};
  const ExpertComm comm = mesh.expert_comm;
  return {.is_graph = comm == ExpertComm::kGraph || comm == ExpertComm::kDedupGraph,
          .is_dedup = comm == ExpertComm::kDedup || comm == ExpertComm::kDedupGraph};
}

DispatchCombine::DispatchCombine(const Plan& source, const Mesh& mesh, Rewrite& rewrite,
                                 FlowWriter& write, const RoutedLayer& layer,
                                 const ExpertGrid& grid)
    : source_(source),
      mesh_(mesh),
      rewrite_(rewrite),
      write_(write),
      layer_(layer),
      grid_(grid),
      kind_(dispatch_kind(mesh)),
      is_alone_(kind_.is_graph && !kind_.is_dedup && layer.shared.empty()),
      stream_(is_alone_ ? 0 : kCollectiveStream),
      ways_(kind_.is_dedup ? mesh.tp : 1),
      ranks_(rewrite.group(op_at(layer.shuffle).ranks)),
      bound_(grid.block_bound() * mesh.dp),
      counts_(op_at(layer.shuffle).writes[0]),
      num_rows_(op_at(layer.shuffle).writes[1]),
      rows_(op_at(layer.gather).writes.front()) {
  rows_dtype_ = rewrite.tensor(rows_).dtype;
}

std::vector<FlowWriter::Size> sent_sizes(const ExpertGrid& grid, int rank) {
  return {{axis::kRoutedRows, std::llround(grid.rows_to_range(rank))}};
}

std::vector<FlowWriter::Size> computed_sizes(const ExpertGrid& grid, int rank) {
  const ExpectedDims dims = grid.computed_on(rank);
  return {{axis::kRoutedRows, dims.rows}, {axis::kActiveExperts, dims.active}};
}

// At least one row: a collective moves something.
double DispatchCombine::computed_rows(int rank) const {
  return static_cast<double>(std::max<std::int64_t>(1, grid_.computed_on(rank).rows));
}

// An all_to_all of equal parts in which as much leaves a rank as leaves or reaches the busiest.
Bytes DispatchCombine::travelling(int rank, DType dtype) const {
  const double n = mesh_.dp;
  return write_.row_bytes(dtype, ways_) * (grid_.most_travelling(rank) * n / (n - 1));
}

void DispatchCombine::run(OpId shuffle_op, const std::string& prefix) {
  if (layer_.scatter < 0) {
    throw std::invalid_argument("op \"" + op_at(layer_.experts.back()).name +
                                "\" adds rows to tokens that lie on other ranks, expected no "
                                "fuse_scatter_add with dp " +
                                std::to_string(mesh_.dp));
  }
  send_counts();
  write_.place(layer_.gather, op_at(layer_.gather),
               [&](int rank) { return sent_sizes(grid_, rank); });
  if (kind_.is_graph) dispatch_padded();
  place_shared_part_1(shuffle_op);
  if (!kind_.is_graph) dispatch_exact(prefix);
  compute(prefix);
  collect();
  scatter();
}

void DispatchCombine::send_counts() {
  const auto bytes = [&](int) { return write_.whole(counts_); };
  recv_counts_ = write_.add(
      "recv_counts", DType::kInt32,
      {write_.peers(),
       FlowWriter::experts(kind_.is_graph ? grid_.range_experts() : grid_.block_experts())});
  if (is_alone_) return;
  if (kind_.is_graph) {
    counts_ops_ = write_.across("counts.all_gather", CollectiveKind::kAllGather, bytes, {counts_},
                                {recv_counts_}, stream_);
  } else {
    write_.across("counts.all_to_all", CollectiveKind::kAllToAll, bytes, {counts_}, {recv_counts_},
                  stream_);
  }
}

void DispatchCombine::dispatch_exact(const std::string& prefix) {
  rewrite_.insert({.name = prefix + "sync",
                   .body = HostOp{.kind = HostKind::kD2hSync},
                   .ranks = ranks_,
                   .stream = stream_,
                   .reads = {counts_, recv_counts_},
                   .writes = {},
                   .after = {}});
  received_ = write_.add("received", rows_dtype_, {FlowWriter::rows(bound_), write_.hidden(ways_)});
  write_.across(
      "dispatch.all_to_all", CollectiveKind::kAllToAll,
      [&](int rank) { return travelling(rank, rows_dtype_); }, {rows_, counts_, recv_counts_},
      {received_}, stream_);
  if (!kind_.is_dedup) return;
  const TensorId slice = std::exchange(
      received_,
      write_.add("received.whole", rows_dtype_, {FlowWriter::rows(bound_), write_.hidden(1)}));
  write_.inside(
      "dispatch.columns", CollectiveKind::kAllGather,
      [&](int rank) { return write_.row_bytes(rows_dtype_, ways_) * computed_rows(rank); },
      {slice, recv_counts_}, {received_}, stream_);
}

void DispatchCombine::dispatch_padded() {
  const Axis rows = FlowWriter::rows(grid_.range_bound());
  received_ = write_.add("received", rows_dtype_, {write_.peers(), rows, write_.hidden(ways_)});
  const auto bytes = [&](int) {
    const Bytes counts = is_alone_ ? write_.whole(counts_) : Bytes(0);
    return write_.whole(received_) / mesh_.dp + counts;
  };
  write_.across("dispatch.all_gather", CollectiveKind::kAllGather, bytes,
                is_alone_ ? Ids{rows_, counts_} : Ids{rows_},
                is_alone_ ? Ids{received_, recv_counts_} : Ids{received_}, stream_);
  if (!kind_.is_dedup) return;
  const TensorId slice = std::exchange(
      received_,
      write_.add("received.whole", rows_dtype_, {write_.peers(), rows, write_.hidden(1)}));
  write_.inside(
      "dispatch.columns", CollectiveKind::kAllGather, [&](int) { return write_.whole(slice); },
      {slice}, {received_}, stream_);
}

// All but the last op of the shared expert, or all. They run beside the dispatch: with a sync, once
// rows are sorted, so that the device is busy while the host waits; without, once counts are there,
// so that they do not hold the SMs that the dispatch needs first.
void DispatchCombine::place_shared_part_1(OpId shuffle_op) {
  const std::vector<OpId> after = kind_.is_graph ? counts_ops_ : std::vector<OpId>{shuffle_op};
  for (const OpId id : layer_.shared) {
    if (mesh_.split_shared_expert && id == layer_.shared.back()) return;
    place_shared(id, id == layer_.shared.front() ? after : std::vector<OpId>{});
  }
}

// The last op, beside the way back of results.
void DispatchCombine::place_shared_part_2() {
  if (layer_.shared.empty() || !mesh_.split_shared_expert) return;
  place_shared(layer_.shared.back(), split_ops_);
}

// Op `id` of the source, on the ranks of each of `after` once for that; stream 0 needs no telling.
void DispatchCombine::place_shared(OpId id, const std::vector<OpId>& after) {
  rewrite_.begin(id);
  Op op = sharded(op_at(id), mesh_);
  op.ranks = ranks_;
  op.after.clear();
  if (op.stream == 0 || after.empty()) {
    rewrite_.insert(std::move(op));
  } else {
    for (const OpId before : after) {
      Op part = op;
      part.ranks = rewrite_.ranks_of(before);
      if (after.size() > 1) {
        part.name.append(".r").append(std::to_string(rewrite_.ranks(part.ranks).front()));
      }
      part.after = {before};
      rewrite_.insert(std::move(part));
    }
  }
  rewrite_.drop(id);
}

// combine_shuffling or split_shuffling.
Op DispatchCombine::shuffling(const std::string& name, std::string_view kernel, DType dtype,
                              Ids reads, Ids writes) const {
  return {.name = name,
          .body = KernelOp{.kernel = std::string(kernel),
                           .dtype = dtype,
                           .dims = {{"rows", 0, std::string(axis::kRoutedRows)},
                                    {"hidden", write_.hidden(1).size, std::string(axis::kHidden)},
                                    {"ranks", mesh_.dp, ""},
                                    {"groups", grid_.block_experts(), ""}}},
          .ranks = ranks_,
          .stream = 0,
          .reads = std::move(reads),
          .writes = std::move(writes),
          .after = {}};
}

void DispatchCombine::compute(const std::string& prefix) {
  const auto sizes = [&](int rank) { return computed_sizes(grid_, rank); };
  const Axis rows = FlowWriter::rows(bound_);
  const TensorId combined = write_.add("combine", rows_dtype_, {rows, write_.hidden(1)});
  const TensorId counts =
      write_.add("combine.counts", DType::kInt32, {FlowWriter::experts(grid_.block_experts())});
  const TensorId num_rows = write_.add("combine.num_rows", DType::kInt32, {{"one", 1}});
  write_.place(shuffling(prefix + "combine", kernel_of(RoutedRole::kCombine).name, rows_dtype_,
                         {received_, recv_counts_}, {combined, counts, num_rows}),
               sizes);
  for (const OpId id : layer_.experts) {
    Op op = sharded(op_at(id), mesh_);
    read_instead(op, rows_, combined);
    read_instead(op, counts_, counts);
    read_instead(op, num_rows_, num_rows);
    write_.place(id, op, sizes);
  }
  results_ = op_at(layer_.experts.back()).writes.front();
  std::vector<Axis> axes{rows, write_.hidden(1)};
  if (kind_.is_graph) {
    axes = {write_.peers(), FlowWriter::rows(grid_.block_bound()), write_.hidden(1)};
  }
  const DType dtype = rewrite_.tensor(results_).dtype;
  split_ = write_.add("split", dtype, std::move(axes));
  split_ops_ = write_.place(shuffling(prefix + "split", kernel_of(RoutedRole::kSplit).name, dtype,
                                      {results_, recv_counts_}, {split_}),
                            sizes);
}

void DispatchCombine::collect() {
  const DType dtype = rewrite_.tensor(split_).dtype;
  TensorId sent = split_;
  if (kind_.is_dedup) {
    sent = write_.add_slice("split.slice", split_);
    const auto bytes = [&](int rank) {
      return kind_.is_graph ? write_.whole(split_)
                            : write_.row_bytes(dtype, 1) * computed_rows(rank);
    };
    write_.inside("return.columns", CollectiveKind::kReduceScatter, bytes,
                  kind_.is_graph ? Ids{split_} : Ids{split_, recv_counts_}, {sent}, stream_);
  }
  if (kind_.is_graph) {
    returned_ = write_.add("returned", dtype, rewrite_.tensor(sent).axes);
    write_.across(
        "return.all_to_all", CollectiveKind::kAllToAll, [&](int) { return write_.whole(sent); },
        {sent}, {returned_}, stream_);
  } else {
    returned_ = write_.add("returned", dtype,
                           {FlowWriter::rows(grid_.range_bound()), write_.hidden(ways_)});
    write_.across(
        "return.all_to_all", CollectiveKind::kAllToAll,
        [&](int rank) { return travelling(rank, dtype); }, {sent, recv_counts_, counts_},
        {returned_}, stream_);
  }
  place_shared_part_2();
}

void DispatchCombine::scatter() {
  Op op = op_at(layer_.scatter);
  read_instead(op, results_, returned_);
  // Rows that come from a rank are found by the counts of what was sent to it.
  if (kind_.is_graph) {
    op.reads.insert(op.reads.begin() + 2, counts_);
    Dims& dims = std::get<KernelOp>(op.body).dims;
    std::ranges::find(dims, "ranks", &Dim::name)->size = mesh_.dp;
  }
  if (kind_.is_dedup) slice_columns(op);
  write_.place(layer_.scatter, op, [&](int rank) {
    std::vector<Size> sizes = sent_sizes(grid_, rank);
    sizes.emplace_back(axis::kHidden, write_.hidden(ways_).size);
    return sizes;
  });
}

// Base and output of the scatter as slices of columns, their sum over tp done.
void DispatchCombine::slice_columns(Op& op) {
  if (!layer_.shared.empty()) {
    const TensorId base = op_at(layer_.shared.back()).writes.front();
    const TensorId slice = write_.add_slice("shared.slice", base);
    write_.inside(
        "shared.columns", CollectiveKind::kReduceScatter, [&](int) { return write_.whole(base); },
        {base}, {slice}, stream_);
    read_instead(op, base, slice);
  }
  output_ = op.writes.front();
  output_slice_ = write_.add_slice("scatter.slice", output_);
  op.writes.front().tensor = output_slice_;
}

}  // namespace orrery
