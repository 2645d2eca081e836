#include "sim/timeline/timeline.h"

#include <algorithm>
#include <array>

namespace orrery {
namespace {

constexpr std::array<std::string_view, 4> kBases{"measured", "interpolated", "borrowed",
                                                 "roofline"};
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

}  // namespace

std::string_view to_text(Basis basis) { return kBases.at(static_cast<std::size_t>(basis)); }

Seconds& of_basis(BasisSeconds& sums, Basis basis) {
  constexpr std::array kSums = {&BasisSeconds::measured, &BasisSeconds::interpolated,
                                &BasisSeconds::borrowed, &BasisSeconds::roofline};
  return sums.*kSums.at(static_cast<std::size_t>(basis));
}

Seconds total(const BasisSeconds& basis) {
  return basis.measured + basis.interpolated + basis.borrowed + basis.roofline;
}

BasisShares shares(const BasisSeconds& basis) {
  const Seconds all = total(basis);
  if (!(all > Seconds(0))) return {};
  return {.measured = basis.measured / all,
          .interpolated = basis.interpolated / all,
          .borrowed = basis.borrowed / all,
          .roofline = basis.roofline / all};
}
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

}  // namespace orrery
