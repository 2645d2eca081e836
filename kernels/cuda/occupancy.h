#pragma once

// How many blocks of a kernel a device holds at once, for grids that stay.

#include <cstddef>
#include <cstdint>

namespace orrery::cuda {

// With `threads` in a block and `shared_bytes` of dynamic shared memory, on all multiprocessors of
// the current device together. Asks the driver once for each kernel and size. Throws cuda::Error.
std::int64_t resident_blocks(const void* kernel, int threads, std::size_t shared_bytes = 0);
template <typename... Parameters>
std::int64_t resident_blocks(void (*kernel)(Parameters...), int threads,
                             std::size_t shared_bytes = 0) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}

}  // namespace orrery::cuda
