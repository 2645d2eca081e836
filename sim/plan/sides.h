#pragma once

// An all_to_all between two sides: ranks of the one hold what it reads and send it to those of the
// other, which hold what it writes. Its bytes are those that a rank of the side with fewer ranks
// sends or gets.

#include <optional>
#include <span>

#include "sim/plan/plan.h"

namespace orrery {

struct Sides {
  std::span<const int> senders;  // ascending, all below or all above the receivers
  std::span<const int> receivers;
};
// Empty for other ops: of an all_to_all of one side each rank has what it reads.
std::optional<Sides> sides_of(const Plan& plan, const Op& op);
// Of all that moves tensors one way: sides_of(), and who sends to whom in a send_recv, but where
// two ranks send each other what they have.
std::optional<Sides> one_way(const Plan& plan, const Op& op);
// Whether copy engines move a collective's bytes, which take no SMs: what goes one way, and what
// says so (CommOp::is_copied).
bool moves_by_copies(const Plan& plan, const Op& op);

}  // namespace orrery
