#pragma once

// scatter_add in double.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// out[t] = base[t] + sum over k of row_weight[r] y[r], r = token_rows[t, k]; y [rows, hidden], base
// [tokens, hidden] or empty (zeros), row_weight [rows] or empty (ones). Rows that are negative or
// not in y add nothing. Throws std::invalid_argument when sizes do not fit.
std::vector<double> scatter_add(std::span<const double> base, std::span<const double> y,
                                std::span<const std::int32_t> token_rows, std::size_t topk,
                                std::span<const double> row_weight, std::size_t hidden);

// y [groups, bound, hidden] as [rows, hidden] without the padding: what scatter_add's rows are
// numbered by. A group is counts.size() / groups consecutive counts. Throws when the counts are not
// those of whole groups or a group is longer than bound.
std::vector<double> without_padding(std::span<const double> y, std::span<const std::int32_t> counts,
                                    std::size_t groups, std::size_t hidden);

}  // namespace orrery::reference
