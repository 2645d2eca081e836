#include "sim/cost/group_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery {

std::vector<GroupRows> group_rows(std::span<const double> choices, std::int64_t rows,
                                  std::int64_t groups, std::int64_t active) {
  std::vector<GroupRows> result;
  if (choices.empty() || rows < 1 || groups < 1 || active < 1) return result;
  const double step = static_cast<double>(choices.size()) / static_cast<double>(groups);
  std::vector<double> weights;
  weights.reserve(static_cast<std::size_t>(active));
  double sum = 0;
  for (std::int64_t i = 0; i < std::min(active, groups); ++i) {
    const auto at = static_cast<std::size_t>((static_cast<double>(i) + 0.5) * step);
    weights.push_back(choices[std::min(at, choices.size() - 1)]);
    sum += weights.back();
  }
  if (!(sum > 0)) return result;
  // 1, 1, 2, 4, ... of them.
  for (std::size_t first = 0; first < weights.size();) {
    const std::size_t end = std::min(std::max<std::size_t>(2 * first, 1), weights.size());
    double part = 0;
    for (std::size_t i = first; i < end; ++i) part += weights[i];
    const auto size = static_cast<double>(end - first);
    result.push_back({.groups = size, .rows = static_cast<double>(rows) * part / sum / size});
    first = end;
  }
  return result;
}

double expected_groups(std::span<const double> choices, std::int64_t rows) {
  const double each = std::accumulate(choices.begin(), choices.end(), 0.0);  // of a token
  const double tokens = static_cast<double>(rows) / each;
  double groups = 0;
  for (const double choice : choices) groups += 1 - std::pow(1 - std::min(choice, 1.0), tokens);
  return groups;
}

// 1 for the first pass, and one more wherever a count is above a multiple of `most`.
double expected_passes(double rows, double most) {
  double passes = 1;
  const double deviation = std::sqrt(2 * rows);
  for (double above = most + 0.5;; above += most) {
    const double part = std::erfc((above - rows) / deviation) / 2;
    passes += part;
    if (part < 1e-6) return passes;
  }
}

double uneven_over_even(std::span<const GroupRows> groups,
                        const std::function<double(double rows)>& time) {
  double uneven = 0;
  double rows = 0;
  double num_groups = 0;
  for (const GroupRows& part : groups) {
    uneven += part.groups * time(part.rows);
    rows += part.groups * part.rows;
    num_groups += part.groups;
  }
  return uneven / (num_groups * time(rows / num_groups));
}

}  // namespace orrery
