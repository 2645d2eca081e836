#include <algorithm>

#include "sim/plan/liveness.h"
#include "sim/plan/plan.h"

namespace orrery {

MemoryUse memory_of(const Plan& plan, int rank) {
  const std::vector<char> on_rank = groups_with(plan, rank);
  const std::vector<std::int64_t> copies = num_copies(plan);
  const std::vector<Lifetime> alive_over = lifetimes(plan, on_rank);
  const std::vector<bool> is_gathered = gathered_weights(plan);
  MemoryUse use;
  // Bytes that come alive at op i less those that died at i-1; one pass then finds the peak.
  std::vector<Bytes> change(plan.ops().size() + 1);
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (on_rank[static_cast<std::size_t>(tensor.ranks)] == 0) continue;
    const Bytes bytes = bytes_of(tensor);
    if (tensor.role == TensorRole::kWeight && !is_gathered[i]) {
      use.weights += bytes * static_cast<double>(copies[i]);
    } else if (tensor.role == TensorRole::kKvCache) {
      use.kv_cache += bytes * static_cast<double>(copies[i]);
    } else if (tensor.role == TensorRole::kState) {
      use.states += bytes * static_cast<double>(copies[i]);
    } else if (!alive_over[i].is_empty()) {
      change[static_cast<std::size_t>(alive_over[i].first)] += bytes;
      change[static_cast<std::size_t>(alive_over[i].last) + 1] -= bytes;
    }
  }
  Bytes alive;
  for (const Bytes step : change) {
    alive += step;
    use.activations = std::max(use.activations, alive);
  }
  return use;
}

std::int64_t num_weight_elements(const Plan& plan, int rank) {
  const std::vector<char> on_rank = groups_with(plan, rank);
  const std::vector<std::int64_t> copies = num_copies(plan);
  const std::vector<bool> is_gathered = gathered_weights(plan);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role == TensorRole::kWeight && !is_gathered[i] &&
        on_rank[static_cast<std::size_t>(tensor.ranks)] != 0) {
      total += num_elements(tensor) * copies[i];
    }
  }
  return total;
}

}  // namespace orrery
