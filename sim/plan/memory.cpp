#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "sim/plan/plan.h"

namespace orrery {
namespace {

// Inclusive range of ops over which a tensor must be kept; empty while first > last.
struct Lifetime {
  OpId first = std::numeric_limits<OpId>::max();
  OpId last = -1;

  void extend(OpId from, OpId to) {
    first = std::min(first, from);
    last = std::max(last, to);
  }
};

void check_rank(int rank) {
  if (rank < 0) {
    throw std::invalid_argument("rank " + std::to_string(rank) + ", expected a rank from 0");
  }
}

std::vector<char> groups_with(const Plan& plan, int rank) {
  std::vector<char> contains;
  contains.reserve(static_cast<std::size_t>(plan.num_groups()));
  for (GroupId group = 0; group < plan.num_groups(); ++group) {
    contains.push_back(plan.contains(group, rank) ? 1 : 0);
  }
  return contains;
}

// Lifetimes of all tensors as the ops of one rank use them.
class Liveness {
 public:
  Liveness(const Plan& plan, const std::vector<char>& on_rank)
      : plan_(plan), lifetimes_(plan.tensors().size()), written_in_(plan.tensors().size(), -1) {
    const auto& repeats = plan.repeats();
    const auto& ops = plan.ops();
    std::size_t run = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const auto id = static_cast<OpId>(i);
      if (run < repeats.size() && repeats[run].last <= id) ++run;
      if (on_rank[static_cast<std::size_t>(ops[i].ranks)] == 0) continue;
      const bool is_repeated =
          run < repeats.size() && repeats[run].first <= id && repeats[run].count > 1;
      add_op(id, is_repeated ? static_cast<std::int64_t>(run) : -1);
    }
    for (std::size_t i = 0; i < lifetimes_.size(); ++i) {
      if (lifetimes_[i].last < 0) continue;
      const TensorRole role = plan.tensors()[i].role;
      if (role == TensorRole::kInput) lifetimes_[i].first = 0;
      if (role == TensorRole::kOutput) lifetimes_[i].last = static_cast<OpId>(ops.size()) - 1;
    }
  }

  // An op in run `run` (-1: in none of several copies) uses its tensors.
  void add_op(OpId id, std::int64_t run) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    for (const TensorId tensor : op.reads) {
      Lifetime& lifetime = lifetimes_[static_cast<std::size_t>(tensor)];
      lifetime.extend(id, id);
      // What this copy of the run has not written itself, an earlier copy or op left for it.
      if (run >= 0 && written_in_[static_cast<std::size_t>(tensor)] != run) {
        const Repeat& repeat = plan_.repeats()[static_cast<std::size_t>(run)];
        lifetime.extend(repeat.first, repeat.last - 1);
      }
    }
    for (const TensorId tensor : op.writes) {
      lifetimes_[static_cast<std::size_t>(tensor)].extend(id, id);
      written_in_[static_cast<std::size_t>(tensor)] = run;
    }
  }

  [[nodiscard]] const Lifetime& operator[](std::size_t tensor) const { return lifetimes_[tensor]; }

 private:
  const Plan& plan_;
  std::vector<Lifetime> lifetimes_;
  std::vector<std::int64_t> written_in_;  // the run whose copy wrote the tensor last
};

}  // namespace

MemoryUse memory_of(const Plan& plan, int rank) {
  check_rank(rank);
  const std::vector<char> on_rank = groups_with(plan, rank);
  const std::vector<std::int64_t> copies = num_copies(plan);
  const Liveness liveness(plan, on_rank);
  MemoryUse use;
  // Bytes that come alive at op i less those that died at i-1; one pass then finds the peak.
  std::vector<Bytes> change(plan.ops().size() + 1);
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (on_rank[static_cast<std::size_t>(tensor.ranks)] == 0) continue;
    const Bytes bytes = bytes_of(tensor);
    if (tensor.role == TensorRole::kWeight) {
      use.weights += bytes * static_cast<double>(copies[i]);
    } else if (tensor.role == TensorRole::kKvCache) {
      use.kv_cache += bytes * static_cast<double>(copies[i]);
    } else if (liveness[i].last >= 0) {
      change[static_cast<std::size_t>(liveness[i].first)] += bytes;
      change[static_cast<std::size_t>(liveness[i].last) + 1] -= bytes;
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
  check_rank(rank);
  const std::vector<std::int64_t> copies = num_copies(plan);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role == TensorRole::kWeight && plan.contains(tensor.ranks, rank)) {
      total += num_elements(tensor) * copies[i];
    }
  }
  return total;
}

}  // namespace orrery
