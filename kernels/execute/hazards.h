#pragma once

// Where tasks on several streams of one rank need events. No CUDA.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

// [begin, end) of one address space: the arena, or the KV cache counted in layers.
struct MemoryRange {
  int space = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const MemoryRange&) const = default;
};

struct TaskMemory {
  int stream = 0;
  std::vector<MemoryRange> reads;
  std::vector<MemoryRange> writes;
  std::vector<std::int32_t> after;  // earlier tasks
};

// For each task the earlier tasks on other streams whose end it has to wait for: those that wrote
// what it reads or writes (the memory, not the tensor: an arena gives memory to one tensor after
// another), those that read what it writes, and `after`. Left out is what follows from stream order
// and from waits before. Tasks of a stream run in order; at most one wait per other stream. Throws
// std::invalid_argument for a negative stream or an `after` that is not an earlier task.
std::vector<std::vector<std::int32_t>> event_waits(std::span<const TaskMemory> tasks);

}  // namespace orrery
