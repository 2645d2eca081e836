#include "kernels/calibrate/known_devices.h"

#include <array>
#include <string>

namespace orrery::calibrate {
namespace {

struct Known {
  std::string_view driver_name;
  std::string_view name;
  double hbm_gb_per_s;
  double bf16_tflops;
  double fp8_tflops;
  int num_sms;
};

constexpr std::array kKnown = {
    Known{"NVIDIA H200", "h200-sxm", 4800, 989, 1979, 132},
    Known{"NVIDIA H100 80GB HBM3", "h100-sxm", 3350, 989, 1979, 132},
    Known{"NVIDIA H800", "h800-sxm", 3352, 989, 1979, 132},
    Known{"NVIDIA H20", "h20", 4000, 148, 296, 78},
};

}  // namespace

Device known_device(std::string_view driver_name) {
  Known found = kKnown[1];
  found.name = "unknown-gpu";
  for (const Known& known : kKnown) {
    if (known.driver_name == driver_name) found = known;
  }
  constexpr double kTera = 1e12;
  constexpr double kGiga = 1e9;
  const FlopsPerSecond bf16(found.bf16_tflops * kTera);
  const FlopsPerSecond fp8(found.fp8_tflops * kTera);
  return {.name = std::string(found.name),
          .vendor = "nvidia",
          .architecture = "hopper",
          .hbm_bandwidth = BytesPerSecond(found.hbm_gb_per_s * kGiga),
          .dense_flops = {{DType::kBf16, bf16},
                          {DType::kFp16, bf16},
                          {DType::kFp8, fp8},
                          {DType::kFp8Block, fp8},
                          {DType::kMxfp4, bf16},
                          {DType::kInt4, bf16}},
          .num_sms = found.num_sms};
}

}  // namespace orrery::calibrate
