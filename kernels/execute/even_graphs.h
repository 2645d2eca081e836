#pragma once

// Which graphs of decodes a service captures where data-parallel ranks have even parts of all
// ranks' rows: attention pads to the graph of the fullest rank, even parts to a captured size of
// their own, so a graph is of a pair of these. No CUDA.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

// Rows of an even part of `tokens` on `dp` ranks, none of which has more than the largest of
// `sizes`, which ascend.
std::int64_t even_graph_rows(std::span<const std::int64_t> sizes, std::int64_t tokens, int dp);

// All that go with a fullest rank that pads to `rows`, one of `sizes`; ascending.
std::vector<std::int64_t> even_graphs_of(std::span<const std::int64_t> sizes, std::int64_t rows,
                                         int dp);

// Decodes by rank that such a graph is captured with: as many as even parts of `even_rows` hold,
// the first rank the fullest.
std::vector<std::int64_t> decodes_of_graph(std::int64_t rows, std::int64_t even_rows, int dp);

}  // namespace orrery
