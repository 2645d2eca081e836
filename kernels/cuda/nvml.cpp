#include "kernels/cuda/nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <array>
#include <stdexcept>

#include "kernels/cuda/check.h"

namespace orrery::cuda {
namespace {

// The part of nvml.h that is used here; the header is not in every CUDA toolkit.
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned kClockSm = 1;
constexpr unsigned kClockMemory = 2;
constexpr unsigned kFieldPowerInstant = 186;
struct NvmlFieldValue {  // nvmlFieldValue_t
  unsigned field = 0;
  unsigned scope = 0;
  long long timestamp = 0;
  long long latency_us = 0;
  int value_type = 0;
  int status = 0;
  union {
    double as_double;
    unsigned as_unsigned;
    unsigned long long as_long;
  } value{};
};

struct NvmlMemory {  // nvmlMemory_v2_t
  unsigned version = sizeof(NvmlMemory) | (2U << 24);
  unsigned long long total = 0;
  unsigned long long reserved = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};
struct NvmlProcess {  // nvmlProcessInfo_t of version 3
  unsigned id = 0;
  unsigned long long used = 0;
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};

class Library {
 public:
  // Opened once and never closed; a failed attempt throws and is repeated by the next call.
  static const Library& get() {
    static const Library library;
    return library;
  }
  template <typename Function>
  [[nodiscard]] Function* symbol(const char* name) const {
    void* const found = dlsym(handle_, name);
    if (found == nullptr) {
      throw std::runtime_error(std::string("libnvidia-ml.so.1 has no ") + name);
    }
    return reinterpret_cast<Function*>(found);
  }
  // Calls `name` and throws with its error text unless it succeeds.
  template <typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int code = symbol<int(Arguments...)>(name)(arguments...);
    if (code == kNvmlSuccess) return;
    throw std::runtime_error(std::string(name) + ": " +
                             symbol<const char*(int)>("nvmlErrorString")(code));
  }

 private:
  Library() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    if (handle_ == nullptr) throw std::runtime_error(std::string("NVML: ") + dlerror());
    call("nvmlInit_v2");
  }
  void* handle_;
};

}  // namespace

struct Board::Impl {
  NvmlDevice device = nullptr;

  template <typename Value, typename... Arguments>
  [[nodiscard]] Value read(const char* name, Arguments... arguments) const {
    Value value = 0;
    Library::get().call(name, device, arguments..., &value);
    return value;
  }
};

Board::Board(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Board::~Board() = default;
Board::Board(Board&&) noexcept = default;
Board& Board::operator=(Board&&) noexcept = default;

Board Board::of_device(int cuda_device) {
  std::array<char, 32> bus{};
  ORRERY_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), cuda_device));
  auto impl = std::make_unique<Impl>();
  Library::get().call("nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(bus.data()),
                      &impl->device);
  return Board(std::move(impl));
}

std::string Board::driver() const {
  std::array<char, 96> text{};
  Library::get().call("nvmlSystemGetDriverVersion", text.data(),
                      static_cast<unsigned>(text.size()));
  return text.data();
}
BoardMemory Board::memory() const {
  NvmlMemory memory;
  Library::get().call("nvmlDeviceGetMemoryInfo_v2", impl_->device, &memory);
  const auto bytes = [](unsigned long long count) { return Bytes(static_cast<double>(count)); };
  return {
      .total = bytes(memory.total), .reserved = bytes(memory.reserved), .free = bytes(memory.free)};
}
std::vector<BoardProcess> Board::processes() const {
  std::array<NvmlProcess, 64> found{};
  unsigned count = found.size();
  try {
    Library::get().call("nvmlDeviceGetComputeRunningProcesses_v3", impl_->device, &count,
                        found.data());
  } catch (const std::runtime_error&) {
    return {};
  }
  std::vector<BoardProcess> processes;
  processes.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    processes.push_back({.id = found[i].id, .memory = Bytes(static_cast<double>(found[i].used))});
  }
  return processes;
}
double Board::sm_clock_mhz() const {
  return impl_->read<unsigned>("nvmlDeviceGetClockInfo", kClockSm);
}
double Board::memory_clock_mhz() const {
  return impl_->read<unsigned>("nvmlDeviceGetClockInfo", kClockMemory);
}
double Board::max_sm_clock_mhz() const {
  return impl_->read<unsigned>("nvmlDeviceGetMaxClockInfo", kClockSm);
}
double Board::power_watts() const {
  NvmlFieldValue field{.field = kFieldPowerInstant};
  Library::get().call("nvmlDeviceGetFieldValues", impl_->device, 1, &field);
  const double milliwatts = field.status == kNvmlSuccess
                                ? field.value.as_unsigned
                                : impl_->read<unsigned>("nvmlDeviceGetPowerUsage");
  return milliwatts * 1e-3;
}
double Board::power_limit_watts() const {
  return impl_->read<unsigned>("nvmlDeviceGetEnforcedPowerLimit") * 1e-3;
}
double Board::energy_joules() const {
  return static_cast<double>(
             impl_->read<unsigned long long>("nvmlDeviceGetTotalEnergyConsumption")) *
         1e-3;
}
double Board::temperature_celsius() const {
  return impl_->read<unsigned>("nvmlDeviceGetTemperature", 0U);
}
std::uint64_t Board::throttle_reasons() const {
  return impl_->read<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons");
}

}  // namespace orrery::cuda
