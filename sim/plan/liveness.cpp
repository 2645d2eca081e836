#include "sim/plan/liveness.h"

#include <stdexcept>
#include <string>

namespace orrery {
namespace {

class Liveness {
 public:
  explicit Liveness(const Plan& plan)
      : plan_(plan), lifetimes_(plan.tensors().size()), written_in_(plan.tensors().size(), -1) {}

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

  std::vector<Lifetime> finish() {
    for (std::size_t i = 0; i < lifetimes_.size(); ++i) {
      if (lifetimes_[i].is_empty()) continue;
      const TensorRole role = plan_.tensors()[i].role;
      if (role == TensorRole::kInput) lifetimes_[i].first = 0;
      if (role == TensorRole::kOutput) {
        lifetimes_[i].last = static_cast<OpId>(plan_.ops().size()) - 1;
      }
    }
    return std::move(lifetimes_);
  }

 private:
  const Plan& plan_;
  std::vector<Lifetime> lifetimes_;
  std::vector<std::int64_t> written_in_;  // the run whose copy wrote the tensor last
};

}  // namespace

std::vector<char> groups_with(const Plan& plan, int rank) {
  if (rank < 0) {
    throw std::invalid_argument("rank " + std::to_string(rank) + ", expected a rank from 0");
  }
  std::vector<char> contains;
  contains.reserve(static_cast<std::size_t>(plan.num_groups()));
  for (GroupId group = 0; group < plan.num_groups(); ++group) {
    contains.push_back(plan.contains(group, rank) ? 1 : 0);
  }
  return contains;
}

std::vector<Lifetime> lifetimes(const Plan& plan, const std::vector<char>& on_rank) {
  Liveness liveness(plan);
  const auto& repeats = plan.repeats();
  const auto& ops = plan.ops();
  std::size_t run = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto id = static_cast<OpId>(i);
    if (run < repeats.size() && repeats[run].last <= id) ++run;
    if (on_rank[static_cast<std::size_t>(ops[i].ranks)] == 0) continue;
    const bool is_repeated =
        run < repeats.size() && repeats[run].first <= id && repeats[run].count > 1;
    liveness.add_op(id, is_repeated ? static_cast<std::int64_t>(run) : -1);
  }
  return liveness.finish();
}

std::vector<bool> gathered_weights(const Plan& plan) {
  std::vector<bool> is_gathered(plan.tensors().size());
  for (const Op& op : plan.ops()) {
    for (const TensorId written : op.writes) {
      const auto id = static_cast<std::size_t>(written);
      if (plan.tensors()[id].role == TensorRole::kWeight) is_gathered[id] = true;
    }
  }
  return is_gathered;
}

}  // namespace orrery
