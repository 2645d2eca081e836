#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/occupancy.h"

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

std::int64_t resident_blocks(const void* kernel, int threads, std::size_t shared_bytes) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, int, std::size_t>, std::int64_t> known;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const std::int64_t num_sms = device_properties().multiProcessorCount;
  const std::scoped_lock lock(mutex);
  std::int64_t& blocks = known[{device, kernel, threads, shared_bytes}];
  if (blocks == 0) {
    int on_each = 0;
    ORRERY_CUDA(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&on_each, kernel, threads, shared_bytes));
    blocks = on_each * num_sms;
  }
  return blocks;
}

// Setting a limit and launching are two calls, between which another thread may set it lower.
void raise_shared_limit(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> known;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const std::scoped_lock lock(mutex);
  std::size_t& limit = known[{device, kernel}];
  if (bytes <= limit) return;
  ORRERY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
  limit = bytes;
}

}  // namespace orrery::cuda
