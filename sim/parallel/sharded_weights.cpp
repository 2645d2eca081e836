// Weights of attention's output projections in shards over data-parallel ranks (ZeRO-3, Rajbhandari
// et al., arXiv 1910.02054): each rank keeps 1 / dp of its rows, and an all_gather on a stream of
// its own brings the others while the layer's attention runs:
//
//   0  norm | projections, attention ...... | o_proj
//   2       | o_proj.weight.all_gather .... |
//
// It starts behind the layer's norm, so one layer's weights are whole at a time.

#include <algorithm>
#include <map>
#include <stdexcept>

#include "kernels/kernel_spec.h"
#include "sim/parallel/expert_flows.h"
#include "sim/parallel/output_projection.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

class ShardedWeights {
 public:
  ShardedWeights(const Plan& plan, const Mesh& mesh)
      : source_(plan), mesh_(mesh), rewrite_(plan, 1) {}

  Plan run() {
    find_projections();
    const Place over_dp = Place().add({.ways = mesh_.dp, .stride = mesh_.tp * mesh_.cp});
    TensorId tensor_id = 0;
    rewrite_.copy_tensors([&](Tensor& tensor) {
      if (!wholes_.contains(tensor_id++)) return;
      for (Axis& entry : tensor.axes) {
        if (entry.name == axis::kHidden) entry = rewrite_.divided(entry, over_dp);
      }
    });
    for (auto& [shard, whole] : wholes_) {
      whole = rewrite_.add_tensor_like(shard, ".whole",
                                       source_.tensors()[static_cast<std::size_t>(shard)].axes);
    }
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      Op op = source_.ops()[static_cast<std::size_t>(id)];
      rewrite_.begin(id);
      for (TensorView& read : op.reads) {
        if (const auto found = wholes_.find(read); found != wholes_.end()) {
          read.tensor = found->second;
        }
      }
      rewrite_.copy(id, std::move(op));
      for (auto [at, last] = gathered_behind_.equal_range(id); at != last; ++at) {
        gather(at->second, id);
      }
    }
    return rewrite_.finish();
  }

 private:
  // The norm of the block's input: on the residual, over whole hidden states.
  [[nodiscard]] bool is_block_norm(const Op& op) const {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel != nullptr && kernel_spec(kernel->kernel).is_on_residual &&
           !kernel_spec(kernel->kernel).is_sum &&
           std::ranges::find(kernel->dims, axis::kHidden, &Dim::axis) != kernel->dims.end();
  }

  void find_projections() {
    OpId norm = -1;
    for (OpId id = 0; static_cast<std::size_t>(id) < source_.ops().size(); ++id) {
      const Op& op = source_.ops()[static_cast<std::size_t>(id)];
      if (is_block_norm(op)) norm = id;
      if (!is_output_projection(op)) continue;
      for (const TensorId read : op.reads) {
        const Tensor& tensor = source_.tensors()[static_cast<std::size_t>(read)];
        const bool is_matrix = has_axis(tensor, axis::kHidden) && has_axis(tensor, axis::kHeads);
        if (tensor.role != TensorRole::kWeight || !is_matrix) continue;
        wholes_[read] = -1;
        gathered_behind_.emplace(norm, read);
      }
    }
    if (!wholes_.empty()) return;
    throw std::invalid_argument(
        "o_proj is sharded, but no op of the plan is an output projection alone (mla_form module "
        "has one op for all of attention); expected split");
  }

  void gather(TensorId shard, OpId norm) {
    const Tensor& part = rewrite_.tensor(shard);
    const auto groups = rewrite_.groups_of(part.ranks, mesh_.dp, mesh_.tp * mesh_.cp);
    for (const GroupId group : groups) {
      std::string name = rewrite_.tensor(shard).name + ".all_gather";
      if (groups.size() > 1)
        name.append(".r").append(std::to_string(rewrite_.ranks(group).front()));
      rewrite_.insert({.name = std::move(name),
                       .body = CommOp{.kind = CollectiveKind::kAllGather,
                                      .dtype = rewrite_.tensor(shard).dtype,
                                      .bytes_per_rank = bytes_of(rewrite_.tensor(shard))},
                       .ranks = group,
                       .stream = kCollectiveStream,
                       .reads = {shard},
                       .writes = {wholes_.at(shard)},
                       .after = {rewrite_.copy_of(norm)}});
    }
  }

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite rewrite_;
  std::map<TensorId, TensorId> wholes_;            // by shard: what is gathered of it
  std::multimap<OpId, TensorId> gathered_behind_;  // by the norm of its block
};

}  // namespace

bool sharded_weights_applies(const Plan& /*plan*/, const Mesh& mesh) {
  return mesh.o_proj == OProjection::kSharded && mesh.dp > 1;
}

Plan sharded_weights_pass(const Plan& plan, const Mesh& mesh) {
  return ShardedWeights(plan, mesh).run();
}

}  // namespace orrery
