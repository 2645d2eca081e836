#pragma once

// Move-only owners of CUDA streams, events, device memory and graphs. Destructors drop errors: a
// handle that cannot be destroyed is leaked silently. Nothing here synchronises the device.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/memory.h"
#include "sim/units/units.h"

namespace orrery::cuda {

namespace detail {
struct DestroyStream {
  bool owns = true;
  void operator()(cudaStream_t stream) const {
    if (owns) static_cast<void>(cudaStreamDestroy(stream));
  }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
};
struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
struct FreeDevice {
  void operator()(void* memory) const { free_device(memory); }
};
struct FreeHost {
  void operator()(void* memory) const { static_cast<void>(cudaFreeHost(memory)); }
};
template <typename Handle, typename Destroy>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
}  // namespace detail

// A non-blocking stream: it does not wait for the legacy default stream.
class Stream {
 public:
  Stream() {
    cudaStream_t stream = nullptr;
    ORRERY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_.reset(stream);
  }
  // One whose blocks that wait for an SM come before those of other streams.
  static Stream preferred() {
    int least = 0;
    int greatest = 0;
    ORRERY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    ORRERY_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    return Stream(stream, {.owns = true});
  }
  // A view of another library's stream, which must outlive it.
  static Stream borrow(cudaStream_t stream) { return Stream(stream, {.owns = false}); }
  [[nodiscard]] cudaStream_t get() const { return stream_.get(); }
  void synchronize() const { ORRERY_CUDA(cudaStreamSynchronize(get())); }

 private:
  Stream(cudaStream_t stream, detail::DestroyStream destroy) : stream_(stream, destroy) {}

  detail::Owner<cudaStream_t, detail::DestroyStream> stream_;
};

// A timing event; event_b - event_a is the time between them (resolution about 0.5 us).
class Event {
 public:
  Event() {
    cudaEvent_t event = nullptr;
    ORRERY_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
    event_.reset(event);
  }
  void record(const Stream& stream) const { ORRERY_CUDA(cudaEventRecord(get(), stream.get())); }
  void synchronize() const { ORRERY_CUDA(cudaEventSynchronize(get())); }
  [[nodiscard]] cudaEvent_t get() const { return event_.get(); }

  friend Seconds operator-(const Event& end, const Event& begin) {
    float milliseconds = 0;
    ORRERY_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    return Seconds(static_cast<double>(milliseconds) * 1e-3);
  }

 private:
  detail::Owner<cudaEvent_t, detail::DestroyEvent> event_;
};

// `size` elements of T in device memory (cudaMalloc), not initialised.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t size)
      : memory_(detail::allocate_device(size * sizeof(T))), size_(size) {}
  [[nodiscard]] T* get() const { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::unique_ptr<void, detail::FreeDevice> memory_;
  std::size_t size_;
};

// `size` elements of T in page-locked host memory.
template <typename T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t size) : size_(size) {
    void* memory = nullptr;
    ORRERY_CUDA(cudaMallocHost(&memory, size * sizeof(T)));
    memory_.reset(memory);
  }
  [[nodiscard]] T* get() const { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::unique_ptr<void, detail::FreeHost> memory_;
  std::size_t size_;
};

// An instantiated graph captured from what `record` enqueues on a stream.
class Graph {
 public:
  template <typename Record>
  static Graph capture(const Stream& stream, Record&& record) {
    ORRERY_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      std::forward<Record>(record)();
    } catch (...) {  // the capture must end before the error leaves
      static_cast<void>(cudaStreamEndCapture(stream.get(), &graph));
      throw;
    }
    ORRERY_CUDA(cudaStreamEndCapture(stream.get(), &graph));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    ORRERY_CUDA(code);
    Graph result;
    result.graph_.reset(executable);
    return result;
  }
  void launch(const Stream& stream) const {
    ORRERY_CUDA(cudaGraphLaunch(graph_.get(), stream.get()));
  }
  // Brings it to the device, which its first launch would do otherwise.
  void upload(const Stream& stream) const {
    ORRERY_CUDA(cudaGraphUpload(graph_.get(), stream.get()));
  }

 private:
  Graph() = default;
  detail::Owner<cudaGraphExec_t, detail::DestroyGraph> graph_;
};

}  // namespace orrery::cuda
