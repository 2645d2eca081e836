#include "kernels/harness/difference.h"

#include <cmath>
#include <limits>
#include <stdexcept>

namespace orrery {

Difference difference(std::string what, std::span<const double> out, std::span<const double> ref,
                      double bound) {
  if (out.size() != ref.size()) {
    throw std::invalid_argument(what + ": " + std::to_string(out.size()) + " values against " +
                                std::to_string(ref.size()) + " of the reference");
  }
  double distance = 0;
  double norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    distance += (out[i] - ref[i]) * (out[i] - ref[i]);
    norm += ref[i] * ref[i];
  }
  double error = norm > 0 ? std::sqrt(distance / norm) : std::sqrt(distance);
  if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
  return {.what = std::move(what), .error = error, .bound = bound};
}

}  // namespace orrery
