#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/harness/measure.h"

namespace orrery {
namespace {

// Launches in one sample: 0.5 ms of them, at least 20 but not more than 2 ms, at least 1. The ends
// of a replay (about 2 us) are then below 0.1 % of a sample of 2 ms, and 200 is below the depth of
// the launch queue (1,024).
constexpr Seconds kSampleTime{5e-4};
constexpr Seconds kLongestSample{2e-3};
constexpr double kEnoughLaunches = 20;
constexpr int kMinLaunches = 1;
constexpr int kMaxLaunches = 200;
// Refused samples after which measure() gives up, unless more were kept.
constexpr int kMaxDiscarded = 1000;

int launches_per_sample(Seconds one) {
  const double wanted =
      std::max(kSampleTime / one, std::min(kEnoughLaunches, kLongestSample / one));
  return std::clamp(static_cast<int>(std::ceil(wanted)), kMinLaunches, kMaxLaunches);
}

// Keeps its stream shut until the host sets *gate, so that the launches behind it are all queued.
__global__ void wait_kernel(const volatile int* gate) {
  while (*gate == 0) {
  }
}

class Sampler {
 public:
  Sampler(KernelCase& kernel_case, const MeasureOptions& options)
      : case_(kernel_case), options_(options), gate_(1) {
    // Before any gated burst: the first launch of a kernel loads its code, which waits for running
    // kernels, so that behind a closed gate it would wait for ever.
    case_.launch(stream_, 0);
    stream_.synchronize();
    launches_ = launches_per_sample(eager(3));
  }
  [[nodiscard]] int launches() const { return launches_; }
  // Whether the last sample counts.
  [[nodiscard]] bool is_kept() const { return is_kept_; }

  // Mean time of one launch in one replay or burst.
  Seconds sample() {
    if (options_.mode == LaunchMode::kEager) return eager(launches_);
    if (graphs_.empty()) capture();
    begin_.record(stream_);
    replay();
    end_.record(stream_);
    return finish(launches_);
  }

  // Enqueues one replay.
  void replay() {
    if (graphs_.empty()) capture();
    graphs_[next_graph_].launch(stream_);
    next_graph_ = (next_graph_ + 1) % graphs_.size();
  }
  [[nodiscard]] const cuda::Stream& stream() const { return stream_; }

 private:
  Seconds finish(int launches) {
    is_kept_ = !options_.keep_sample || options_.keep_sample();
    end_.synchronize();
    return (end_ - begin_) / launches;
  }

  int next_set() {
    if (options_.l2 == L2State::kWarm) return 0;
    const int set = set_;
    set_ = (set_ + 1) % case_.num_sets();
    return set;
  }

  // As many graphs as it takes to come round to every set.
  void capture() {
    const int rounds =
        options_.l2 == L2State::kWarm ? 1 : (case_.num_sets() + launches_ - 1) / launches_;
    for (int i = 0; i < rounds; ++i) {
      graphs_.push_back(cuda::Graph::capture(stream_, [&] {
        for (int launch = 0; launch < launches_; ++launch) case_.launch(stream_, next_set());
      }));
    }
  }

  Seconds eager(int launches) {
    volatile int* const open = gate_.get();
    *open = 0;
    wait_kernel<<<1, 1, 0, stream_.get()>>>(gate_.get());
    ORRERY_CUDA(cudaPeekAtLastError());
    begin_.record(stream_);
    try {
      for (int launch = 0; launch < launches; ++launch) case_.launch(stream_, next_set());
    } catch (...) {  // the stream must open before the error leaves
      *open = 1;
      throw;
    }
    end_.record(stream_);
    *open = 1;
    return finish(launches);
  }

  KernelCase& case_;
  MeasureOptions options_;
  cuda::Stream stream_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::PinnedBuffer<int> gate_;
  std::vector<cuda::Graph> graphs_;
  std::size_t next_graph_ = 0;
  int set_ = 0;
  int launches_ = 1;
  bool is_kept_ = true;
};

}  // namespace

int sets_for(Bytes bytes) {
  constexpr double kMost = 512;
  const double l2 = cuda::device_properties().l2CacheSize;
  return static_cast<int>(std::clamp(std::ceil(2 * l2 / std::max(bytes.value(), 1.0)), 1.0, kMost));
}

Measurement measure(KernelCase& kernel_case, const MeasureOptions& options) {
  Sampler sampler(kernel_case, options);
  std::vector<double> times;
  Seconds spent;
  constexpr int kWarmup = 2;
  for (int i = 0; i < kWarmup; ++i) sampler.sample();
  double spread = 0;
  int discarded = 0;
  while (true) {
    const Seconds time = sampler.sample();
    if (!sampler.is_kept()) {
      if (++discarded > kMaxDiscarded + static_cast<int>(times.size())) {
        throw std::runtime_error("the GPU is throttled: " + std::to_string(discarded) +
                                 " samples discarded");
      }
      continue;
    }
    spent += time * sampler.launches();
    times.insert(std::ranges::upper_bound(times, time.value()), time.value());
    const double median = times[times.size() / 2];
    spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / median;
    const bool enough = static_cast<int>(times.size()) >= options.min_samples;
    if (enough && (spread <= options.spread || spent >= options.budget)) break;
  }
  return {.median = Seconds(times[times.size() / 2]),
          .spread = spread,
          .samples = static_cast<int>(times.size()),
          .launches = sampler.launches(),
          .discarded = discarded};
}

void run_sustained(KernelCase& kernel_case, const std::function<bool(std::int64_t)>& tick) {
  constexpr int kReplaysAhead = 2;
  Sampler sampler(kernel_case, {});
  std::vector<cuda::Event> finished(kReplaysAhead);
  for (std::int64_t replay = 0;; ++replay) {
    const cuda::Event& event = finished[static_cast<std::size_t>(replay % kReplaysAhead)];
    if (replay >= kReplaysAhead) {
      event.synchronize();  // of the replay that used it before
      if (!tick((replay - kReplaysAhead + 1) * sampler.launches())) break;
    }
    sampler.replay();
    event.record(sampler.stream());
  }
  sampler.stream().synchronize();
}

}  // namespace orrery
