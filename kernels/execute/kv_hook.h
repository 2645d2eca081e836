#pragma once

// Who is told when a rank enqueues the parts of a step that use its KV cache, and may let them wait
// for copies that it makes beside it. No CUDA but handles.

#include <cstdint>

#include "kernels/cuda/handles.h"

namespace orrery {

class KvHook {
 public:
  virtual ~KvHook() = default;
  // All are called in the rank's thread with its device current, and not while a step is captured.
  // `main`: the stream on which the step begins and ends. `by_layers`: its kernels are enqueued one
  // by one, begin_layer() among them; otherwise all are one launch.
  virtual void begin_step(int rank, const cuda::Stream& main, bool by_layers) = 0;
  // Before the first kernel that uses layer `layer` of the rank's KV cache, on the stream of that
  // kernel; layers ascend.
  virtual void begin_layer(int rank, std::int64_t layer, const cuda::Stream& stream) = 0;
  // All of the step is enqueued.
  virtual void end_step(int rank, const cuda::Stream& main) = 0;
};

}  // namespace orrery
