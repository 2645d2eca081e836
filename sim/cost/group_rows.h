#pragma once

// Rows of a grouped gemm whose groups, experts that tokens do not choose alike, have unequal
// numbers of them. Its rows were measured with about as many in each.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace orrery {

// So many groups with so many rows each; a mean of some, where they differ little.
struct GroupRows {
  double groups = 0;
  double rows = 0;
  bool operator==(const GroupRows&) const = default;
};

// How `rows` rows lie in `active` of `groups` experts: as often as `choices`, the probabilities of
// all experts in descending order, say of those in the middle of `groups` equal parts of them. The
// fullest first, the more of them together the fewer rows they have. Empty for no choices, rows or
// groups.
std::vector<GroupRows> group_rows(std::span<const double> choices, std::int64_t rows,
                                  std::int64_t groups, std::int64_t active);

// How many of the experts that tokens choose so often have rows on average, where all have `rows`.
double expected_groups(std::span<const double> choices, std::int64_t rows);

// Times that a kernel of passes of up to `most` rows reads the weights of a group of about `rows`:
// of a Poisson distribution, as counts in rows of tables are.
double expected_passes(double rows, double most);

// The time of such groups over that of as many with equally many rows each, where `time` is that of
// `active` groups of so many rows each.
double uneven_over_even(std::span<const GroupRows> groups,
                        const std::function<double(double rows)>& time);

}  // namespace orrery
