#pragma once

// Memory in which a launch of fused_moe says when its blocks did what (trace.h).

#include <cstdint>
#include <memory>

#include "kernels/cuda/handles.h"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/fused_moe/trace.h"

namespace orrery {

namespace fused_moe {
struct TraceBuffers;  // trace_sm90.cuh
}

// Of one rank that has the current device to itself, for one launch at a time. Room for eight times
// the even share of a block's tasks and rows, if tokens choose all experts alike.
class FusedMoeTraceMemory {
 public:
  explicit FusedMoeTraceMemory(const FusedMoeShape& shape);
  ~FusedMoeTraceMemory();
  FusedMoeTraceMemory(const FusedMoeTraceMemory&) = delete;
  FusedMoeTraceMemory& operator=(const FusedMoeTraceMemory&) = delete;

  // Before each launch.
  void clear(const cuda::Stream& stream) const;
  [[nodiscard]] fused_moe::TraceBuffers buffers() const;
  // Waits for `stream`.
  [[nodiscard]] fused_moe::TraceRecords read(const cuda::Stream& stream) const;

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace orrery
