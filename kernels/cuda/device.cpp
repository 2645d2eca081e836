#include <map>
#include <mutex>

#include "kernels/cuda/launch.h"

namespace orrery::cuda {

const cudaDeviceProp& device_properties() {
  static std::mutex mutex;
  static std::map<int, cudaDeviceProp> known;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const std::scoped_lock lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  cudaDeviceProp properties{};
  ORRERY_CUDA(cudaGetDeviceProperties(&properties, device));
  return known.emplace(device, properties).first->second;
}

}  // namespace orrery::cuda
