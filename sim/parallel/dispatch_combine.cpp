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
          .is_dedup = comm == ExpertComm::kDedup || comm == ExpertComm::kDedupGraph,
          .is_copied = comm == ExpertComm::kCopies};
}

DispatchCombine::DispatchCombine(const Plan& source, const Mesh& mesh, Rewrite& rewrite,
                                 FlowWriter& write, const RoutedLayer& layer,
                                 const std::vector<TokenChunk>& chunks)
    : source_(source),
      mesh_(mesh),
      rewrite_(rewrite),
      write_(write),
      layer_(layer),
      kind_(dispatch_kind(mesh)),
      carries_counts_(kind_.is_graph && !kind_.is_dedup && layer.shared.empty()),
      stream_(carries_counts_ && chunks.size() == 1 ? 0 : kCollectiveStream),
      ways_(kind_.is_dedup ? mesh.tp : 1),
      ranks_(rewrite.group(op_at(layer.shuffle).ranks)),
      rows_dtype_(rewrite.tensor(op_at(layer.gather).writes.front()).dtype) {
  for (const TokenChunk& chunk : chunks) {
    const Op shuffle = op_of_chunk(source, layer.shuffle, chunk);
    flows_.push_back({.chunk = chunk,
                      .counts = shuffle.writes[0],
                      .num_rows = shuffle.writes[1],
                      .rows = op_of_chunk(source, layer.gather, chunk).writes.front(),
                      .split_ops = {}});
  }
}

std::vector<FlowWriter::Size> sent_sizes(const ExpertGrid& grid, int rank) {
  return {{axis::kRoutedRows, std::max(1LL, std::llround(grid.rows_to_range(rank)))}};
}

std::vector<FlowWriter::Size> computed_sizes(const ExpertGrid& grid, int rank) {
  const ExpectedDims dims = grid.computed_on(rank);
  return {{axis::kRoutedRows, std::max<std::int64_t>(1, dims.rows)},
          {axis::kActiveExperts, std::max<std::int64_t>(1, dims.active)}};
}

// At least one row: a collective moves something.
double DispatchCombine::computed_rows(const Flow& flow, int rank) {
  return static_cast<double>(std::max<std::int64_t>(1, flow.chunk.grid.computed_on(rank).rows));
}

// An all_to_all of equal parts in which as much leaves a rank as leaves or reaches the busiest.
Bytes DispatchCombine::travelling(const Flow& flow, int rank, DType dtype) const {
  const double n = mesh_.dp;
  return write_.row_bytes(dtype, ways_) * (flow.chunk.grid.most_travelling(rank) * n / (n - 1));
}

void DispatchCombine::place(const Flow& flow, OpId id, const Op& op,
                            const FlowWriter::SizesOf& sizes) {
  if (&flow == &flows_.front()) {
    write_.place(id, op, sizes);
  } else {
    write_.place(op, sizes);
    rewrite_.drop(id);
  }
}

void DispatchCombine::run(OpId shuffle_op, const std::string& prefix) {
  if (layer_.scatter < 0) {
    throw std::invalid_argument("op \"" + op_at(layer_.experts.back()).name +
                                "\" adds rows to tokens that lie on other ranks, expected no "
                                "fuse_scatter_add with dp " +
                                std::to_string(mesh_.dp));
  }
  send_counts();
  for (const Flow& flow : flows_) gather(flow);
  if (kind_.is_graph) dispatch(flows_.front());
  place_shared_part_1(shuffle_op);
  if (!kind_.is_graph) {
    wait_for_counts(prefix);
    dispatch(flows_.front());
  }
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    if (i + 1 < flows_.size()) dispatch(flows_[i + 1]);
    compute(flows_[i], prefix);
    collect(flows_[i]);
  }
  place_shared_part_2();
  for (const Flow& flow : flows_) scatter(flow);
}

// Of all chunks at once.
void DispatchCombine::send_counts() {
  Ids sent;
  Ids received;
  Bytes all;
  for (Flow& flow : flows_) {
    const ExpertGrid& grid = flow.chunk.grid;
    flow.recv_counts = write_.add(
        named("recv_counts", flow), DType::kInt32,
        {write_.peers(),
         FlowWriter::experts(kind_.is_graph ? grid.range_experts() : grid.block_experts())});
    sent.push_back(flow.counts);
    received.push_back(flow.recv_counts);
    all += write_.whole(flow.counts);
  }
  if (carries_counts_) return;
  const auto bytes = [&](int) { return all; };
  if (kind_.is_graph) {
    counts_ops_ = write_.across("counts.all_gather", CollectiveKind::kAllGather, bytes, sent,
                                received, stream_);
  } else {
    write_.across("counts.all_to_all", CollectiveKind::kAllToAll, bytes, sent, received, stream_);
  }
}

void DispatchCombine::gather(const Flow& flow) {
  place(flow, layer_.gather, op_of_chunk(source_, layer_.gather, flow.chunk),
        [&](int rank) { return sent_sizes(flow.chunk.grid, rank); });
}

void DispatchCombine::wait_for_counts(const std::string& prefix) {
  Ids counts;
  for (const Flow& flow : flows_) counts.insert(counts.end(), {flow.counts, flow.recv_counts});
  rewrite_.insert({.name = prefix + "sync",
                   .body = HostOp{.kind = HostKind::kD2hSync},
                   .ranks = ranks_,
                   .stream = stream_,
                   .reads = std::move(counts),
                   .writes = {},
                   .after = {}});
}

void DispatchCombine::dispatch(Flow& flow) {
  if (kind_.is_graph) {
    dispatch_padded(flow);
  } else {
    dispatch_exact(flow);
  }
}

void DispatchCombine::dispatch_exact(Flow& flow) {
  const Axis rows = FlowWriter::rows(bound(flow));
  flow.received = write_.add(named("received", flow), rows_dtype_, {rows, write_.hidden(ways_)});
  write_.across(
      named("dispatch.all_to_all", flow), CollectiveKind::kAllToAll,
      [&](int rank) { return travelling(flow, rank, rows_dtype_); },
      {flow.rows, flow.counts, flow.recv_counts}, {flow.received}, stream_, kind_.is_copied);
  if (!kind_.is_dedup) return;
  const TensorId slice = std::exchange(
      flow.received, write_.add("received.whole", rows_dtype_, {rows, write_.hidden(1)}));
  write_.inside(
      "dispatch.columns", CollectiveKind::kAllGather,
      [&](int rank) { return write_.row_bytes(rows_dtype_, ways_) * computed_rows(flow, rank); },
      {slice, flow.recv_counts}, {flow.received}, stream_);
}

void DispatchCombine::dispatch_padded(Flow& flow) {
  const Axis rows = FlowWriter::rows(flow.chunk.grid.range_bound());
  flow.received = write_.add(named("received", flow), rows_dtype_,
                             {write_.peers(), rows, write_.hidden(ways_)});
  const auto bytes = [&](int) {
    const Bytes counts = carries_counts_ ? write_.whole(flow.counts) : Bytes(0);
    return write_.whole(flow.received) / mesh_.dp + counts;
  };
  write_.across(named("dispatch.all_gather", flow), CollectiveKind::kAllGather, bytes,
                carries_counts_ ? Ids{flow.rows, flow.counts} : Ids{flow.rows},
                carries_counts_ ? Ids{flow.received, flow.recv_counts} : Ids{flow.received},
                stream_);
  if (!kind_.is_dedup) return;
  const TensorId slice = std::exchange(
      flow.received,
      write_.add("received.whole", rows_dtype_, {write_.peers(), rows, write_.hidden(1)}));
  write_.inside(
      "dispatch.columns", CollectiveKind::kAllGather, [&](int) { return write_.whole(slice); },
      {slice}, {flow.received}, stream_);
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
  place_shared(layer_.shared.back(), flows_.back().split_ops);
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
                                    {"groups", flows_.front().chunk.grid.block_experts(), ""}}},
          .ranks = ranks_,
          .stream = 0,
          .reads = std::move(reads),
          .writes = std::move(writes),
          .after = {}};
}

void DispatchCombine::compute(Flow& flow, const std::string& prefix) {
  const ExpertGrid& grid = flow.chunk.grid;
  const auto sizes = [&](int rank) { return computed_sizes(grid, rank); };
  const Axis rows = FlowWriter::rows(bound(flow));
  const TensorId combined =
      write_.add(named("combine", flow), rows_dtype_, {rows, write_.hidden(1)});
  const TensorId counts = write_.add(named("combine.counts", flow), DType::kInt32,
                                     {FlowWriter::experts(grid.block_experts())});
  const TensorId num_rows =
      write_.add(named("combine.num_rows", flow), DType::kInt32, {{"one", 1}});
  write_.place(
      shuffling(prefix + named("combine", flow), kernel_of(RoutedRole::kCombine).name, rows_dtype_,
                {flow.received, flow.recv_counts}, {combined, counts, num_rows}),
      sizes);
  for (const OpId id : layer_.experts) {
    Op op = sharded(op_of_chunk(source_, id, flow.chunk), mesh_);
    read_instead(op, flow.rows, combined);
    read_instead(op, flow.counts, counts);
    read_instead(op, flow.num_rows, num_rows);
    flow.results = op.writes.front();
    place(flow, id, op, sizes);
  }
  std::vector<Axis> axes{rows, write_.hidden(1)};
  if (kind_.is_graph) {
    axes = {write_.peers(), FlowWriter::rows(grid.block_bound()), write_.hidden(1)};
  }
  const DType dtype = rewrite_.tensor(flow.results).dtype;
  flow.split = write_.add(named("split", flow), dtype, std::move(axes));
  flow.split_ops =
      write_.place(shuffling(prefix + named("split", flow), kernel_of(RoutedRole::kSplit).name,
                             dtype, {flow.results, flow.recv_counts}, {flow.split}),
                   sizes);
}

void DispatchCombine::collect(Flow& flow) {
  const DType dtype = rewrite_.tensor(flow.split).dtype;
  TensorId sent = flow.split;
  if (kind_.is_dedup) {
    sent = write_.add_slice("split.slice", flow.split);
    const auto bytes = [&](int rank) {
      return kind_.is_graph ? write_.whole(flow.split)
                            : write_.row_bytes(dtype, 1) * computed_rows(flow, rank);
    };
    write_.inside("return.columns", CollectiveKind::kReduceScatter, bytes,
                  kind_.is_graph ? Ids{flow.split} : Ids{flow.split, flow.recv_counts}, {sent},
                  stream_);
  }
  const std::string name = named("return.all_to_all", flow);
  if (kind_.is_graph) {
    flow.returned = write_.add(named("returned", flow), dtype, rewrite_.tensor(sent).axes);
    write_.across(
        name, CollectiveKind::kAllToAll, [&](int) { return write_.whole(sent); }, {sent},
        {flow.returned}, stream_);
  } else {
    const Axis rows = FlowWriter::rows(flow.chunk.grid.range_bound());
    flow.returned = write_.add(named("returned", flow), dtype, {rows, write_.hidden(ways_)});
    write_.across(
        name, CollectiveKind::kAllToAll, [&](int rank) { return travelling(flow, rank, dtype); },
        {sent, flow.recv_counts, flow.counts}, {flow.returned}, stream_, kind_.is_copied);
  }
}

void DispatchCombine::scatter(const Flow& flow) {
  Op op = op_of_chunk(source_, layer_.scatter, flow.chunk);
  read_instead(op, flow.results, flow.returned);
  // Rows that come from a rank are found by the counts of what was sent to it.
  if (kind_.is_graph) {
    op.reads.insert(op.reads.begin() + 2, flow.counts);
    Dims& dims = std::get<KernelOp>(op.body).dims;
    std::ranges::find(dims, "ranks", &Dim::name)->size = mesh_.dp;
  }
  if (kind_.is_dedup) slice_columns(op);
  place(flow, layer_.scatter, op, [&](int rank) {
    std::vector<Size> sizes = sent_sizes(flow.chunk.grid, rank);
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
