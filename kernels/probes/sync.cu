#include <array>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/order_event.h"
#include "kernels/probes/sync.h"

namespace orrery {
namespace {

constexpr int kSamples = 51;
constexpr int kHops = 200;   // three entries of the launch queue (1,024) each
constexpr int kForks = 250;  // four nodes each

__global__ void empty_kernel() {}

void launch_empty(const cuda::Stream& stream) {
  empty_kernel<<<1, 32, 0, stream.get()>>>();
  ORRERY_CUDA(cudaPeekAtLastError());
}

// Device time per hop; with `crosses` every kernel runs on the other stream than the one before.
class Hops {
 public:
  explicit Hops(bool crosses) : crosses_(crosses) {
    launch_empty(streams_[0]);  // loaded before a gate holds the GPU
  }
  Seconds period() {
    gate_.close(streams_[0]);
    begin_.record(streams_[0]);
    ready_.back().record(streams_[0]);
    const cuda::OrderEvent* before = &ready_.back();
    int side = 0;
    for (int i = 0; i < kHops; ++i) {
      if (crosses_) {
        side = 1 - side;
        before->hold(streams_[side]);
      }
      launch_empty(streams_[side]);
      if (crosses_) {
        before = &ready_[i];
        before->record(streams_[side]);
      }
    }
    end_.record(streams_[side]);
    gate_.open();
    end_.synchronize();
    return (end_ - begin_) / kHops;
  }

 private:
  static_assert(kHops % 2 == 0, "the last hop ends where the gate stands");
  bool crosses_;
  std::array<cuda::Stream, 2> streams_;
  std::array<cuda::OrderEvent, kHops + 1> ready_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::Gate gate_;
};

// Device time per four kernels of a replayed graph: in a row, or the middle two side by side.
class Forks {
 public:
  explicit Forks(bool forks)
      : graph_(cuda::Graph::capture(stream_, [&] {
          for (int i = 0; i < kForks; ++i) {
            launch_empty(stream_);
            if (forks) fork_.record(stream_);
            if (forks) fork_.hold(side_);
            launch_empty(stream_);
            launch_empty(forks ? side_ : stream_);
            if (forks) join_.record(side_);
            if (forks) join_.hold(stream_);
            launch_empty(stream_);
          }
        })) {}
  Seconds period() {
    begin_.record(stream_);
    graph_.launch(stream_);
    end_.record(stream_);
    end_.synchronize();
    return (end_ - begin_) / kForks;
  }

 private:
  cuda::Stream stream_;
  cuda::Stream side_;
  cuda::OrderEvent fork_;
  cuda::OrderEvent join_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::Graph graph_;
};

// Host time of one call of `enqueue` on a stream held shut.
template <typename Enqueue>
ProbeRow enqueue_row(const char* probe, Enqueue&& enqueue) {
  const cuda::Stream stream;
  cuda::Gate gate;
  return time_probe(probe, "host", kSamples, [&] {
    gate.close(stream);
    const Seconds begin = host_now();
    for (int i = 0; i < kHops; ++i) enqueue(stream);
    const Seconds end = host_now();
    gate.open();
    stream.synchronize();
    return (end - begin) / kHops;
  });
}

}  // namespace

std::vector<ProbeRow> probe_sync() {
  std::vector<ProbeRow> rows;
  const cuda::OrderEvent event;
  const cuda::Stream other;
  rows.push_back(
      enqueue_row("event_record", [&](const cuda::Stream& stream) { event.record(stream); }));
  event.record(other);
  rows.push_back(
      enqueue_row("stream_wait", [&](const cuda::Stream& stream) { event.hold(stream); }));
  for (const bool crosses : {true, false}) {
    Hops hops(crosses);
    rows.push_back(time_probe(crosses ? "eager_hop" : "eager_in_order", "empty kernels", kSamples,
                              [&] { return hops.period(); }));
  }
  for (const bool side_by_side : {true, false}) {
    Forks forks(side_by_side);
    rows.push_back(time_probe(side_by_side ? "graph_fork" : "graph_in_order", "four empty kernels",
                              kSamples, [&] { return forks.period(); }));
  }
  return rows;
}

}  // namespace orrery
