#pragma once

// Rows of experts, spread as chance spreads those of tokens that choose by themselves.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

// Rows of each expert, means[e] on average, whether more or less in no order of e; at least one row
// in all. Of equal means as tokens that choose uniformly.
std::vector<std::int64_t> rows_of_experts(std::span<const double> means);

}  // namespace orrery
