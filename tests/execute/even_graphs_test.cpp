#include "kernels/execute/even_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace orrery {
namespace {

using Sizes = std::vector<std::int64_t>;

const Sizes kSizes{1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64};

// A rank of 57 to 64 decodes beside one of 0 to 64: even parts of 29 to 64.
TEST(EvenGraphs, OfTwoRanksAreHalfOfTheFullestOrMore) {
  EXPECT_EQ(even_graphs_of(kSizes, 64, 2), (Sizes{32, 40, 48, 56, 64}));
  EXPECT_EQ(even_graphs_of(kSizes, 2, 2), (Sizes{1, 2}));
  EXPECT_EQ(even_graphs_of(kSizes, 1, 2), (Sizes{1}));
}

// Whatever decodes the ranks have, their graph is among those that are captured.
TEST(EvenGraphs, AreThereForAnyDecodesOfTheRanks) {
  for (const int dp : {2, 3, 8}) {
    for (std::int64_t fullest = 1; fullest <= kSizes.back(); ++fullest) {
      const std::int64_t rows = *std::ranges::lower_bound(kSizes, fullest);
      const Sizes graphs = even_graphs_of(kSizes, rows, dp);
      for (std::int64_t tokens = fullest; tokens <= fullest * dp; ++tokens) {
        const std::int64_t even = even_graph_rows(kSizes, tokens, dp);
        EXPECT_EQ(std::ranges::count(graphs, even), 1) << fullest << " of " << tokens;
        EXPECT_GE(even * dp, tokens);
      }
    }
  }
}

TEST(EvenGraphs, AreCapturedWithDecodesThatTheyHold) {
  for (const int dp : {2, 3, 8}) {
    for (const std::int64_t rows : kSizes) {
      for (const std::int64_t even : even_graphs_of(kSizes, rows, dp)) {
        const Sizes decodes = decodes_of_graph(rows, even, dp);
        EXPECT_EQ(std::ssize(decodes), dp);
        EXPECT_EQ(decodes.front(), rows);
        EXPECT_EQ(std::ranges::max(decodes), rows);
        EXPECT_EQ(std::accumulate(decodes.begin(), decodes.end(), std::int64_t{0}),
                  std::max(rows, even * dp));
      }
    }
  }
}

}  // namespace
}  // namespace orrery
