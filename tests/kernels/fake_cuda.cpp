#include "tests/kernels/fake_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <utility>
#include <vector>

// Handles of the runtime.
struct CUstream_st {
  struct Work {
    std::function<bool()> done;  // false: it waits
  };
  std::deque<Work> work;
};
struct CUevent_st {
  std::int64_t recorded = 0;  // calls
  std::int64_t reached = 0;   // of them
  std::int64_t at = 0;        // when the last was, in pieces of work
};

namespace orrery::testing {
namespace {

struct Runtime {
  std::set<cudaStream_t> streams;
  StreamTiming timing = StreamTiming::kLazy;
  std::mt19937 random{1};
  std::int64_t now = 0;

  bool advance(cudaStream_t stream) {
    if (stream->work.empty() || !stream->work.front().done()) return false;
    stream->work.pop_front();
    ++now;
    return true;
  }
  // Others are turned to where the stream waits.
  void finish(cudaStream_t stream) {
    while (!stream->work.empty()) {
      if (advance(stream)) continue;
      if (!std::ranges::any_of(streams, [&](cudaStream_t other) { return advance(other); })) {
        std::abort();  // streams wait for each other
      }
    }
  }
  void add(cudaStream_t stream, std::function<bool()> work) {
    stream->work.push_back({std::move(work)});
    if (timing == StreamTiming::kLazy) return;
    while (timing == StreamTiming::kEager || random() % 3 != 0) {
      const std::vector<cudaStream_t> all(streams.begin(), streams.end());
      const std::size_t first = random() % all.size();
      bool any = false;
      for (std::size_t i = 0; i < all.size() && !any; ++i) {
        any = advance(all[(first + i) % all.size()]);
      }
      if (!any) return;
    }
  }
};

Runtime& runtime() {
  static Runtime one;
  return one;
}

}  // namespace

void set_stream_timing(StreamTiming timing) { runtime().timing = timing; }

void enqueue_call(cudaStream_t stream, std::function<void()> call) {
  runtime().add(stream, [call = std::move(call)] {
    call();
    return true;
  });
}

}  // namespace orrery::testing

using orrery::testing::enqueue_call;
using orrery::testing::runtime;

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t /*code*/) { return "an error"; }
const char* cudaGetErrorName(cudaError_t /*code*/) { return "cudaError"; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 8;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int /*peer*/, unsigned /*flags*/) { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
// A host of 1 GiB.
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  if (bytes > std::size_t{1} << 30) return cudaErrorMemoryAllocation;
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st;
  runtime().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  runtime().finish(stream);
  runtime().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  runtime().finish(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  runtime().add(stream, [event, until = event->recorded] { return event->reached >= until; });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ++event->recorded;
  enqueue_call(stream, [event] {
    ++event->reached;
    event->at = runtime().now;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
// Milliseconds: pieces of work.
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t begin, cudaEvent_t end) {
  if (begin->reached < begin->recorded || end->reached < end->recorded) return cudaErrorNotReady;
  *time = static_cast<float>(end->at - begin->at);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  enqueue_call(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  enqueue_call(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
// In any order.
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* sizes,
                                 std::size_t count, cudaMemcpyAttributes* /*attributes*/,
                                 std::size_t* /*indices*/, std::size_t /*num_attributes*/,
                                 cudaStream_t stream) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  std::ranges::shuffle(order, runtime().random);
  for (const std::size_t i : order) {
    enqueue_call(stream,
                 [to = to[i], from = from[i], size = sizes[i]] { std::memcpy(to, from, size); });
  }
  return cudaSuccess;
}

}  // extern "C"
