#include "kernels/experts/fused_moe/rank_set.h"

#include <numeric>

namespace orrery {

RankSet::RankSet(std::span<const int> devices)
    : size_(static_cast<int>(devices.size())),
      here_(devices.size()),
      team_(devices, /*may_share=*/true) {
  std::iota(here_.begin(), here_.end(), 0);
}

RankSet::RankSet(const ProcessGroup& processes, int device)
    : processes_(&processes),
      size_(processes.size),
      here_{processes.rank},
      team_(std::span(&device, 1)) {}

void RankSet::run(const std::function<void(int rank)>& work) const {
  if (processes_ != nullptr) processes_->barrier();
  team_.run([&](int place) { work(here_[static_cast<std::size_t>(place)]); });
}

FusedMoePlan RankSet::plan(const FusedMoeShape& shape) const {
  if (processes_ == nullptr) return FusedMoePlan(shape, team_.devices());
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  const cuda::DeviceGuard guard(device(processes_->rank));
  return FusedMoePlan(shape, *processes_, ranks);
}

void RankSet::close(FusedMoePlan& plan) const {
  if (processes_ != nullptr) plan.close(*processes_);
}

}  // namespace orrery
