#include <cuda_runtime.h>

#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "kernels/cuda/handles.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/cuda/launch.h"
#include "kernels/probes/trace.h"

namespace orrery {
namespace {

constexpr int kChain = 300;
constexpr int kSamples = 31;
constexpr int kThreads = 128;

__device__ std::uint64_t now() {
  std::uint64_t nanoseconds = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

// One template instance per place in a chain, so that records tell them apart by name.
template <int kPlace>
__global__ void __launch_bounds__(kThreads) wait_kernel(std::uint64_t nanoseconds) {
  const std::uint64_t begin = now();
  while (now() - begin < nanoseconds) {
  }
}

__global__ void __launch_bounds__(kThreads) work_kernel(long long cycles) {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

__global__ void stamp_kernel(std::uint64_t* stamp) { *stamp = now(); }

// --- Whether records are right ---

struct Expected {
  std::string name;  // a part of it
  Seconds length;    // 0: not known
};

template <int kPlace>
Expected wait(const cuda::Stream& stream, std::uint64_t nanoseconds) {
  cuda::launch(stream, {.grid = dim3(1), .block = dim3(kThreads)}, wait_kernel<kPlace>,
               nanoseconds);
  return {.name = "wait_kernelILi" + std::to_string(kPlace),
          .length = Seconds(static_cast<double>(nanoseconds) * 1e-9)};
}

class Scene {
 public:
  // Two kernels, a copy, a memset, a kernel.
  std::vector<Expected> chain() {
    std::vector<Expected> all = {wait<0>(stream_, 20000), wait<1>(stream_, 5000)};
    ORRERY_CUDA(
        cudaMemcpyAsync(to_.get(), from_.get(), kBytes, cudaMemcpyDeviceToDevice, stream_.get()));
    ORRERY_CUDA(cudaMemsetAsync(from_.get(), 0, kBytes, stream_.get()));
    all.push_back({.name = "memcpy"});
    all.push_back({.name = "memset"});
    all.push_back(wait<2>(stream_, 50000));
    return all;
  }
  // A kernel, two on the second stream beside one on the first, one after both.
  std::vector<Expected> fork() {
    std::vector<Expected> all = {wait<0>(stream_, 5000)};
    begin_.record(stream_);
    ORRERY_CUDA(cudaStreamWaitEvent(side_.get(), begin_.get()));
    all.push_back(wait<1>(side_, 40000));
    all.push_back(wait<2>(stream_, 60000));
    all.push_back(wait<3>(side_, 10000));
    end_.record(side_);
    ORRERY_CUDA(cudaStreamWaitEvent(stream_.get(), end_.get()));
    all.push_back(wait<4>(stream_, 5000));
    return all;
  }
  [[nodiscard]] const cuda::Stream& stream() const { return stream_; }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  cuda::Stream stream_;
  cuda::Stream side_;
  cuda::Event begin_;
  cuda::Event end_;
  cuda::DeviceBuffer<std::byte> from_{kBytes};
  cuda::DeviceBuffer<std::byte> to_{kBytes};
};

std::string describe(const KernelRecord& record) {
  return record.name.substr(0, 40) + " stream " + std::to_string(record.stream) + " node " +
         std::to_string(record.graph_node) + " " +
         std::to_string(static_cast<long>(microseconds(record.end - record.start))) + " us";
}

// `records` in the order of `expected`, `rounds` times.
TraceReport compare(std::string what, const std::vector<Expected>& expected,
                    const std::vector<KernelRecord>& records, int rounds, bool is_graph) {
  constexpr double kTolerance = 4e-6;
  TraceReport report{.what = std::move(what)};
  if (records.size() != expected.size() * rounds) {
    report.faults.push_back(std::to_string(records.size()) + " records; expected " +
                            std::to_string(expected.size() * rounds));
  }
  for (std::size_t i = 0; i < std::min(records.size(), expected.size() * rounds); ++i) {
    const KernelRecord& record = records[i];
    const Expected& wanted = expected[i % expected.size()];
    const double error = std::abs((record.end - record.start - wanted.length).value());
    const bool is_right = record.name.find(wanted.name) != std::string::npos &&
                          (wanted.length.value() == 0 || error < kTolerance) &&
                          (record.graph_node != 0) == is_graph &&
                          record.is_copy == (wanted.name.starts_with("mem"));
    if (!is_right) report.faults.push_back("found " + describe(record) + " for " + wanted.name);
  }
  return report;
}

// Each round's records in the order of their nodes: the order of capture.
std::vector<KernelRecord> by_node(std::vector<KernelRecord> records, std::size_t nodes) {
  for (std::size_t first = 0; first + nodes <= records.size(); first += nodes) {
    std::ranges::sort(records.begin() + first, records.begin() + first + nodes, {},
                      &KernelRecord::graph_node);
  }
  return records;
}

std::string streams(const std::vector<KernelRecord>& records) {
  std::set<std::uint32_t> ids;
  for (const KernelRecord& record : records) ids.insert(record.stream);
  std::string text;
  for (const std::uint32_t id : ids) {
    if (!text.empty()) text += ",";
    text += std::to_string(id);
  }
  return text;
}

template <typename Record>
TraceReport check_graph(KernelTrace& trace, const Scene& scene, const cuda::Graph& graph,
                        const std::string& what, const std::vector<Expected>& expected,
                        Record&& order) {
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) graph.launch(scene.stream());
  scene.stream().synchronize();
  const std::vector<KernelRecord> records = trace.take();
  return compare(what + " (streams " + streams(records) + ")", expected, order(records), kRounds,
                 true);
}

}  // namespace

std::vector<TraceReport> check_trace() {
  Scene scene;
  static_cast<void>(scene.chain());
  static_cast<void>(scene.fork());
  scene.stream().synchronize();
  std::vector<Expected> chain;
  std::vector<Expected> fork;
  const auto early = cuda::Graph::capture(scene.stream(), [&] { chain = scene.chain(); });
  const auto early_fork = cuda::Graph::capture(scene.stream(), [&] { fork = scene.fork(); });
  const auto as_they_are = [](std::vector<KernelRecord> records) { return records; };
  const auto captured = [](std::vector<KernelRecord> records) {
    return by_node(std::move(records), 5);
  };

  std::vector<TraceReport> reports;
  for (const char* const pass : {"first trace", "second trace"}) {
    const std::string suffix = std::string(", ") + pass;
    KernelTrace trace;
    static_cast<void>(scene.chain());
    scene.stream().synchronize();
    const std::vector<KernelRecord> eager = trace.take();
    reports.push_back(
        compare("one by one (streams " + streams(eager) + ")" + suffix, chain, eager, 1, false));
    reports.push_back(
        check_graph(trace, scene, early, "graph captured before" + suffix, chain, as_they_are));
    reports.push_back(check_graph(trace, scene, early_fork, "forked graph captured before" + suffix,
                                  fork, captured));
    const auto late = cuda::Graph::capture(scene.stream(), [&] { chain = scene.chain(); });
    const auto late_fork = cuda::Graph::capture(scene.stream(), [&] { fork = scene.fork(); });
    reports.push_back(
        check_graph(trace, scene, late, "graph captured meanwhile" + suffix, chain, as_they_are));
    reports.push_back(check_graph(trace, scene, late_fork,
                                  "forked graph captured meanwhile" + suffix, fork, captured));
    if (!trace.take().empty()) reports.back().faults.push_back("records were given twice");
  }
  return reports;
}

// --- What tracing costs ---

namespace {

enum class Mode { kEager, kGraph, kProgrammaticGraph };

class Chain {
 public:
  Chain(Mode mode, unsigned blocks, long long cycles, bool with_stamps)
      : shape_{.grid = dim3(blocks),
               .block = dim3(kThreads),
               .programmatic = mode == Mode::kProgrammaticGraph},
        cycles_(cycles) {
    if (with_stamps) stamps_.emplace(kChain);
    enqueue();  // loads the kernels
    stream_.synchronize();
    if (mode != Mode::kEager) graph_.emplace(cuda::Graph::capture(stream_, [&] { enqueue(); }));
  }
  // Per kernel, of the chain.
  Seconds period() {
    begin_.record(stream_);
    if (graph_) {
      graph_->launch(stream_);
    } else {
      enqueue();
    }
    end_.record(stream_);
    end_.synchronize();
    return (end_ - begin_) / kChain;
  }

 private:
  void enqueue() {
    for (int i = 0; i < kChain; ++i) {
      cuda::launch(stream_, shape_, work_kernel, cycles_);
      if (stamps_) {
        cuda::launch(stream_, {.grid = dim3(1), .block = dim3(1)}, stamp_kernel,
                     stamps_->get() + i);
      }
    }
  }

  cuda::LaunchShape shape_;
  long long cycles_;
  std::optional<cuda::DeviceBuffer<std::uint64_t>> stamps_;
  cuda::Stream stream_;
  cuda::Event begin_;
  cuda::Event end_;
  std::optional<cuda::Graph> graph_;
};

ProbeRow recorded(const std::string& parameters, const std::vector<KernelRecord>& records) {
  std::vector<double> lengths;
  for (const KernelRecord& record : records) {
    lengths.push_back(microseconds(record.end - record.start));
  }
  return probe_row("trace_recorded", parameters, kMicroseconds, std::move(lengths));
}

}  // namespace

std::vector<ProbeRow> probe_trace() {
  struct Load {
    std::string name;
    unsigned blocks;
    long long cycles;
  };
  const auto all = static_cast<unsigned>(cuda::device_properties().multiProcessorCount);
  const std::vector<Load> loads = {{"empty", 1, 0}, {"4 us on all SMs", all, 7200}};
  const std::vector<std::pair<std::string, Mode>> modes = {
      {"eager", Mode::kEager}, {"graph", Mode::kGraph}, {"graph_pdl", Mode::kProgrammaticGraph}};
  std::vector<ProbeRow> rows;
  for (const Load& load : loads) {
    for (const auto& [mode_name, mode] : modes) {
      const std::string parameters = mode_name + " " + load.name;
      Chain chain(mode, load.blocks, load.cycles, false);
      const auto time = [&](const char* probe, Chain& timed) {
        rows.push_back(time_probe(probe, parameters, kSamples, [&] { return timed.period(); }));
      };
      time("trace_off", chain);
      {
        KernelTrace trace;
        time("trace_on", chain);
        rows.push_back(recorded(parameters, trace.take()));
        Chain meanwhile(mode, load.blocks, load.cycles, false);
        time("trace_on_captured_meanwhile", meanwhile);
      }
      time("trace_off_again", chain);
      Chain stamped(mode, load.blocks, load.cycles, true);
      time("stamped", stamped);
    }
  }
  return rows;
}

}  // namespace orrery
