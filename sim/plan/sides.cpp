#include "sim/plan/sides.h"

#include <algorithm>
#include <cstddef>
#include <variant>

namespace orrery {

std::optional<Sides> sides_of(const Plan& plan, const Op& op) {
  const auto* comm = std::get_if<CommOp>(&op.body);
  if (comm == nullptr || comm->kind != CollectiveKind::kAllToAll || op.reads.empty()) return {};
  const GroupId holders = plan.tensors()[static_cast<std::size_t>(op.reads.front())].ranks;
  const std::span<const int> ranks = plan.ranks(op.ranks);
  const auto sends = [&](int rank) { return plan.contains(holders, rank); };
  const bool lowest_send = sends(ranks.front());
  if (lowest_send == sends(ranks.back())) return {};
  const auto border = static_cast<std::size_t>(
      std::ranges::partition_point(ranks, [&](int rank) { return sends(rank) == lowest_send; }) -
      ranks.begin());
  const std::span<const int> low = ranks.first(border);
  const std::span<const int> high = ranks.subspan(border);
  return lowest_send ? Sides{low, high} : Sides{high, low};
}

}  // namespace orrery
