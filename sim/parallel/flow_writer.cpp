#include "sim/parallel/flow_writer.h"

#include <algorithm>
#include <map>

#include "kernels/kernel_spec.h"
#include "sim/parallel/expert_flows.h"

namespace orrery {

void FlowWriter::begin_layer(std::string prefix, GroupId ranks, std::int64_t hidden) {
  prefix_ = std::move(prefix);
  ranks_ = ranks;
  hidden_ = hidden;
}

Axis FlowWriter::hidden(std::int64_t ways) const {
  static_cast<void>(exact_share(axis::kHidden, hidden_, ways));
  return rewrite_.divided({.name = std::string(axis::kHidden), .size = hidden_},
                          Place().add({.ways = static_cast<std::int32_t>(ways), .stride = 1}));
}

TensorId FlowWriter::add(std::string_view name, DType dtype, std::vector<Axis> axes) {
  return rewrite_.add_tensor({.name = prefix_ + std::string(name),
                              .dtype = dtype,
                              .axes = std::move(axes),
                              .role = TensorRole::kActivation,
                              .ranks = ranks_});
}

TensorId FlowWriter::add_slice(std::string_view name, TensorId id) {
  std::vector<Axis> axes = rewrite_.tensor(id).axes;
  axes.back() = hidden(mesh_.tp);
  return add(name, rewrite_.tensor(id).dtype, std::move(axes));
}

Bytes FlowWriter::row_bytes(DType dtype, std::int64_t ways) const {
  return Bytes(bytes_per_element(dtype) * static_cast<double>(hidden(ways).size));
}

void FlowWriter::set_sizes(KernelOp& kernel, const std::vector<Size>& sizes) const {
  const KernelSpec& spec = kernel_spec(kernel.kernel);
  for (std::size_t i = 0; i < kernel.dims.size(); ++i) {
    Dim& entry = kernel.dims[i];
    const std::int64_t least = spec.dims[i].may_be_zero ? 0 : 1;
    for (const auto& [name, size] : sizes) {
      if (entry.axis == name) entry.size = std::max(size, least);
    }
  }
}

std::vector<OpId> FlowWriter::place(const Op& op, const SizesOf& sizes_of) {
  std::map<std::vector<Size>, std::vector<int>> ranks_of;
  for (const int rank : rewrite_.ranks(ranks_)) ranks_of[sizes_of(rank)].push_back(rank);
  std::vector<std::pair<std::vector<int>, std::vector<Size>>> parts;
  parts.reserve(ranks_of.size());
  for (const auto& [sizes, ranks] : ranks_of) parts.emplace_back(ranks, sizes);
  std::ranges::sort(parts);
  std::vector<OpId> placed;
  for (const auto& [ranks, sizes] : parts) {
    Op part = op;
    if (parts.size() > 1) part.name.append(".r").append(std::to_string(ranks.front()));
    set_sizes(std::get<KernelOp>(part.body), sizes);
    part.ranks = rewrite_.add_group(ranks);
    placed.push_back(rewrite_.insert(std::move(part)));
  }
  return placed;
}

std::vector<OpId> FlowWriter::place(OpId id, const Op& op, const SizesOf& sizes_of) {
  rewrite_.begin(id);
  std::vector<OpId> placed = place(op, sizes_of);
  rewrite_.drop(id);
  return placed;
}

std::vector<OpId> FlowWriter::across(std::string_view name, CollectiveKind kind,
                                     const BytesOf& bytes, const Ids& reads, const Ids& writes,
                                     int stream, bool is_copied) {
  return collectives(name, kind, rewrite_.groups_of(ranks_, mesh_.dp, mesh_.tp), bytes, reads,
                     writes, stream, is_copied);
}

std::vector<OpId> FlowWriter::inside(std::string_view name, CollectiveKind kind,
                                     const BytesOf& bytes, const Ids& reads, const Ids& writes,
                                     int stream) {
  return collectives(name, kind, rewrite_.groups_of(ranks_, mesh_.tp, 1), bytes, reads, writes,
                     stream);
}

std::vector<OpId> FlowWriter::collectives(std::string_view name, CollectiveKind kind,
                                          const std::vector<GroupId>& groups, const BytesOf& bytes,
                                          const Ids& reads, const Ids& writes, int stream,
                                          bool is_copied) {
  std::vector<OpId> placed;
  for (const GroupId group : groups) {
    const int first = rewrite_.ranks(group).front();
    std::string full = prefix_ + std::string(name);
    if (groups.size() > 1) full.append(".r").append(std::to_string(first));
    placed.push_back(rewrite_.insert({.name = std::move(full),
                                      .body = CommOp{.kind = kind,
                                                     .dtype = rewrite_.tensor(reads.front()).dtype,
                                                     .bytes_per_rank = bytes(first),
                                                     .is_copied = is_copied},
                                      .ranks = group,
                                      .stream = stream,
                                      .reads = reads,
                                      .writes = writes,
                                      .after = {}}));
  }
  return placed;
}

}  // namespace orrery
