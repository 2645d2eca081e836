#include "kernels/experts/combine_shuffling/reference.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <stdexcept>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

void require_sizes(std::span<const std::int32_t> counts, const ShuffleSizes& sizes) {
  require(sizes.ranks >= 1 && sizes.groups >= 1 && sizes.first >= 0 &&
              sizes.first + sizes.groups <= sizes.experts &&
              std::ssize(counts) == sizes.ranks * sizes.experts,
          "shuffling: counts are not [ranks, experts], or groups are not among the experts");
}

}  // namespace

std::vector<std::int64_t> shuffled_rows(std::span<const std::int32_t> counts,
                                        const ShuffleSizes& sizes) {
  require_sizes(counts, sizes);
  const auto at = [&](std::int64_t rank, std::int64_t expert) {
    return counts[static_cast<std::size_t>(rank * sizes.experts + expert)];
  };
  // Where each slice begins in the order of ranks: [ranks, groups].
  std::vector<std::int64_t> begins;
  std::int64_t row = 0;
  for (std::int64_t rank = 0; rank < sizes.ranks; ++rank) {
    if (sizes.bound > 0) row = rank * sizes.bound;
    for (std::int64_t expert = 0; expert < sizes.experts; ++expert) {
      const bool taken = expert >= sizes.first && expert < sizes.first + sizes.groups;
      if (taken) begins.push_back(row);
      if (taken || sizes.holds_all) row += at(rank, expert);
    }
    require(sizes.bound == 0 || row <= (rank + 1) * sizes.bound,
            "shuffling: a rank has more rows than its bound");
  }
  std::vector<std::int64_t> order;
  for (std::int64_t group = 0; group < sizes.groups; ++group) {
    for (std::int64_t rank = 0; rank < sizes.ranks; ++rank) {
      const std::int64_t begin = begins[static_cast<std::size_t>(rank * sizes.groups + group)];
      for (std::int32_t i = 0; i < at(rank, sizes.first + group); ++i) order.push_back(begin + i);
    }
  }
  return order;
}

std::vector<std::int32_t> group_counts(std::span<const std::int32_t> counts,
                                       const ShuffleSizes& sizes) {
  require_sizes(counts, sizes);
  std::vector<std::int32_t> sums(static_cast<std::size_t>(sizes.groups));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::int64_t group = static_cast<std::int64_t>(i) % sizes.experts - sizes.first;
    if (group >= 0 && group < sizes.groups) sums[static_cast<std::size_t>(group)] += counts[i];
  }
  return sums;
}

std::vector<double> take_rows(std::span<const double> from, std::span<const std::int64_t> order,
                              std::size_t columns) {
  std::vector<double> to;
  to.reserve(order.size() * columns);
  for (const std::int64_t row : order) {
    const auto taken = from.subspan(static_cast<std::size_t>(row) * columns, columns);
    to.insert(to.end(), taken.begin(), taken.end());
  }
  return to;
}

std::vector<double> put_rows(std::span<const double> from, std::span<const std::int64_t> order,
                             std::size_t columns, std::vector<double> to) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::ranges::copy(
        from.subspan(i * columns, columns),
        to.begin() + static_cast<std::ptrdiff_t>(order[i]) * static_cast<std::ptrdiff_t>(columns));
  }
  return to;
}

ShuffleSizes shuffle_sizes(const KernelCall& call, const Tensor& by_rank, bool combines) {
  const bool is_dense = by_rank.axes.size() == 2;
  const Tensor& counts = tensor_read(call, "recv_counts");
  const std::int64_t ranks = size_of(call, "ranks");
  const std::int64_t groups = size_of(call, "groups");
  const std::int64_t experts = num_elements(counts) / ranks;
  return {.ranks = ranks,
          .experts = experts,
          .groups = groups,
          .first = call.first_expert % experts,
          .bound = is_dense ? 0 : by_rank.axes[1].size,
          .holds_all = !is_dense && combines};
}

Results combine_shuffling_reference(const KernelCall& call) {
  const ShuffleSizes sizes = shuffle_sizes(call, tensor_read(call, "by_rank"), /*combines=*/true);
  const std::vector<std::int32_t> counts = integers_read(call, "recv_counts");
  const std::vector<std::int32_t> groups = group_counts(counts, sizes);
  const Values rows = take_rows(read(call, "by_rank"), shuffled_rows(counts, sizes),
                                static_cast<std::size_t>(size_of(call, "hidden")));
  return {padded(rows, num_elements(tensor_written(call, "by_expert")), 0),
          padded(groups, std::ssize(groups), 0),
          {std::accumulate(groups.begin(), groups.end(), 0.0)}};
}

}  // namespace orrery::reference
