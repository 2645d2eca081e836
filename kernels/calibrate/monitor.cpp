#include "kernels/calibrate/monitor.h"

#include <cstdio>
#include <exception>
#include <utility>

namespace orrery::calibrate {
namespace {

ClockState read_clocks(const cuda::Board& board) {
  constexpr std::uint64_t kThrottled =
      cuda::kThrottleHardware | cuda::kThrottleThermal | cuda::kThrottlePowerBrake;
  const std::uint64_t reasons = board.throttle_reasons();
  return {.sm_mhz = static_cast<int>(board.sm_clock_mhz()),
          .is_throttled = (reasons & kThrottled) != 0,
          .is_power_capped = (reasons & cuda::kThrottlePowerCap) != 0};
}

}  // namespace

Monitor::Monitor(std::optional<cuda::Board> board) : board_(std::move(board)) {
  if (board_) {
    clocks_ = read_clocks(*board_);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      try {
        watch(stop);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "clocks and energy are no longer watched: %s\n", error.what());
      }
    });
  }
}

ClockState Monitor::clocks() const {
  const std::scoped_lock lock(mutex_);
  return clocks_;
}

std::optional<EnergyStep> Monitor::energy() const {
  const std::scoped_lock lock(mutex_);
  return energy_;
}

void Monitor::watch(const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kPause{2};
  double before = board_->energy_joules();
  while (!stop.stop_requested()) {
    const ClockState clocks = read_clocks(*board_);
    const double joules = board_->energy_joules();
    {
      const std::scoped_lock lock(mutex_);
      clocks_ = clocks;
      if (joules != before) {
        energy_ = EnergyStep{.joules = joules, .at = std::chrono::steady_clock::now()};
      }
    }
    before = joules;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace orrery::calibrate
