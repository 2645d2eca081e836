#pragma once

// Clocks, power and energy of a GPU as the driver's management library (NVML) reports them. The
// library is opened at run time, so that a program links without it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/units/units.h"

namespace orrery::cuda {

// Memory of a whole board, whoever uses it.
struct BoardMemory {
  Bytes total;
  Bytes reserved;  // by the driver and firmware
  Bytes free;
};
struct BoardProcess {
  std::uint32_t id = 0;  // the operating system's; of another name space when in a container
  Bytes memory;
};

// The board of one CUDA device. Readings take 10 us to some ms of host time each and change
// nothing.
class Board {
 public:
  // Throws std::runtime_error when the library is missing or does not know the device.
  static Board of_device(int cuda_device);
  ~Board();
  Board(Board&&) noexcept;
  Board& operator=(Board&&) noexcept;

  [[nodiscard]] std::string driver() const;  // "580.159.04"
  [[nodiscard]] BoardMemory memory() const;
  // Those with a CUDA context, this one too; empty where the driver does not say (in containers).
  [[nodiscard]] std::vector<BoardProcess> processes() const;
  [[nodiscard]] double sm_clock_mhz() const;             // now
  [[nodiscard]] double memory_clock_mhz() const;         // now
  [[nodiscard]] double max_sm_clock_mhz() const;         // boost
  [[nodiscard]] double power_watts() const;              // instantaneous where the board has it
  [[nodiscard]] double power_limit_watts() const;        // enforced
  [[nodiscard]] double energy_joules() const;            // since the driver was loaded
  [[nodiscard]] double temperature_celsius() const;      // of the GPU
  [[nodiscard]] std::uint64_t throttle_reasons() const;  // kThrottle… bits; 0: none

 private:
  struct Impl;
  explicit Board(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Bits of throttle_reasons(), nvmlClocksEventReasons in nvml.h. An idle GPU sets bit 0.
inline constexpr std::uint64_t kThrottleIdle = 0x1;
inline constexpr std::uint64_t kThrottlePowerCap = 0x4;
inline constexpr std::uint64_t kThrottleHardware = 0x8;
inline constexpr std::uint64_t kThrottleThermal = 0x20 | 0x40;
inline constexpr std::uint64_t kThrottlePowerBrake = 0x80;  // asked for by the board

}  // namespace orrery::cuda
