#pragma once

// Time as those see it who serve live: seconds of the host's steady clock since serving began.

#include <chrono>
#include <thread>

#include "sim/units/units.h"

namespace orrery {

// Thread safe but for restart().
class LiveClock {
 public:
  // Now is 0.
  void restart() { begin_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] Seconds now() const {
    return Seconds(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
  }
  // Sleeps, and at the end, where sleeping is too coarse, looks again and again.
  void wait_until(Seconds time) const {
    constexpr Seconds kCoarse(200e-6);
    const Seconds left = time - now();
    if (left > kCoarse) {
      std::this_thread::sleep_for(std::chrono::duration<double>((left - kCoarse).value()));
    }
    while (now() < time) std::this_thread::yield();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace orrery
