#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "kernels/cuda/handles.h"
#include "kernels/probe_launch/probe_launch.h"

namespace orrery {
namespace {

constexpr int kKernels = 1000;  // per graph or burst: long enough that the ends do not show
constexpr int kSamples = 51;
constexpr int kWarmup = 5;
constexpr int kBurst =
    200;  // below the depth of the launch queue (1,024), so enqueueing never waits

__global__ void empty_kernel() {}

// Keeps its stream shut until the host sets *gate.
__global__ void wait_kernel(const volatile int* gate) {
  while (*gate == 0) {
  }
}

__global__ void flag_kernel(int* flag, int value) { *flag = value; }

void launch_empty(const cuda::Stream& stream) {
  empty_kernel<<<1, 32, 0, stream.get()>>>();
  ORRERY_CUDA(cudaPeekAtLastError());
}

Seconds host_now() {
  return Seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Median and relative interquartile range of `sample`() over kSamples calls after kWarmup.
template <typename Sample>
ProbeRow measure(std::string probe, Sample&& sample) {
  std::vector<double> times;
  for (int i = 0; i < kWarmup + kSamples; ++i) {
    const Seconds time = sample(i);
    if (i >= kWarmup) times.push_back(time.value());
  }
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  const double range = times[times.size() * 3 / 4] - times[times.size() / 4];
  return {.probe = std::move(probe),
          .median = Seconds(median),
          .spread = range / median,
          .samples = kSamples};
}

Seconds enqueue_time(const cuda::Stream& stream, const cuda::PinnedBuffer<int>& gate) {
  volatile int* const open = gate.get();
  *open = 0;
  wait_kernel<<<1, 1, 0, stream.get()>>>(gate.get());
  ORRERY_CUDA(cudaPeekAtLastError());
  const Seconds begin = host_now();
  for (int i = 0; i < kBurst; ++i) launch_empty(stream);
  const Seconds end = host_now();
  *open = 1;
  stream.synchronize();
  return (end - begin) / kBurst;
}

}  // namespace

std::vector<ProbeRow> probe_launch() {
  const cuda::Stream stream;
  const cuda::Event begin;
  const cuda::Event end;
  const cuda::PinnedBuffer<int> gate(1);
  std::vector<ProbeRow> rows;

  rows.push_back(measure("eager_enqueue", [&](int) { return enqueue_time(stream, gate); }));

  rows.push_back(measure("eager_period", [&](int) {
    begin.record(stream);
    for (int i = 0; i < kKernels; ++i) launch_empty(stream);
    end.record(stream);
    end.synchronize();
    return (end - begin) / kKernels;
  }));

  const auto graph = cuda::Graph::capture(stream, [&] {
    for (int i = 0; i < kKernels; ++i) launch_empty(stream);
  });
  rows.push_back(measure("graph_period", [&](int) {
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    end.synchronize();
    return (end - begin) / kKernels;
  }));
  rows.push_back(measure("graph_launch", [&](int) {
    const Seconds start = host_now();
    graph.launch(stream);
    const Seconds stop = host_now();
    stream.synchronize();
    return stop - start;
  }));

  const cuda::DeviceBuffer<int> flag(1);
  const cuda::PinnedBuffer<int> seen(1);
  rows.push_back(measure("d2h_sync", [&](int sample) {
    *seen.get() = -1;
    const Seconds start = host_now();
    flag_kernel<<<1, 1, 0, stream.get()>>>(flag.get(), sample);
    ORRERY_CUDA(cudaPeekAtLastError());
    ORRERY_CUDA(
        cudaMemcpyAsync(seen.get(), flag.get(), sizeof(int), cudaMemcpyDeviceToHost, stream.get()));
    stream.synchronize();
    const Seconds stop = host_now();
    if (*seen.get() != sample) throw std::runtime_error("d2h_sync: the flag did not arrive");
    return stop - start;
  }));
  return rows;
}

}  // namespace orrery
