#include "sim/cost/power_limit.h"

#include <algorithm>
#include <limits>

namespace orrery {
namespace {

// Seconds of boost that a second of other work gives back: those that balance it at the share.
double recovery(const PowerLimit& limit) { return limit.share / (1 - limit.share); }

bool is_limited(const PowerLimit& limit) {
  return limit.acts() && limit.share < 1 && limit.boost > Seconds(0);
}

// Seconds of boost that a second of the step takes; below 0 it gives some back.
double drain(const PowerLimit& limit, Seconds full, Seconds arithmetic) {
  return (arithmetic / full - limit.share) / (1 - limit.share);
}

}  // namespace

double PowerBudget::step(Seconds full, Seconds arithmetic) {
  if (!is_limited(limit_) || !(full > Seconds(0))) return 0;
  const double taken = drain(limit_, full, arithmetic);
  const double level =
      taken > 0 ? std::min((arithmetic / full - limit_.share) / kClockTransition, 1.0) : 1;
  const double before = throttling();
  const double change = full * taken / limit_.boost;
  const double after = std::clamp(before + change, 0.0, 1.0);
  // Of the step, so much passes until the clock has fallen or risen wholly.
  const double moving = change == 0 ? 1 : (after - before) / change;
  left_ = limit_.boost * (1 - after);
  return level * ((before + after) / 2 * moving + after * (1 - moving));
}

double PowerBudget::throttling() const { return is_limited(limit_) ? 1 - left_ / limit_.boost : 0; }

Seconds PowerBudget::full_after(double arithmetic_share) const {
  if (!is_limited(limit_)) return Seconds(0);
  const double back = -drain(limit_, Seconds(1), Seconds(arithmetic_share));
  return back > 0 ? (limit_.boost - left_) / back
                  : Seconds(std::numeric_limits<double>::infinity());
}

void PowerBudget::rest(Seconds time) {
  if (!is_limited(limit_)) return;
  left_ = std::min(limit_.boost, left_ + time * recovery(limit_));
}

double repeated_limited_part(const PowerLimit& limit, Seconds full, Seconds arithmetic,
                             Seconds idle) {
  if (!is_limited(limit) || !(full > Seconds(0))) return 0;
  const Seconds back = idle * recovery(limit);
  // Where a repetition takes more, it begins with what the pause before it gave back.
  const bool is_spent = full * drain(limit, full, arithmetic) > back;
  PowerBudget budget(limit, is_spent ? std::min(limit.boost, back) : limit.boost);
  return budget.step(full, arithmetic);
}

}  // namespace orrery
