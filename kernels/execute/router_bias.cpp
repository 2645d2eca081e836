#include "kernels/execute/router_bias.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/execute/weight_value.h"
#include "kernels/harness/rounding.h"

namespace orrery {
namespace {

constexpr std::int64_t kTokens = 16384;
constexpr int kMostRounds = 20;
// Of the last correction: with a whole one, experts that compete for the same tokens swing.
constexpr double kDamping = 0.7;
// Of the deviations that a draw of as many tokens has by itself; nearer is not better.
constexpr double kNearEnough = 0.4;
constexpr double kMostBias = 40;  // beyond any logit

// Where the standard normal distribution has `share` above it, by bisection.
double upper_quantile(double share) {
  double low = -10;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::numbers::sqrt2) / 2 > share ? low : high) = middle;
  }
  return (low + high) / 2;
}

// [kTokens, experts], by Box and Muller's method.
std::vector<double> normal_logits(std::int64_t experts) {
  const std::uint64_t key = weight_key(/*seed=*/0, weight_name_hash("router"), /*copy=*/0);
  std::vector<double> logits(static_cast<std::size_t>(kTokens * experts));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    const double radius = (1 - weight_noise(key, place, 0)) / 2;  // in (0, 1]
    const double angle = weight_noise(key, place, 1);
    logits[i] = std::sqrt(-2 * std::log(radius)) * std::cos(std::numbers::pi * angle);
  }
  return logits;
}

// The `count`-th best of `values`, which come in another order.
float threshold(std::span<float> values, std::int64_t count) {
  const auto at = values.begin() + (count - 1);
  std::ranges::nth_element(values, at, std::greater<>());
  return *at;
}

class Draws {
 public:
  explicit Draws(const ExpertRouter& router)
      : router_(router),
        logits_(normal_logits(router.experts)),
        scores_(static_cast<std::size_t>(router.experts)) {}

  // The part of the tokens that choose each expert.
  std::vector<double> chosen(const std::vector<double>& bias) {
    std::vector<std::int64_t> counts(bias.size(), 0);
    for (std::size_t first = 0; first < logits_.size(); first += bias.size()) {
      for (std::size_t e = 0; e < bias.size(); ++e) {
        const auto logit = static_cast<float>(logits_[first + e] + bias[e]);
        // A soft-max, which rises with its logit and compares those of a token, chooses as they do.
        scores_[e] = router_.score == RoutingScore::kSigmoid ? 1 / (1 + std::exp(-logit)) : logit;
      }
      if (router_.groups > 1) keep_groups();
      sorted_ = scores_;
      const float least = threshold(sorted_, router_.topk);
      for (std::size_t e = 0; e < bias.size(); ++e) counts[e] += scores_[e] >= least ? 1 : 0;
    }
    std::vector<double> parts;
    parts.reserve(counts.size());
    for (const std::int64_t count : counts) {
      parts.push_back(static_cast<double>(count) / static_cast<double>(kTokens));
    }
    return parts;
  }

 private:
  // Experts of other groups than the best are out.
  void keep_groups() {
    const auto size = scores_.size() / static_cast<std::size_t>(router_.groups);
    std::vector<float> of_groups;
    for (std::size_t first = 0; first < scores_.size(); first += size) {
      sorted_.assign(scores_.begin() + static_cast<std::ptrdiff_t>(first),
                     scores_.begin() + static_cast<std::ptrdiff_t>(first + size));
      const bool is_sum = router_.group_score == GroupScore::kBestTwo && size > 1;
      const float best = threshold(sorted_, 1);
      of_groups.push_back(is_sum ? best + threshold(sorted_, 2) : best);
    }
    sorted_ = of_groups;
    const float least = threshold(sorted_, router_.topk_groups);
    for (std::size_t e = 0; e < scores_.size(); ++e) {
      if (of_groups[e / size] < least) scores_[e] = -std::numeric_limits<float>::infinity();
    }
  }

  ExpertRouter router_;
  std::vector<double> logits_;
  std::vector<float> scores_;  // of a token
  std::vector<float> sorted_;
};

// The greatest of the experts' deviations, each over that of a draw.
double deviation(const std::vector<double>& found, const std::vector<double>& wanted) {
  double most = 0;
  for (std::size_t e = 0; e < wanted.size(); ++e) {
    const double variance = std::max(wanted[e] * (1 - wanted[e]), 1.0 / kTokens) / kTokens;
    most = std::max(most, std::abs(found[e] - wanted[e]) / std::sqrt(variance));
  }
  return most;
}

}  // namespace

std::vector<float> router_bias(const ExpertLoad& load, const ExpertRouter& router) {
  if (load.shares.empty()) return {};
  if (router.groups < 1 || router.experts % router.groups != 0 || router.topk_groups < 1 ||
      router.topk_groups > router.groups ||
      router.topk > router.experts / router.groups * router.topk_groups) {
    throw std::invalid_argument("a router of " + std::to_string(router.experts) + " experts in " +
                                std::to_string(router.groups) + " groups, of which " +
                                std::to_string(router.topk_groups) + " are kept, cannot choose " +
                                std::to_string(router.topk) + " of them for each token");
  }
  const std::vector<double> wanted = choice_probabilities(load, router.experts, router.topk);
  // Half a token: what no draw shows.
  const auto quantile = [](double part) {
    return upper_quantile(std::clamp(part, 0.5 / kTokens, 1 - 0.5 / kTokens));
  };
  std::vector<double> bias(wanted.size());
  const double even =
      quantile(static_cast<double>(router.topk) / static_cast<double>(router.experts));
  for (std::size_t e = 0; e < bias.size(); ++e) {
    bias[e] = wanted[e] > 0 ? even - quantile(wanted[e]) : -kMostBias;
  }
  Draws draws(router);
  std::vector<double> best = bias;
  double least = INFINITY;
  for (int round = 0; round < kMostRounds && least > kNearEnough; ++round) {
    const std::vector<double> found = draws.chosen(bias);
    if (const double now = deviation(found, wanted); now < least) {
      least = now;
      best = bias;
    }
    for (std::size_t e = 0; e < bias.size(); ++e) {
      if (wanted[e] > 0) bias[e] += kDamping * (quantile(found[e]) - quantile(wanted[e]));
    }
  }
  std::vector<float> rounded;
  rounded.reserve(best.size());
  for (const double value : best) {
    rounded.push_back(static_cast<float>(round_bf16(std::clamp(value, -kMostBias, kMostBias))));
  }
  return rounded;
}

}  // namespace orrery
