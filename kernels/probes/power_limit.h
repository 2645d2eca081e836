#pragma once

// What the power limit of the board does to kernels that run back to back: when it lowers the
// clock, and what that costs each (sim/cost/power_limit.h counts with it).

#include <optional>
#include <string>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

// A kernel of a series, which is launched call by call for half a second after a pause.
struct PowerLimitRow {
  std::string series;  // "6 bf16, 1 attention": in turn; ", after bf16": right behind 0.2 s of it
  std::string kernel;
  double share = 0;              // of the series' time
  Seconds early;                 // median of its calls that begin within the first 30 ms
  Seconds late;                  // of the second half of them
  std::optional<Seconds> onset;  // when a call first took 5 % longer than the early ones
  int calls = 0;
  double sm_clock_mhz = 0;  // when the series ended; 0: the driver does not say
};

// On the current device, on random operands. bf16 and fp8: GEMMs of 8,192^3; attention: 8,192
// tokens of 32 heads of 128, causal; copy: 2 GiB; wide 256, wide 64: so many rows by weights
// [24,576, 8,192]. `quick`: the first of the series, half of each. 8 and 3 s. Throws cuda::Error.
std::vector<PowerLimitRow> probe_power_limit(bool quick = false);

}  // namespace orrery
