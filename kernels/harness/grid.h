#pragma once

// The calls that calibration measures, as a kernel lists them. No CUDA.

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// Values of one dim that calibration starts from, ascending; it adds points between where needed.
struct GridAxis {
  std::string_view dim;
  std::vector<std::int64_t> values;
  // Points between are multiples of this; 0: of what divides all values, at most 128.
  std::int64_t multiple = 0;
};
// A family of calls: the product of its axes, less the points that accept() refuses.
struct Grid {
  DType dtype = DType::kBf16;
  std::vector<GridAxis> axes;
  bool (*accept)(const Dims& dims) = nullptr;  // null: all
};

}  // namespace orrery
