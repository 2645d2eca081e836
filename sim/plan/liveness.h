#pragma once

// Over which ops tensors must be kept, as the ops of one rank use them: what memory_of counts and
// plan_buffers places.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// Inclusive range of ops; empty while first > last.
struct Lifetime {
  OpId first = std::numeric_limits<OpId>::max();
  OpId last = -1;

  void extend(OpId from, OpId to) {
    if (from < first) first = from;
    if (to > last) last = to;
  }
  [[nodiscard]] bool is_empty() const { return last < 0; }
};

// By group of the plan: whether `rank` is in it. 0 <= rank, else std::invalid_argument.
std::vector<char> groups_with(const Plan& plan, int rank);

// By tensor id, as memory_of says (sim/plan/plan.h); empty for a tensor that no op on the rank
// uses. `on_rank`: groups_with(plan, rank).
std::vector<Lifetime> lifetimes(const Plan& plan, const std::vector<char>& on_rank);

// By tensor: weights that a collective brings together from shards on several ranks, which live no
// longer than what an op computes.
std::vector<bool> gathered_weights(const Plan& plan);

}  // namespace orrery
