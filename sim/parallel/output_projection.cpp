#include "sim/parallel/output_projection.h"

#include <cstddef>
#include <set>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/plan/liveness.h"

namespace orrery {

bool is_output_projection(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr) return false;
  const KernelSpec& spec = kernel_spec(kernel->kernel);
  if (spec.prior.composite != Composite::kNone) return false;
  for (std::size_t i = 0; i < kernel->dims.size() && i < spec.dims.size(); ++i) {
    if (spec.dims[i].is_contraction && kernel->dims[i].axis == axis::kHeads) return true;
  }
  return false;
}

Bytes output_projection_bytes(const Plan& plan, int rank) {
  const std::vector<char> on_rank = groups_with(plan, rank);
  const std::vector<bool> is_gathered = gathered_weights(plan);
  const std::vector<std::int64_t> copies = num_copies(plan);
  std::set<TensorId> kept;
  const auto add = [&](TensorId id) {
    if (plan.tensors()[static_cast<std::size_t>(id)].role == TensorRole::kWeight) kept.insert(id);
  };
  for (const Op& op : plan.ops()) {
    if (on_rank[static_cast<std::size_t>(op.ranks)] == 0) continue;
    // Where it is gathered, its shards.
    const bool gathers = std::holds_alternative<CommOp>(op.body) && !op.writes.empty() &&
                         is_gathered[static_cast<std::size_t>(op.writes.front().tensor)];
    if (!gathers && !is_output_projection(op)) continue;
    for (const TensorId read : op.reads) add(read);
  }
  Bytes bytes;
  for (const TensorId id : kept) {
    const auto at = static_cast<std::size_t>(id);
    if (!is_gathered[at]) bytes += bytes_of(plan.tensors()[at]) * static_cast<double>(copies[at]);
  }
  return bytes;
}

}  // namespace orrery
