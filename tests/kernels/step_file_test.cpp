#include "kernels/execute/step_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery {
namespace {

constexpr const char* kMixed = R"(# a mixed step
mode eager
prefill 2048 100 1

prefill 7 0 0
decodes 3 129
)";

std::string error_of(std::string_view text) {
  try {
    parse_step(text, "a.step");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::vector<const SequenceTokens*> sequences_of(const StepInput& input) {
  std::vector<const SequenceTokens*> all;
  for (const auto* part : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& sequence : *part) all.push_back(&sequence);
  }
  return all;
}

TEST(StepFile, HoldsChunksAndDecodesOfAStep) {
  const StepFile expected{.prefill = {{.query = 2048, .context = 100},
                                      {.query = 7, .context = 0, .produces_token = false}},
                          .num_decodes = 3,
                          .decode_context = 129};
  EXPECT_EQ(parse_step(kMixed, "a.step"), expected);
}

TEST(StepFile, CountsRowsSequencesAndBlocks) {
  const StepFile step = parse_step(kMixed, "a.step");
  EXPECT_EQ(num_rows(step), 2048 + 7 + 3);
  EXPECT_EQ(num_sequences(step), 5);
  EXPECT_EQ(longest_context(step), 2148);
  // 2148 tokens take 34 blocks of 64 (33 hold 2112), 7 take one, 129 take 3.
  EXPECT_EQ(num_kv_blocks(step, 64), 34 + 1 + 3 * 3);
}

TEST(StepFile, AMistakeIsNamedWithFileAndLine) {
  EXPECT_EQ(error_of("mode graph\ndecode 1 10\n"),
            "a.step:2: unknown word 'decode', nearest is 'decodes'");
  EXPECT_EQ(error_of("mode lazy\n"), "a.step:1: found mode 'lazy'; expected graph or eager");
  EXPECT_EQ(error_of("mode eager\nprefill 5 0\n"),
            "a.step:2: found 2 values; expected 'prefill QUERY CONTEXT PRODUCES'");
  EXPECT_EQ(error_of("mode eager\nprefill 0 0 1\n"),
            "a.step:2: found '0'; expected a whole number from 1 to 1073741824");
  EXPECT_EQ(error_of("mode eager\nprefill 4 0 2\n"),
            "a.step:2: found '2'; expected a whole number from 0 to 1");
  EXPECT_EQ(error_of("mode eager\ndecodes 1 1\ndecodes 1 1\n"),
            "a.step:3: 'decodes' was given before");
  EXPECT_EQ(error_of("decodes 1 1\n"),
            "a.step:1: the file ends without 'mode graph' or 'mode eager'");
  EXPECT_EQ(error_of("mode eager\ndecodes 0 0\n"),
            "a.step:2: the step has no tokens; expected 'prefill' or 'decodes'");
  EXPECT_EQ(error_of("mode graph\nprefill 4 0 1\n"),
            "a.step:2: mode graph with prefill; graphs are captured of steps of decodes alone");
}

TEST(StepFile, AMissingFileIsNamed) {
  EXPECT_THROW(read_step("/nonexistent/a.step"), std::invalid_argument);
}

TEST(DrawnInput, HasTheTokensAndContextsOfTheStep) {
  const StepInput input = draw_input(parse_step(kMixed, "a.step"), 1000, 64, 64, 1);
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
  const StepInput input = draw_input(parse_step(kMixed, "a.step"), 10, 64, 64, 1);
  std::set<std::int32_t> seen;
  for (const SequenceTokens* sequence : sequences_of(input)) {
    seen.insert(sequence->tokens.begin(), sequence->tokens.end());
  }
  EXPECT_EQ(seen.size(), 10U);  // 2,058 draws miss one of ten with probability below 1e-90
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 9);
}

TEST(DrawnInput, NoBlockIsGivenOutTwiceAndPagesLieApart) {
  const StepInput input = draw_input(parse_step(kMixed, "a.step"), 1000, 50, 64, 1);
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
  const StepFile step = parse_step(kMixed, "a.step");
  const auto tokens = [&](std::uint64_t seed) {
    return draw_input(step, 1000, 64, 64, seed).prefill[0].tokens;
  };
  EXPECT_EQ(tokens(3), tokens(3));
  EXPECT_NE(tokens(3), tokens(4));
}

TEST(DrawnInput, AStepThatNeedsMoreBlocksThanThereAreIsRefused) {
  const StepFile step = parse_step("mode graph\ndecodes 4 65\n", "a.step");
  EXPECT_NO_THROW(draw_input(step, 10, 8, 64, 1));  // two blocks each
  EXPECT_THROW(draw_input(step, 10, 7, 64, 1), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
