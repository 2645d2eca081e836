#include "kernels/execute/hazards.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr std::int32_t kNone = -1;

// The last tasks, by stream, that touched a range; stream order makes the ones before them done
// when these are.
struct Touched {
  MemoryRange range;
  std::vector<std::int32_t> writer;
  std::vector<std::int32_t> reader;
};

bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.space == b.space && a.begin < b.end && b.begin < a.end;
}

class Hazards {
 public:
  Hazards(std::span<const TaskMemory> tasks, std::size_t num_streams)
      : tasks_(tasks),
        num_streams_(num_streams),
        done_(num_streams, std::vector<std::int32_t>(num_streams, kNone)),
        done_before_(tasks.size()) {}

  std::vector<std::int32_t> waits_of(std::size_t task) {
    const TaskMemory& memory = tasks_[task];
    std::vector<std::int32_t> needed(num_streams_, kNone);
    for (const MemoryRange& range : memory.reads) need(needed, range, /*is_write=*/false);
    for (const MemoryRange& range : memory.writes) need(needed, range, /*is_write=*/true);
    for (const std::int32_t before : memory.after) {
      if (before < 0 || static_cast<std::size_t>(before) >= task) {
        throw std::invalid_argument("task " + std::to_string(task) + " is after task " +
                                    std::to_string(before) + ", expected an earlier one");
      }
      std::int32_t& entry = needed[stream_of(before)];
      entry = std::max(entry, before);
    }
    const auto stream = static_cast<std::size_t>(memory.stream);
    std::vector<std::int32_t>& done = done_[stream];
    std::vector<std::int32_t> waits;
    // The latest first: what it waited for itself needs no wait here.
    std::ranges::sort(needed, std::ranges::greater());
    for (const std::int32_t before : needed) {
      if (before == kNone || stream_of(before) == stream || done[stream_of(before)] >= before) {
        continue;
      }
      waits.push_back(before);
      const auto& known = done_before_[static_cast<std::size_t>(before)];
      for (std::size_t i = 0; i < num_streams_; ++i) done[i] = std::max(done[i], known[i]);
      done[stream_of(before)] = std::max(done[stream_of(before)], before);
    }
    done_before_[task] = done;
    touch(static_cast<std::int32_t>(task));
    return waits;
  }

 private:
  [[nodiscard]] std::size_t stream_of(std::int32_t task) const {
    return static_cast<std::size_t>(tasks_[static_cast<std::size_t>(task)].stream);
  }

  void need(std::vector<std::int32_t>& needed, const MemoryRange& range, bool is_write) const {
    for (const Touched& touched : touched_) {
      if (!overlap(touched.range, range)) continue;
      for (std::size_t i = 0; i < num_streams_; ++i) {
        needed[i] = std::max(needed[i], touched.writer[i]);
        if (is_write) needed[i] = std::max(needed[i], touched.reader[i]);
      }
    }
  }

  void touch(std::int32_t task) {
    const TaskMemory& memory = tasks_[static_cast<std::size_t>(task)];
    const std::size_t stream = stream_of(task);
    for (const MemoryRange& range : memory.reads) entry(range).reader[stream] = task;
    for (const MemoryRange& range : memory.writes) entry(range).writer[stream] = task;
  }

  Touched& entry(const MemoryRange& range) {
    const auto found = std::ranges::find(touched_, range, &Touched::range);
    if (found != touched_.end()) return *found;
    const std::vector<std::int32_t> none(num_streams_, kNone);
    return touched_.emplace_back(Touched{.range = range, .writer = none, .reader = none});
  }

  std::span<const TaskMemory> tasks_;
  std::size_t num_streams_;
  std::vector<Touched> touched_;
  // By stream, then by other stream: the latest task there that has ended before what comes next.
  std::vector<std::vector<std::int32_t>> done_;
  std::vector<std::vector<std::int32_t>> done_before_;  // by task: done_ of its stream as it began
};

}  // namespace

std::vector<std::vector<std::int32_t>> event_waits(std::span<const TaskMemory> tasks) {
  int last_stream = 0;
  for (const TaskMemory& task : tasks) {
    if (task.stream < 0) {
      throw std::invalid_argument("a task is on stream " + std::to_string(task.stream) +
                                  ", expected a stream from 0");
    }
    last_stream = std::max(last_stream, task.stream);
  }
  std::vector<std::vector<std::int32_t>> waits(tasks.size());
  Hazards hazards(tasks, static_cast<std::size_t>(last_stream) + 1);
  for (std::size_t i = 0; i < tasks.size(); ++i) waits[i] = hazards.waits_of(i);
  return waits;
}

}  // namespace orrery
