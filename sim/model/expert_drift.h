#pragma once

// The load of experts as it changes from interval to interval: as a trace has it, or with the
// shares that it begins with passing from expert to expert.

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/model/expert_load.h"
#include "sim/units/units.h"

namespace orrery {

struct ExpertDrift {
  std::vector<ExpertLoad> loads;  // of the first intervals, at least one; the last one stays
  Seconds interval{std::numeric_limits<double>::infinity()};
  // Above 0: with each interval after the last of `loads`, this part of the experts exchange their
  // shares (drifted_load).
  double share = 0;
  std::uint64_t seed = 0;

  // Which interval `now` is in, from 0; that of the last load where it stays.
  [[nodiscard]] std::int64_t index_at(Seconds now) const;
  // When the load of interval `index` gives way to another; infinity: never.
  [[nodiscard]] Seconds end_of(std::int64_t index) const;
  // Throws as drifted_load.
  [[nodiscard]] ExpertLoad load(std::int64_t index) const;
};

}  // namespace orrery
