#pragma once

// The events of one run, in the order of (time, sequence): equal times in the order of pushing.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace orrery::des {

enum class EventKind : std::uint8_t {
  kStart,  // a task whose waits are over but whose date is not
  kFlows,  // a collective's flows begin
  kEnd     // an activity ends, unless its generation has moved on
};

struct Event {
  double time = 0;
  std::uint64_t sequence = 0;
  EventKind kind = EventKind::kStart;
  std::int32_t id = 0;      // rank index of a start, else the activity
  std::int32_t detail = 0;  // task of a start, else the activity's generation
};

class Agenda {
 public:
  void push(double time, EventKind kind, std::int32_t id, std::int32_t detail) {
    heap_.push_back({time, next_sequence_++, kind, id, detail});
    std::ranges::push_heap(heap_, later);
  }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] double next_time() const {
    return heap_.empty() ? std::numeric_limits<double>::infinity() : heap_.front().time;
  }
  Event pop() {
    std::ranges::pop_heap(heap_, later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) {
    return std::tie(a.time, a.sequence) > std::tie(b.time, b.sequence);
  }
  std::vector<Event> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace orrery::des
