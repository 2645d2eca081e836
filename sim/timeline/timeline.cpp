#include "sim/timeline/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>

namespace orrery {
namespace {

constexpr std::array<std::string_view, 3> kBases{"measured", "interpolated", "roofline"};
constexpr std::array<std::string_view, 3> kKinds{"kernel", "comm", "host"};

// Disjoint intervals in ascending order.
class Intervals {
 public:
  // `start` must not lie before the start of one added earlier.
  void add(Seconds start, Seconds end) {
    if (end <= start) return;
    if (!intervals_.empty() && start <= intervals_.back().second) {
      intervals_.back().second = std::max(intervals_.back().second, end);
    } else {
      intervals_.emplace_back(start, end);
    }
  }

  [[nodiscard]] Seconds length() const {
    Seconds total;
    for (const auto& [start, end] : intervals_) total += end - start;
    return total;
  }

  // Length of what lies in this and not in `other`.
  [[nodiscard]] Seconds length_outside(const Intervals& other) const {
    Seconds total = length();
    auto cover = other.intervals_.begin();
    for (const auto& [start, end] : intervals_) {
      while (cover != other.intervals_.end() && cover->second <= start) ++cover;
      for (auto next = cover; next != other.intervals_.end() && next->first < end; ++next) {
        total -= std::min(end, next->second) - std::max(start, next->first);
      }
    }
    return total;
  }

 private:
  std::vector<std::pair<Seconds, Seconds>> intervals_;
};

using RankIntervals = std::array<Intervals, kKinds.size()>;

// Spans come ordered by start, and so do those of one rank.
void add(RankIntervals& intervals, const Span& span) {
  intervals[static_cast<std::size_t>(span.kind)].add(span.start, span.end);
}

RankIntervals intervals_of(const Timeline& timeline, int rank) {
  RankIntervals intervals;
  for (const Span& span : timeline.spans) {
    if (span.rank == rank) add(intervals, span);
  }
  return intervals;
}

const Intervals& of_kind(const RankIntervals& intervals, SpanKind kind) {
  return intervals[static_cast<std::size_t>(kind)];
}

Seconds exposed(const RankIntervals& intervals) {
  return of_kind(intervals, SpanKind::kComm).length_outside(of_kind(intervals, SpanKind::kKernel));
}

// How many ranks each span stands for.
class Weights {
 public:
  explicit Weights(const Timeline& timeline)
      : counts_(timeline.represented.begin(), timeline.represented.end()) {}

  [[nodiscard]] double operator()(const Span& span) const {
    const auto found = counts_.find(span.rank);
    return found == counts_.end() ? 1.0 : found->second;
  }

 private:
  std::map<int, int> counts_;
};

// Sums over the spans of one op.
struct OpTotal {
  Seconds time;
  double weight = 0;
  std::int32_t copies = 0;

  [[nodiscard]] Seconds mean() const { return weight > 0 ? time / weight : Seconds(); }
};

std::vector<OpTotal> op_totals(const Timeline& timeline) {
  const Weights weights(timeline);
  std::vector<OpTotal> totals(timeline.op_names.size());
  for (const Span& span : timeline.spans) {
    if (span.op < 0 || static_cast<std::size_t>(span.op) >= totals.size()) {
      throw std::invalid_argument("a span has op " + std::to_string(span.op) +
                                  ", expected one of the timeline's " +
                                  std::to_string(totals.size()) + " ops");
    }
    OpTotal& total = totals[static_cast<std::size_t>(span.op)];
    total.time += (span.end - span.start) * weights(span);
    total.weight += weights(span);
    total.copies = std::max(total.copies, span.copy + 1);
  }
  return totals;
}

}  // namespace

std::string_view to_text(Basis basis) { return kBases.at(static_cast<std::size_t>(basis)); }
std::string_view to_text(SpanKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

Seconds makespan(const Timeline& timeline) {
  Seconds last;
  for (const Span& span : timeline.spans) last = std::max(last, span.end);
  return last;
}

Seconds busy(const Timeline& timeline, int rank, SpanKind kind) {
  return of_kind(intervals_of(timeline, rank), kind).length();
}

Seconds exposed_communication(const Timeline& timeline, int rank) {
  return exposed(intervals_of(timeline, rank));
}

std::vector<RankTimes> rank_times(const Timeline& timeline) {
  std::map<int, RankIntervals> by_rank;
  for (const Span& span : timeline.spans) add(by_rank[span.rank], span);
  std::vector<RankTimes> times;
  times.reserve(by_rank.size());
  for (const auto& [rank, intervals] : by_rank) {
    times.push_back({.rank = rank,
                     .kernel = of_kind(intervals, SpanKind::kKernel).length(),
                     .comm = of_kind(intervals, SpanKind::kComm).length(),
                     .host = of_kind(intervals, SpanKind::kHost).length(),
                     .exposed_comm = exposed(intervals)});
  }
  return times;
}

BasisShares basis_shares(const Timeline& timeline) {
  const Weights weights(timeline);
  std::array<Seconds, kBases.size()> times;
  for (const Span& span : timeline.spans) {
    times[static_cast<std::size_t>(span.basis)] += (span.end - span.start) * weights(span);
  }
  const Seconds total = times[0] + times[1] + times[2];
  if (total <= Seconds()) return {};
  return {
      .measured = times[0] / total, .interpolated = times[1] / total, .roofline = times[2] / total};
}

Comparison compare(const Timeline& a, const Timeline& b) {
  if (a.op_names != b.op_names) {
    const auto [in_a, in_b] = std::ranges::mismatch(a.op_names, b.op_names);
    const auto found = [](const auto& at, const Timeline& timeline) {
      return at == timeline.op_names.end() ? "none" : "\"" + *at + "\"";
    };
    throw std::invalid_argument("the timelines are of different plans: op " +
                                std::to_string(in_a - a.op_names.begin()) + " is " +
                                found(in_a, a) + " in one and " + found(in_b, b) +
                                " in the other, expected equal ops");
  }
  Comparison comparison{.makespan_a = makespan(a), .makespan_b = makespan(b), .ops = {}};
  const std::vector<OpTotal> totals_a = op_totals(a);
  const std::vector<OpTotal> totals_b = op_totals(b);
  std::vector<double> difference(totals_a.size());
  for (std::size_t i = 0; i < totals_a.size(); ++i) {
    if (totals_a[i].weight <= 0 && totals_b[i].weight <= 0) continue;
    const OpDifference op{
        .op = static_cast<OpId>(i), .a = totals_a[i].mean(), .b = totals_b[i].mean()};
    difference[i] =
        std::abs((op.a - op.b).value()) * std::max(totals_a[i].copies, totals_b[i].copies);
    comparison.ops.push_back(op);
  }
  std::ranges::stable_sort(comparison.ops, std::greater<>{}, [&](const OpDifference& op) {
    return difference[static_cast<std::size_t>(op.op)];
  });
  return comparison;
}

}  // namespace orrery
