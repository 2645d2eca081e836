#include "sim/serve/lengths.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "sim/units/inverse_normal.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

constexpr double kMostSpread = 3;
constexpr int kDigits = 4;  // of ranges in messages

std::string number(double value) { return format_significant(value, kDigits); }

double normal_below(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

struct Moments {
  double mean = 0;
  double variance = 0;
};

// exp(median + spread N(0, 1)), rounded and clamped to [min, max].
class Clamped {
 public:
  Clamped(double log_median, double log_spread, std::int64_t min, std::int64_t max)
      : median_(log_median),
        spread_(log_spread),
        min_(static_cast<double>(min)),
        max_(static_cast<double>(max)) {}

  [[nodiscard]] double above(double length) const {
    return normal_below((median_ - std::log(length)) / spread_);
  }

  // E[L] = min + sum of P(L >= k) and E[L^2] = min^2 + sum of (2k - 1) P(L >= k) over k above min,
  // where P(L >= k) = above(k - 1/2). Term by term for the first lengths, where rounding matters;
  // from there to max as integrals, by parts: the n-th is
  //   [x^n above(x)] + exp(n median + n^2 spread^2 / 2) [P((ln x - median) / spread - n spread)].
  [[nodiscard]] Moments moments() const {
    constexpr double kTerms = 64;
    const double cut = std::min(min_ + kTerms, max_);
    double first = min_;
    double second = min_ * min_;
    const auto num_terms = static_cast<int>(cut - min_);
    for (int i = 1; i <= num_terms; ++i) {
      const double length = min_ + i;
      const double part = above(length - 0.5);
      first += part;
      second += (2 * length - 1) * part;
    }
    if (cut < max_) {
      first += integral(1, cut);
      second += integral(2, cut);
    }
    return {.mean = first, .variance = std::max(0.0, second - first * first)};
  }

 private:
  [[nodiscard]] double integral(int n, double from) const {
    const double scale = std::exp(n * median_ + n * n * spread_ * spread_ / 2);
    const auto to = [&](double x) {
      return std::pow(x, n) * above(x) +
             scale * normal_below((std::log(x) - median_) / spread_ - n * spread_);
    };
    return to(max_) - to(from);
  }

  double median_;
  double spread_;
  double min_;
  double max_;
};

// x in [low, high] with is_low(x) below it and not above it.
template <typename Test>
double bisect(double low, double high, Test is_low) {
  constexpr int kHalvings = 44;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (is_low(middle) ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::string range(std::int64_t min, std::int64_t max) {
  return "lengths from " + std::to_string(min) + " to " + std::to_string(max);
}

// The log-median with which clamped lengths of this spread have the mean, which grows with it.
double median_of_mean(double mean, double spread, std::int64_t min, std::int64_t max) {
  constexpr double kFar = 40;  // spreads within which all normal draws lie
  return bisect(
      std::log(min) - kFar * spread - 1, std::log(max) + kFar * spread + 1,
      [&](double median) { return Clamped(median, spread, min, max).moments().mean < mean; });
}

void check_within(const char* what, double value, std::int64_t min, std::int64_t max) {
  if (value >= static_cast<double>(min) && value <= static_cast<double>(max)) return;
  throw std::invalid_argument("found " + std::string(what) + " " + format_number(value) + " of " +
                              range(min, max) + "; expected it from " + std::to_string(min) +
                              " to " + std::to_string(max));
}

}  // namespace

std::int64_t draw(const LengthDistribution& lengths, Random& random) {
  double value = static_cast<double>(lengths.min);
  switch (lengths.kind) {
    case LengthKind::kFixed:
      break;
    case LengthKind::kUniform:
      if (lengths.values.empty()) return random.uniform_integer(lengths.min, lengths.max);
      value = static_cast<double>(lengths.values[static_cast<std::size_t>(
          random.uniform_integer(0, static_cast<std::int64_t>(lengths.values.size()) - 1))]);
      break;
    case LengthKind::kLogNormal:
      value = std::exp(lengths.log_median + lengths.log_spread * random.normal());
      break;
  }
  return std::clamp(static_cast<std::int64_t>(std::llround(std::min(value, 1e15))), lengths.min,
                    lengths.max);
}

LengthDistribution lognormal_of_mean_cv(double mean, double cv, std::int64_t min,
                                        std::int64_t max) {
  if (!(mean > 0) || !(cv >= 0) || !std::isfinite(mean) || !std::isfinite(cv)) {
    throw std::invalid_argument("log-normal lengths of mean " + format_number(mean) + " and cv " +
                                format_number(cv) +
                                ", expected a mean above 0 and a cv of 0 or more");
  }
  check_within("mean", mean, min, max);
  LengthDistribution lengths{
      .kind = LengthKind::kLogNormal, .mean = mean, .cv = cv, .min = min, .max = max};
  if (cv == 0) {
    lengths.log_median = std::log(mean);
    return lengths;
  }
  const auto cv_at = [&](double spread) {
    const double median = median_of_mean(mean, spread, min, max);
    return std::sqrt(Clamped(median, spread, min, max).moments().variance) / mean;
  };
  const double most = cv_at(kMostSpread);
  if (cv > most) {
    throw std::invalid_argument("found mean " + format_number(mean) + " and cv " +
                                format_number(cv) + " of " + range(min, max) +
                                ", where that mean has a cv of at most " + number(most) +
                                "; expected a smaller cv, a wider range or a mean farther from its "
                                "ends");
  }
  // Clamping narrows, so the spread is at least about that of the whole log-normal.
  const double whole = std::sqrt(std::log1p(cv * cv));
  lengths.log_spread = bisect(std::min(whole / 100, kMostSpread), kMostSpread,
                              [&](double spread) { return cv_at(spread) < cv; });
  lengths.log_median = median_of_mean(mean, lengths.log_spread, min, max);
  return lengths;
}

LengthDistribution lognormal_of_mean_p50(double mean, double p50, std::int64_t min,
                                         std::int64_t max) {
  if (!(p50 > 0) || !(mean >= p50) || !std::isfinite(mean)) {
    throw std::invalid_argument("log-normal lengths of mean " + format_number(mean) + " and p50 " +
                                format_number(p50) + ", expected 0 < p50 <= mean");
  }
  check_within("p50", p50, min, max);
  check_within("mean", mean, min, max);
  LengthDistribution lengths{.kind = LengthKind::kLogNormal,
                             .mean = mean,
                             .p50 = p50,
                             .min = min,
                             .max = max,
                             .log_median = std::log(p50)};
  if (mean == p50) return lengths;
  // The mean grows with the spread until what max cuts off outweighs it: the least spread is meant.
  constexpr int kSteps = 300;
  double below = 0;
  double most = p50;
  for (int i = 1; i <= kSteps; ++i) {
    const double spread = kMostSpread * i / kSteps;
    const double found = Clamped(lengths.log_median, spread, min, max).moments().mean;
    if (found >= mean) {
      lengths.log_spread = bisect(below, spread, [&](double middle) {
        return Clamped(lengths.log_median, middle, min, max).moments().mean < mean;
      });
      return lengths;
    }
    below = spread;
    most = std::max(most, found);
  }
  throw std::invalid_argument("found mean " + format_number(mean) + " with p50 " +
                              format_number(p50) + " of " + range(min, max) +
                              ", where that p50 has a mean of at most " + number(most) +
                              "; expected a smaller mean or a larger max");
}

LengthDistribution lognormal_of_p50_p99(double p50, double p99, std::int64_t min,
                                        std::int64_t max) {
  if (!(p50 > 0) || !(p99 >= p50) || !std::isfinite(p99)) {
    throw std::invalid_argument("log-normal lengths of p50 " + format_number(p50) + " and p99 " +
                                format_number(p99) + ", expected 0 < p50 <= p99");
  }
  check_within("p50", p50, min, max);
  check_within("p99", p99, min, max);
  return {.kind = LengthKind::kLogNormal,
          .p50 = p50,
          .p99 = p99,
          .min = min,
          .max = max,
          .log_median = std::log(p50),
          .log_spread = std::log(p99 / p50) / inverse_normal(0.99)};
}

double share_above_max(const LengthDistribution& lengths) {
  if (lengths.kind != LengthKind::kLogNormal || lengths.log_spread == 0) return 0;
  return Clamped(lengths.log_median, lengths.log_spread, lengths.min, lengths.max)
      .above(static_cast<double>(lengths.max));
}

}  // namespace orrery
