#pragma once

// Watches clocks, throttling and energy on a thread of its own, since a question to the driver
// takes milliseconds, longer than most samples.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "kernels/calibrate/nvml.h"
#include "sim/units/units.h"

namespace orrery::calibrate {

// A step of the energy counter, which moves every 20 to 100 ms, and when it was seen.
struct EnergyStep {
  double joules = 0;
  std::chrono::steady_clock::time_point at;
};

// Owns the thread. Thread safe.
class Monitor {
 public:
  explicit Monitor(std::unique_ptr<Nvml> nvml);  // may be null: nothing is known then
  [[nodiscard]] const Nvml* nvml() const { return nvml_.get(); }
  [[nodiscard]] ClockState clocks() const;
  // The last step; empty until one was seen.
  [[nodiscard]] std::optional<EnergyStep> energy() const;

 private:
  void watch(const std::stop_token& stop);

  std::unique_ptr<Nvml> nvml_;
  mutable std::mutex mutex_;
  ClockState clocks_;
  std::optional<EnergyStep> energy_;
  std::jthread thread_;  // last: stopped before what it uses goes
};

}  // namespace orrery::calibrate
