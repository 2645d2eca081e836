#pragma once

// A histogram of times with bins of 0.1 % width, so a quantile read from it is within 0.05 % of the
// exact one; the mean is exact. Takes whole fast-forwards of linearly growing times at once.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

class LatencyHistogram {
 public:
  void add(Seconds value, std::int64_t count = 1) { add_linear(value, Seconds(0), 1, count); }
  // `count` observations of each of first, first + slope, ..., first + (num_steps - 1) * slope.
  void add_linear(Seconds first, Seconds slope, std::int64_t num_steps, std::int64_t count);
  void merge(const LatencyHistogram& other);

  [[nodiscard]] std::int64_t count() const { return count_; }
  // Means and quantiles in seconds; zeros when empty.
  [[nodiscard]] Quantiles quantiles() const;

 private:
  void add_to_bin(std::size_t bin, std::int64_t count);

  // Bins by pages, so that a replica holds those of the times that it takes and not all below them.
  static constexpr std::size_t kPageBins = 128;
  using Page = std::array<std::int64_t, kPageBins>;
  std::vector<std::unique_ptr<Page>> pages_;  // null: zeros
  std::int64_t count_ = 0;
  double sum_ = 0;
  double max_ = 0;
};

}  // namespace orrery
