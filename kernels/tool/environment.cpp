#include "kernels/tool/environment.h"

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/nvml.h"
#include "kernels/harness/today.h"

namespace orrery::tool {

std::map<std::string, std::string> environment(int num_gpus) {
  int runtime = 0;
  ORRERY_CUDA(cudaRuntimeGetVersion(&runtime));
  std::map<std::string, std::string> facts = {
      {"gpu", cuda::device_properties().name},
      {"num_gpus", std::to_string(num_gpus)},
      {"cuda", std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10)},
      {"nccl", num_gpus > 1 ? cuda::nccl_version() : "not used"},
      {"revision", ORRERY_REVISION},
      {"date", today()}};
  try {
    const cuda::Board board = cuda::Board::of_device(0);
    facts["driver"] = board.driver();
    facts["power_limit_w"] = std::to_string(static_cast<int>(board.power_limit_watts()));
    facts["sm_clock_mhz"] = std::to_string(static_cast<int>(board.sm_clock_mhz()));
  } catch (const std::runtime_error& error) {
    facts["nvml"] = std::string("not available: ") + error.what();
  }
  return facts;
}

}  // namespace orrery::tool
