#include "kernels/execute/draw_input.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "kernels/execute/rank_batches.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/halves.h"

namespace orrery {
namespace {

Batch mixed() {
  return {.prefill = {{.query = 2048, .context = 100}, {.query = 7, .produces_token = false}},
          .num_decodes = 3,
          .decode_context = 3 * 129};
}

std::vector<const SequenceTokens*> sequences_of(const StepInput& input) {
  std::vector<const SequenceTokens*> all;
  for (const auto* part : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& sequence : *part) all.push_back(&sequence);
  }
  return all;
}

TEST(DrawnInput, HasTheTokensAndContextsOfTheStep) {
  const StepInput input = draw_input(mixed(), 1000, 64, 64, 1);
  ASSERT_EQ(input.prefill.size(), 2U);
  EXPECT_EQ(input.prefill[0].tokens.size(), 2048U);
  EXPECT_EQ(input.prefill[0].context, 100);
  EXPECT_TRUE(input.prefill[0].produces_token);
  EXPECT_FALSE(input.prefill[1].produces_token);
  ASSERT_EQ(input.decodes.size(), 3U);
  for (const SequenceTokens& decode : input.decodes) {
    EXPECT_EQ(decode.tokens.size(), 1U);
    EXPECT_EQ(decode.context, 128);  // the new token is the 129th
  }
}

TEST(DrawnInput, TokensAreOfTheVocabulary) {
  const StepInput input = draw_input(mixed(), 10, 64, 64, 1);
  std::set<std::int32_t> seen;
  for (const SequenceTokens* sequence : sequences_of(input)) {
    seen.insert(sequence->tokens.begin(), sequence->tokens.end());
  }
  EXPECT_EQ(seen.size(), 10U);  // 2,058 draws miss one of ten with probability below 1e-90
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 9);
}

TEST(DrawnInput, NoBlockIsGivenOutTwiceAndPagesLieApart) {
  const StepInput input = draw_input(mixed(), 1000, 50, 64, 1);
  std::set<std::int32_t> given;
  std::size_t total = 0;
  for (const SequenceTokens* sequence : sequences_of(input)) {
    total += sequence->blocks.size();
    given.insert(sequence->blocks.begin(), sequence->blocks.end());
  }
  EXPECT_EQ(total, 44U);
  EXPECT_EQ(given.size(), total);
  EXPECT_GE(*given.begin(), 0);
  EXPECT_LT(*given.rbegin(), 50);
  EXPECT_FALSE(std::ranges::is_sorted(input.prefill[0].blocks));
}

TEST(DrawnInput, IsTheSameForTheSameSeedOnly) {
  const Batch batch = mixed();
  const auto tokens = [&](std::uint64_t seed) {
    return draw_input(batch, 1000, 64, 64, seed).prefill[0].tokens;
  };
  EXPECT_EQ(tokens(3), tokens(3));
  EXPECT_NE(tokens(3), tokens(4));
}

TEST(DrawnInput, AStepThatNeedsMoreBlocksThanThereAreIsRefused) {
  const Batch batch{.num_decodes = 4, .decode_context = 4 * 65};
  EXPECT_NO_THROW(draw_input(batch, 10, 8, 64, 1));  // two blocks each
  EXPECT_THROW(draw_input(batch, 10, 7, 64, 1), std::invalid_argument);
}

// Each rank has a cache of its own: blocks of its sequences differ, those of ranks may not.
TEST(DrawnInput, BlocksAreGivenOutRankByRankAsSequencesAreDealtOut) {
  constexpr int kRanks = 3;
  const Batch batch{.prefill = {{.query = 130}, {.query = 64, .context = 64}, {.query = 1}},
                    .num_decodes = 7,
                    .decode_context = 7 * 129};
  const std::int64_t most = blocks_of_fullest(batch, 64, kRanks);
  EXPECT_EQ(most, 12);  // of three blocks for 130 tokens and of 3 decodes of three each
  EXPECT_EQ(blocks_of_fullest(batch, 64, 1), kv_blocks(batch, 64));
  const StepInput input = draw_input(batch, 100, most, 64, 1, kRanks);
  EXPECT_THROW(draw_input(batch, 100, most - 1, 64, 1, kRanks), std::invalid_argument);
  for (const StepInput& dealt : {input, in_halves(input, kRanks)}) {
    const int ways = names_ranks(dealt) ? kNumHalves * kRanks : kRanks;
    const std::vector<StepPart> parts = split_step(dealt, ways);
    for (int rank = 0; rank < kRanks; ++rank) {
      std::set<std::vector<std::int32_t>> sequences;  // a prompt in two halves is one
      for (int part = rank * ways / kRanks; part < (rank + 1) * ways / kRanks; ++part) {
        const StepPart& own = parts[static_cast<std::size_t>(part)];
        for (const SequenceTokens* one : own.prefill) sequences.insert(one->blocks);
        for (const SequenceTokens* one : own.decodes) sequences.insert(one->blocks);
      }
      std::set<std::int32_t> given;
      std::size_t total = 0;
      for (const std::vector<std::int32_t>& blocks : sequences) {
        given.insert(blocks.begin(), blocks.end());
        total += blocks.size();
      }
      EXPECT_EQ(given.size(), total) << rank;
      EXPECT_GT(total, 0U) << rank;
    }
  }
}

}  // namespace
}  // namespace orrery
