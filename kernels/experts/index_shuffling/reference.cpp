#include "kernels/experts/index_shuffling/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

constexpr double kLeastSum = 1e-20;

// Whether `a` is chosen before `b`: a number before one that is not, else the larger.
bool is_better(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  return a > b;
}

// The first `count` of `candidates` in the order of `scores`, best first, of equal ones the lower.
std::vector<std::size_t> best_of(std::span<const float> scores, std::vector<std::size_t> candidates,
                                 std::size_t count) {
  std::ranges::partial_sort(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(count),
                            [&](std::size_t a, std::size_t b) {
                              if (is_better(scores[a], scores[b])) return true;
                              return !is_better(scores[b], scores[a]) && a < b;
                            });
  candidates.resize(count);
  return candidates;
}

std::vector<std::size_t> all_of(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

// Experts of the groups that are kept, ascending.
std::vector<std::size_t> candidates(std::span<const float> scores,
                                    const IndexShufflingShape& shape) {
  const auto groups = static_cast<std::size_t>(shape.groups);
  const std::size_t size = scores.size() / groups;
  std::vector<float> of_groups;
  for (std::size_t group = 0; group < groups; ++group) {
    const auto of_group = scores.subspan(group * size, size);
    const std::vector<std::size_t> best =
        best_of(of_group, all_of(size), std::min<std::size_t>(size, 2));
    const bool is_sum = shape.group_score == GroupScore::kBestTwo && best.size() == 2;
    of_groups.push_back(is_sum ? of_group[best[0]] + of_group[best[1]] : of_group[best[0]]);
  }
  std::vector<std::size_t> kept =
      best_of(of_groups, all_of(groups), static_cast<std::size_t>(shape.topk_groups));
  std::ranges::sort(kept);
  std::vector<std::size_t> experts;
  for (const std::size_t group : kept) {
    for (std::size_t i = 0; i < size; ++i) experts.push_back(group * size + i);
  }
  return experts;
}

}  // namespace

IndexShuffling index_shuffling(std::span<const double> scores,
                               std::span<const double> correction_bias,
                               const IndexShufflingShape& shape,
                               std::span<const std::int32_t> expert_of_slot) {
  require_index_shuffling_shape(shape);
  const ExpertSlots slots =
      expert_of_slot.empty() ? ExpertSlots{} : expert_slots(expert_of_slot, shape.experts_total);
  const auto slot_of = [&](std::size_t expert, std::size_t token) {
    if (expert_of_slot.empty()) return static_cast<std::int32_t>(expert);
    const auto first = static_cast<std::size_t>(slots.first[expert]);
    const auto count = static_cast<std::size_t>(slots.first[expert + 1]) - first;
    return slots.slots[first + token % count];
  };
  const auto tokens = static_cast<std::size_t>(shape.tokens);
  const auto experts_total = static_cast<std::size_t>(shape.experts_total);
  const auto topk = static_cast<std::size_t>(shape.topk);
  if (scores.size() != tokens * experts_total ||
      (!correction_bias.empty() && correction_bias.size() != experts_total) ||
      std::ssize(expert_of_slot) != shape.slots) {
    throw std::invalid_argument("index_shuffling: scores or correction bias do not fit the shape");
  }
  IndexShuffling result;
  std::vector<double> weights(tokens * topk);
  std::vector<float> biased(experts_total);
  for (std::size_t token = 0; token < tokens; ++token) {
    const auto row = scores.subspan(token * experts_total, experts_total);
    for (std::size_t i = 0; i < experts_total; ++i) {
      biased[i] = static_cast<float>(row[i]) +
                  (correction_bias.empty() ? 0.0f : static_cast<float>(correction_bias[i]));
    }
    const std::vector<std::size_t> best = best_of(biased, candidates(biased, shape), topk);
    double sum = kLeastSum;
    for (const std::size_t expert : best) sum += row[expert] == -INFINITY ? 0 : row[expert];
    for (std::size_t k = 0; k < topk; ++k) {
      const bool is_taken = row[best[k]] != -INFINITY;
      result.chosen.push_back(is_taken ? slot_of(best[k], token) : -1);
      weights[token * topk + k] =
          (shape.normalises ? row[best[k]] / sum : row[best[k]]) * shape.scale;
    }
  }
  result.token_rows.assign(tokens * topk, -1);
  std::vector<std::vector<std::size_t>> of_experts(
      std::max(experts_total, expert_of_slot.size()));  // places in `chosen`
  for (std::size_t at = 0; at < result.chosen.size(); ++at) {
    if (result.chosen[at] < 0) continue;
    of_experts[static_cast<std::size_t>(result.chosen[at])].push_back(at);
  }
  const auto here = std::span(of_experts)
                        .subspan(static_cast<std::size_t>(shape.first_expert),
                                 static_cast<std::size_t>(shape.experts));
  for (const std::vector<std::size_t>& of_expert : here) {
    for (const std::size_t at : of_expert) {
      result.token_rows[at] = static_cast<std::int32_t>(result.row_token.size());
      result.row_token.push_back(static_cast<std::int32_t>(at / topk));
      result.row_weight.push_back(weights[at]);
    }
    result.counts.push_back(static_cast<std::int32_t>(of_expert.size()));
  }
  return result;
}

InitRouting init_routing(std::span<const std::int32_t> token_rows,
                         std::span<const std::int32_t> row_token,
                         std::span<const std::int32_t> counts,
                         std::span<const std::int32_t> row_idx) {
  const std::size_t rows = row_token.size();
  const auto counted = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (token_rows.size() != rows || row_idx.size() != rows ||
      counted != static_cast<std::int64_t>(rows)) {
    throw std::invalid_argument("init_routing: expected a row for each choice");
  }
  const auto is_place = [&](std::int32_t at) {
    return at >= 0 && static_cast<std::size_t>(at) < rows;
  };
  InitRouting result{.expanded_token = {row_token.begin(), row_token.end()},
                     .expanded_row_idx = std::vector<std::int32_t>(rows, -1)};
  for (std::size_t at = 0; at < rows; ++at) {
    if (!is_place(token_rows[at]) || !is_place(row_idx[at]) ||
        result.expanded_row_idx[static_cast<std::size_t>(row_idx[at])] != -1) {
      throw std::invalid_argument("init_routing: expected each row number once");
    }
    result.expanded_row_idx[static_cast<std::size_t>(row_idx[at])] = token_rows[at];
  }
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    result.expanded_expert_idx.insert(result.expanded_expert_idx.end(),
                                      static_cast<std::size_t>(counts[expert]),
                                      static_cast<std::int32_t>(expert));
  }
  return result;
}

Results index_shuffling_reference(const KernelCall& call) {
  const Routing& routing = call.numbers.routing;
  const std::vector<std::int32_t>& slots = routing.expert_of_slot;
  const std::int64_t experts =
      slots.empty() ? size_of(call, "experts") : num_elements(tensor_written(call, "counts"));
  const std::int64_t experts_total = size_of(call, "experts_total");
  const Values bias = optional_read(call, "correction_bias");
  const IndexShuffling found =
      index_shuffling(read(call, "scores"), bias,
                      {.tokens = size_of(call, "tokens"),
                       .experts_total = experts_total,
                       .topk = size_of(call, "topk"),
                       .groups = size_of(call, "groups"),
                       .topk_groups = routing.topk_groups,
                       .group_score = bias.empty() ? GroupScore::kBest : GroupScore::kBestTwo,
                       .slots = std::ssize(slots),
                       .first_expert = call.first_expert / experts * experts,
                       .experts = experts,
                       .normalises = routing.normalises,
                       .scale = routing.scale},
                      slots);
  const std::int64_t rows = num_elements(tensor_written(call, "row_token"));
  return {padded(found.counts, experts, 0),
          {std::accumulate(found.counts.begin(), found.counts.end(), 0.0)},
          padded(found.row_token, rows, -1),
          padded(found.row_weight, rows, 0),
          padded(found.token_rows, std::ssize(found.token_rows), -1)};
}

}  // namespace orrery::reference
