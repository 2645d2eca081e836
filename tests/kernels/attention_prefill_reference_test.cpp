#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "kernels/attention/attention_prefill/reference.h"

namespace orrery::reference {
namespace {

constexpr double kTolerance = 1e-12;

std::vector<double> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& x : values) x = static_cast<double>(engine()) * 0x1p-31 - 1;
  return values;
}

// One sequence with 4 heads over 2 key heads, a value longer than a key.
constexpr AttentionShape kShape{.heads = 4, .kv_heads = 2, .qk_dim = 5, .v_dim = 7, .scale = 0.7};
struct Operands {
  std::vector<double> q;
  std::vector<double> keys;
  std::vector<double> values;
};
Operands operands(std::int64_t queries, std::int64_t keys) {
  return {random_values(queries * kShape.heads * kShape.qk_dim, 1),
          random_values(keys * kShape.kv_heads * kShape.qk_dim, 2),
          random_values(keys * kShape.kv_heads * kShape.v_dim, 3)};
}

TEST(AttentionReference, OfOneKeyIsItsValueAndLseItsScore) {
  const auto [q, keys, values] = operands(1, 1);
  for (std::int64_t head = 0; head < kShape.heads; ++head) {
    const AttentionRow row = attention_row(q, keys, values, kShape, {}, head);
    const std::int64_t kv_head = head / 2;
    double score = 0;
    for (int d = 0; d < 5; ++d) score += 0.7 * q[head * 5 + d] * keys[kv_head * 5 + d];
    EXPECT_NEAR(row.lse, score, kTolerance);
    for (int d = 0; d < 7; ++d) EXPECT_NEAR(row.out[d], values[kv_head * 7 + d], kTolerance);
  }
}

TEST(AttentionReference, OfEqualScoresIsTheMeanOfTheWindow) {
  auto [q, keys, values] = operands(1, 9);
  std::ranges::fill(q, 0);
  for (std::int64_t window : {1, 3, 6, 9}) {
    AttentionShape shape = kShape;
    shape.window = window;
    const std::int64_t position = 5;  // sees keys 0 to 5
    const std::int64_t first = std::max<std::int64_t>(0, 6 - window);
    const AttentionRow row = attention_row(q, keys, values, shape, {.position = position}, 3);
    EXPECT_NEAR(row.lse, std::log(static_cast<double>(6 - first)), kTolerance);
    for (std::int64_t d = 0; d < 7; ++d) {
      double mean = 0;
      for (std::int64_t key = first; key < 6; ++key) {
        mean += values[(key * 2 + 1) * 7 + d] / static_cast<double>(6 - first);
      }
      EXPECT_NEAR(row.out[d], mean, kTolerance) << "window " << window;
    }
  }
}

// Attention over two halves of the keys, weighted by their denominators, is attention over all.
TEST(AttentionReference, OfTwoStretchesMergesByLse) {
  const auto [q, keys, values] = operands(1, 8);
  AttentionShape newest = kShape;
  newest.window = 3;
  const QueryToken token{.position = 7};
  const AttentionRow late = attention_row(q, keys, values, newest, token, 2);
  const AttentionRow early = attention_row(q, keys, values, kShape, {.position = 4}, 2);
  const AttentionRow all = attention_row(q, keys, values, kShape, token, 2);
  EXPECT_NEAR(std::exp(all.lse), std::exp(late.lse) + std::exp(early.lse), 1e-10);
  for (std::size_t d = 0; d < all.out.size(); ++d) {
    const double merged =
        std::exp(late.lse - all.lse) * late.out[d] + std::exp(early.lse - all.lse) * early.out[d];
    EXPECT_NEAR(all.out[d], merged, kTolerance);
  }
}

TEST(AttentionReference, DoesNotSeeLaterKeysNorOtherSequences) {
  auto [q, keys, values] = operands(1, 8);
  const QueryToken token{.position = 2, .key_row = 2};  // keys 2 to 4
  const AttentionRow before = attention_row(q, keys, values, kShape, token, 0);
  for (std::size_t row : {0U, 1U, 5U, 6U, 7U}) {
    for (std::size_t i = 0; i < 10; ++i) keys[row * 10 + i] = std::nan("");
    for (std::size_t i = 0; i < 14; ++i) values[row * 14 + i] = std::nan("");
  }
  const AttentionRow after = attention_row(q, keys, values, kShape, token, 0);
  EXPECT_EQ(after.out, before.out);
  EXPECT_EQ(after.lse, before.lse);
}

TEST(AttentionReference, OfAChunkIsThatOfTheWholePrompt) {
  const auto [q, keys, values] = operands(6, 6);
  const std::vector<double> tail(q.begin() + 80, q.end());  // of 20 each: tokens 4 and 5
  const PrefillChunk whole{.query = 6, .context = 0};
  const PrefillChunk chunk{.query = 2, .context = 4};
  const auto of_whole = query_tokens(std::span(&whole, 1));
  const auto of_chunk = query_tokens(std::span(&chunk, 1));
  for (std::size_t i = 0; i < 2; ++i) {
    const AttentionRow expected = attention_row(q, keys, values, kShape, of_whole[4 + i], 1);
    EXPECT_EQ(attention_row(tail, keys, values, kShape, of_chunk[i], 1).out, expected.out);
  }
}

TEST(AttentionReference, NumbersTokensAndKeysOfAllSequences) {
  const std::vector<PrefillChunk> sequences{{2, 3}, {0, 4}, {1, 0}};
  const auto tokens = query_tokens(sequences);
  ASSERT_EQ(tokens.size(), 3U);
  EXPECT_EQ(tokens[1].position, 4);
  EXPECT_EQ(tokens[1].key_row, 0);
  EXPECT_EQ(tokens[2].row, 2);
  EXPECT_EQ(tokens[2].position, 0);
  EXPECT_EQ(tokens[2].key_row, 2 + 3 + 4);
}

TEST(AttentionReference, RefusesTokensOutsideOfTheOperands) {
  const auto [q, keys, values] = operands(1, 4);
  EXPECT_THROW(attention_row(q, keys, values, kShape, {.row = 1}, 0), std::invalid_argument);
  EXPECT_THROW(attention_row(q, keys, values, kShape, {.position = 4}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace orrery::reference
