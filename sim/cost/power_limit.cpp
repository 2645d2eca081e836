#include "sim/cost/power_limit.h"

#include <algorithm>

namespace orrery {
namespace {

// The further the share is passed, the lower the clock; so much further, and it falls wholly.
constexpr double kTransition = 0.30;

// Seconds of boost that a second of other work gives back: those that balance it at the share.
double recovery(const PowerLimit& limit) { return limit.share / (1 - limit.share); }

bool is_limited(const PowerLimit& limit) { return limit.acts() && limit.share < 1; }

// Seconds of boost that a second of the step takes; below 0 it gives some back.
double drain(const PowerLimit& limit, Seconds full, Seconds arithmetic) {
  return (arithmetic / full - limit.share) / (1 - limit.share);
}

}  // namespace

double PowerBudget::step(Seconds full, Seconds arithmetic) {
  if (!is_limited(limit_) || !(full > Seconds(0))) return 0;
  const double taken = drain(limit_, full, arithmetic);
  if (taken <= 0) {
    left_ = std::min(limit_.boost, left_ - full * taken);
    return 0;
  }
  const double level = std::min((arithmetic / full - limit_.share) / kTransition, 1.0);
  const Seconds at_full = std::min(left_ / taken, full);
  left_ = std::max(left_ - at_full * taken, Seconds(0));
  return level * (1 - at_full / full);
}

void PowerBudget::rest(Seconds time) {
  if (!is_limited(limit_)) return;
  left_ = std::min(limit_.boost, left_ + time * recovery(limit_));
}

double repeated_limited_part(const PowerLimit& limit, Seconds full, Seconds arithmetic,
                             Seconds idle) {
  if (!is_limited(limit) || !(full > Seconds(0))) return 0;
  const Seconds back = idle * recovery(limit);
  PowerBudget budget(limit);
  if (full * drain(limit, full, arithmetic) > back) {
    // Each repetition begins with what the pause before it gave back.
    PowerLimit little = limit;
    little.boost = std::min(limit.boost, back);
    budget = PowerBudget(little);
  }
  return budget.step(full, arithmetic);
}

}  // namespace orrery
