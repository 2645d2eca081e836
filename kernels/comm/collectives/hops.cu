#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/comm/collectives/hops.h"
#include "kernels/comm/collectives/measure.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/order_event.h"
#include "kernels/harness/probe.h"

namespace orrery {
namespace {

constexpr int kThreads = 1024;
constexpr std::size_t kSharedBytes = 160 * 1024;  // one block on an SM
constexpr long long kCycles = 8000;

__global__ void __launch_bounds__(kThreads) work_kernel(long long cycles) {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

void launch_work(const cuda::Stream& stream) {
  const int blocks = cuda::device_properties().multiProcessorCount;
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .shared_bytes = kSharedBytes,
                .programmatic = true},
               work_kernel, kCycles);
}

// Of one rank, on its device.
struct Side {
  cuda::Stream stream;
  cuda::OrderEvent there;
  cuda::OrderEvent back;
  cuda::DeviceBuffer<std::byte> input;
  cuda::DeviceBuffer<std::byte> output;

  explicit Side(std::size_t bytes) : input(bytes), output(bytes) {}
};

class Hops {
 public:
  Hops(std::span<const int> devices, std::int64_t most_bytes)
      : team_(devices),
        communicators_(cuda::Communicator::for_devices({devices.begin(), devices.end()})) {
    for (const int device : devices) {
      const cuda::DeviceGuard guard(device);
      sides_.push_back(std::make_unique<Side>(static_cast<std::size_t>(most_bytes)));
      gates_.push_back(std::make_unique<cuda::Gate>());
    }
  }

  [[nodiscard]] EnqueueCollective kernels(int count) const {
    return [count](int, const cuda::Stream& stream) {
      for (int i = 0; i < count; ++i) launch_work(stream);
    };
  }
  // A kernel, then `other` on another stream.
  [[nodiscard]] EnqueueCollective across(EnqueueCollective other) const {
    return [this, other = std::move(other)](int rank, const cuda::Stream& stream) {
      const Side& side = *sides_[static_cast<std::size_t>(rank)];
      launch_work(stream);
      side.there.record(stream);
      side.there.hold(side.stream);
      other(rank, side.stream);
      side.back.record(side.stream);
      side.back.hold(stream);
    };
  }
  [[nodiscard]] EnqueueCollective in_order(EnqueueCollective other) const {
    return [other = std::move(other)](int rank, const cuda::Stream& stream) {
      launch_work(stream);
      other(rank, stream);
    };
  }
  [[nodiscard]] EnqueueCollective collective(CollectiveKind kind, std::int64_t bytes) const {
    return [this, kind, bytes](int rank, const cuda::Stream& stream) {
      const auto i = static_cast<std::size_t>(rank);
      nccl_collective(communicators_[i], stream,
                      {.kind = kind,
                       .dtype = DType::kInt8,
                       .count = bytes,
                       .input = sides_[i]->input.get(),
                       .output = sides_[i]->output.get()});
    };
  }

  [[nodiscard]] std::vector<Measurement> measure(std::span<const EnqueueCollective> calls,
                                                 LaunchMode mode) const {
    return measure_collectives(team_, calls, mode);
  }

  // Host time of one call, on the slowest rank.
  [[nodiscard]] Measurement enqueue(const EnqueueCollective& call) const {
    constexpr int kCalls = 40;
    constexpr int kSamples = 11;
    std::vector<double> times;
    for (int sample = 0; sample <= kSamples; ++sample) {
      std::vector<Seconds> of_rank(static_cast<std::size_t>(team_.size()));
      team_.run([&](int rank) {
        const auto i = static_cast<std::size_t>(rank);
        gates_[i]->close(team_.stream(rank));
        const Seconds begin = host_now();
        for (int n = 0; n < kCalls; ++n) call(rank, team_.stream(rank));
        of_rank[i] = (host_now() - begin) / kCalls;
      });
      for (const auto& gate : gates_) gate->open();
      team_.synchronize();
      if (sample > 0) times.push_back(std::ranges::max(of_rank).value());
    }
    std::ranges::sort(times);
    const double median = times[times.size() / 2];
    return {.median = Seconds(median),
            .spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / median,
            .samples = kSamples,
            .launches = kCalls};
  }

 private:
  cuda::DeviceTeam team_;
  std::vector<cuda::Communicator> communicators_;
  std::vector<std::unique_ptr<Side>> sides_;
  std::vector<std::unique_ptr<cuda::Gate>> gates_;
};

}  // namespace

void measure_hops(std::span<const int> devices, const std::function<void(const HopRow&)>& row) {
  constexpr std::int64_t kMostBytes = std::int64_t{4} << 20;
  const Hops hops(devices, kMostBytes);
  for (const LaunchMode mode : {LaunchMode::kGraph, LaunchMode::kEager}) {
    const std::vector<EnqueueCollective> kernels = {hops.kernels(1), hops.kernels(2),
                                                    hops.across(hops.kernels(1))};
    const auto times = hops.measure(kernels, mode);
    row({.probe = "kernel", .mode = mode, .time = times[0]});
    row({.probe = "kernels", .mode = mode, .time = times[1]});
    row({.probe = "kernels_across", .mode = mode, .time = times[2]});
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
      for (const std::int64_t bytes : {std::int64_t{1} << 10, std::int64_t{1} << 18, kMostBytes}) {
        const EnqueueCollective call = hops.collective(kind, bytes);
        const std::vector<EnqueueCollective> calls = {call, hops.in_order(call), hops.across(call)};
        const auto found = hops.measure(calls, mode);
        const std::string name(to_text(kind));
        const char* const probes[] = {"collective", "both", "both_across"};
        for (std::size_t i = 0; i < found.size(); ++i) {
          row({.probe = probes[i],
               .mode = mode,
               .collective = name,
               .bytes = bytes,
               .time = found[i]});
        }
        if (mode == LaunchMode::kEager) {
          row({.probe = "enqueue",
               .mode = mode,
               .collective = name,
               .bytes = bytes,
               .time = hops.enqueue(call)});
        }
      }
    }
  }
}

}  // namespace orrery
