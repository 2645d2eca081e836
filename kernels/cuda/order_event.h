#pragma once

// An event for order between streams alone: it keeps no time, which would hold them up by some
// microseconds.

#include "kernels/cuda/handles.h"

namespace orrery::cuda {

class OrderEvent {
 public:
  OrderEvent() {
    cudaEvent_t event = nullptr;
    ORRERY_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    event_.reset(event);
  }
  void record(const Stream& stream) const { ORRERY_CUDA(cudaEventRecord(get(), stream.get())); }
  // What `stream` gets from now on waits for what was recorded last.
  void hold(const Stream& stream) const {
    ORRERY_CUDA(cudaStreamWaitEvent(stream.get(), get(), 0));
  }
  [[nodiscard]] cudaEvent_t get() const { return event_.get(); }

 private:
  detail::Owner<cudaEvent_t, detail::DestroyEvent> event_;
};

}  // namespace orrery::cuda
