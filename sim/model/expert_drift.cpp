#include "sim/model/expert_drift.h"

#include <algorithm>
#include <cmath>

#include "sim/model/expert_load_sources.h"

namespace orrery {

std::int64_t ExpertDrift::index_at(Seconds now) const {
  constexpr double kMost = 1e15;
  const auto index = static_cast<std::int64_t>(std::min(std::floor(now / interval), kMost));
  return share > 0 ? index : std::min(index, std::ssize(loads) - 1);
}

Seconds ExpertDrift::end_of(std::int64_t index) const {
  const bool stays = share == 0 && index + 1 >= std::ssize(loads);
  return stays ? Seconds(std::numeric_limits<double>::infinity())
               : interval * static_cast<double>(index + 1);
}

ExpertLoad ExpertDrift::load(std::int64_t index) const {
  const std::int64_t last = std::ssize(loads) - 1;
  if (index <= last) return loads[static_cast<std::size_t>(index)];
  return share > 0 ? drifted_load(loads.back(), share, index - last, seed) : loads.back();
}

}  // namespace orrery
