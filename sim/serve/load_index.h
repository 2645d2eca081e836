#pragma once

// Finds the least loaded of many replicas without asking each of them.
//
// While a replica decodes, its load falls step by step without an event. So the index keeps for
// each one a bound that the load does not fall below until some time, and asks again then, or when
// the bound is the least of all:
//
//   load  ----.
//             '----.            bound = load - slack, slack = half of what the replica has more
//   bound ..........'....       than the least loaded one
//                   ^ until
//
// Replicas far above the least are asked seldom, those near it often: with loads spread evenly over
// the length of a request, 2 / 1 + 2 / 2 + 2 / 3 + ... = 2 ln(replicas) times for each request.
//
// Not thread safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "sim/serve/replica.h"
#include "sim/units/units.h"

namespace orrery {

class LoadIndex {
 public:
  // `replicas` outlive the index.
  explicit LoadIndex(std::span<const std::unique_ptr<Replica>> replicas);

  // Something other than time changed what replica `index` has to do.
  void changed(std::size_t index);
  // Whether replica `index` may be the least loaded one; all may at first.
  void set_open(std::size_t index, bool is_open);
  // The open replica with the fewest outstanding tokens at `now`, the first of equals, and that
  // number.
  struct Least {
    std::int64_t tokens = 0;
    std::size_t index = 0;
    auto operator<=>(const Least&) const = default;
  };
  [[nodiscard]] Least least(Seconds now);
  // Whether replica `index` has more than `tokens` outstanding at `now`, the time of the last
  // least().
  [[nodiscard]] bool is_above(std::size_t index, std::int64_t tokens, Seconds now) const;

 private:
  // Asks replica `index`, whose bound may be `slack` below its load.
  void ask(std::size_t index, Seconds now, std::int64_t slack);
  void ask_due(Seconds now);

  struct Known {
    Least bound;
    Seconds until;
    bool is_changed = true;
    bool is_closed = false;
  };
  using Due = std::pair<Seconds, std::size_t>;  // of bounds; those that were replaced are stale

  std::span<const std::unique_ptr<Replica>> replicas_;
  std::vector<Known> known_;
  std::set<Least> bounds_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<std::size_t> changed_;
  std::int64_t last_least_ = 0;
};

}  // namespace orrery
