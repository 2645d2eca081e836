#include "sim/parallel/rewrite.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sim/model/layer_runs.h"

namespace orrery {

std::int64_t exact_share(std::string_view axis, std::int64_t size, std::int64_t ways) {
  if (size % ways == 0) return size / ways;
  throw std::invalid_argument("axis " + std::string(axis) + " of size " + std::to_string(size) +
                              " cannot be split " + std::to_string(ways) +
                              " ways, expected a divisor of it");
}

bool has_axis(const Tensor& tensor, std::string_view axis) {
  return std::ranges::find(tensor.axes, axis, &Axis::name) != tensor.axes.end();
}

const KernelSpec& residual_sum() {
  const auto specs = kernel_specs();
  return *std::ranges::find_if(
      specs, [](const KernelSpec& spec) { return spec.is_sum && spec.is_on_residual; });
}

std::vector<std::int64_t> stage_shares(std::int64_t num_units, int num_stages) {
  std::vector<std::int64_t> shares(static_cast<std::size_t>(num_stages), num_units / num_stages);
  const std::int64_t left = num_units % num_stages;
  for (std::int64_t i = 0; i < left; ++i) ++shares[static_cast<std::size_t>(num_stages - 2 - i)];
  return shares;
}

Mesh weights_mesh(const Mesh& mesh) {
  Mesh seen = mesh;
  if (mesh.cp_decodes == CpDecodes::kDealt) {
    seen.dp *= mesh.cp;
    seen.cp = 1;
    return seen;
  }
  if (mesh.cp_weights == CpWeights::kReplicated) return mesh;
  seen.tp *= mesh.cp;
  seen.cp = 1;
  return seen;
}

std::vector<std::size_t> stages_of_layers(std::span<const LayerConfig> layers, int num_stages) {
  const std::vector<LayerRun> runs = layer_runs(layers);
  std::int64_t num_units = 0;
  for (const LayerRun& run : runs) num_units += run.count;
  const std::vector<std::int64_t> shares = stage_shares(num_units, num_stages);
  std::vector<std::size_t> stages;
  std::size_t stage = 0;
  std::int64_t units = 0;
  for (const LayerRun& run : runs) {
    for (std::int64_t copy = 0; copy < run.count; ++copy) {
      stages.insert(stages.end(), static_cast<std::size_t>(run.period), stage);
      if (++units < shares[stage]) continue;
      units = 0;
      ++stage;
    }
  }
  return stages;
}

bool uses_all_to_all(const Mesh& mesh) {
  const bool sends_rows =
      mesh.expert_comm == ExpertComm::kAllToAll || mesh.expert_comm == ExpertComm::kDeepEp;
  return mesh.dp > 1 && sends_rows && mesh.ep == mesh.dp * mesh.tp;
}

Rewrite::Rewrite(const Plan& source, int ways) : source_(source) {
  const std::size_t num_ops = source.ops().size();
  plan_.reserve(num_ops + num_ops / 2, source.tensors().size() + 16);
  for (GroupId id = 0; id < source.num_groups(); ++id) {
    std::vector<int> ranks;
    for (const int rank : source.ranks(id)) {
      for (int i = 0; i < ways; ++i) ranks.push_back(ways * rank + i);
    }
    groups_.push_back(plan_.add_group(std::move(ranks)));
  }
  for (Split split : source.splits()) {
    for (SplitPart& part : split.parts) part.place = part.place.scaled(ways);
    plan_.add_split(split);
  }
  first_.resize(num_ops);
  copies_.resize(num_ops);
  boundaries_.resize(num_ops + 1);
  for (const Repeat& repeat : source.repeats()) {
    boundaries_[static_cast<std::size_t>(repeat.first)] = true;
    boundaries_[static_cast<std::size_t>(repeat.last)] = true;
  }
}

Axis Rewrite::divided(const Axis& axis, const Place& digits, std::int64_t share) {
  if (digits.size() == 0) return axis;
  for (const Division& made : divisions_) {
    if (made.size == axis.size && made.split == axis.split && made.share == share &&
        made.digits == digits) {
      return {axis.name, made.result.size, made.result.split};
    }
  }
  Split split;
  if (const Split* const found = plan_.split_of(axis)) {
    split = *found;
  } else {
    split.parts.push_back(whole_part(axis.size));
  }
  for (SplitPart& part : split.parts) part = orrery::divided(part, digits, share);
  const Axis result = with_split(axis, split);
  divisions_.push_back({.size = axis.size,
                        .split = axis.split,
                        .share = share,
                        .digits = digits,
                        .result = {{}, result.size, result.split}});
  return result;
}

Axis Rewrite::with_split(const Axis& axis, const Split& split) {
  return {axis.name, local_size(split), plan_.add_split(split)};
}

TensorId Rewrite::add_tensor_like(TensorId id, std::string_view suffix,
                                  const std::vector<Axis>& axes) {
  Tensor tensor = plan_.tensors()[static_cast<std::size_t>(id)];
  tensor.name += suffix;
  tensor.axes = axes;
  return plan_.add_tensor(std::move(tensor));
}

bool Rewrite::at_run_boundary(OpId id) const { return boundaries_[static_cast<std::size_t>(id)]; }

void Rewrite::begin(OpId id) {
  first_[static_cast<std::size_t>(id)] = static_cast<OpId>(plan_.ops().size());
}

void Rewrite::copy(OpId id, Op op) {
  op.ranks = group(op.ranks);
  for (OpId& before : op.after) before = copies_[static_cast<std::size_t>(before)];
  copies_[static_cast<std::size_t>(id)] = plan_.add_op(std::move(op));
}

void Rewrite::drop(OpId id) {
  const auto num_ops = static_cast<OpId>(plan_.ops().size());
  copies_[static_cast<std::size_t>(id)] = std::max(num_ops - 1, 0);
}

void Rewrite::insert_collectives(std::string_view name, CommOp body,
                                 const std::vector<GroupId>& groups, const TensorViews& reads,
                                 const TensorViews& writes) {
  for (const GroupId group : groups) {
    std::string op_name(name);
    if (groups.size() > 1) op_name.append(".r").append(std::to_string(plan_.ranks(group).front()));
    plan_.add_op({.name = std::move(op_name),
                  .body = body,
                  .ranks = group,
                  .stream = 0,
                  .reads = reads,
                  .writes = writes,
                  .after = {}});
  }
}

void Rewrite::copy_as(OpId id, Op op, CollectiveKind kind) {
  auto& comm = std::get<CommOp>(op.body);
  const std::string_view word = to_text(comm.kind);
  if (const auto at = op.name.rfind(word); at != std::string::npos) {
    op.name.replace(at, word.size(), to_text(kind));
  }
  comm.kind = kind;
  copy(id, std::move(op));
}

std::vector<GroupId> Rewrite::groups_of(GroupId ranks, int size, int stride) {
  const auto all = plan_.ranks(ranks);
  if (static_cast<int>(all.size()) == size) return {ranks};
  // Ranks whose positions differ by multiples of `stride` inside blocks of size * stride.
  std::vector<std::vector<int>> members;
  for (const int rank : all) {
    const int block = rank / (size * stride);
    if (rank % (size * stride) >= stride) continue;
    std::vector<int> group;
    group.reserve(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i)
      group.push_back(block * size * stride + rank % stride + i * stride);
    members.push_back(std::move(group));
  }
  std::vector<GroupId> result;
  result.reserve(members.size());
  for (auto& group : members) result.push_back(plan_.add_group(std::move(group)));
  return result;
}

Plan Rewrite::finish() {
  const auto at = [&](OpId id) {
    return static_cast<std::size_t>(id) == first_.size() ? static_cast<OpId>(plan_.ops().size())
                                                         : first_[static_cast<std::size_t>(id)];
  };
  for (const Repeat& repeat : source_.repeats()) {
    plan_.add_repeat({.first = at(repeat.first), .last = at(repeat.last), .count = repeat.count});
  }
  return std::move(plan_);
}

}  // namespace orrery
