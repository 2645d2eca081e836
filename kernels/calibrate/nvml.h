#pragma once

// Clocks, throttling and energy of one GPU through the driver's management library, which is opened
// at run time (libnvidia-ml.so.1 comes with the driver, not with the toolkit).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sim/units/units.h"

namespace orrery::calibrate {

struct ClockState {
  int sm_mhz = 0;
  bool is_throttled = false;     // by heat or by the board's protection: not the GPU's own speed
  bool is_power_capped = false;  // by the power limit: how this GPU runs under such a load
};

// Thread safe, as the library is.
class Nvml {
 public:
  // Empty when the library or the device cannot be had. `pci_bus_id` as cudaDeviceGetPCIBusId
  // writes it.
  static std::unique_ptr<Nvml> open(const std::string& pci_bus_id);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] ClockState clocks() const;
  [[nodiscard]] int max_sm_mhz() const;
  [[nodiscard]] Watts power_limit() const;
  // Energy since the driver was loaded, in steps of some 20 to 100 ms. Empty when not supported.
  [[nodiscard]] std::optional<double> joules() const;
  [[nodiscard]] std::string driver() const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace orrery::calibrate
