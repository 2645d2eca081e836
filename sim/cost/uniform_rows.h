#pragma once

// Rows of experts that tokens choose uniformly, spread as chance spreads them.

#include <cstdint>
#include <vector>

namespace orrery {

// Rows of each of `own` experts, `mean` on average, in no order of size; at least one row in all.
std::vector<std::int64_t> rows_of_experts(std::int64_t own, double mean);

}  // namespace orrery
