#pragma once

// Requests on their way from a prefill replica to a rank of a decode replica: handed over, then
// with blocks set aside, then with their KV cache here.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

// A request with its first token, made at `time`, that another replica is to decode. Where layers
// move while the prompt is computed it is then to be made; kNever: it is not known when.
struct Handover {
  std::int64_t idx = 0;
  Seconds time;
};

// Not thread safe.
class Incoming {
 public:
  struct Item {
    Handover handover;
    Seconds reserved;                      // its blocks were set aside and its first token made
    std::optional<Seconds> ready;          // its KV cache came
    std::optional<Seconds> without_delay;  // it would have decoded, had the KV cache come at once
  };

  void receive(const Handover& handover) { unreserved_.push_back(handover); }
  // The next one without blocks, in order.
  [[nodiscard]] const Handover* next() const {
    return unreserved_.empty() ? nullptr : &unreserved_.front();
  }
  // That one has its blocks since `now`; the next step begins at once where none `is_running`.
  void reserve_next(Seconds now, bool is_running);
  // Those for whose prompts blocks were set aside since the last call, in order.
  std::vector<std::int64_t> take_reserved();
  // The first token of one received before was made at `now`; false where it has no blocks yet.
  bool first_token(Seconds now, std::int64_t idx, bool is_running);
  void complete_transfer(Seconds now, std::int64_t idx);
  // A step began at `begin` that ends, or whose first one does, at `end`: the next is formed then.
  void next_step(Seconds begin, Seconds end);
  // Removes and gives those whose KV cache is here since `known`, at `now`, when a step is formed.
  std::vector<Item> take_ready(Seconds now, Seconds known);

  [[nodiscard]] bool has_ready() const;
  [[nodiscard]] const std::vector<Item>& items() const { return items_; }  // with blocks, in order
  [[nodiscard]] std::int64_t num_unreserved() const {
    return static_cast<std::int64_t>(unreserved_.size());
  }
  [[nodiscard]] std::int64_t num_reserved() const {
    return static_cast<std::int64_t>(items_.size());
  }

 private:
  std::deque<Handover> unreserved_;
  std::vector<Item> items_;
  std::vector<std::int64_t> newly_reserved_;
};

}  // namespace orrery
