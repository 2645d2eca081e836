#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <variant>

#include "sim/timeline/timeline.h"

namespace orrery {
namespace {

// Times this close are equal: the timing precision of SimGrid, well below any kernel.
constexpr Seconds kTolerance{1e-9};

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// An op of one copy of its run.
struct OpCopy {
  OpId op = 0;
  std::int64_t copy = 0;
};

// Which op copies another one depends on, by the rules of Plan, without unrolling it.
class Dependencies {
 public:
  explicit Dependencies(const Plan& plan) : plan_(plan), writers_(plan.tensors().size()) {
    for (std::size_t i = 0; i < plan.ops().size(); ++i) {
      for (const TensorId tensor : plan.ops()[i].writes) {
        writers_[static_cast<std::size_t>(tensor)].push_back(static_cast<OpId>(i));
      }
    }
  }

  // Calls visit(OpCopy) for each dependency of `of` on `rank` but stream order.
  template <typename Visit>
  void for_each(OpCopy of, int rank, const Visit& visit) const {
    const Op& op = plan_.ops()[static_cast<std::size_t>(of.op)];
    for (const TensorId tensor : op.reads) {
      if (const auto writer = latest_writer(of, tensor, rank)) visit(*writer);
    }
    for (const OpId before : op.after) {
      const Repeat run = run_of(of.op);
      const bool is_same_run = before >= run.first;
      visit(OpCopy{before, is_same_run ? of.copy : plan_.multiplicity(before) - 1});
    }
  }

 private:
  // The run an op is in; one of a single copy of itself when in none.
  [[nodiscard]] Repeat run_of(OpId op) const {
    const auto& runs = plan_.repeats();
    const auto next = std::ranges::upper_bound(runs, op, {}, &Repeat::first);
    if (next != runs.begin() && std::prev(next)->last > op) return *std::prev(next);
    return {.first = op, .last = op + 1, .count = 1};
  }

  // Earlier in this copy, else in the copy before, else before the run.
  [[nodiscard]] std::optional<OpCopy> latest_writer(OpCopy of, TensorId tensor, int rank) const {
    const Repeat run = run_of(of.op);
    if (const OpId op = last_writer_in(tensor, rank, run.first, of.op); op >= 0) {
      return OpCopy{op, of.copy};
    }
    if (of.copy > 0) {
      if (const OpId op = last_writer_in(tensor, rank, of.op, run.last); op >= 0) {
        return OpCopy{op, of.copy - 1};
      }
    }
    if (const OpId op = last_writer_in(tensor, rank, 0, run.first); op >= 0) {
      return OpCopy{op, plan_.multiplicity(op) - 1};
    }
    return std::nullopt;
  }

  // The last op of [first, last) that writes `tensor` on `rank`, or -1.
  [[nodiscard]] OpId last_writer_in(TensorId tensor, int rank, OpId first, OpId last) const {
    const auto& writers = writers_[static_cast<std::size_t>(tensor)];
    for (auto it = std::ranges::lower_bound(writers, last); it != writers.begin();) {
      --it;
      if (*it < first) return -1;
      if (plan_.contains(plan_.ops()[static_cast<std::size_t>(*it)].ranks, rank)) return *it;
    }
    return -1;
  }

  const Plan& plan_;
  std::vector<std::vector<OpId>> writers_;  // by tensor, ascending
};

// Finds spans by what they are, and by when they end.
class SpanIndex {
 public:
  explicit SpanIndex(const Timeline& timeline)
      : spans_(timeline.spans), before_(spans_.size(), kNone), by_task_(spans_.size()) {
    std::map<std::pair<int, int>, std::size_t> last_on_stream;
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      by_task_[i] = i;
      const auto [last, is_first] =
          last_on_stream.try_emplace({spans_[i].rank, spans_[i].stream}, i);
      if (!is_first) before_[i] = std::exchange(last->second, i);
    }
    by_end_ = by_task_;
    std::ranges::sort(by_task_, {}, [&](std::size_t i) { return task_key(spans_[i], i); });
    std::ranges::sort(by_end_, {}, [&](std::size_t i) {
      return std::tuple(spans_[i].rank, spans_[i].end, spans_[i].start, i);
    });
  }

  [[nodiscard]] std::size_t before_on_stream(std::size_t span) const { return before_[span]; }

  // All spans of an op copy, by rank.
  [[nodiscard]] std::span<const std::size_t> participants(OpCopy of) const {
    const auto key = [&](std::size_t i) {
      return std::pair<OpId, std::int64_t>(spans_[i].op, spans_[i].copy);
    };
    const auto found = std::ranges::equal_range(by_task_, std::pair(of.op, of.copy), {}, key);
    return {found.begin(), found.end()};
  }

  // Visits the spans of `rank` that end by `time`, the last first, until visit returns false.
  template <typename Visit>
  void for_each_ended(int rank, Seconds time, const Visit& visit) const {
    auto it = std::ranges::upper_bound(by_end_, std::pair(rank, time), {}, [&](std::size_t i) {
      return std::pair(spans_[i].rank, spans_[i].end);
    });
    while (it != by_end_.begin()) {
      --it;
      if (spans_[*it].rank != rank || !visit(*it)) return;
    }
  }

 private:
  static std::tuple<OpId, std::int32_t, int, std::size_t> task_key(const Span& span,
                                                                   std::size_t index) {
    return {span.op, span.copy, span.rank, index};
  }

  const std::vector<Span>& spans_;
  std::vector<std::size_t> before_;   // on the same rank and stream, or kNone
  std::vector<std::size_t> by_task_;  // by (op, copy, rank)
  std::vector<std::size_t> by_end_;   // by (rank, end)
};

// Walks back from the last span to end.
class PathFinder {
 public:
  PathFinder(const Timeline& timeline, const Plan& plan)
      : spans_(timeline.spans),
        plan_(plan),
        dependencies_(plan),
        index_(timeline),
        is_on_path_(timeline.spans.size(), 0) {}

  std::vector<std::size_t> find() {
    std::vector<std::size_t> path;
    if (spans_.empty()) return path;
    const auto last = std::ranges::max_element(spans_, {}, &Span::end);
    auto next = static_cast<std::size_t>(last - spans_.begin());
    while (next != kNone) {
      next = last_arrival(next);
      path.push_back(next);
      is_on_path_[next] = 1;
      next = before(next);
    }
    std::ranges::reverse(path);
    return path;
  }

 private:
  // Ranks of a collective may wait inside their spans: the one that came last, and ends with this
  // one, is the reason for the end.
  [[nodiscard]] std::size_t last_arrival(std::size_t span) const {
    if (spans_[span].kind != SpanKind::kComm) return span;
    std::size_t last = span;
    for (const std::size_t i : index_.participants({spans_[span].op, spans_[span].copy})) {
      const bool ends_together = spans_[i].end >= spans_[span].end - kTolerance &&
                                 spans_[i].end <= spans_[span].end + kTolerance;
      if (is_on_path_[i] == 0 && ends_together && spans_[i].start > spans_[last].start) last = i;
    }
    return last;
  }

  [[nodiscard]] std::size_t before(std::size_t span) const {
    std::size_t best = kNone;
    if (spans_[span].kind == SpanKind::kComm) {
      // A collective waits for the dependencies of all its ranks.
      for (const std::size_t participant :
           index_.participants({spans_[span].op, spans_[span].copy})) {
        consider_dependencies(participant, span, best);
      }
    } else {
      consider_dependencies(span, span, best);
    }
    const Seconds start = spans_[span].start;
    if (best != kNone && spans_[best].end >= start - kTolerance) return best;
    const std::size_t other = latest_on_rank(span);
    if (best == kNone) return other;
    return other != kNone && spans_[other].end >= start - kTolerance ? other : best;
  }

  // Improves `best` by the dependencies of `task` that ended before `span` started.
  void consider_dependencies(std::size_t task, std::size_t span, std::size_t& best) const {
    const Span& waiting = spans_[task];
    consider(index_.before_on_stream(task), span, best);
    if (waiting.op < 0 || static_cast<std::size_t>(waiting.op) >= plan_.ops().size()) return;
    dependencies_.for_each({waiting.op, waiting.copy}, waiting.rank, [&](OpCopy needed) {
      const auto candidates = index_.participants(needed);
      // Of an SPMD op only the task on the same rank counts, where there is one.
      const auto here = std::ranges::lower_bound(candidates, waiting.rank, {},
                                                 [&](std::size_t i) { return spans_[i].rank; });
      if (here != candidates.end() && spans_[*here].rank == waiting.rank) {
        consider(*here, span, best);
      } else {
        for (const std::size_t candidate : candidates) consider(candidate, span, best);
      }
    });
  }

  void consider(std::size_t candidate, std::size_t span, std::size_t& best) const {
    if (candidate == kNone || is_on_path_[candidate] != 0) return;
    if (spans_[candidate].end > spans_[span].start + kTolerance) return;
    if (best == kNone || spans_[candidate].end > spans_[best].end) best = candidate;
  }

  [[nodiscard]] std::size_t latest_on_rank(std::size_t span) const {
    std::size_t best = kNone;
    const Span& waiting = spans_[span];
    index_.for_each_ended(waiting.rank, waiting.start + kTolerance, [&](std::size_t candidate) {
      consider(candidate, span, best);
      return best == kNone;
    });
    return best;
  }

  const std::vector<Span>& spans_;
  const Plan& plan_;
  Dependencies dependencies_;
  SpanIndex index_;
  std::vector<char> is_on_path_;
};

}  // namespace

std::vector<std::size_t> critical_path(const Timeline& timeline, const Plan& plan) {
  return PathFinder(timeline, plan).find();
}

}  // namespace orrery
