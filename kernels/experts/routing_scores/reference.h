#pragma once

// routing_scores in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/kernel_call.h"
#include "kernels/experts/routing_scores/choice.h"

namespace orrery::reference {

// Scores [tokens, experts_total] of x [tokens, hidden], w [experts_total, hidden] and bias
// [experts_total] or empty. Throws std::invalid_argument for a shape out of range or sizes that do
// not fit it.
std::vector<double> routing_scores(std::span<const double> x, std::span<const double> w,
                                   std::span<const double> bias, const RoutingScoresShape& shape);

// Those of rows whose slot is negative: -infinity.
void pad_scores(std::span<double> scores, std::span<const std::int64_t> slots);

// The scores that the call was given, by which experts are chosen in place of `scores`
// [tokens, experts]; these where it was given none.
Values given_or_found(const KernelCall& call, Values scores, std::int64_t experts);

}  // namespace orrery::reference
