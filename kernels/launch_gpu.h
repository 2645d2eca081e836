#pragma once

// The GPU that the launches of our kernels are modelled on (Prior::launch): an H200.

#include <cmath>
#include <cstdint>

namespace orrery::launch {

inline constexpr int kNumSms = 132;
inline constexpr double kPeak = 989e12;  // dense FLOP/s in bf16
inline constexpr double kFp8Peak = 1979e12;
inline constexpr double kBandwidth = 4.8e12;  // bytes/s

// How many times as long bytes take that so few SMs have under way as with all of them: of
// attention_decode on 108 of an H200's 132 SMs, which stream from the memory, 1.05 to 1.14.
inline double longer_for_bytes(int num_sms) {
  constexpr double kAskedByAll = 0.92;  // of what all SMs could draw, as much as there is
  const double asked = kAskedByAll * kNumSms / num_sms;
  return std::pow((1 + std::pow(asked, 4)) / (1 + std::pow(kAskedByAll, 4)), 0.25);
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace orrery::launch
