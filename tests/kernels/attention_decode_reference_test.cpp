#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/attention/attention_decode/reference.h"

namespace orrery {
namespace {

using reference::AttentionDecodeOutputs;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One small problem with all of its operands, random and in pages of 16.
struct Problem {
  AttentionDecodeShape shape;
  std::vector<std::int32_t> context_lens;
  std::vector<std::int32_t> block_table;
  std::vector<double> q, keys, values;
  double scale = 0.3;
  double value_scale = 1;

  static constexpr std::int64_t kBlockSize = 16;
  static constexpr std::int64_t kBlocks = 4;  // per sequence

  Problem(std::vector<std::int32_t> lengths, std::int32_t heads, std::int32_t kv_heads)
      : shape{.seqs = static_cast<std::int32_t>(lengths.size()),
              .heads = heads,
              .kv_heads = kv_heads,
              .head_dim = 4},
        context_lens(std::move(lengths)),
        block_table(context_lens.size() * kBlocks),
        q(random(static_cast<std::size_t>(shape.seqs) * heads * shape.head_dim)),
        keys(random(block_table.size() * kBlockSize * kv_heads * shape.head_dim)),
        values(random(keys.size())) {
    std::iota(block_table.begin(), block_table.end(), 0);
  }
  [[nodiscard]] AttentionDecodeOutputs run() const {
    return reference::attention_decode(shape, {.q = q,
                                               .keys = keys,
                                               .values = values,
                                               .block_table = block_table,
                                               .context_lens = context_lens,
                                               .blocks_per_sequence = kBlocks,
                                               .block_size = kBlockSize,
                                               .scale = scale,
                                               .value_scale = value_scale});
  }
  // Position of a token's row of one kv head in keys and values.
  [[nodiscard]] std::size_t row(std::int64_t seq, std::int64_t token, std::int64_t kv_head) const {
    const std::int64_t block = block_table[seq * kBlocks + token / kBlockSize];
    return ((block * kBlockSize + token % kBlockSize) * shape.kv_heads + kv_head) * shape.head_dim;
  }

  static std::vector<double> random(std::size_t count) {
    static std::mt19937 generator(7);
    std::vector<double> result(count);
    for (double& value : result) value = static_cast<double>(generator()) / 2147483648.0 - 1;
    return result;
  }
};

TEST(AttentionDecodeReference, OfOneKeyIsItsValueAndItsScore) {
  Problem problem({1}, 2, 1);
  problem.value_scale = 0.5;
  const auto [out, lse] = problem.run();
  for (int head = 0; head < 2; ++head) {
    double score = 0;
    for (int dim = 0; dim < 4; ++dim) {
      EXPECT_DOUBLE_EQ(out[head * 4 + dim], 0.5 * problem.values[dim]);
      score += problem.q[head * 4 + dim] * problem.keys[dim];
    }
    EXPECT_DOUBLE_EQ(lse[head], 0.3 * score);
  }
}

TEST(AttentionDecodeReference, OfEqualScoresIsTheMeanOfValues) {
  Problem problem({33}, 1, 1);
  std::ranges::fill(problem.q, 0.0);
  const auto [out, lse] = problem.run();
  for (int dim = 0; dim < 4; ++dim) {
    double sum = 0;
    for (int token = 0; token < 33; ++token) sum += problem.values[problem.row(0, token, 0) + dim];
    EXPECT_NEAR(out[dim], sum / 33, 1e-14);
  }
  EXPECT_NEAR(lse[0], std::log(33.0), 1e-14);  // 33 scores of zero
}

TEST(AttentionDecodeReference, WithoutKeysIsZeroAndMinusInfinity) {
  const auto [out, lse] = Problem({0, 3}, 2, 2).run();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(out[i], 0);
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(lse[head], -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isfinite(lse[2 + head]));
  }
}

TEST(AttentionDecodeReference, DoesNotDependOnWherePagesLie) {
  Problem problem({50, 20}, 2, 1);
  const AttentionDecodeOutputs in_order = problem.run();
  const Problem before = problem;
  std::ranges::reverse(problem.block_table);
  for (std::int64_t seq = 0; seq < 2; ++seq) {
    for (std::int64_t token = 0; token < 4 * Problem::kBlockSize; ++token) {
      for (int dim = 0; dim < 4; ++dim) {
        const std::size_t from = before.row(seq, token, 0) + dim;
        const std::size_t to = problem.row(seq, token, 0) + dim;
        problem.keys[to] = before.keys[from];
        problem.values[to] = before.values[from];
      }
    }
  }
  ASSERT_NE(problem.keys, before.keys);
  EXPECT_EQ(problem.run().out, in_order.out);
  EXPECT_EQ(problem.run().lse, in_order.lse);
}

TEST(AttentionDecodeReference, GivesEachGroupOfHeadsItsKvHead) {
  // Head 3 of 4 on 2 kv heads uses kv head 1: a problem with that kv head alone gives the same.
  const Problem both({21}, 4, 2);
  Problem alone({21}, 1, 1);
  for (int dim = 0; dim < 4; ++dim) {
    alone.q[dim] = both.q[3 * 4 + dim];
    for (int token = 0; token < 21; ++token) {
      alone.keys[alone.row(0, token, 0) + dim] = both.keys[both.row(0, token, 1) + dim];
      alone.values[alone.row(0, token, 0) + dim] = both.values[both.row(0, token, 1) + dim];
    }
  }
  const AttentionDecodeOutputs expected = both.run();
  const AttentionDecodeOutputs found = alone.run();
  for (int dim = 0; dim < 4; ++dim) EXPECT_EQ(found.out[dim], expected.out[3 * 4 + dim]);
  EXPECT_EQ(found.lse[0], expected.lse[3]);
}

TEST(AttentionDecodeReference, UsesNoRowThatTheTokenDoesNotSee) {
  Problem problem({40}, 2, 1);
  problem.shape.window = 10;
  const AttentionDecodeOutputs clean = problem.run();
  for (int token = 0; token < 64; ++token) {
    if (token >= 30 && token < 40) continue;
    for (int dim = 0; dim < 4; ++dim) {
      problem.keys[problem.row(0, token, 0) + dim] = kNan;
      problem.values[problem.row(0, token, 0) + dim] = kNan;
    }
  }
  EXPECT_EQ(problem.run().out, clean.out);
  EXPECT_EQ(problem.run().lse, clean.lse);
}

TEST(AttentionDecodeReference, OfTwoStretchesOfKeysMergesByTheirLse) {
  // Keys 0-29 and 30-47 apart, weighted by exp(lse), are keys 0-47 together.
  Problem problem({48}, 1, 1);
  const AttentionDecodeOutputs whole = problem.run();
  problem.shape.window = 18;
  const AttentionDecodeOutputs late = problem.run();
  problem.shape.window = 1 << 30;
  problem.context_lens = {30};
  const AttentionDecodeOutputs early = problem.run();
  const double sum = std::exp(early.lse[0]) + std::exp(late.lse[0]);
  EXPECT_NEAR(whole.lse[0], std::log(sum), 1e-13);
  for (int dim = 0; dim < 4; ++dim) {
    const double merged =
        (std::exp(early.lse[0]) * early.out[dim] + std::exp(late.lse[0]) * late.out[dim]) / sum;
    EXPECT_NEAR(whole.out[dim], merged, 1e-13);
  }
}

}  // namespace
}  // namespace orrery
