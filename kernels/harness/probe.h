#pragma once

// A probe measures one property of the GPU or of reaching it. Its results are rows.

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

// One row. Probes measure times, clocks, power and rates; `unit` says which, in the words of the
// CSV ("us", "MHz", "W", "TFLOP/s").
struct ProbeRow {
  std::string probe;
  std::string parameters;  // "bytes=65536 l2=cold", or empty
  std::string_view unit;
  double median = 0;
  double spread = 0;  // interquartile range / median
  int samples = 0;
};

// The row of these samples, at least one.
inline ProbeRow probe_row(std::string probe, std::string parameters, std::string_view unit,
                          std::vector<double> samples) {
  std::ranges::sort(samples);
  const double median = samples[samples.size() / 2];
  const double range = samples[samples.size() * 3 / 4] - samples[samples.size() / 4];
  return {.probe = std::move(probe),
          .parameters = std::move(parameters),
          .unit = unit,
          .median = median,
          .spread = median != 0 ? range / median : 0,
          .samples = static_cast<int>(samples.size())};
}

inline constexpr std::string_view kMicroseconds = "us";
inline double microseconds(Seconds time) { return time.value() * 1e6; }

// The host's clock.
inline Seconds host_now() {
  return Seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// `count` results of sample() after `warmup` dropped ones, as a row of microseconds.
template <typename Sample>
ProbeRow time_probe(std::string probe, std::string parameters, int count, Sample&& sample,
                    int warmup = 5) {
  std::vector<double> times;
  for (int i = 0; i < warmup + count; ++i) {
    const Seconds time = sample();
    if (i >= warmup) times.push_back(microseconds(time));
  }
  return probe_row(std::move(probe), std::move(parameters), kMicroseconds, std::move(times));
}

}  // namespace orrery
