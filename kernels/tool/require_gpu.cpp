#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/tool/commands.h"

namespace orrery::tool {

void require_gpu() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    throw std::invalid_argument(std::string("no GPU to run on: ") +
                                (code == cudaSuccess ? "none present" : cudaGetErrorString(code)));
  }
  const cudaDeviceProp& device = cuda::device_properties();
  // Code for sm_90a runs on compute capability 9.0 alone.
  if (device.major != 9 || device.minor != 0) {
    throw std::invalid_argument(std::string(device.name) + " has compute capability " +
                                std::to_string(device.major) + "." + std::to_string(device.minor) +
                                "; kernels are built for 9.0 (sm_90a: H100, H200, H800, H20)");
  }
}

}  // namespace orrery::tool
