#include "kernels/execute/communicators.h"

#include <algorithm>

namespace orrery {

int CommGroup::place(int rank) const {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

bool Communicators::wants_own_kernels(const CommOp& op, std::size_t num_ranks) const {
  const bool sums =
      op.dtype == DType::kBf16 || op.dtype == DType::kFp16 || op.dtype == DType::kFp32;
  return !only_nccl_ && op.kind == CollectiveKind::kAllReduce && sums && num_ranks <= kMaxRanks;
}

std::vector<int> Communicators::devices_of(std::span<const int> ranks) const {
  std::vector<int> devices;
  for (const int rank : ranks) devices.push_back(devices_.at(static_cast<std::size_t>(rank)));
  return devices;
}

bool Communicators::has_opened(const Plan& plan) const {
  return std::ranges::all_of(plan.ops(), [&](const Op& op) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr) return true;
    const auto ranks = plan.ranks(op.ranks);
    const auto found = groups_.find(std::vector<int>(ranks.begin(), ranks.end()));
    return found != groups_.end() && (!wants_own_kernels(*comm, ranks.size()) ||
                                      found->second.all_reduce.contains(op.stream));
  });
}

CommGroup& Communicators::open_group(std::span<const int> ranks) {
  const auto [entry, is_new] = groups_.try_emplace(std::vector<int>(ranks.begin(), ranks.end()));
  CommGroup& group = entry->second;
  if (!is_new) return group;
  group.ranks.assign(ranks.begin(), ranks.end());
  group.communicators = cuda::Communicator::for_devices(devices_of(ranks));
  return group;
}

void Communicators::open(const Plan& plan) {
  for (const Op& op : plan.ops()) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr) continue;
    const auto ranks = plan.ranks(op.ranks);
    CommGroup& group = open_group(ranks);
    if (!wants_own_kernels(*comm, ranks.size()) || group.all_reduce.contains(op.stream)) continue;
    if (!group.team) group.team = std::make_unique<cuda::DeviceTeam>(devices_of(ranks));
    group.all_reduce.try_emplace(op.stream, *group.team, AllReduceOptions{});
  }
}

CommGroup& Communicators::group(std::span<const int> ranks) {
  return groups_.at(std::vector<int>(ranks.begin(), ranks.end()));
}

void Communicators::abort() {
  for (auto& [ranks, group] : groups_) {
    for (cuda::Communicator& communicator : group.communicators) communicator.abort();
  }
}

}  // namespace orrery
