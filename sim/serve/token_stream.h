#pragma once

// The way of tokens from an engine to its clients: a serial server (detokenizing, server-sent
// events) that takes equally long for every token, and behind it a delay. When an engine makes
// tokens faster than that, they queue up, and clients see the server's pace.

#include <algorithm>
#include <cstdint>

#include "sim/units/units.h"

namespace orrery {

class TokenStream {
 public:
  TokenStream(Seconds per_token, Seconds latency) : per_token_(per_token), latency_(latency) {}

  // When clients have the tokens of the last of `num_steps` steps of `tokens` tokens each, which
  // end at `first_end` to `last_end` and do not get shorter. Asks only; steps before are delivered.
  [[nodiscard]] Seconds arrival(Seconds first_end, Seconds last_end, std::int64_t num_steps,
                                std::int64_t tokens) const {
    return served(first_end, last_end, num_steps, tokens) + latency_;
  }
  // Delivers these steps; later ones queue behind them.
  void deliver(Seconds first_end, Seconds last_end, std::int64_t num_steps, std::int64_t tokens) {
    free_ = served(first_end, last_end, num_steps, tokens);
  }

 private:
  // The server is done after the largest, over all steps, of a step's end and the work that is left
  // from it on. Ends of steps that do not get shorter are convex, so the first or the last decides.
  [[nodiscard]] Seconds served(Seconds first_end, Seconds last_end, std::int64_t num_steps,
                               std::int64_t tokens) const {
    const Seconds per_step = per_token_ * static_cast<double>(tokens);
    return std::max(std::max(free_, first_end) + per_step * static_cast<double>(num_steps),
                    last_end + per_step);
  }

  Seconds per_token_;
  Seconds latency_;
  Seconds free_;
};

}  // namespace orrery
