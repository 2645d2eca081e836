#pragma once

// What a timing is asked for and what it found. No CUDA.

#include <cstdint>
#include <functional>

#include "sim/plan/launch_mode.h"
#include "sim/units/units.h"

namespace orrery {

enum class L2State : std::uint8_t {
  kCold,  // launches rotate over the case's sets; the caller gave it enough of them (sets_for)
  kWarm   // every launch uses set 0
};
struct MeasureOptions {
  L2State l2 = L2State::kCold;
  // Graph: the time holds the gap between nodes. Eager: launches go into a stream held shut until
  // all are queued.
  LaunchMode mode = LaunchMode::kGraph;
  double spread = 0.005;  // enough when the relative interquartile range is below
  int min_samples = 7;
  Seconds budget{0.1};  // of GPU time, after which the spread is what it is
  // Called while a sample runs; false discards it. Null: every sample counts.
  std::function<bool()> keep_sample;
};

struct Measurement {
  Seconds median;
  double spread = 0;  // interquartile range / median
  int samples = 0;    // each the mean over `launches`
  int launches = 0;
  int discarded = 0;  // samples that keep_sample refused
};

}  // namespace orrery
