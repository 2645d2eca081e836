#pragma once

// Watches clocks, throttling and energy on a thread of its own, since a question to the driver
// takes milliseconds, longer than most samples.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "kernels/cuda/nvml.h"

namespace orrery::calibrate {

struct ClockState {
  int sm_mhz = 0;
  bool is_throttled = false;     // by heat or by the board's protection: not the GPU's own speed
  bool is_power_capped = false;  // by the power limit: how this GPU runs under such a load
};

// A step of the energy counter, which moves every 20 to 100 ms, and when it was seen.
struct EnergyStep {
  double joules = 0;
  std::chrono::steady_clock::time_point at;
};

// Owns the thread. Thread safe.
class Monitor {
 public:
  // Empty: nothing is known.
  explicit Monitor(std::optional<cuda::Board> board);
  [[nodiscard]] const std::optional<cuda::Board>& board() const { return board_; }
  [[nodiscard]] ClockState clocks() const;
  // The last step; empty until one was seen.
  [[nodiscard]] std::optional<EnergyStep> energy() const;

 private:
  void watch(const std::stop_token& stop);

  std::optional<cuda::Board> board_;
  mutable std::mutex mutex_;
  ClockState clocks_;
  std::optional<EnergyStep> energy_;
  std::jthread thread_;  // last: stopped before what it uses goes
};

}  // namespace orrery::calibrate
