#pragma once

// Neighbouring KV blocks as single copies. No CUDA.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

struct BlockRun {
  std::int32_t source = 0;  // first block
  std::int32_t destination = 0;
  std::int32_t count = 0;
  bool operator==(const BlockRun&) const = default;
};

// The fewest runs that copy source[i] to destination[i] in order: both lists step by one within a
// run. Throws std::invalid_argument when the lists differ in length.
std::vector<BlockRun> block_runs(std::span<const std::int32_t> source,
                                 std::span<const std::int32_t> destination);

// Whether the copy engines move `bytes` in `copies` copies sooner than SMs do, as measured between
// two H200: a batch of copies takes 0.57 us for each or bytes at 390 GB/s, whichever is longer, and
// 64 thread blocks 1.5 us more than a copy to start and bytes at 355 GB/s.
bool copy_engine_is_faster(std::int64_t copies, std::int64_t bytes);

}  // namespace orrery
