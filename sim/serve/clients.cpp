#include "sim/serve/clients.h"

#include <algorithm>

#include "sim/serve/fast_forward.h"

namespace orrery {

void Clients::begin(std::span<const std::int64_t> arrivals) {
  firsts_ = arrivals;
  if (!workload_.turns.empty()) {
    for (const std::int64_t idx : arrivals) {
      if (workload_.turns[static_cast<std::size_t>(idx)].turn == 0) own_firsts_.push_back(idx);
    }
    firsts_ = own_firsts_;
  }
  for (std::int64_t i = 0; i < workload_.closed_loop_concurrency; ++i) free_.emplace(0);
}

Seconds Clients::next_first() const {
  if (next_ == firsts_.size()) return kNever;
  if (is_closed()) return free_.empty() ? kNever : free_.top();
  return request(firsts_[next_]).arrival;
}

Seconds Clients::next() const {
  const Seconds first = next_first();
  return turns_.empty() ? first : std::min(first, turns_.top().first);
}

std::int64_t Clients::send() {
  ++num_sent_;
  if (!turns_.empty() && turns_.top().first < next_first()) {
    const std::int64_t idx = turns_.top().second;
    turns_.pop();
    return idx;
  }
  if (is_closed()) free_.pop();
  return firsts_[next_++];
}

void Clients::answer(std::int64_t idx, Seconds now) {
  const auto after = static_cast<std::size_t>(idx) + 1;
  if (after < workload_.turns.size() && workload_.turns[after].turn > 0) {
    turns_.emplace(std::max(now + workload_.turns[after].wait, workload_.requests[after].arrival),
                   static_cast<std::int64_t>(after));
  } else if (is_closed()) {
    free_.push(now);
  }
}

}  // namespace orrery
