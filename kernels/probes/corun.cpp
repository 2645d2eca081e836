#include "kernels/probes/corun.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/nvml.h"

namespace orrery {
namespace {

constexpr Seconds kChunk{1e-3};  // alone; one graph, so that launching it is no part of the time
constexpr int kChunks = 12;
constexpr int kRepeats = 3;
constexpr double kSettle = 0.1;  // of the common stretch is dropped at its start

// One load on a stream of its own, in chunks with an event after each.
class Side {
 public:
  explicit Side(const LoadKind& kind) : load_(kind.make()), marks_(kChunks + 1) {
    load_->launch(stream_);  // loads the kernel outside of the capture
    marks_[0].record(stream_);
    load_->launch(stream_);
    marks_[1].record(stream_);
    marks_[1].synchronize();
    const Seconds one = marks_[1] - marks_[0];
    launches_ = std::clamp(static_cast<int>(std::lround(kChunk / one)), 1, 200);
    graph_.push_back(cuda::Graph::capture(stream_, [&] {
      for (int i = 0; i < launches_; ++i) load_->launch(stream_);
    }));
  }
  [[nodiscard]] const cuda::Stream& stream() const { return stream_; }

  void enqueue() {
    marks_[0].record(stream_);
    for (int i = 1; i <= kChunks; ++i) {
      graph_[0].launch(stream_);
      marks_[static_cast<std::size_t>(i)].record(stream_);
    }
  }
  void synchronize() const { marks_.back().synchronize(); }
  // Dates of the chunks' ends, the first one's start before them, after `begin`.
  [[nodiscard]] std::vector<double> dates(const cuda::Event& begin) const {
    std::vector<double> result;
    result.reserve(marks_.size());
    for (const cuda::Event& mark : marks_) result.push_back((mark - begin).value());
    return result;
  }
  // Launches ended by `date` (a part of one counts as that part).
  [[nodiscard]] double launches_by(std::span<const double> dates, double date) const {
    const auto next = std::ranges::upper_bound(dates, date);
    if (next == dates.begin()) return 0;
    const auto chunk = static_cast<double>(next - dates.begin()) - 1;
    if (next == dates.end()) return chunk * launches_;
    const double before = *(next - 1);
    return (chunk + (date - before) / (*next - before)) * launches_;
  }

  // One launch, on average over the chunks but the first.
  Seconds run_alone() {
    enqueue();
    synchronize();
    return (marks_.back() - marks_[1]) / ((kChunks - 1) * launches_);
  }

 private:
  std::unique_ptr<Load> load_;
  cuda::Stream stream_;
  std::vector<cuda::Event> marks_;
  std::vector<cuda::Graph> graph_;
  int launches_ = 1;
};

struct Times {  // of one launch
  double first_alone = 0;
  double second_alone = 0;
  double first = 0;
  double second = 0;
};

// Each alone and then both, one after the other, so that all are taken at the same temperature.
Times run_once(Side& a, Side& b, const std::optional<cuda::Board>& board, double& clock) {
  Times times{.first_alone = a.run_alone().value(), .second_alone = b.run_alone().value()};
  cuda::Gate gate;
  const cuda::Event begin;
  begin.record(a.stream());
  gate.close(a.stream());
  gate.close(b.stream());
  a.enqueue();
  b.enqueue();
  gate.open();
  if (board) clock = board->sm_clock_mhz();
  a.synchronize();
  b.synchronize();
  const auto dates_a = a.dates(begin);
  const auto dates_b = b.dates(begin);
  const double start = std::max(dates_a.front(), dates_b.front());
  const double end = std::min(dates_a.back(), dates_b.back());
  const double from = start + kSettle * (end - start);
  const auto time_per_launch = [&](const Side& side, std::span<const double> dates) {
    return (end - from) / (side.launches_by(dates, end) - side.launches_by(dates, from));
  };
  times.first = time_per_launch(a, dates_a);
  times.second = time_per_launch(b, dates_b);
  return times;
}

CoRunRow run_pair(const LoadKind& first, Side& a, const LoadKind& second, Side& b,
                  const std::optional<cuda::Board>& board) {
  CoRunRow row;
  std::vector<Times> runs;
  runs.reserve(kRepeats);
  for (int i = 0; i < kRepeats; ++i) runs.push_back(run_once(a, b, board, row.sm_clock_mhz));
  const auto median = [&](double Times::* time) {
    std::ranges::sort(runs, {}, time);
    return Seconds(runs[runs.size() / 2].*time);
  };
  row.second = {.load = second.name,
                .alone = median(&Times::second_alone),
                .together = median(&Times::second)};
  row.first = {
      .load = first.name, .alone = median(&Times::first_alone), .together = median(&Times::first)};
  row.spread = (runs.back().first - runs.front().first) / row.first.together.value();
  row.repeats = kRepeats;
  return row;
}

std::optional<cuda::Board> board_if_any() {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  try {
    return cuda::Board::of_device(device);
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
}

}  // namespace

void co_run(std::string_view prefix, const std::function<void(const CoRunRow&)>& on_row) {
  const std::vector<LoadKind> kinds = load_kinds();
  const auto board = board_if_any();
  std::vector<std::unique_ptr<Side>> sides;
  sides.reserve(kinds.size());
  for (const LoadKind& kind : kinds) sides.push_back(std::make_unique<Side>(kind));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (std::size_t j = i; j < kinds.size(); ++j) {
      if (!kinds[i].name.starts_with(prefix) && !kinds[j].name.starts_with(prefix)) continue;
      if (i != j) {
        on_row(run_pair(kinds[i], *sides[i], kinds[j], *sides[j], board));
      } else {
        Side twin(kinds[i]);
        on_row(run_pair(kinds[i], *sides[i], kinds[i], twin, board));
      }
    }
  }
}

}  // namespace orrery
