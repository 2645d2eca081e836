#include "kernels/experts/fused_moe/shape.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

void require_between(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw std::invalid_argument("fused_moe: " + std::string(name) + " is " + std::to_string(value) +
                              ", expected " + std::to_string(least) + " to " +
                              std::to_string(most));
}

}  // namespace

std::int64_t first_layer_rows(const FusedMoeShape& shape) {
  return shape.activation == ExpertActivation::kSwiglu ? 2 * shape.ffn : shape.ffn;
}

std::int64_t own_experts(const FusedMoeShape& shape) { return shape.experts / shape.ranks; }

std::int64_t num_slots(const FusedMoeShape& shape) {
  return shape.experts + shape.ranks * shape.shared;
}

std::int64_t num_choices(const FusedMoeShape& shape) {
  return shape.tokens * (shape.topk + shape.shared);
}

std::int64_t most_rows(const FusedMoeShape& shape) {
  const std::int64_t of_rank = std::min(shape.tokens * std::min(shape.topk, own_experts(shape)),
                                        own_experts(shape) * capacity_of(shape, shape.tokens));
  return shape.ranks * of_rank + shape.tokens * shape.shared;
}

std::int64_t capacity_of(const FusedMoeShape& shape, std::int64_t tokens) {
  if (shape.capacity_factor == 0) return tokens;
  const double even = static_cast<double>(tokens * shape.topk) / static_cast<double>(shape.experts);
  const double capacity = std::ceil(shape.capacity_factor * even);
  return static_cast<std::int64_t>(std::min(capacity, static_cast<double>(tokens)));
}

double mean_at_most(double trials, double probability, double most) {
  constexpr double kMany = 60;  // as rows_of_experts() has it
  const double mean = trials * probability;
  if (most >= trials) return mean;
  const double variance = mean * (1 - probability);
  if (!(variance > 0)) return std::min(mean, most);
  if (mean > kMany) {
    const double deviation = std::sqrt(variance);
    const double z = (most - mean) / deviation;
    const double below = std::erfc(-z / std::numbers::sqrt2) / 2;
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
    return most - (most - mean) * below - deviation * density;
  }
  // The sum over rows of the probability of more.
  constexpr double kNone = 1e-12;
  double exactly = std::exp(trials * std::log1p(-probability));
  double more = 1 - exactly;
  double sum = 0;
  for (double rows = 0; rows < most && more > kNone; ++rows) {
    sum += more;
    exactly *= (trials - rows) / (rows + 1) * probability / (1 - probability);
    more -= exactly;
  }
  return std::min(sum, mean);
}

double mean_rows(const FusedMoeShape& shape, std::int64_t tokens) {
  const std::int64_t capacity = capacity_of(shape, tokens);
  if (capacity >= tokens) return static_cast<double>(tokens * shape.topk);
  const auto all = static_cast<double>(tokens);
  const auto experts = static_cast<double>(shape.experts);
  return experts * mean_at_most(all, static_cast<double>(shape.topk) / experts,
                                static_cast<double>(capacity));
}

void require_fused_moe_shape(const FusedMoeShape& shape) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 21;
  constexpr std::int64_t kMostColumns = std::int64_t{1} << 20;
  constexpr std::int64_t kMostRows = 0x7FFFFFFF;
  const std::int64_t vector = shape.is_fp8 ? 16 : 8;  // of 16 bytes
  require_between("tokens", shape.tokens, 0, kMostTokens);
  require_between("hidden", shape.hidden, vector, kMostColumns);
  require_between("ffn", shape.ffn, vector, kMostColumns);
  require_between("experts", shape.experts, 1, kMostFusedExperts);
  require_between("ranks", shape.ranks, 1, kMostFusedRanks);
  require_between("shared", shape.shared, 0, kMostFusedShared);
  if (!(shape.capacity_factor >= 0) || std::isinf(shape.capacity_factor)) {
    throw std::invalid_argument("fused_moe: capacity_factor is " +
                                std::to_string(shape.capacity_factor) +
                                ", expected 0 (no token is dropped) or more");
  }
  if (shape.experts % shape.ranks != 0) {
    throw std::invalid_argument("fused_moe: " + std::to_string(shape.experts) + " experts on " +
                                std::to_string(shape.ranks) + " ranks, expected as many on each");
  }
  require_between("rows of a rank", most_rows(shape), 0, kMostRows);
  require_between("topk", shape.topk, 1, std::min(kMostFusedTopk, shape.experts));
  for (const auto& [name, size] : {std::pair{"hidden", shape.hidden}, {"ffn", shape.ffn}}) {
    if (size % vector != 0) {
      throw std::invalid_argument("fused_moe: " + std::string(name) + " is " +
                                  std::to_string(size) + ", expected a multiple of " +
                                  std::to_string(vector));
    }
  }
  require_between("groups", shape.groups, 1, std::min(kMostFusedGroups, shape.experts));
  require_between("topk_groups", shape.topk_groups, 1, shape.groups);
  if (shape.experts % shape.groups != 0) {
    throw std::invalid_argument("fused_moe: " + std::to_string(shape.experts) +
                                " experts do not divide into " + std::to_string(shape.groups) +
                                " groups");
  }
  require_between("topk", shape.topk, 1, shape.experts / shape.groups * shape.topk_groups);
  require_between("rows of w1 of all experts", num_slots(shape) * first_layer_rows(shape), 1,
                  kMostRows);
  require_between("rows of w2 of all experts", num_slots(shape) * shape.hidden, 1, kMostRows);
}

}  // namespace orrery
