#include "kernels/probes/power_limit.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "kernels/cuda/nvml.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/probe.h"

namespace orrery {
namespace {

constexpr std::int64_t kSize = 8192;
constexpr std::int64_t kWide = 24576;
constexpr std::size_t kCopyBytes = std::size_t{1} << 31;
constexpr Seconds kPause{0.3};
constexpr Seconds kSeries{0.5};
constexpr Seconds kBefore{0.2};
constexpr Seconds kEarly{0.03};
constexpr double kLonger = 1.05;
constexpr std::size_t kMostAhead = 32;  // calls that are queued

struct Part {
  int count = 1;
  std::string_view kernel;
};
struct Series {
  std::vector<Part> parts;
  std::string_view before;  // runs ahead of it; empty: nothing, after a pause
};
// Those of a quick run first.
constexpr std::size_t kQuick = 6;
const std::vector<Series>& all_series() {
  static const std::vector<Series> series{
      {.parts = {{1, "bf16"}}},
      {.parts = {{1, "fp8"}}},
      {.parts = {{6, "bf16"}, {1, "attention"}}},
      {.parts = {{6, "fp8"}, {2, "attention"}}},
      {.parts = {{1, "bf16"}, {1, "copy"}}},
      {.parts = {{1, "wide 64"}}, .before = "bf16"},
      {.parts = {{1, "attention"}}},
      {.parts = {{1, "bf16"}, {3, "copy"}}},
      {.parts = {{1, "copy"}}},
      {.parts = {{1, "wide 256"}}},
      {.parts = {{1, "wide 64"}}},
  };
  return series;
}

std::string name_of(const Series& series) {
  std::string name;
  const bool is_alone = series.parts.size() == 1;
  for (const Part& part : series.parts) {
    if (!name.empty()) name += ", ";
    if (!is_alone) name += std::to_string(part.count) + " ";
    name += part.kernel;
  }
  if (!series.before.empty()) name.append(", after ").append(series.before);
  return name;
}

KernelOp gemm(DType dtype, std::int64_t m, std::int64_t n) {
  return {.kernel = "gemm", .dtype = dtype, .dims = {{"m", m}, {"n", n}, {"k", kSize}}};
}

// Launches by name, each on operands of its own.
class Launches {
 public:
  Launches() : source_(kCopyBytes), target_(kCopyBytes) {
    constexpr int kWideSets = 4;  // 1.6 GB of weights: none stays in the L2 cache
    add("bf16", gemm(DType::kBf16, kSize, kSize), 1);
    add("fp8", gemm(DType::kFp8, kSize, kSize), 1);
    add("wide 256", gemm(DType::kBf16, 256, kWide), kWideSets);
    add("wide 64", gemm(DType::kBf16, 64, kWide), kWideSets);
    add("attention",
        {.kernel = "attention_prefill",
         .dtype = DType::kBf16,
         .dims = {{"batch", 1},
                  {"query", kSize},
                  {"context", 0},
                  {"heads", 32},
                  {"kv_heads", 8},
                  {"head_dim", 128},
                  {"window", std::int64_t{1} << 30}}},
        1);
  }

  void launch(std::string_view kernel, const cuda::Stream& stream) {
    if (kernel == "copy") {
      ORRERY_CUDA(cudaMemcpyAsync(target_.get(), source_.get(), kCopyBytes,
                                  cudaMemcpyDeviceToDevice, stream.get()));
      return;
    }
    Case& one = cases_.at(std::string(kernel));
    one.kernel_case->launch(stream, one.next);
    one.next = (one.next + 1) % one.kernel_case->num_sets();
  }

 private:
  struct Case {
    std::unique_ptr<KernelCase> kernel_case;
    int next = 0;
  };
  void add(const std::string& name, const KernelOp& op, int sets) {
    cases_[name].kernel_case = gpu_kernel(op.kernel).make_case(op, {.sets = sets});
  }

  std::map<std::string, Case> cases_;
  cuda::DeviceBuffer<std::byte> source_;
  cuda::DeviceBuffer<std::byte> target_;
};

struct Call {
  std::string_view kernel;
  double begin = 0;
  double time = 0;
};

// The kernels in turn for so long, the host never more than kMostAhead calls ahead.
std::vector<Call> run(Launches& launches, const std::vector<std::string_view>& turn,
                      Seconds duration, const cuda::Stream& stream) {
  std::vector<cuda::Event> events(1);
  events.front().record(stream);
  const Seconds begin = host_now();
  while (host_now() - begin < duration) {
    launches.launch(turn[(events.size() - 1) % turn.size()], stream);
    events.emplace_back();
    events.back().record(stream);
    if (events.size() > kMostAhead) events[events.size() - kMostAhead].synchronize();
  }
  events.back().synchronize();
  std::vector<Call> calls;
  double at = 0;
  for (std::size_t i = 1; i < events.size(); ++i) {
    const double time = (events[i] - events[i - 1]).value();
    calls.push_back({.kernel = turn[(i - 1) % turn.size()], .begin = at, .time = time});
    at += time;
  }
  return calls;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

PowerLimitRow summary(std::string_view kernel, const std::vector<Call>& calls) {
  PowerLimitRow row{.kernel = std::string(kernel)};
  std::vector<double> early;
  std::vector<double> own;
  double all = 0;
  double sum = 0;
  for (const Call& call : calls) {
    all += call.time;
    if (call.kernel != kernel) continue;
    sum += call.time;
    own.push_back(call.time);
    if (call.begin < kEarly.value() || early.empty()) early.push_back(call.time);
  }
  row.early = Seconds(median(early));
  row.late =
      Seconds(median({own.begin() + static_cast<std::ptrdiff_t>(own.size() / 2), own.end()}));
  row.share = sum / all;
  row.calls = static_cast<int>(own.size());
  const auto slow = std::ranges::find_if(calls, [&](const Call& call) {
    return call.kernel == kernel && call.begin > kEarly.value() &&
           call.time > kLonger * row.early.value();
  });
  if (slow != calls.end()) row.onset = Seconds(slow->begin);
  return row;
}

double clock_now() {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  try {
    return cuda::Board::of_device(device).sm_clock_mhz();
  } catch (const std::runtime_error&) {
    return 0;  // no NVML: not known
  }
}

}  // namespace

std::vector<PowerLimitRow> probe_power_limit(bool quick) {
  Launches launches;
  const cuda::Stream stream;
  for (const std::string_view kernel :
       {"bf16", "fp8", "wide 256", "wide 64", "attention", "copy"}) {
    launches.launch(kernel, stream);  // its code is loaded
  }
  stream.synchronize();
  std::vector<PowerLimitRow> rows;
  for (std::size_t i = 0; i < (quick ? kQuick : all_series().size()); ++i) {
    const Series& series = all_series()[i];
    std::this_thread::sleep_for(std::chrono::duration<double>(kPause.value()));
    if (!series.before.empty()) run(launches, {series.before}, kBefore, stream);
    std::vector<std::string_view> turn;
    for (const Part& part : series.parts) {
      turn.insert(turn.end(), static_cast<std::size_t>(part.count), part.kernel);
    }
    const std::vector<Call> calls = run(launches, turn, quick ? kSeries / 2 : kSeries, stream);
    const double clock = clock_now();
    for (const Part& part : series.parts) {
      rows.push_back(summary(part.kernel, calls));
      rows.back().series = name_of(series);
      rows.back().sm_clock_mhz = clock;
    }
  }
  return rows;
}

}  // namespace orrery
