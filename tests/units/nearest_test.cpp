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

constexpr std::array<std::string_view, 11> kModels{
    "deepseek-v3",          "deepseek-v3.2",
    "gpt-oss-120b",         "gpt-oss-20b",
    "llama-2-70b",          "llama-3.1-70b",
    "llama-3.1-8b",         "phi-4",
    "qwen3-30b-a3b",        "llama-4-maverick-17b-128e",
    "llama-4-scout-17b-16e"};

TEST(Nearest, SeparatorsAndCaseSayNothing) {
  EXPECT_EQ(nearest("gptoss120b", kModels), "gpt-oss-120b");
  EXPECT_EQ(nearest("DeepSeek_V3.2", kModels), "deepseek-v3.2");
  EXPECT_EQ(nearest("deepseekv3", kModels), "deepseek-v3");
  EXPECT_EQ(nearest("Phi 4", kModels), "phi-4");
  EXPECT_EQ(nearest("maxNumSeqs", kKnown), "max_num_seqs");
}

TEST(Nearest, APartIsFoundHoweverItIsSeparated) {
  EXPECT_EQ(nearest("llama4-scout", kModels), "llama-4-scout-17b-16e");
  EXPECT_EQ(nearest("llama-4-scout", kModels), "llama-4-scout-17b-16e");
  EXPECT_EQ(nearest("Llama4Scout", kModels), "llama-4-scout-17b-16e");
  EXPECT_EQ(nearest("maverick", kModels), "llama-4-maverick-17b-128e");
  EXPECT_EQ(nearest("qwen3-30b", kModels), "qwen3-30b-a3b");
}

TEST(Nearest, APartAsItIsWrittenComesBeforeOneAcrossSeparators) {
  // Without its dash "b12-0b42" has "120b4" as well, and is shorter.
  constexpr std::array<std::string_view, 2> names{"b12-0b42", "gpt-oss-120b4"};
  EXPECT_EQ(nearest("120b4", names), "gpt-oss-120b4");
}

TEST(Nearest, AShortPartIsNoneAcrossSeparators) {
  constexpr std::array<std::string_view, 2> names{"cp_prefill", "cp"};
  EXPECT_EQ(nearest("cpp", names), "cp");
}

TEST(Nearest, MoreBehindAWholeNameCountsHalf) {
  // Four characters follow "deepseekv3"; for "deepseekv32" 0, 3 and 4 are too much: 2 * 3.
  EXPECT_EQ(nearest("deepseek-v3-0324", kModels), "deepseek-v3");
}

TEST(Nearest, AMissingEndingCountsHalf) {
  // A letter and the ending "17b16e" are missing, 2 + 6; for "llama270b" four are to be replaced
  // and one is too much, 2 * 5.
  EXPECT_EQ(nearest("llama-4-scot", kModels), "llama-4-scout-17b-16e");
}

TEST(Nearest, ASwapIsOneEdit) {
  // From "gathermul" it is one insertion and one deletion otherwise, and from "gatemul" two
  // deletions.
  constexpr std::array<std::string_view, 2> names{"gate_mul", "gather_mul"};
  EXPECT_EQ(nearest("gatehr_mul", names), "gather_mul");
}

TEST(Nearest, OnATieTheLongestBeginningInCommonWins) {
  // One edit from "llama270b", which replaces the 3, and one from "llama3170b", which adds a 1.
  EXPECT_EQ(nearest("llama3-70b", kModels), "llama-3.1-70b");
}

TEST(Nearest, EmptyTextFindsTheShortestName) { EXPECT_EQ(nearest("", kKnown), "slo"); }

TEST(Nearest, NothingIsNearestWhereNothingIsKnown) { EXPECT_EQ(nearest("tp", {}), ""); }

}  // namespace
}  // namespace orrery
