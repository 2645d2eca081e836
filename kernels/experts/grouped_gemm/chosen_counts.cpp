#include "kernels/experts/grouped_gemm/chosen_counts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {
namespace {

// The rate of the Poisson distribution whose mean without 0 is `mean` >= 1: rate / (1 - e^-rate).
double rate_of(double mean) {
  double low = 0;
  double high = mean;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (middle < -std::expm1(-middle) * mean ? low : high) = middle;
  }
  return high;
}

// Ascending quantiles at (i + 1/2) / count of the Poisson distribution of `rate` without 0.
std::vector<std::int64_t> quantiles(double rate, std::int64_t count) {
  const double log_all = rate + std::log(-std::expm1(-rate));  // of e^rate - 1
  std::vector<std::int64_t> result;
  std::int64_t value = 0;
  double covered = 0;
  const double most = rate + 40 * std::sqrt(rate) + 40;  // past which nothing is left
  for (std::int64_t i = 0; i < count; ++i) {
    const double mark = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    while (covered < mark && static_cast<double>(value) < most) {
      ++value;
      const auto k = static_cast<double>(value);
      covered += std::exp(k * std::log(rate) - std::lgamma(k + 1) - log_all);
    }
    result.push_back(value);
  }
  return result;
}

}  // namespace

std::vector<std::int32_t> chosen_counts(std::int64_t rows, std::int64_t groups,
                                        std::int64_t active) {
  if (active < 0 || active > std::min(groups, rows) || (active == 0) != (rows == 0)) {
    throw std::invalid_argument(std::to_string(rows) + " rows of " + std::to_string(active) +
                                " active groups among " + std::to_string(groups) +
                                ", expected a row for each active group");
  }
  std::vector<std::int32_t> counts(static_cast<std::size_t>(groups));
  if (active == 0) return counts;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(active), 1);
  if (rows > active) {
    sizes = quantiles(rate_of(static_cast<double>(rows) / static_cast<double>(active)), active);
  }
  // What rounding to whole rows left over, from the largest down.
  std::int64_t rest = rows - std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  for (std::size_t i = sizes.size(); rest != 0; i = i == 1 ? sizes.size() : i - 1) {
    const std::int64_t change = rest > 0 ? 1 : -1;
    if (sizes[i - 1] + change < 1) continue;
    sizes[i - 1] += change;
    rest -= change;
  }
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto place = [](std::size_t i) {
    return std::fmod(static_cast<double>(i + 1) * 0.6180339887498949, 1.0);  // the golden section
  };
  std::ranges::sort(order, {}, place);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto group = static_cast<std::int64_t>(i) * groups / active;
    counts[static_cast<std::size_t>(group)] = static_cast<std::int32_t>(sizes[order[i]]);
  }
  return counts;
}

std::vector<std::int32_t> growing_counts(std::int64_t rows, std::int64_t groups,
                                         std::int64_t active) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(groups));
  const auto before = [&](std::int64_t group) {
    return rows * group * (group + 1) / (active * (active + 1));
  };
  for (std::int64_t i = 0; i < active; ++i) {
    counts[static_cast<std::size_t>(i * groups / active)] =
        static_cast<std::int32_t>(before(i + 1) - before(i));
  }
  return counts;
}

std::vector<std::int32_t> chosen_tokens(std::int64_t rows, std::int64_t tokens, std::int64_t topk,
                                        std::uint64_t seed) {
  if (rows > tokens * topk) {
    throw std::invalid_argument(std::to_string(rows) + " rows of " + std::to_string(tokens) +
                                " tokens, expected at most " + std::to_string(topk) + " of each");
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(tokens * topk));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % tokens);
  }
  std::mt19937_64 random(seed);
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random() % i]);
  all.resize(static_cast<std::size_t>(rows));
  return all;
}

}  // namespace orrery
