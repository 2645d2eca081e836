#include "sim/cost/uniform_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery {
namespace {

// The number of rows that a share `below` of experts with so many on average has at most, if tokens
// choose them uniformly: Poisson, and from 60 rows on normal (Abramowitz and Stegun 26.2.23).
std::int64_t rows_at(double mean, double below) {
  constexpr double kMany = 60;
  if (mean > kMany) {
    const double tail = std::sqrt(-2 * std::log(std::min(below, 1 - below)));
    const double deviations =
        tail - (2.515517 + tail * (0.802853 + tail * 0.010328)) /
                   (1 + tail * (1.432788 + tail * (0.189269 + tail * 0.001308)));
    return std::llround(
        std::max(0.0, mean + std::copysign(deviations, below - 0.5) * std::sqrt(mean)));
  }
  double each = std::exp(-mean);
  double sum = each;
  std::int64_t rows = 0;
  while (sum < below) {
    each *= mean / static_cast<double>(++rows);
    sum += each;
  }
  return rows;
}

}  // namespace

std::vector<std::int64_t> rows_of_experts(std::span<const double> means) {
  const std::int64_t own = std::ssize(means);
  std::int64_t stride = own * 5 / 8 | 1;
  while (std::gcd(stride, own) != 1) stride += 2;
  std::vector<std::int64_t> rows(means.size());
  for (std::int64_t i = 0; i < own; ++i) {
    const auto expert = static_cast<std::size_t>(i * stride % own);
    const double below = (static_cast<double>(i) + 0.5) / static_cast<double>(own);
    rows[expert] = rows_at(means[expert], below);
  }
  const bool has_any = std::ranges::any_of(rows, [](std::int64_t count) { return count > 0; });
  if (has_any) return rows;
  const double all = std::accumulate(means.begin(), means.end(), 0.0);
  const auto most = std::ranges::max_element(means) - means.begin();
  rows[static_cast<std::size_t>(most)] = std::max<std::int64_t>(1, std::llround(all));
  return rows;
}

}  // namespace orrery
