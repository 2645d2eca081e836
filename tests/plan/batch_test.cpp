#include "sim/plan/batch.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

const Batch kMixed{
    .prefill = {{.query = 2048, .context = 100}, {.query = 7, .produces_token = false}},
    .num_decodes = 3,
    .decode_context = 3 * 129};

TEST(Batch, CountsTokensSequencesAndSampledRows) {
  EXPECT_EQ(num_tokens(kMixed), 2048 + 7 + 3);
  EXPECT_EQ(num_sequences(kMixed), 2 + 3);
  EXPECT_EQ(num_sampled(kMixed), 1 + 3);  // the second chunk does not end its prompt
}

TEST(Batch, MeanContextIsRoundedAndNothingWithoutDecodes) {
  EXPECT_EQ(mean_context(kMixed), 129);
  EXPECT_EQ(mean_context({.num_decodes = 2, .decode_context = 7}), 4);  // 3.5
  EXPECT_EQ(mean_context({.num_decodes = 3, .decode_context = 7}), 2);  // 2.33
  EXPECT_EQ(mean_context({.prefill = {{.query = 5}}}), 0);
}

TEST(Batch, ContextsAndBlocksAreThoseAfterTheStep) {
  EXPECT_EQ(longest_context(kMixed), 2148);
  EXPECT_EQ(longest_context({.num_decodes = 2, .decode_context = 600}), 300);
  // 2148 tokens take 34 blocks of 64 (33 hold 2112), 7 take one, 129 take 3.
  EXPECT_EQ(kv_blocks(kMixed, 64), 34 + 1 + 3 * 3);
}

}  // namespace
}  // namespace orrery
