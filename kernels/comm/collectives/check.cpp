#include "kernels/comm/collectives/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/comm/collectives/peer_group.h"
#include "kernels/comm/collectives/reference.h"
#include "kernels/comm/collectives/replay.h"
#include "kernels/harness/operands.h"
#include "kernels/harness/probe.h"

namespace orrery {
namespace {

using Implementation = CollectiveImplementation;

constexpr std::array kImplementations = {Implementation::kNccl, Implementation::kOneShot,
                                         Implementation::kTwoShot};
constexpr Seconds kTimeout{1.0};  // of a rank that waits for another; above any delay here
constexpr double kFp32Bound = 1e-6;

enum class Launch : std::uint8_t { kThreads, kGraph, kAscending, kDescending };

std::string_view to_text(Launch launch) {
  constexpr std::array<std::string_view, 4> kNames = {"eager", "graph", "ascending", "descending"};
  return kNames[static_cast<std::size_t>(launch)];
}

template <typename T>
double bound() {
  if constexpr (std::is_same_v<T, bf16>) return kBf16Bound;
  return std::is_same_v<T, fp16> ? kFp16Bound : kFp32Bound;
}
template <typename T>
constexpr DType kDType = std::is_same_v<T, bf16>   ? DType::kBf16
                         : std::is_same_v<T, fp16> ? DType::kFp16
                                                   : DType::kFp32;

// One call with its operands on every rank.
template <typename T>
class Case {
 public:
  Case(PeerGroup& group, CollectiveKind kind, std::int64_t count, bool in_place)
      : group_(group), kind_(kind), count_(count) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const cuda::DeviceGuard guard(group.team().devices()[rank]);
      inputs_.push_back(normal_buffer<T>(in_count(), seed(rank)));
      if (!in_place) outputs_.emplace_back(out_count());
      made_.push_back(host_double(group.team().stream(rank), inputs_[rank].get(), in_count()));
    }
    reference_ = reference::collective(kind, made_);
  }

  // NCCL rounds a partial sum at each of n-1 hops: its error is one of the partial sums, which may
  // be larger than their sum. Ours rounds once.
  void allow_rounding_of(Implementation implementation) {
    hops_ = implementation == Implementation::kNccl ? group_.size() - 1 : 1;
  }

  // As before any launch: outputs NaN.
  void reset() {
    for (int rank = 0; rank < group_.size(); ++rank) {
      const cuda::DeviceGuard guard(group_.team().devices()[rank]);
      const cuda::Stream& stream = group_.team().stream(rank);
      fill_normal(stream, inputs_[rank].get(), in_count(), seed(rank));
      if (!outputs_.empty()) poison(stream, outputs_[rank]);
      stream.synchronize();
    }
  }

  void launch(Implementation implementation, Launch how) {
    const cuda::DeviceTeam& team = group_.team();
    const auto enqueue = [&](int rank) {
      group_.enqueue(implementation, rank, team.stream(rank), call(rank));
    };
    switch (how) {
      case Launch::kThreads:
        team.run(enqueue);
        break;
      case Launch::kGraph:
        replay(implementation);
        break;
      case Launch::kAscending:
      case Launch::kDescending:
        for (int i = 0; i < team.size(); ++i) {
          const int rank = how == Launch::kAscending ? i : team.size() - 1 - i;
          const cuda::DeviceGuard guard(team.devices()[rank]);
          enqueue(rank);
        }
        break;
    }
    team.synchronize();
  }

  // `calls` of them; returns how long they took to end, by themselves or by abort().
  Seconds launch_all_but_last(Implementation implementation, int calls, bool aborts) {
    const Seconds begin = host_now();
    for (int rank = 0; rank + 1 < group_.size(); ++rank) {
      const cuda::DeviceGuard guard(group_.team().devices()[rank]);
      for (int i = 0; i < calls; ++i) {
        group_.enqueue(implementation, rank, group_.team().stream(rank), call(rank));
      }
    }
    if (aborts) group_.workspace().abort();
    group_.team().synchronize();
    return host_now() - begin;
  }

  std::vector<Difference> differences() {
    std::vector<Difference> result;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (reference_[rank].empty()) continue;
      const cuda::DeviceGuard guard(group_.team().devices()[rank]);
      const auto out = host_double(group_.team().stream(rank), output(rank), out_count());
      result.push_back(
          difference("rank " + std::to_string(rank), out, reference_[rank], bound_of(rank)));
    }
    return result;
  }

  // Whether all ranks hold the same bits.
  bool are_equal() {
    std::vector<T> first;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const cuda::DeviceGuard guard(group_.team().devices()[rank]);
      auto out = host_copy(group_.team().stream(rank), output(rank), out_count());
      if (rank == 0)
        first = std::move(out);
      else if (std::memcmp(first.data(), out.data(), out.size() * sizeof(T)) != 0)
        return false;
    }
    return true;
  }

  // Losses that differences() did not notice: a tile of each rank's input, one of each output.
  std::vector<std::string> unnoticed(Implementation implementation) {
    constexpr std::int64_t kTile = 1024;
    std::vector<std::string> result;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const cuda::DeviceGuard guard(group_.team().devices()[rank]);
      const cuda::Stream& stream = group_.team().stream(rank);
      const bool is_read =
          (kind_ != CollectiveKind::kSendRecv && kind_ != CollectiveKind::kBroadcast) || rank == 0;
      if (is_read) {
        reset();
        ORRERY_CUDA(cudaMemsetAsync(inputs_[rank].get(), 0, std::min(kTile, in_count()) * sizeof(T),
                                    stream.get()));
        stream.synchronize();
        launch(implementation, Launch::kThreads);
        if (std::ranges::all_of(differences(), &Difference::passes)) {
          result.push_back("loss of an input tile of rank " + std::to_string(rank) +
                           " not noticed");
        }
      }
      if (reference_[rank].empty()) continue;
      reset();
      launch(implementation, Launch::kThreads);
      ORRERY_CUDA(cudaMemsetAsync(output(rank), 0xFF, std::min(kTile, out_count()) * sizeof(T),
                                  stream.get()));
      stream.synchronize();
      if (std::ranges::all_of(differences(), &Difference::passes)) {
        result.push_back("loss of an output tile of rank " + std::to_string(rank) + " not noticed");
      }
    }
    return result;
  }

 private:
  [[nodiscard]] std::int64_t in_count() const { return input_count(kind_, count_, group_.size()); }
  [[nodiscard]] std::int64_t out_count() const {
    return output_count(kind_, count_, group_.size());
  }
  [[nodiscard]] double bound_of(int rank) const {
    const bool sums =
        kind_ == CollectiveKind::kAllReduce || kind_ == CollectiveKind::kReduceScatter;
    if (!sums || hops_ <= 1) return bound<T>();
    double inputs = 0;
    for (const std::vector<double>& input : made_) {
      for (const double x : input) inputs += x * x;
    }
    double sum = 0;
    for (const double x : reference_[rank]) sum += x * x;
    const double parts = static_cast<double>(in_count()) / static_cast<double>(out_count());
    return bound<T>() * hops_ * std::max(1.0, std::sqrt(inputs / parts / sum));
  }
  static std::uint64_t seed(int rank) { return 17 + rank; }
  [[nodiscard]] T* output(int rank) const {
    return outputs_.empty() ? inputs_[rank].get() : outputs_[rank].get();
  }
  [[nodiscard]] CollectiveCall call(int rank) const {
    return {.kind = kind_,
            .dtype = kDType<T>,
            .count = count_,
            .input = inputs_[rank].get(),
            .output = output(rank)};
  }
  void replay(Implementation implementation) {
    const cuda::DeviceTeam& team = group_.team();
    std::vector<std::unique_ptr<cuda::Graph>> graphs(team.size());
    team.run([&](int rank) {
      graphs[rank] = std::make_unique<cuda::Graph>(cuda::Graph::capture(team.stream(rank), [&] {
        group_.enqueue(implementation, rank, team.stream(rank), call(rank));
      }));
    });
    team.run([&](int rank) {
      graphs[rank]->launch(team.stream(rank));
      team.stream(rank).synchronize();
    });
  }

  PeerGroup& group_;
  CollectiveKind kind_;
  std::int64_t count_;
  std::vector<cuda::DeviceBuffer<T>> inputs_;
  std::vector<cuda::DeviceBuffer<T>> outputs_;  // none: in place
  std::vector<std::vector<double>> made_;
  std::vector<std::vector<double>> reference_;
  int hops_ = 1;
};

std::string describe(const PeerGroup& group, CollectiveKind kind, Implementation implementation,
                     DType dtype, std::int64_t count, std::string_view launch) {
  return std::string(to_text(kind)) + " " + std::string(to_text(implementation)) + " " +
         std::string(to_text(dtype)) + " count=" + std::to_string(count) +
         " gpus=" + std::to_string(group.size()) + " " + std::string(launch);
}

using Report = std::function<void(const CollectiveReport&)>;

template <typename T>
void check_call(PeerGroup& group, CollectiveKind kind, std::int64_t count, bool in_place,
                std::span<const Launch> launches, bool with_losses, const Report& report,
                std::span<const Implementation> implementations = kImplementations) {
  Case<T> test(group, kind, count, in_place);
  for (const Implementation implementation : implementations) {
    const bool is_nccl = implementation == Implementation::kNccl;
    if (!group.takes(implementation, {.kind = kind, .dtype = kDType<T>, .count = count})) continue;
    test.allow_rounding_of(implementation);
    for (const Launch launch : launches) {
      // One thread may not start NCCL's ranks one after the other.
      const bool one_thread = launch == Launch::kAscending || launch == Launch::kDescending;
      if (is_nccl && one_thread) continue;
      test.reset();
      test.launch(implementation, launch);
      CollectiveReport result{
          .what = describe(group, kind, implementation, kDType<T>, count,
                           std::string(to_text(launch)) + (in_place ? " in place" : "")),
          .differences = test.differences()};
      if (kind == CollectiveKind::kAllReduce && !is_nccl && !test.are_equal()) {
        result.faults.emplace_back("ranks hold different bits");
      }
      if (with_losses && launch == launches.front()) result.faults = test.unnoticed(implementation);
      report(result);
    }
  }
}

void check_all_reduce(PeerGroup& group, const Report& report) {
  constexpr std::array kBoth = {Launch::kThreads, Launch::kGraph};
  constexpr std::array kOrders = {Launch::kThreads, Launch::kGraph, Launch::kAscending,
                                  Launch::kDescending};
  constexpr auto kKind = CollectiveKind::kAllReduce;
  for (const std::int64_t count : {1, 2, 7, 8, 9, 31, 33, 1021, 4096, 8191, 65537}) {
    check_call<bf16>(group, kKind, count, false, kBoth, false, report);
  }
  check_call<bf16>(group, kKind, 524287, false, kOrders, true, report);
  check_call<bf16>(group, kKind, 524289, true, kBoth, false, report);
  check_call<bf16>(group, kKind, 5, true, kBoth, false, report);
  check_call<bf16>(group, kKind, 2000003, false, kBoth, false, report);
  for (const std::int64_t count : {1, 5, 70001}) {
    check_call<float>(group, kKind, count, false, kBoth, false, report);
    check_call<fp16>(group, kKind, count, false, kBoth, false, report);
  }
}

void check_nccl(PeerGroup& group, const Report& report) {
  constexpr std::array kBoth = {Launch::kThreads, Launch::kGraph};
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
        CollectiveKind::kSendRecv, CollectiveKind::kBroadcast}) {
    for (const std::int64_t part : {1, 1021, 70001}) {
      check_call<bf16>(group, kind, part * group.size(), false, kBoth, part == 70001, report);
    }
  }
}

// All ranks but the last make 50 calls: the others must give up after one timeout, or at once when
// aborted, and say so, and work again after reset().
void check_missing_rank(PeerGroup& group, Implementation implementation, bool aborts,
                        const Report& report) {
  constexpr std::int64_t kCount = 30011;
  constexpr int kCalls = 50;
  Case<bf16> test(group, CollectiveKind::kAllReduce, kCount, false);
  test.reset();
  CollectiveReport result{.what = describe(group, CollectiveKind::kAllReduce, implementation,
                                           DType::kBf16, kCount,
                                           aborts ? "aborted" : "after a rank that did not come")};
  const std::uint32_t before = group.workspace().calls_begun(0);
  const Seconds time = test.launch_all_but_last(implementation, kCalls, aborts);
  const Seconds most = aborts ? kTimeout * 0.5 : kTimeout * 1.5;
  if (time > most) {
    result.faults.push_back("took " + std::to_string(time.value()) + " s, at most " +
                            std::to_string(most.value()) + " s expected");
  }
  for (int rank = 0; rank + 1 < group.size(); ++rank) {
    const std::uint32_t call = group.workspace().timed_out(rank);
    if (call != (aborts ? kAllReduceAborted : before + 1)) {
      result.faults.push_back("rank " + std::to_string(rank) + " gave up in call " +
                              std::to_string(call) + ", not in the first, " +
                              std::to_string(before + 1));
    }
  }
  group.workspace().reset();
  test.reset();
  test.launch(implementation, Launch::kThreads);
  result.differences = test.differences();
  report(result);
}

}  // namespace

bool CollectiveReport::passes() const {
  return faults.empty() && std::ranges::all_of(differences, &Difference::passes);
}

void check_collectives(std::span<const int> devices, const Report& report) {
  constexpr int kReplays = 1000;
  PeerGroup group(devices, {.timeout = kTimeout});
  check_all_reduce(group, report);
  check_nccl(group, report);
  CollectiveReport replays{.what = "all_reduce orrery bf16 gpus=" + std::to_string(group.size()) +
                                   " " + std::to_string(kReplays) + " replays"};
  const std::int64_t errors = replay_errors(group, kReplays);
  if (errors != 0) replays.faults.push_back(std::to_string(errors) + " wrong sums");
  report(replays);
  for (const Implementation implementation : {Implementation::kOneShot, Implementation::kTwoShot}) {
    check_missing_rank(group, implementation, false, report);
    check_missing_rank(group, implementation, true, report);
  }
}

void check_small_collectives(std::span<const int> devices, const Report& report) {
  constexpr auto kKind = CollectiveKind::kAllReduce;
  constexpr Seconds kSlow{60};
  constexpr std::int64_t kOneShotBytes = std::int64_t{64} << 10;
  constexpr std::int64_t kTwoShotBytes = std::int64_t{1} << 20;
  constexpr std::array kOwn = {Implementation::kOneShot, Implementation::kTwoShot};
  constexpr std::array kBoth = {Launch::kThreads, Launch::kGraph};
  PeerGroup group(
      devices,
      {.one_shot_bytes = kOneShotBytes, .two_shot_bytes = kTwoShotBytes, .timeout = kSlow});
  for (const std::int64_t count : {1, 33, 8191, 65537}) {
    check_call<bf16>(group, kKind, count, count == 33, kBoth, false, report, kOwn);
  }
  check_call<float>(group, kKind, 1021, false, kBoth, false, report, kOwn);
  check_call<fp16>(group, kKind, 1021, false, kBoth, false, report, kOwn);
}

}  // namespace orrery
