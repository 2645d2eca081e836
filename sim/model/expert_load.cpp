#include "sim/model/expert_load.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

void check_shares(const std::vector<double>& shares, std::int64_t num_experts, std::int64_t topk) {
  if (std::ssize(shares) != num_experts) {
    throw std::invalid_argument("the expert load has " + std::to_string(shares.size()) +
                                " shares, expected one for each of the " +
                                std::to_string(num_experts) + " experts");
  }
  const auto is_share = [](double share) { return share >= 0 && share <= 1; };
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (!std::ranges::all_of(shares, is_share) || std::abs(sum - 1) > 1e-6) {
    throw std::invalid_argument("the shares of the expert load sum to " + std::to_string(sum) +
                                ", expected shares from 0 to 1 with sum 1");
  }
  const auto chosen = std::ranges::count_if(shares, [](double share) { return share > 0; });
  if (chosen < topk) {
    throw std::invalid_argument("the expert load has " + std::to_string(chosen) +
                                " experts with a share, expected at least the " +
                                std::to_string(topk) + " that each token chooses");
  }
}

// `draws` with replacement.
std::vector<double> probabilities(const std::vector<double>& shares, double draws) {
  std::vector<double> result;
  result.reserve(shares.size());
  for (const double share : shares) result.push_back(1 - std::pow(1 - share, draws));
  return result;
}

// `count` experts in ascending order: those chosen most, or every so many where all are alike.
std::vector<std::size_t> most_loaded(const ExpertLoad& load, const std::vector<double>& chosen,
                                     std::int64_t count) {
  const auto num_experts = std::ssize(chosen);
  std::vector<std::size_t> result;
  if (load.shares.empty()) {
    for (std::int64_t e = 0; e < num_experts; ++e) {
      if ((e + 1) * count / num_experts > e * count / num_experts) {
        result.push_back(static_cast<std::size_t>(e));
      }
    }
    return result;
  }
  std::vector<std::size_t> order(chosen.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t expert) { return chosen[expert]; });
  result.assign(order.begin(), order.begin() + count);
  std::ranges::sort(result);
  return result;
}

}  // namespace

std::vector<double> choice_probabilities(const ExpertLoad& load, std::int64_t num_experts,
                                         std::int64_t topk) {
  if (topk < 1 || topk > num_experts) {
    throw std::invalid_argument("topk is " + std::to_string(topk) + " of " +
                                std::to_string(num_experts) +
                                " experts, expected 1 to the number of experts");
  }
  const auto chosen = static_cast<double>(topk);
  if (load.shares.empty()) {
    return std::vector<double>(static_cast<std::size_t>(num_experts),
                               chosen / static_cast<double>(num_experts));
  }
  check_shares(load.shares, num_experts, topk);
  if (topk == 1) return load.shares;
  const auto sum_for = [&](double draws) {
    const std::vector<double> all = probabilities(load.shares, draws);
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  // The sum grows with the draws, from topk draws, which choose at most topk experts, on.
  double low = chosen;
  double high = 2 * chosen;
  constexpr double kMostDraws = 1e12;  // as many experts as topk, one hardly ever chosen
  while (sum_for(high) < chosen && high < kMostDraws) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (sum_for(middle) < chosen ? low : high) = middle;
  }
  return probabilities(load.shares, high);
}

ExpectedLoad expected_load(const ExpertLoad& load, std::int64_t num_experts, std::int64_t topk,
                           std::int64_t tokens, std::int64_t first, std::int64_t count) {
  if (first < 0 || count < 0 || first + count > num_experts) {
    throw std::invalid_argument("experts " + std::to_string(first) + " to " +
                                std::to_string(first + count) + " are not among the " +
                                std::to_string(num_experts));
  }
  const std::vector<double> chosen = choice_probabilities(load, num_experts, topk);
  ExpectedLoad result;
  for (std::int64_t i = first; i < first + count; ++i) {
    const double probability = chosen[static_cast<std::size_t>(i)];
    result.rows += static_cast<double>(tokens) * probability;
    result.active += 1 - std::pow(1 - probability, static_cast<double>(tokens));
  }
  return result;
}

ExpectedDims expected_dims(const ExpertLoad& load, std::int64_t num_experts, std::int64_t topk,
                           std::int64_t tokens, std::int64_t first, std::int64_t count) {
  const ExpectedLoad expected = expected_load(load, num_experts, topk, tokens, first, count);
  ExpectedDims dims{.rows = std::llround(expected.rows), .active = 0};
  if (dims.rows == 0) return dims;
  dims.active =
      std::clamp<std::int64_t>(std::llround(expected.active), 1, std::min(dims.rows, count));
  return dims;
}

std::vector<std::int64_t> expert_rows(const ExpertLoad& load, std::int64_t num_experts,
                                      std::int64_t topk, std::int64_t tokens) {
  const std::vector<double> chosen = choice_probabilities(load, num_experts, topk);
  const ExpectedDims dims = expected_dims(load, num_experts, topk, tokens, 0, num_experts);
  const std::vector<std::size_t> active = most_loaded(load, chosen, dims.active);
  double sum = 0;
  for (const std::size_t expert : active) sum += chosen[expert];
  // One row each; the others in proportion, running totals rounded so that they add up.
  const auto others = static_cast<double>(dims.rows - dims.active);
  std::vector<std::int64_t> rows(chosen.size(), 0);
  double total = 0;
  std::int64_t given = 0;
  for (const std::size_t expert : active) {
    total += others * chosen[expert] / sum;
    const std::int64_t until = std::llround(total);
    rows[expert] = 1 + until - given;
    given = until;
  }
  return rows;
}

}  // namespace orrery
