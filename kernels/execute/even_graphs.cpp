#include "kernels/execute/even_graphs.h"

#include <algorithm>

namespace orrery {

std::int64_t even_graph_rows(std::span<const std::int64_t> sizes, std::int64_t tokens, int dp) {
  const std::int64_t even = std::max<std::int64_t>((tokens + dp - 1) / dp, 1);
  return *std::ranges::lower_bound(sizes, even);
}

std::vector<std::int64_t> even_graphs_of(std::span<const std::int64_t> sizes, std::int64_t rows,
                                         int dp) {
  const auto size = std::ranges::lower_bound(sizes, rows);
  // The fullest rank has more decodes than the size before holds; others may have none.
  const std::int64_t fewest = size == sizes.begin() ? 1 : *(size - 1) + 1;
  const auto first = std::ranges::lower_bound(sizes, even_graph_rows(sizes, fewest, dp));
  return {first, size + 1};
}

std::vector<std::int64_t> decodes_of_graph(std::int64_t rows, std::int64_t even_rows, int dp) {
  std::vector<std::int64_t> decodes;
  std::int64_t left = std::max(even_rows * dp, rows);
  for (int rank = 0; rank < dp; ++rank) {
    decodes.push_back(std::min(rows, left));
    left -= decodes.back();
  }
  return decodes;
}

}  // namespace orrery
