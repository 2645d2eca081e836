#pragma once

// The order of combine_shuffling and split_shuffling, and what they copy, in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

struct ShuffleSizes {
  std::int64_t ranks = 0;
  std::int64_t experts = 0;  // columns of the counts
  std::int64_t groups = 0;   // of these, on this rank
  std::int64_t first = 0;    // the first of them
  std::int64_t bound = 0;    // rows from rank to rank on the rank-major side; 0: dense
  bool holds_all = false;    // with a bound: that side has the rows of all experts
};

// For each row in the order of experts its row in the order of ranks; counts [ranks, experts].
// Throws std::invalid_argument when sizes do not fit or a rank has more rows than its bound.
std::vector<std::int64_t> shuffled_rows(std::span<const std::int32_t> counts,
                                        const ShuffleSizes& sizes);

// Rows of the groups: [groups].
std::vector<std::int32_t> group_counts(std::span<const std::int32_t> counts,
                                       const ShuffleSizes& sizes);

// to[i] = from[order[i]], in rows of `columns`: combine_shuffling.
std::vector<double> take_rows(std::span<const double> from, std::span<const std::int64_t> order,
                              std::size_t columns);
// to[order[i]] = from[i] of `rows` rows; `to` otherwise as given: split_shuffling.
std::vector<double> put_rows(std::span<const double> from, std::span<const std::int64_t> order,
                             std::size_t columns, std::vector<double> to);

// Of an op: the tensor whose rows are in the order of ranks, and the counts.
ShuffleSizes shuffle_sizes(const KernelCall& call, const Tensor& by_rank, bool combines);

}  // namespace orrery::reference
