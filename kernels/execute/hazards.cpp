#include "kernels/execute/hazards.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace orrery {
namespace {

constexpr std::int32_t kNone = -1;

bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.space == b.space && a.begin < b.end && b.begin < a.end;
}

std::size_t num_streams(std::span<const TaskMemory> tasks) {
  int last = 0;
  for (const TaskMemory& task : tasks) last = std::max(last, task.stream);
  return static_cast<std::size_t>(last) + 1;
}

// The ranges of the tasks by number, each once. Tasks are many and their ranges few, since layers
// take turns in the same memory, most of which one stream alone touches.
class Ranges {
 public:
  struct OfTask {
    std::vector<std::size_t> reads;
    std::vector<std::size_t> writes;
  };

  Ranges(std::span<const TaskMemory> tasks, std::size_t num_streams) : num_streams_(num_streams) {
    of_tasks_.reserve(tasks.size());
    for (const TaskMemory& task : tasks) {
      OfTask& of = of_tasks_.emplace_back();
      for (const MemoryRange& range : task.reads) of.reads.push_back(number(range, task.stream));
      for (const MemoryRange& range : task.writes) of.writes.push_back(number(range, task.stream));
    }
    find_overlapping();
  }
  [[nodiscard]] std::size_t size() const { return ranges_.size(); }
  [[nodiscard]] const OfTask& of_task(std::size_t task) const { return of_tasks_[task]; }
  // Those that overlap range `number` and that tasks of other streams than `stream` touch.
  [[nodiscard]] const std::vector<std::size_t>& overlapping(std::size_t number,
                                                            std::size_t stream) const {
    return overlapping_[number * num_streams_ + stream];
  }

 private:
  struct Hash {
    std::size_t operator()(const MemoryRange& range) const {
      constexpr std::size_t kOdd = 0x9E3779B97F4A7C15U;
      return (static_cast<std::size_t>(range.begin) * kOdd ^ static_cast<std::size_t>(range.end)) *
                 kOdd +
             static_cast<std::size_t>(range.space);
    }
  };

  std::size_t number(const MemoryRange& range, int stream) {
    const auto [known, is_new] = numbers_.try_emplace(range, ranges_.size());
    if (is_new) {
      ranges_.push_back(range);
      streams_.push_back(stream);
    } else if (streams_[known->second] != stream) {
      streams_[known->second] = kSeveral;
    }
    return known->second;
  }
  void find_overlapping() {
    overlapping_.resize(ranges_.size() * num_streams_);
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      for (std::size_t j = 0; j < ranges_.size(); ++j) {
        if (!overlap(ranges_[i], ranges_[j])) continue;
        for (std::size_t stream = 0; stream < num_streams_; ++stream) {
          if (streams_[j] == static_cast<int>(stream)) continue;
          overlapping_[i * num_streams_ + stream].push_back(j);
        }
      }
    }
  }

  static constexpr int kSeveral = -1;
  std::size_t num_streams_;
  std::unordered_map<MemoryRange, std::size_t, Hash> numbers_;
  std::vector<MemoryRange> ranges_;
  std::vector<int> streams_;  // of the tasks that touch them
  std::vector<OfTask> of_tasks_;
  std::vector<std::vector<std::size_t>> overlapping_;  // [ranges, streams]
};

class Hazards {
 public:
  Hazards(std::span<const TaskMemory> tasks, std::size_t num_streams)
      : tasks_(tasks),
        num_streams_(num_streams),
        ranges_(tasks, num_streams),
        writers_(ranges_.size() * num_streams, kNone),
        readers_(ranges_.size() * num_streams, kNone),
        needed_(num_streams),
        done_(num_streams * num_streams, kNone),
        done_before_(tasks.size() * num_streams) {}

  std::vector<std::int32_t> waits_of(std::size_t task) {
    const TaskMemory& memory = tasks_[task];
    const auto stream = static_cast<std::size_t>(memory.stream);
    std::ranges::fill(needed_, kNone);
    const Ranges::OfTask& ranges = ranges_.of_task(task);
    for (const std::size_t range : ranges.reads) need(stream, range, /*is_write=*/false);
    for (const std::size_t range : ranges.writes) need(stream, range, /*is_write=*/true);
    for (const std::int32_t before : memory.after) {
      if (before < 0 || static_cast<std::size_t>(before) >= task) {
        throw std::invalid_argument("task " + std::to_string(task) + " is after task " +
                                    std::to_string(before) + ", expected an earlier one");
      }
      std::int32_t& entry = needed_[stream_of(before)];
      entry = std::max(entry, before);
    }
    const std::span<std::int32_t> done =
        std::span(done_).subspan(stream * num_streams_, num_streams_);
    std::vector<std::int32_t> waits;
    // The latest first: what it waited for itself needs no wait here.
    std::ranges::sort(needed_, std::ranges::greater());
    for (const std::int32_t before : needed_) {
      if (before == kNone || stream_of(before) == stream || done[stream_of(before)] >= before) {
        continue;
      }
      waits.push_back(before);
      const std::span<const std::int32_t> known = done_before(static_cast<std::size_t>(before));
      for (std::size_t i = 0; i < num_streams_; ++i) done[i] = std::max(done[i], known[i]);
      done[stream_of(before)] = std::max(done[stream_of(before)], before);
    }
    std::ranges::copy(done, done_before(task).begin());
    const auto number = static_cast<std::int32_t>(task);
    for (const std::size_t range : ranges.reads) readers_[range * num_streams_ + stream] = number;
    for (const std::size_t range : ranges.writes) writers_[range * num_streams_ + stream] = number;
    return waits;
  }

 private:
  [[nodiscard]] std::size_t stream_of(std::int32_t task) const {
    return static_cast<std::size_t>(tasks_[static_cast<std::size_t>(task)].stream);
  }

  [[nodiscard]] std::span<std::int32_t> done_before(std::size_t task) {
    return std::span(done_before_).subspan(task * num_streams_, num_streams_);
  }

  // By a task on `stream`.
  void need(std::size_t stream, std::size_t range, bool is_write) {
    for (const std::size_t touched : ranges_.overlapping(range, stream)) {
      for (std::size_t i = 0; i < num_streams_; ++i) {
        needed_[i] = std::max(needed_[i], writers_[touched * num_streams_ + i]);
        if (is_write) needed_[i] = std::max(needed_[i], readers_[touched * num_streams_ + i]);
      }
    }
  }

  std::span<const TaskMemory> tasks_;
  std::size_t num_streams_;
  Ranges ranges_;
  // [ranges, streams], the last tasks that touched a range; stream order makes the ones before them
  // done when these are.
  std::vector<std::int32_t> writers_;
  std::vector<std::int32_t> readers_;
  std::vector<std::int32_t> needed_;  // by stream, of the task at hand
  // [streams, streams]: the latest task of the second that has ended before what comes next on the
  // first.
  std::vector<std::int32_t> done_;
  std::vector<std::int32_t> done_before_;  // [tasks, streams]: done_ of its stream as it began
};

}  // namespace

std::vector<std::vector<std::int32_t>> event_waits(std::span<const TaskMemory> tasks) {
  for (const TaskMemory& task : tasks) {
    if (task.stream >= 0) continue;
    throw std::invalid_argument("a task is on stream " + std::to_string(task.stream) +
                                ", expected a stream from 0");
  }
  std::vector<std::vector<std::int32_t>> waits(tasks.size());
  Hazards hazards(tasks, num_streams(tasks));
  for (std::size_t i = 0; i < tasks.size(); ++i) waits[i] = hazards.waits_of(i);
  return waits;
}

}  // namespace orrery
