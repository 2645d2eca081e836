#pragma once

// A gate in streams: work enqueued behind it waits until the host opens it, so that measurements
// see a full queue and streams start together. Kernels must have run once before they are enqueued
// behind a gate: loading one may wait for the GPU, which waits for the gate.

#include "kernels/cuda/handles.h"

namespace orrery::cuda {

class Gate {
 public:
  Gate() : open_(1) { *open_.get() = 1; }
  // What `stream` gets from now on waits for open(). The gate must not be closed again before the
  // stream has passed it.
  void close(const Stream& stream);
  void open() { *static_cast<volatile int*>(open_.get()) = 1; }

 private:
  PinnedBuffer<int> open_;
};

}  // namespace orrery::cuda
