#include "sim/serve/workload.h"

#include <gtest/gtest.h>

#include <cmath>

namespace orrery {
namespace {

constexpr LengthDistribution kFixed{.min = 100, .max = 100};

// Mean and coefficient of variation of the gaps between arrivals.
std::pair<double, double> gap_moments(const Workload& workload) {
  double sum = 0;
  double squares = 0;
  Seconds before;
  for (const Request& request : workload.requests) {
    const double gap = (request.arrival - before).value();
    sum += gap;
    squares += gap * gap;
    before = request.arrival;
  }
  const auto count = static_cast<double>(workload.requests.size());
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean) / mean};
}

TEST(Workload, PoissonArrivalsHaveTheirRateAndCvOne) {
  const auto [mean, cv] = gap_moments(open_loop(5, 1, 50000, kFixed, kFixed, 1));
  EXPECT_NEAR(mean, 0.2, 0.005);
  EXPECT_NEAR(cv, 1, 0.03);
}

TEST(Workload, GammaArrivalsHaveTheirCv) {
  for (const double wanted : {0.5, 2.0}) {
    const auto [mean, cv] = gap_moments(open_loop(5, wanted, 50000, kFixed, kFixed, 1));
    EXPECT_NEAR(mean, 0.2, 0.01);
    EXPECT_NEAR(cv, wanted, 0.06 * wanted);
  }
}

TEST(Workload, SameSeedSameRequests) {
  const LengthDistribution uniform{.kind = LengthKind::kUniform, .min = 1, .max = 9};
  const Workload a = open_loop(5, 1, 50, uniform, uniform, 3);
  const Workload b = open_loop(5, 1, 50, uniform, uniform, 3);
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(a.requests[i].arrival, b.requests[i].arrival);
    EXPECT_EQ(a.requests[i].prompt_tokens, b.requests[i].prompt_tokens);
  }
}

TEST(Workload, ScalingTheRateDividesArrivals) {
  Workload workload = open_loop(5, 1, 10, kFixed, kFixed, 3);
  const Seconds last = workload.requests.back().arrival;
  scale_rate(workload, 2);
  EXPECT_DOUBLE_EQ(workload.requests.back().arrival.value(), last.value() / 2);
  EXPECT_THROW(scale_rate(workload, 0), std::invalid_argument);
}

TEST(Workload, NumbersThatAreNotPositiveAreRefused) {
  EXPECT_THROW(open_loop(0, 1, 10, kFixed, kFixed, 1), std::invalid_argument);
  EXPECT_THROW(open_loop(1, -1, 10, kFixed, kFixed, 1), std::invalid_argument);
  EXPECT_THROW(open_loop(1, 1, 0, kFixed, kFixed, 1), std::invalid_argument);
  EXPECT_THROW(open_loop(1, 1, 1, {.min = 0, .max = 5}, kFixed, 1), std::invalid_argument);
  EXPECT_THROW(open_loop(1, 1, 1, kFixed, {.min = 5, .max = 4}, 1), std::invalid_argument);
  EXPECT_THROW(closed_loop(0, 10, kFixed, kFixed, 1), std::invalid_argument);
}

TEST(RepeatedPrompts, EveryNthRequestSendsTheSameOne) {
  const LengthDistribution uniform{.kind = LengthKind::kUniform, .min = 100, .max = 900};
  Workload workload = closed_loop(2, 9, uniform, kFixed, 3);
  repeat_prompts(workload, 4);
  EXPECT_EQ(workload.hash_block_tokens, 64);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    EXPECT_EQ(request.prompt_tokens, workload.requests[i % 4].prompt_tokens);
    EXPECT_EQ(request.block_hashes, workload.requests[i % 4].block_hashes);
    EXPECT_EQ(static_cast<std::int64_t>(request.block_hashes.size()), request.prompt_tokens / 64);
    if (i > 0 && i < 4) {
      EXPECT_NE(request.block_hashes[0], workload.requests[0].block_hashes[0]);
    }
  }
  EXPECT_THROW(repeat_prompts(workload, 0), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
