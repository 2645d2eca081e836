#include "kernels/calibrate/monitor.h"

#include <utility>

namespace orrery::calibrate {

Monitor::Monitor(std::unique_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {
  if (nvml_) {
    clocks_ = nvml_->clocks();
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
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
  std::optional<double> before = nvml_->joules();
  while (!stop.stop_requested()) {
    const ClockState clocks = nvml_->clocks();
    const std::optional<double> joules = nvml_->joules();
    {
      const std::scoped_lock lock(mutex_);
      clocks_ = clocks;
      if (joules && joules != before) {
        energy_ = EnergyStep{.joules = *joules, .at = std::chrono::steady_clock::now()};
      }
    }
    before = joules;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace orrery::calibrate
