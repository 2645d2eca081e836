#include "sim/units/largest_normal.h"

#include <cmath>
#include <numbers>

namespace orrery {

double largest_normal(int count) {
  constexpr double kEnd = 8;  // beyond it nothing is left
  constexpr int kSteps = 800;
  constexpr double kStep = 2 * kEnd / kSteps;
  double sum = 0;
  double below = 0;
  for (int i = 0; i < kSteps; ++i) {
    const double x = i * kStep - kEnd;
    const double up_to = std::pow(std::erfc(-(x + kStep) / std::numbers::sqrt2) / 2, count);
    sum += (x + kStep / 2) * (up_to - below);
    below = up_to;
  }
  return sum;
}

}  // namespace orrery
