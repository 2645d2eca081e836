#include "kernels/calibrate/nvml.h"

#include <dlfcn.h>

#include <array>

namespace orrery::calibrate {
namespace {

// The part of nvml.h that is used here (NVML API reference, R580); the header does not come with
// the driver.
using Device = void*;
constexpr int kSuccess = 0;
constexpr unsigned kClockSm = 1;                         // NVML_CLOCK_SM
constexpr unsigned long long kSwPowerCap = 0x4;          // nvmlClocksEventReasonSwPowerCap
constexpr unsigned long long kHwSlowdown = 0x8;          // nvmlClocksThrottleReasonHwSlowdown
constexpr unsigned long long kSwThermalSlowdown = 0x20;  // nvmlClocksEventReasonSwThermalSlowdown
constexpr unsigned long long kHwThermalSlowdown = 0x40;  // …ThrottleReasonHwThermalSlowdown
constexpr unsigned long long kHwPowerBrake = 0x80;       // …ThrottleReasonHwPowerBrakeSlowdown
constexpr unsigned long long kThrottled =
    kHwSlowdown | kSwThermalSlowdown | kHwThermalSlowdown | kHwPowerBrake;

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  Device device = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*find_device)(const char*, Device*) = nullptr;
  int (*clock)(Device, unsigned, unsigned*) = nullptr;
  int (*max_clock)(Device, unsigned, unsigned*) = nullptr;
  int (*reasons)(Device, unsigned long long*) = nullptr;
  int (*energy)(Device, unsigned long long*) = nullptr;
  int (*power_limit)(Device, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  template <typename Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
  bool find_all() {
    return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
           find(find_device, "nvmlDeviceGetHandleByPciBusId_v2") &&
           find(clock, "nvmlDeviceGetClockInfo") && find(max_clock, "nvmlDeviceGetMaxClockInfo") &&
           find(energy, "nvmlDeviceGetTotalEnergyConsumption") &&
           find(power_limit, "nvmlDeviceGetEnforcedPowerLimit") &&
           find(driver, "nvmlSystemGetDriverVersion") &&
           (find(reasons, "nvmlDeviceGetCurrentClocksEventReasons") ||
            find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons"));  // before R535
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}

std::unique_ptr<Nvml> Nvml::open(const std::string& pci_bus_id) {
  auto library = std::make_unique<Library>();
  library->handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library->handle == nullptr) return nullptr;
  if (!library->find_all() || library->init() != kSuccess) {
    dlclose(library->handle);
    return nullptr;
  }
  const bool is_found = library->find_device(pci_bus_id.c_str(), &library->device) == kSuccess;
  std::unique_ptr<Nvml> nvml(new Nvml(std::move(library)));
  return is_found ? std::move(nvml) : nullptr;
}

Nvml::~Nvml() {
  static_cast<void>(library_->shutdown());
  dlclose(library_->handle);
}

ClockState Nvml::clocks() const {
  unsigned mhz = 0;
  unsigned long long reasons = 0;
  if (library_->clock(library_->device, kClockSm, &mhz) != kSuccess) mhz = 0;
  if (library_->reasons(library_->device, &reasons) != kSuccess) reasons = 0;
  return {.sm_mhz = static_cast<int>(mhz),
          .is_throttled = (reasons & kThrottled) != 0,
          .is_power_capped = (reasons & kSwPowerCap) != 0};
}

int Nvml::max_sm_mhz() const {
  unsigned mhz = 0;
  return library_->max_clock(library_->device, kClockSm, &mhz) == kSuccess ? static_cast<int>(mhz)
                                                                           : 0;
}

Watts Nvml::power_limit() const {
  unsigned milliwatts = 0;
  const bool is_known = library_->power_limit(library_->device, &milliwatts) == kSuccess;
  return Watts(is_known ? milliwatts * 1e-3 : 0);
}

std::optional<double> Nvml::joules() const {
  unsigned long long millijoules = 0;
  if (library_->energy(library_->device, &millijoules) != kSuccess) return std::nullopt;
  return static_cast<double>(millijoules) * 1e-3;
}

std::string Nvml::driver() const {
  std::array<char, 96> text{};
  return library_->driver(text.data(), text.size()) == kSuccess ? text.data() : "";
}

}  // namespace orrery::calibrate
