#include "sim/plan/sides.h"

#include <algorithm>
#include <cstddef>
#include <variant>

namespace orrery {

namespace {

// Ranks that hold what the op reads first, and the others.
std::optional<Sides> by_holders(const Plan& plan, const Op& op) {
  if (op.reads.empty()) return {};
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

bool is_of_kind(const Op& op, CollectiveKind kind) {
  const auto* comm = std::get_if<CommOp>(&op.body);
  return comm != nullptr && comm->kind == kind;
}

}  // namespace

std::optional<Sides> sides_of(const Plan& plan, const Op& op) {
  return is_of_kind(op, CollectiveKind::kAllToAll) ? by_holders(plan, op) : std::nullopt;
}

std::optional<Sides> one_way(const Plan& plan, const Op& op) {
  return is_of_kind(op, CollectiveKind::kSendRecv) ? by_holders(plan, op) : sides_of(plan, op);
}

bool moves_by_copies(const Plan& plan, const Op& op) {
  const auto* comm = std::get_if<CommOp>(&op.body);
  return comm != nullptr && (comm->is_copied || one_way(plan, op).has_value());
}

}  // namespace orrery
