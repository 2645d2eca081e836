#pragma once

// fused_moe in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/experts/fused_moe/shape.h"

namespace orrery::reference {

struct FusedMoe {
  std::vector<double> y;             // [tokens, hidden]
  std::vector<double> scores;        // [tokens, experts]
  std::vector<std::int32_t> counts;  // [experts], rows that they take
  std::vector<std::int32_t> faulty;  // tokens with a score that is not a number
};

// Operands as in fused_moe.h. Experts are chosen and weighed by `given_scores` where there are some
// [tokens, experts], since a rounding may move a score past another; else by `scores`. w1 and w2
// are of the experts that `expert_of_slot` names, one after the other; empty: of experts in order.
// Throws std::invalid_argument for a shape out of range or sizes that do not fit.
FusedMoe fused_moe(std::span<const double> x, std::span<const double> router,
                   std::span<const double> w1, std::span<const double> w2,
                   const FusedMoeShape& shape, std::span<const double> given_scores = {},
                   std::span<const double> correction_bias = {},
                   std::span<const double> shared_w1 = {}, std::span<const double> shared_w2 = {},
                   std::span<const double> logit_bias = {},
                   std::span<const std::int32_t> expert_of_slot = {});

}  // namespace orrery::reference
