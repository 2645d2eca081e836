#pragma once

// What the times of a run are reported as.

#include <vector>

namespace orrery::tool {

struct Spread {
  double median = 0;
  double relative = 0;  // interquartile range over the median
};
// Of at least one value.
Spread spread_of(std::vector<double> values);

}  // namespace orrery::tool
