// orrery-gpu: the GPU side as one program. `orrery-gpu time launch` prints measured rows as CSV
// with the device, driver and clocks they were taken at. Links neither the simulator nor Python.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/probe_launch/probe_launch.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

int clock_khz(cudaDeviceAttr attribute, int device) {
  int value = 0;
  ORRERY_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

void time_launch() {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  ORRERY_CUDA(cudaGetDeviceProperties(&properties, device));
  int driver = 0;
  ORRERY_CUDA(cudaDriverGetVersion(&driver));
  std::printf("device,driver_cuda,sm_clock_mhz,probe,median_us,spread,samples\n");
  for (const orrery::ProbeRow& row : orrery::probe_launch()) {
    std::printf("%s,%d,%d,%s,%.4f,%.4f,%d\n", properties.name, driver,
                clock_khz(cudaDevAttrClockRate, device) / 1000, row.probe.c_str(),
                row.median.value() * 1e6, row.spread, row.samples);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (arguments.size() != 2 || arguments[0] != "time" || arguments[1] != "launch") {
    std::fprintf(stderr, "usage: orrery-gpu time launch\n");
    return kExitUsage;
  }
  try {
    time_launch();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "orrery-gpu: %s\n", error.what());
    return kExitFailed;
  }
  return 0;
}
