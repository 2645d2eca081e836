#pragma once

// Times between the tokens of the sequences of one rank that decode. All of them get their tokens
// at the same times, but for those that have joined since the last step with decodes.

#include <cstdint>
#include <vector>

#include "sim/serve/latency_histogram.h"
#include "sim/serve/step_backend.h"
#include "sim/units/units.h"

namespace orrery {

class TokenIntervals {
 public:
  // A sequence whose last token came at `last_token`.
  void join(Seconds last_token, bool is_measured);
  // Its last token came at `last_token`.
  void leave(Seconds last_token, bool is_measured);
  // Decode steps of `time` from `begin` to `end`: adds what lies between tokens of measured ones.
  void advance(Seconds begin, Seconds end, const FastForward& time, std::int64_t num_sequences,
               LatencyHistogram& itl);

  [[nodiscard]] std::int64_t num_measured() const { return num_measured_; }
  // End of the last decode step.
  [[nodiscard]] Seconds last_end() const { return last_end_; }

 private:
  // Decoding sequences whose last token came at `time`, and how many of them are measured.
  struct Last {
    Seconds time;
    std::int64_t count = 0;
    std::int64_t num_measured = 0;
  };
  std::vector<Last> last_;  // of all decoding sequences; counts above 0
  std::int64_t num_measured_ = 0;
  Seconds last_end_;
};

}  // namespace orrery
