#include "sim/units/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace orrery {
namespace {

constexpr std::array<std::string_view, 4> kKnown{"max_num_seqs", "block_size", "router", "slo"};

TEST(Nearest, ATypoFindsTheNameItMeant) {
  EXPECT_EQ(nearest("max_num_seq", kKnown), "max_num_seqs");
  EXPECT_EQ(nearest("blok_size", kKnown), "block_size");
  EXPECT_EQ(nearest("ruoter", kKnown), "router");
}

TEST(Nearest, AKnownNameIsNearestToItself) {
  for (const std::string_view name : kKnown) EXPECT_EQ(nearest(name, kKnown), name);
}

TEST(Nearest, AChangeOfCaseCountsHalfAnEdit) {
  // "gb" is one change of case from "Gb" and one edit from "gc".
  constexpr std::array<std::string_view, 2> units{"gc", "Gb"};
  EXPECT_EQ(nearest("gb", units), "Gb");
}

TEST(Nearest, OnATieTheFirstWins) {
  constexpr std::array<std::string_view, 2> names{"ab", "ac"};
  EXPECT_EQ(nearest("ax", names), "ab");
}

TEST(Nearest, APartMeansTheShortestNameThatHasIt) {
  constexpr std::array<std::string_view, 4> machines{"hgx-h20", "l40s-node", "h100-nvl-node",
                                                     "hgx-h100"};
  EXPECT_EQ(nearest("l40", machines), "l40s-node");
  EXPECT_EQ(nearest("h100", machines), "hgx-h100");
}

TEST(Nearest, EmptyTextFindsTheShortestName) { EXPECT_EQ(nearest("", kKnown), "slo"); }

TEST(Nearest, NothingIsNearestWhereNothingIsKnown) { EXPECT_EQ(nearest("tp", {}), ""); }

}  // namespace
}  // namespace orrery
