#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/experts/fused_moe/rank_set.h"
#include "kernels/experts/fused_moe/ranked_layer.h"
#include "kernels/experts/fused_moe/ranks.h"
#include "kernels/experts/fused_moe/traced.h"

namespace orrery {
namespace {

constexpr int kRuns = 7;
constexpr int kBefore = 3;  // launches ahead of each that is timed: ranks begin it together

using Records = std::vector<fused_moe::TraceRecords>;  // of ranks

template <typename T>
class TracedLayer {
 public:
  TracedLayer(std::span<const int> devices, const FusedMoeShape& shape, int sets)
      : set_(devices),
        sets_(sets),
        layer_(set_, shape, std::vector(devices.size(), shape.tokens), sets_) {
    for (const int rank : set_.here()) {
      const cuda::DeviceGuard guard(set_.device(rank));
      memory_.push_back(std::make_unique<FusedMoeTraceMemory>(shape));
    }
  }

  // The time of the rank that waited least; `records` of ranks where the last launch is traced.
  Seconds run(Records* records) const {
    std::vector<Seconds> times(memory_.size());
    set_.run([&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      const FusedMoeTraceMemory& memory = *memory_[at];
      const cuda::Stream& stream = set_.stream(rank);
      const cuda::Event start;
      const cuda::Event end;
      memory.clear(stream);
      for (int i = 0; i < kBefore; ++i) layer_.launch(rank, i % sets_);
      start.record(stream);
      layer_.launch(rank, kBefore % sets_, records == nullptr ? nullptr : &memory);
      end.record(stream);
      end.synchronize();
      times[at] = end - start;
      layer_.plan().require_finished(stream, rank);
      if (records != nullptr) (*records)[at] = memory.read(stream);
    });
    return std::ranges::min(times);
  }
  [[nodiscard]] std::size_t num_ranks() const { return memory_.size(); }
  // Of the last launch, with weights of the first set.
  [[nodiscard]] std::vector<Difference> differences() const { return layer_.differences(); }

 private:
  RankSet set_;
  int sets_;
  RankedLayer<T> layer_;
  std::vector<std::unique_ptr<FusedMoeTraceMemory>> memory_;
};

template <typename T>
FusedMoeTraced traced_of(std::span<const int> devices, const FusedMoeShape& shape) {
  struct Run {
    Seconds time;
    Records records;
  };
  const TracedLayer<T> layer(devices, shape, RankedLayer<T>::cold_sets(shape));
  std::vector<Seconds> untraced;
  std::vector<Run> traced;
  for (int i = -1; i < kRuns; ++i) {  // the first loads code
    const Seconds without = layer.run(nullptr);
    Run run{.time = {}, .records = Records(layer.num_ranks())};
    run.time = layer.run(&run.records);
    if (i < 0) continue;
    untraced.push_back(without);
    traced.push_back(std::move(run));
  }
  std::ranges::sort(untraced);
  std::ranges::sort(traced, {}, &Run::time);
  const Run& median = traced[kRuns / 2];
  FusedMoeTraced found{.ranks = {}, .traced = median.time, .untraced = untraced[kRuns / 2]};
  for (const fused_moe::TraceRecords& records : median.records) {
    found.ranks.push_back(fused_moe_spans(records));
  }
  return found;
}

// Tasks that are not there once, and times that are not in order.
std::vector<std::string> faults_of(const std::vector<FusedMoeSpan>& spans) {
  std::vector<std::string> faults;
  std::map<int, int> tasks[2];  // of each layer by tile
  std::set<int> tickets;
  for (const FusedMoeSpan& span : spans) {
    if (span.what != "task") continue;
    ++tasks[span.layer - 1][span.tile];
    const bool is_new = tickets.insert(span.ticket).second;
    const bool is_in_order = span.taken <= span.turn && span.turn <= span.ready &&
                             span.ready <= span.begin && span.begin <= span.end &&
                             span.end <= span.counted;
    if (!is_new || !is_in_order) {
      faults.push_back("ticket " + std::to_string(span.ticket) +
                       (is_new ? " is not in order" : " is there twice"));
    }
  }
  for (const auto& of_layer : tasks) {
    const auto differs = [&](const auto& tile) { return tile.second != of_layer.begin()->second; };
    if (of_layer.empty() || std::ranges::any_of(of_layer, differs)) {
      faults.emplace_back("tiles have not as many tasks each");
    }
  }
  if (tasks[0].size() != tasks[1].size()) faults.emplace_back("layers have not the same tiles");
  if (!tickets.empty() && *tickets.rbegin() + 1 != std::ssize(tickets)) {
    faults.push_back("tickets up to " + std::to_string(*tickets.rbegin()) + ", but " +
                     std::to_string(tickets.size()) + " of them");
  }
  return faults;
}

template <typename T>
void check_traced(std::span<const int> devices,
                  const std::function<void(const FusedMoeReport&)>& report) {
  const auto ranks = std::ssize(devices);
  const FusedMoeShape shape{.tokens = 700,
                            .hidden = 512,
                            .ffn = 384,
                            .experts = 8 * ranks,
                            .topk = 2,
                            .normalises = true,
                            .is_fp8 = sizeof(T) == 1,
                            .ranks = ranks};
  const TracedLayer<T> layer(devices, shape, /*sets=*/1);
  Records records(layer.num_ranks());
  layer.run(&records);
  FusedMoeReport result{.what = std::string("fused_moe traced, ") +
                                (shape.is_fp8 ? "fp8" : "bf16") + ", ranks " +
                                std::to_string(ranks),
                        .differences = layer.differences(),
                        .faults = {}};
  for (const fused_moe::TraceRecords& of_rank : records) {
    for (std::string& fault : faults_of(fused_moe_spans(of_rank))) {
      result.faults.push_back(std::move(fault));
    }
  }
  report(result);
}

}  // namespace

void check_traced_fused_moe(std::span<const int> devices,
                            const std::function<void(const FusedMoeReport&)>& report) {
  check_traced<bf16>(devices, report);
  check_traced<fp8>(devices, report);
}

FusedMoeTraced trace_fused_moe_ranks(std::span<const int> devices, const FusedMoeShape& shape) {
  return shape.is_fp8 ? traced_of<fp8>(devices, shape) : traced_of<bf16>(devices, shape);
}

}  // namespace orrery
