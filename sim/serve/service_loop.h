#pragma once

// What event loops over replicas share.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

// By (start, replica). Made for steps of one replica after the other, each in order.
void sort_steps(std::vector<StepRecord>& steps);

// Calls back from whatever thread finishes requests, one call at a time.
class ProgressCounter {
 public:
  ProgressCounter(const Progress& progress, std::int64_t total)
      : progress_(progress), total_(total), interval_(std::max<std::int64_t>(total / 100, 1)) {}
  void add(std::int64_t count) {
    if (!progress_ || count == 0) return;
    const std::scoped_lock lock(mutex_);
    const std::int64_t before = done_;
    done_ += count;
    if (before / interval_ != done_ / interval_ || done_ == total_) progress_(done_, total_);
  }

 private:
  const Progress& progress_;
  std::int64_t total_;
  std::int64_t interval_;
  std::int64_t done_ = 0;
  std::mutex mutex_;
};

}  // namespace orrery
