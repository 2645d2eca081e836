#include "sim/parallel/routed_layer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/kernel_spec.h"
#include "sim/units/largest_normal.h"

namespace orrery {
namespace {

// Null for an op that is no kernel.
const KernelSpec* spec_of(const Plan& plan, OpId id) {
  const auto* kernel = std::get_if<KernelOp>(&plan.ops()[static_cast<std::size_t>(id)].body);
  return kernel == nullptr ? nullptr : &kernel_spec(kernel->kernel);
}

bool has_role(const KernelSpec* spec, RoutedRole role) {
  return spec != nullptr && spec->routed == role;
}

// A GEMM of as many rows for each expert.
bool is_padded(const KernelSpec& spec) {
  return spec.prior.arithmetic == Arithmetic::kGemm &&
         std::ranges::find(spec.dims, "batch", &DimSpec::name) != spec.dims.end();
}

}  // namespace

bool has_shuffling(const Plan& plan) {
  for (OpId id = 0; static_cast<std::size_t>(id) < plan.ops().size(); ++id) {
    if (has_role(spec_of(plan, id), RoutedRole::kSort)) return true;
  }
  return false;
}

RoutedLayer routed_layer(const Plan& plan, OpId shuffle) {
  const Op& first = plan.ops()[static_cast<std::size_t>(shuffle)];
  const auto num_ops = static_cast<OpId>(plan.ops().size());
  const auto fail = [&](std::string_view what) {
    throw std::invalid_argument("op \"" + first.name + "\": " + std::string(what) +
                                "; experts lie on several ranks, expected design shuffling");
  };
  RoutedLayer layer{.shuffle = shuffle};
  OpId id = shuffle + 1;
  for (; id < num_ops && !has_role(spec_of(plan, id), RoutedRole::kGather); ++id) {
    if (std::holds_alternative<HostOp>(plan.ops()[static_cast<std::size_t>(id)].body)) {
      fail("counts are read on the host");
    }
    layer.shared.push_back(id);
  }
  if (id == num_ops) fail("no gather of rows follows");
  layer.gather = id;
  layer.gathers_in_gemm = spec_of(plan, id)->prior.arithmetic == Arithmetic::kGemm;
  for (++id; id < num_ops && layer.scatter < 0; ++id) {
    const KernelSpec* spec = spec_of(plan, id);
    if (spec != nullptr && is_padded(*spec)) fail("rows are padded");
    const bool scatters = has_role(spec, RoutedRole::kScatter);
    const bool is_fused = scatters && spec->prior.arithmetic == Arithmetic::kGemm;
    if (scatters && !is_fused) {
      layer.scatter = id;
      return layer;
    }
    layer.experts.push_back(id);
    if (is_fused) return layer;
  }
  fail("no scatter of rows follows");
  return layer;
}

std::int64_t expert_share(std::string_view name, std::int64_t size, const Mesh& mesh) {
  if (name == axis::kExperts) return exact_share(name, size + mesh.num_redundant_experts, mesh.ep);
  if (name != axis::kExpertFfn) return size;
  return exact_share(name, size, static_cast<std::int64_t>(mesh.dp) * mesh.tp / mesh.ep);
}

Place expert_slice(const Mesh& mesh) {
  return Place().add({.ways = mesh.dp * mesh.tp / mesh.ep, .stride = 1});
}

Place expert_range(const Mesh& mesh) {
  const int slices = mesh.dp * mesh.tp / mesh.ep;
  return Place().add({.ways = mesh.tp / slices, .stride = slices});
}

Place expert_block(const Mesh& mesh) {
  const int slices = mesh.dp * mesh.tp / mesh.ep;
  if (mesh.tp % slices != 0) return Place().add({.ways = mesh.ep, .stride = slices});
  return expert_range(mesh).add({.ways = mesh.dp, .stride = mesh.tp});
}

Axis expert_axis(Rewrite& rewrite, const Axis& axis, const Mesh& mesh) {
  const std::int64_t size = expert_share(axis.name, axis.size, mesh);
  if (axis.name == axis::kExpertFfn) return rewrite.divided(axis, expert_slice(mesh));
  if (axis.name != axis::kExperts) return axis;
  Axis all = axis;
  all.size += mesh.num_redundant_experts;
  all = rewrite.divided(all, expert_block(mesh));
  all.size = size;
  return all;
}

Op sharded(Op op, const Mesh& mesh) {
  if (auto* kernel = std::get_if<KernelOp>(&op.body)) {
    for (Dim& entry : kernel->dims) entry.size = expert_share(entry.axis, entry.size, mesh);
  }
  return op;
}

ExpertGrid::ExpertGrid(const Mesh& mesh, std::int64_t experts, std::int64_t topk,
                       std::int64_t tokens, double routed_share)
    : dp_(mesh.dp),
      tp_(mesh.tp),
      topk_(topk),
      tokens_(tokens),
      routed_(static_cast<double>(tokens) * routed_share) {
  slices_ = exact_share("ranks", static_cast<std::int64_t>(mesh.dp) * mesh.tp, mesh.ep);
  const std::int64_t all = experts + mesh.num_redundant_experts;
  block_experts_ = exact_share(axis::kExperts, all, mesh.ep);
  const std::vector<double> chosen = choice_probabilities(mesh.expert_load, all, topk);
  const double senders = routed_ * dp_;
  for (std::int64_t block = 0; block < mesh.ep; ++block) {
    double rows = 0;
    double active = 0;
    for (std::int64_t i = block * block_experts_; i < (block + 1) * block_experts_; ++i) {
      const double probability = chosen[static_cast<std::size_t>(i)];
      rows += probability * routed_;
      active += 1 - std::pow(1 - std::min(probability, 1.0), senders);
    }
    rows_.push_back(rows);
    active_.push_back(active);
  }
  if (mesh.expert_load.shares.empty() && mesh.ep > 1) find_fullest(mesh.ep);
}

void ExpertGrid::find_fullest(int blocks) {
  const auto experts = static_cast<double>(block_experts_ * blocks);
  const auto topk = static_cast<double>(topk_);
  const double tokens = routed_ * dp_;
  const double largest = largest_normal(blocks);
  more_rows_ =
      largest * std::sqrt(tokens * topk / blocks * (experts - topk) / std::max(experts - 1, 1.0));
  const double not_one = 1 - topk / experts;
  const double not_two = not_one * std::max(0.0, 1 - topk / std::max(experts - 1, 1.0));
  const double spread = std::pow(not_one, tokens) - std::pow(not_two, tokens);
  more_active_ = largest * std::sqrt(experts / blocks * spread);
}

std::int64_t ExpertGrid::block_of(int rank) const {
  return rank % tp_ / slices_ * dp_ + rank / tp_ % dp_;
}

std::int64_t ExpertGrid::block_bound() const { return std::min(block_experts_, topk_) * tokens_; }
std::int64_t ExpertGrid::range_bound() const { return std::min(range_experts(), topk_) * tokens_; }

double ExpertGrid::block_rows(std::int64_t block) const {
  return rows_[static_cast<std::size_t>(block)];
}

double ExpertGrid::rows_to_range(int rank) const {
  const std::int64_t first = block_of(rank) / dp_ * dp_;
  double rows = 0;
  for (int i = 0; i < dp_; ++i) rows += block_rows(first + i);
  return rows;
}

ExpectedDims ExpertGrid::computed_on(int rank) const {
  const std::int64_t block = block_of(rank);
  ExpectedDims dims{.rows = std::min(std::llround(block_rows(block) * dp_ + more_rows_),
                                     static_cast<long long>(block_bound() * dp_)),
                    .active = 0};
  if (dims.rows == 0) return dims;
  const double active = active_[static_cast<std::size_t>(block)] + more_active_;
  dims.active =
      std::clamp<std::int64_t>(std::llround(active), 1, std::min(dims.rows, block_experts_));
  return dims;
}

double ExpertGrid::most_travelling(int rank) const {
  const std::int64_t first = block_of(rank) / dp_ * dp_;
  const double all = rows_to_range(rank);
  double most = 0;
  for (int i = 0; i < dp_; ++i) {
    const double own = block_rows(first + i);
    most = std::max({most, all - own, own * (dp_ - 1)});
  }
  return most;
}

}  // namespace orrery
