#include "sim/serve/latency_histogram.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

constexpr double kSmallest = 1e-9;                   // seconds; all below share the first bin
constexpr double kLogWidth = 0.0009995003330835331;  // ln 1.001

std::int64_t bin_of(double value) {
  return value <= kSmallest ? 0
                            : static_cast<std::int64_t>(std::log(value / kSmallest) / kLogWidth);
}

double middle_of(std::int64_t bin) {
  return kSmallest * std::exp((static_cast<double>(bin) + 0.5) * kLogWidth);
}

double end_of(std::int64_t bin) {
  return kSmallest * std::exp(static_cast<double>(bin + 1) * kLogWidth);
}

}  // namespace

void LatencyHistogram::add_to_bin(std::size_t bin, std::int64_t count) {
  const std::size_t page = bin / kPageBins;
  if (page >= pages_.size()) pages_.resize(page + 1);
  if (!pages_[page]) pages_[page] = std::make_unique<Page>();
  (*pages_[page])[bin % kPageBins] += count;
}

void LatencyHistogram::add_linear(Seconds first, Seconds slope, std::int64_t num_steps,
                                  std::int64_t count) {
  if (num_steps <= 0 || count <= 0) return;
  const double begin = first.value();
  const double growth = slope.value();
  const double last = begin + growth * static_cast<double>(num_steps - 1);
  count_ += num_steps * count;
  sum_ += static_cast<double>(count) * static_cast<double>(num_steps) * (begin + last) / 2;
  max_ = std::max({max_, begin, last});
  // Walk the bins that the line crosses; steps in a bin follow from its end by division.
  std::int64_t done = 0;
  while (done < num_steps) {
    const double value = begin + growth * static_cast<double>(done);
    const std::int64_t bin = bin_of(value);
    std::int64_t in_bin = num_steps - done;
    if (growth > 0) {
      const double steps = std::ceil((end_of(bin) - value) / growth);
      in_bin =
          std::clamp(static_cast<std::int64_t>(std::min(steps, 1e18)), std::int64_t{1}, in_bin);
    } else if (growth < 0) {
      in_bin = 1;  // contexts only grow, so this does not happen on a hot path
    }
    add_to_bin(static_cast<std::size_t>(bin), in_bin * count);
    done += in_bin;
  }
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
  for (std::size_t page = 0; page < other.pages_.size(); ++page) {
    if (!other.pages_[page]) continue;
    for (std::size_t i = 0; i < kPageBins; ++i) {
      const std::int64_t count = (*other.pages_[page])[i];
      if (count > 0) add_to_bin(page * kPageBins + i, count);
    }
  }
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
}

Quantiles LatencyHistogram::quantiles() const {
  Quantiles result;
  if (count_ == 0) return result;
  result.mean = sum_ / static_cast<double>(count_);
  result.max = max_;
  const auto at = [&](double share) {
    const auto rank = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(count_)));
    std::int64_t seen = 0;
    for (std::size_t page = 0; page < pages_.size(); ++page) {
      if (!pages_[page]) continue;
      for (std::size_t i = 0; i < kPageBins; ++i) {
        seen += (*pages_[page])[i];
        const auto bin = static_cast<std::int64_t>(page * kPageBins + i);
        if (seen >= rank) return std::min(middle_of(bin), max_);
      }
    }
    return max_;
  };
  result.p50 = at(0.5);
  result.p90 = at(0.9);
  result.p95 = at(0.95);
  result.p99 = at(0.99);
  return result;
}

}  // namespace orrery
