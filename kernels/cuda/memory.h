#pragma once

// Device memory behind DeviceBuffer, and a cache of freed blocks for programs that make and drop
// many cases.

#include <cstddef>

namespace orrery::cuda {

namespace detail {
// Throws cuda::Error; null for 0 bytes.
void* allocate_device(std::size_t bytes);
void free_device(void* memory);
}  // namespace detail

// While one lives, blocks that DeviceBuffers give up are kept and handed out again for sizes up to
// an eighth smaller; all go back when memory runs out and when the last cache ends. cudaMalloc and
// cudaFree of gigabytes take milliseconds each, and cudaFree waits for the device: with a cache,
// whoever drops a buffer must know that no work on it is left. Thread safe; per device.
class MemoryCache {
 public:
  MemoryCache();
  ~MemoryCache();
  MemoryCache(const MemoryCache&) = delete;
  MemoryCache& operator=(const MemoryCache&) = delete;
};

}  // namespace orrery::cuda
