#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "kernels/attention/mla_decode/reference.h"

namespace orrery::reference {
namespace {

constexpr std::int64_t kLatent = 6;
constexpr std::int64_t kRope = 2;
constexpr std::int64_t kKey = kLatent + kRope;
constexpr std::int64_t kBlock = 4;
constexpr double kLatentTolerance = 1e-12;

std::vector<double> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> values;
  std::vector<double> result(count);
  for (double& value : result) value = values(random);
  return result;
}

// One sequence over a cache of three blocks.
struct OneSequence {
  std::int64_t heads = 3;
  std::vector<double> q = normal(static_cast<std::size_t>(3 * kKey), 1);
  std::vector<double> cache = normal(static_cast<std::size_t>(3 * kBlock * kKey), 2);
  std::vector<std::int32_t> table{2, 0, 1};
  std::vector<std::int32_t> lengths{11};

  [[nodiscard]] MlaDecodeResult run() const {
    return mla_decode({.q = q,
                       .cache = cache,
                       .block_table = table,
                       .lengths = lengths,
                       .heads = heads,
                       .latent = kLatent,
                       .rope = kRope,
                       .block_size = kBlock,
                       .scale = 0.5});
  }
  [[nodiscard]] const double* token(std::size_t t) const {
    const auto block = static_cast<std::size_t>(table[t / kBlock]);
    return cache.data() + (block * kBlock + t % kBlock) * kKey;
  }
};

TEST(MlaDecodeReference, EqualsPlainAttentionWithLatentAndRotatedPartAsOneKey) {
  const OneSequence x;
  const MlaDecodeResult result = x.run();
  for (std::size_t head = 0; head < 3; ++head) {
    double sum = 0;
    std::vector<double> out(kLatent);
    for (std::size_t t = 0; t < 11; ++t) {
      double latent_score = 0;
      double rope_score = 0;
      for (std::size_t i = 0; i < kLatent; ++i) {
        latent_score += x.q[head * kKey + i] * x.token(t)[i];
      }
      for (std::size_t i = kLatent; i < kKey; ++i) {
        rope_score += x.q[head * kKey + i] * x.token(t)[i];
      }
      const double weight = std::exp(0.5 * (latent_score + rope_score));
      sum += weight;
      for (std::size_t i = 0; i < kLatent; ++i) out[i] += weight * x.token(t)[i];
    }
    for (std::size_t i = 0; i < kLatent; ++i) {
      EXPECT_NEAR(result.out[head * kLatent + i], out[i] / sum, kLatentTolerance);
    }
    EXPECT_NEAR(result.lse[head], std::log(sum), kLatentTolerance);
  }
}

TEST(MlaDecodeReference, OneTokenGivesItsLatentAndItsScore) {
  OneSequence x;
  x.lengths = {1};
  const MlaDecodeResult result = x.run();
  for (std::size_t head = 0; head < 3; ++head) {
    for (std::size_t i = 0; i < kLatent; ++i) {
      EXPECT_DOUBLE_EQ(result.out[head * kLatent + i], x.token(0)[i]);
    }
    const double score =
        std::inner_product(x.token(0), x.token(0) + kKey, x.q.begin() + head * kKey, 0.0) * 0.5;
    EXPECT_NEAR(result.lse[head], score, kLatentTolerance);
  }
}

TEST(MlaDecodeReference, ZeroQueriesGiveTheMeanAndTheLogOfTheLength) {
  OneSequence x;
  x.q.assign(x.q.size(), 0.0);
  const MlaDecodeResult result = x.run();
  double mean = 0;
  for (std::size_t t = 0; t < 11; ++t) mean += x.token(t)[5] / 11;
  EXPECT_NEAR(result.out[5], mean, kLatentTolerance);
  EXPECT_NEAR(result.lse[2], std::log(11.0), kLatentTolerance);
}

TEST(MlaDecodeReference, LengthZeroGivesZerosAndMinusInfinity) {
  OneSequence x;
  x.lengths = {0};
  const MlaDecodeResult result = x.run();
  for (const double value : result.out) EXPECT_EQ(value, 0.0);
  for (const double value : result.lse) {
    EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
  }
}

TEST(MlaDecodeReference, DoesNotReadRowsPastTheLength) {
  OneSequence x;
  const MlaDecodeResult before = x.run();
  const std::size_t stale = (static_cast<std::size_t>(x.table[2]) * kBlock + 3) * kKey;  // token 11
  std::fill_n(x.cache.begin() + static_cast<std::ptrdiff_t>(stale), kKey, std::nan(""));
  EXPECT_EQ(x.run().out, before.out);
}

TEST(MlaDecodeReference, DoesNotDependOnWhichBlocksHoldTheTokens) {
  OneSequence x;
  const MlaDecodeResult before = x.run();
  std::vector<double> moved(x.cache.size());
  constexpr std::size_t kBlockElements = kBlock * kKey;
  for (std::size_t i = 0; i < moved.size(); ++i) {  // block b moves to (b + 1) % 3
    moved[(i + kBlockElements) % moved.size()] = x.cache[i];
  }
  x.cache = moved;
  for (std::int32_t& block : x.table) block = (block + 1) % 3;
  EXPECT_EQ(x.run().out, before.out);
}

// out = (exp(lse_a) out_a + exp(lse_b) out_b) / exp(lse), exp(lse) = exp(lse_a) + exp(lse_b).
TEST(MlaDecodeReference, PartsMergeByTheirLogarithms) {
  OneSequence whole;
  whole.lengths = {8};
  OneSequence first = whole;
  first.lengths = {4};
  OneSequence second = first;
  second.table = {whole.table[1], 0, 0};
  const MlaDecodeResult a = first.run();
  const MlaDecodeResult b = second.run();
  const MlaDecodeResult all = whole.run();
  for (std::size_t head = 0; head < 3; ++head) {
    EXPECT_NEAR(std::exp(all.lse[head]), std::exp(a.lse[head]) + std::exp(b.lse[head]), 1e-9);
    const double share = std::exp(a.lse[head] - all.lse[head]);
    const std::size_t at = head * kLatent + 1;
    EXPECT_NEAR(all.out[at], share * a.out[at] + (1 - share) * b.out[at], kLatentTolerance);
  }
}

TEST(MlaDecodeReference, RefusesSizesThatContradictEachOther) {
  OneSequence x;
  x.q.pop_back();
  EXPECT_THROW(x.run(), std::invalid_argument);
  OneSequence y;
  y.cache.pop_back();
  EXPECT_THROW(y.run(), std::invalid_argument);
  OneSequence z;
  z.lengths = {1, 1};
  z.q.resize(2 * z.q.size());
  EXPECT_THROW(z.run(), std::invalid_argument);  // three table entries for two sequences
}

}  // namespace
}  // namespace orrery::reference
