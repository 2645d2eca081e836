#include <stdexcept>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/launch.h"
#include "kernels/probes/launch.h"

namespace orrery {
namespace {

constexpr int kKernels = 1000;  // per graph or burst: long enough that the ends do not show
constexpr int kSamples = 51;
constexpr int kBurst =
    200;  // below the depth of the launch queue (1,024), so enqueueing never waits
constexpr int kFillThreads = 1024;
constexpr std::size_t kFillSharedBytes = 160 * 1024;  // no second block fits on an SM
constexpr long long kFillCycles = 8000;               // about 4 us

// Works for `cycles` after its predecessor has ended; with programmatic launch the successor is
// let go at once.
__global__ void __launch_bounds__(kFillThreads) busy_kernel(long long cycles) {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

__global__ void empty_kernel() {}

__global__ void flag_kernel(int* flag, int value) { *flag = value; }

enum class Mode { kEager, kGraph, kProgrammaticGraph };

cuda::LaunchShape empty_shape() { return {.grid = dim3(1), .block = dim3(32)}; }

// Device time per kernel of a chain of `shape` kernels that work for `cycles`.
class Chain {
 public:
  Chain(Mode mode, cuda::LaunchShape shape, long long cycles) : shape_(shape), cycles_(cycles) {
    shape_.programmatic = mode == Mode::kProgrammaticGraph;
    launch();  // sets the kernel up outside of the capture
    if (mode != Mode::kEager) {
      graphs_.push_back(cuda::Graph::capture(stream_, [&] {
        for (int i = 0; i < kKernels; ++i) launch();
      }));
    }
  }
  Seconds period() {
    begin_.record(stream_);
    if (graphs_.empty()) {
      for (int i = 0; i < kKernels; ++i) launch();
    } else {
      graphs_[0].launch(stream_);
    }
    end_.record(stream_);
    end_.synchronize();
    return (end_ - begin_) / kKernels;
  }

 private:
  void launch() {
    if (cycles_ == 0 && !shape_.programmatic) {
      cuda::launch(stream_, shape_, empty_kernel);
    } else {
      cuda::launch(stream_, shape_, busy_kernel, cycles_);
    }
  }

  cuda::Stream stream_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::LaunchShape shape_;
  long long cycles_;
  std::vector<cuda::Graph> graphs_;
};

ProbeRow period(const char* probe, Mode mode) {
  Chain chain(mode, empty_shape(), 0);
  return time_probe(probe, "empty kernels", kSamples, [&] { return chain.period(); });
}

ProbeRow gap(const char* probe, Mode mode) {
  const cuda::LaunchShape fill{
      .grid = dim3(static_cast<unsigned>(cuda::device_properties().multiProcessorCount)),
      .block = dim3(kFillThreads),
      .shared_bytes = kFillSharedBytes};
  Chain once(mode, fill, kFillCycles);
  Chain twice(mode, fill, 2 * kFillCycles);
  return time_probe(probe, "kernels that fill the GPU", kSamples,
                    [&] { return once.period() * 2 - twice.period(); });
}

Seconds enqueue_time(const cuda::Stream& stream, cuda::Gate& gate) {
  cuda::launch(stream, empty_shape(), empty_kernel);  // loaded before the gate holds the GPU
  gate.close(stream);
  const Seconds begin = host_now();
  for (int i = 0; i < kBurst; ++i) cuda::launch(stream, empty_shape(), empty_kernel);
  const Seconds end = host_now();
  gate.open();
  stream.synchronize();
  return (end - begin) / kBurst;
}

ProbeRow graph_launch() {
  const cuda::Stream stream;
  const auto graph = cuda::Graph::capture(stream, [&] {
    for (int i = 0; i < kKernels; ++i) cuda::launch(stream, empty_shape(), empty_kernel);
  });
  return time_probe("graph_launch", "1000 nodes", kSamples, [&] {
    const Seconds begin = host_now();
    graph.launch(stream);
    const Seconds end = host_now();
    stream.synchronize();
    return end - begin;
  });
}

ProbeRow d2h_sync() {
  const cuda::Stream stream;
  const cuda::DeviceBuffer<int> flag(1);
  const cuda::PinnedBuffer<int> seen(1);
  int value = 0;
  return time_probe("d2h_sync", "4 bytes", kSamples, [&] {
    *seen.get() = -1;
    ++value;
    const Seconds begin = host_now();
    cuda::launch(stream, {.grid = dim3(1), .block = dim3(1)}, flag_kernel, flag.get(), value);
    ORRERY_CUDA(
        cudaMemcpyAsync(seen.get(), flag.get(), sizeof(int), cudaMemcpyDeviceToHost, stream.get()));
    stream.synchronize();
    const Seconds end = host_now();
    if (*seen.get() != value) throw std::runtime_error("d2h_sync: the flag did not arrive");
    return end - begin;
  });
}

}  // namespace

std::vector<ProbeRow> probe_launch() {
  const cuda::Stream stream;
  cuda::Gate gate;
  std::vector<ProbeRow> rows;
  rows.push_back(time_probe("eager_enqueue", "empty kernels", kSamples,
                            [&] { return enqueue_time(stream, gate); }));
  rows.push_back(period("eager_period", Mode::kEager));
  rows.push_back(period("graph_period", Mode::kGraph));
  rows.push_back(period("graph_pdl_period", Mode::kProgrammaticGraph));
  rows.push_back(gap("eager_gap", Mode::kEager));
  rows.push_back(gap("graph_gap", Mode::kGraph));
  rows.push_back(gap("graph_pdl_gap", Mode::kProgrammaticGraph));
  rows.push_back(graph_launch());
  rows.push_back(d2h_sync());
  return rows;
}

}  // namespace orrery
