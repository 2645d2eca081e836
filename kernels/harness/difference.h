#pragma once

// Distance of an output from its double-precision reference.

#include <span>
#include <string>

namespace orrery {

// ||out - ref|| / ||ref||. A value that is not finite makes the error infinite.
struct Difference {
  std::string what;  // the output
  double error = 0;
  double bound = 0;
  [[nodiscard]] bool passes() const { return error <= bound; }
};

// The norm of `out` alone where `ref` is all zero. Throws std::invalid_argument when the sizes
// differ.
Difference difference(std::string what, std::span<const double> out, std::span<const double> ref,
                      double bound);

// Bounds for outputs rounded once to a format. A relative rounding error is uniform in +-2^-p, so
// its root mean square is at most 2^-p / sqrt(3): 2.3e-3 for bf16 (p = 8), 2.8e-4 for fp16
// (p = 11), 3.6e-2 for e4m3 (p = 4). Above that some room for fp32 accumulation.
inline constexpr double kBf16Bound = 4e-3;
inline constexpr double kFp16Bound = 5e-4;
inline constexpr double kFp8Bound = 4e-2;

}  // namespace orrery
