#pragma once

// gather_mul in double, and the order of rows that its check and that of scatter_add work with.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// Row r is x[row_token[r]] (x [tokens, hidden]), times row_weight[r] unless that is empty; zeros
// where there is no such token. Throws std::invalid_argument when x is not whole rows or weights
// are not those of the rows.
std::vector<double> gather_mul(std::span<const double> x, std::span<const std::int32_t> row_token,
                               std::span<const double> row_weight, std::size_t hidden);

// Rows in groups of counts[g] each, one behind the other, as [groups, capacity, hidden]: zeros
// behind the rows of a group, none beyond its capacity. Throws when there are fewer rows than
// counts say.
std::vector<double> padded_groups(std::span<const double> rows,
                                  std::span<const std::int32_t> counts, std::size_t capacity,
                                  std::size_t hidden);

}  // namespace orrery::reference
