#pragma once

// How many blocks of a kernel a device holds at once, for grids that stay.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace orrery::cuda {

// With `threads` in a block and `shared_bytes` of dynamic shared memory, on all SMs of the current
// device together. Asks the driver once for each kernel and size. Throws cuda::Error.
std::int64_t resident_blocks(const void* kernel, int threads, std::size_t shared_bytes = 0);
template <typename... Parameters>
std::int64_t resident_blocks(void (*kernel)(Parameters...), int threads,
                             std::size_t shared_bytes = 0) {
  return resident_blocks(reinterpret_cast<const void*>(kernel), threads, shared_bytes);
}

// Blocks for up to `blocks` blocks' worth of rows, of which only the device knows how many there
// are. Where there is room for few, as many as are resident: each more takes up to 1.2 ns though it
// finds nothing to do. Where there is room for many, more: the SMs do not all stream at
// one rate, which blocks that begin as others end even out. silu_mul of 16,384 rows of 8,192 on an
// H200: 264 resident blocks 203.7 us, 1,056 blocks 195.6, 4,224 blocks 186.5, one for each row
// 184.1.
constexpr std::int64_t counted_blocks(std::int64_t blocks, std::int64_t resident,
                                      std::int64_t rows_per_block = 1) {
  constexpr std::int64_t kFew = 8192;   // rows
  constexpr std::int64_t kMost = 6336;  // 48 for each SM of an H200
  const bool few = blocks * rows_per_block <= kFew;
  return std::min(blocks, few ? resident : std::max(2 * resident, kMost));
}

}  // namespace orrery::cuda
