#pragma once

// How evenly tokens choose experts, and what follows on average: rows and experts with at least one
// row, for a range of experts.

#include <cstdint>
#include <vector>

namespace orrery {

// shares[e]: the part of all choices that falls on expert e. Empty: all experts alike.
struct ExpertLoad {
  std::vector<double> shares;  // of all experts, at least 0, sum 1
  bool operator==(const ExpertLoad&) const = default;
};

// Probability that a token chooses expert e, for each of `num_experts`; the sum is topk. Uniform:
// topk / num_experts. Else p_e = 1 - (1 - s_e)^c, c experts drawn with replacement until topk
// differ on average; exact for topk = 1. Throws std::invalid_argument when the shares are not those
// of num_experts experts (sum 1 to 1e-6), when fewer than topk of them are above zero, or unless
// 1 <= topk <= num_experts.
std::vector<double> choice_probabilities(const ExpertLoad& load, std::int64_t num_experts,
                                         std::int64_t topk);

// Of `tokens` tokens with topk distinct choices each: rows of the experts [first, first + count),
//   sum of tokens p_e,
// and those of them with at least one row, 1 - (1 - p_e)^tokens each. Throws as
// choice_probabilities, or when the range is not within num_experts.
struct ExpectedLoad {
  double rows = 0;
  double active = 0;
};
ExpectedLoad expected_load(const ExpertLoad& load, std::int64_t num_experts, std::int64_t topk,
                           std::int64_t tokens, std::int64_t first, std::int64_t count);

// As whole numbers for the dims of an op: rounded, and an expert for each start of a row:
// 1 <= active <= min(rows, count) unless there are no rows.
struct ExpectedDims {
  std::int64_t rows = 0;
  std::int64_t active = 0;
};
ExpectedDims expected_dims(const ExpertLoad& load, std::int64_t num_experts, std::int64_t topk,
                           std::int64_t tokens, std::int64_t first, std::int64_t count);

// Rows of each expert in one step as it is expected: expected_dims(...).active experts have at
// least one row, the most loaded (evenly spread where all are alike), and the sum is its rows.
std::vector<std::int64_t> expert_rows(const ExpertLoad& load, std::int64_t num_experts,
                                      std::int64_t topk, std::int64_t tokens);

}  // namespace orrery
