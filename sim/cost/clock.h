#pragma once

// What the clock that the power limit leaves does to the time of one kernel (power_limit.h).

#include <cstdint>

#include "sim/cost/power_limit.h"
#include "sim/machine/machine.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// At which clock the rows are that a time is from.
enum class RowClocks : std::uint8_t {
  kByLength,  // of short calls at the full one, of long calls at the limit
  kFull,      // at the full one: longer rows are not read, their calls extrapolated
  kRepeated   // of calls that follow each other without rest (orrery-gpu time fused_moe_ranks)
};

struct ClockTimes {
  Seconds full;
  Seconds limited;
  Seconds arithmetic;  // of `full`, what counts as arithmetic
};

// A time of the tables at both clocks.
// Longer at the limit, by the factors of `limit`:
//   GEMMs            by their factor where arithmetic takes longer than the operands' bytes, by
//                    nothing where these do, and evenly between
//   attention        by its factor times the operations' part of the data sheet's time
//   everything else  by that of attention, which follows the clock, for what is left of its time
//                    when its bytes have gone at the rate of a stream
// Counted as arithmetic: what draws as much as large GEMMs do, of
// others as much of the time as lies between a stream's draw and theirs.
ClockTimes at_clocks(Seconds time, const PowerLimit& limit, const Device& device,
                     const KernelOp& op, RowClocks rows);

}  // namespace orrery
