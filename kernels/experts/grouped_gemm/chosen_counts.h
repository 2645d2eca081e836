#pragma once

// Rows of each group as tokens that choose by themselves leave them, and whose rows they are, for
// checks and timings. No CUDA.

#include <cstdint>
#include <vector>

namespace orrery {

// Counts of `groups` groups of which `active` have rows, these evenly over all, `rows` in all:
// where every row goes to any of them alike, an active group has n >= 1 rows with the probability
// of a Poisson distribution without 0, of mean rows / active. The counts are its `active` quantiles
// in the middles of equal parts (none of them drawn, so that two runs time the same), in no order.
// Tiles of a group are partly empty as in a routed layer: equal counts fill all or none of the last
// ones. Throws std::invalid_argument unless 0 <= active <= min(groups, rows), or for rows without
// an active group.
std::vector<std::int32_t> chosen_counts(std::int64_t rows, std::int64_t groups,
                                        std::int64_t active);

// Likewise in growing parts of 1, 2, 3, ... Throws nothing.
std::vector<std::int32_t> growing_counts(std::int64_t rows, std::int64_t groups,
                                         std::int64_t active);

// The token of each row: every one `topk` times or less, in no order, which follows from the seed.
// Throws std::invalid_argument for more rows than tokens * topk.
std::vector<std::int32_t> chosen_tokens(std::int64_t rows, std::int64_t tokens, std::int64_t topk,
                                        std::uint64_t seed);

}  // namespace orrery
