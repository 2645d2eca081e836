#include "sim/serve/token_intervals.h"

#include <algorithm>

namespace orrery {

void TokenIntervals::join(Seconds last_token, bool is_measured) {
  if (last_.empty() || last_.back().time != last_token) last_.push_back({.time = last_token});
  const int measured = is_measured ? 1 : 0;
  ++last_.back().count;
  last_.back().num_measured += measured;
  num_measured_ += measured;
}

void TokenIntervals::leave(Seconds last_token, bool is_measured) {
  const auto last = std::ranges::find(last_, last_token, &Last::time);
  const int measured = is_measured ? 1 : 0;
  last->num_measured -= measured;
  num_measured_ -= measured;
  if (--last->count == 0) last_.erase(last);
}

// Steps that only prefill may lie before the first of them.
void TokenIntervals::advance(Seconds begin, Seconds end, const FastForward& time,
                             std::int64_t num_sequences, LatencyHistogram& itl) {
  for (const Last& last : last_) itl.add(time.first + (begin - last.time), last.num_measured);
  itl.add_linear(time.first + time.slope, time.slope, time.num_steps - 1, num_measured_);
  last_end_ = end;
  last_.assign(1, {.time = end, .count = num_sequences, .num_measured = num_measured_});
}

}  // namespace orrery
