#pragma once

// What the power limit of a board does to a step. Arithmetic at the full clock draws more than the
// limit allows, so after some of it the board lowers its clock: kernels that compute take longer,
// those that stream memory do not. Pauses and steps that stream memory let the clock rise again.
//
//   clock    full \                  / full
//                  \__ limited ____/
//   work     | prompts ............ | decodes, or none  |
//
// Measured on an H200 (topologies/devices/h200-sxm/power_limit.csv): the clock has fallen 35 to 80
// ms after GEMMs began, has risen within 100 ms of pause, and stays where GEMMs take 58 % of the
// time beside copies. Between it falls and rises evenly: steps of a service take the longer, the
// more arithmetic there was shortly before.

#include <cstdint>

#include "sim/units/units.h"

namespace orrery {

struct PowerLimit {
  // Time at the limit against that at the full clock, of kernels that only compute: GEMMs in bf16,
  // in narrower formats, attention over prompts. All 1: there is no limit.
  double gemm = 1;
  double narrow_gemm = 1;
  double attention = 1;
  // Likewise of steps that stream memory, the decodes that follow prompts.
  double decodes = 1;
  // Of the time, what arithmetic may take without end at the full clock.
  double share = 1;
  // Arithmetic beyond that share, after a pause, until the clock has fallen.
  Seconds boost;
  // Rows of the tables were timed for some milliseconds of calls: those of shorter calls at the
  // full clock, those of longer calls at the limit, between these two times partly.
  Seconds full_rows;
  Seconds limited_rows;

  [[nodiscard]] bool acts() const { return gemm != 1 || narrow_gemm != 1 || attention != 1; }
};

// How far the arithmetic share must exceed the sustainable one before the clock drops all the way.
inline constexpr double kClockTransition = 0.30;

enum class Clock : std::uint8_t { kFull, kLimited };

// Where the clock is between full (0) and limited (1), the mean over a step, and what a step leaves
// of the boost. One per GPU, or for GPUs that do the same. Not thread safe.
class PowerBudget {
 public:
  // After a long pause.
  explicit PowerBudget(const PowerLimit& limit) : PowerBudget(limit, limit.boost) {}
  // 0 <= left <= limit.boost
  PowerBudget(const PowerLimit& limit, Seconds left) : limit_(limit), left_(left) {}
  // A step that takes `full` at the full clock, `arithmetic` of it computing.
  double step(Seconds full, Seconds arithmetic);
  // Current throttling, 0 to 1. Returns to 0 after full_after(share) of work with that share of
  // arithmetic; infinite if the share cannot be sustained.
  [[nodiscard]] double throttling() const;
  [[nodiscard]] Seconds full_after(double arithmetic_share = 0) const;
  // So long nothing, or nothing that computes, ran.
  void rest(Seconds time);
  [[nodiscard]] Seconds left() const { return left_; }

 private:
  PowerLimit limit_;
  Seconds left_;
};

// PowerBudget::step of a step that is repeated for ever with pauses of `idle` between.
double repeated_limited_part(const PowerLimit& limit, Seconds full, Seconds arithmetic,
                             Seconds idle);

}  // namespace orrery
