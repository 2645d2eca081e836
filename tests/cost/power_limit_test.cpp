#include "sim/cost/power_limit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "sim/cost/cost.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

constexpr Seconds ms(double value) { return Seconds(value * 1e-3); }

PowerLimit limit() {
  return {.gemm = 1.2,
          .narrow_gemm = 1.1,
          .attention = 1.3,
          .share = 0.5,
          .boost = ms(60),
          .full_rows = ms(4),
          .limited_rows = ms(6)};
}

// The clock falls over the 60 ms of the boost: over the first 40 it is throttled by 0 to 2/3, in
// the mean 1/3; over the next 40 by 2/3 to 1 for 20, then wholly.
TEST(PowerBudget, ArithmeticAloneLowersTheClockUntilTheBoostIsSpent) {
  PowerBudget budget(limit());
  EXPECT_NEAR(budget.step(ms(40), ms(40)), 1.0 / 3, 1e-12);
  EXPECT_NEAR(budget.left().value(), 20e-3, 1e-12);
  EXPECT_NEAR(budget.throttling(), 2.0 / 3, 1e-12);
  EXPECT_NEAR(budget.step(ms(40), ms(40)), (5.0 / 6 + 1) / 2, 1e-12);
  EXPECT_EQ(budget.step(ms(40), ms(40)), 1);
}

// At a share of a half other work gives back as much as arithmetic takes.
TEST(PowerBudget, OtherWorkAndPausesGiveTheBoostBack) {
  PowerBudget budget(limit());
  EXPECT_EQ(budget.step(ms(100), ms(50)), 0);
  EXPECT_EQ(budget.left(), ms(60));
  // Three quarters of 80 ms: 60 ms less the 20 ms that the rest gives back.
  budget.step(ms(80), ms(60));
  EXPECT_NEAR(budget.left().value(), 20e-3, 1e-12);
  EXPECT_NEAR(budget.full_after().value(), 40e-3, 1e-12);
  budget.rest(ms(30));
  EXPECT_NEAR(budget.left().value(), 50e-3, 1e-12);
  budget.rest(Seconds(1));
  EXPECT_EQ(budget.left(), ms(60));
}

// From a third throttled to the full clock within the first half, then at it: 1/3 / 2 / 2.
TEST(PowerBudget, AStepOfOtherWorkIsAtAThrottledClockUntilItHasRisen) {
  PowerBudget budget(limit(), ms(40));
  EXPECT_NEAR(budget.step(ms(40), ms(0)), 1.0 / 12, 1e-12);
  EXPECT_EQ(budget.throttling(), 0);
}

TEST(PowerBudget, RepeatedStepsAreLimitedByWhatTheirPausesDoNotGiveBack) {
  EXPECT_EQ(repeated_limited_part(limit(), ms(10), ms(10), ms(0)), 1);
  EXPECT_EQ(repeated_limited_part(limit(), ms(10), ms(5), ms(0)), 0);
  // Back at the full clock before each, of which 10 ms take a sixth.
  EXPECT_NEAR(repeated_limited_part(limit(), ms(10), ms(10), ms(10)), 1.0 / 12, 1e-12);
  // Pauses of 30 ms give half of the clock back, which 30 ms of 120 take: 3/4 over these.
  EXPECT_NEAR(repeated_limited_part(limit(), ms(120), ms(120), ms(30)), 0.75 / 4 + 0.75, 1e-12);
  // However long the pause, the boost is 60 ms.
  EXPECT_NEAR(repeated_limited_part(limit(), ms(120), ms(120), Seconds(1)), 0.5 / 2 + 0.5, 1e-12);
  EXPECT_EQ(repeated_limited_part({}, ms(120), ms(120), ms(0)), 0);
}

// In between a step is never faster the more of it is arithmetic.
TEST(PowerBudget, TheLimitedPartGrowsWithTheShareOfArithmetic) {
  double before = 0;
  for (int percent = 0; percent <= 100; ++percent) {
    const double part = repeated_limited_part(limit(), ms(10), ms(0.1 * percent), ms(0));
    EXPECT_GE(part, before) << percent;
    before = part;
  }
  EXPECT_EQ(before, 1);
}

CostModel model(const Machine& machine) {
  CostOptions options;
  options.power = limit();
  return {machine, nullptr, nullptr, options};
}

struct Gemm {
  double computing = 0;  // seconds at 1e15 operations a second
  double moving = 0;     // seconds at 4.8e12 bytes a second
};

Gemm needs(double m, double n, double k) {
  return {.computing = 2 * m * n * k / 1e15, .moving = 2 * (m * k + n * k + m * n) / 4.8e12};
}

TEST(PowerLimit, GemmsTakeTheirFactorWhereArithmeticIsWhatTakesLonger) {
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost = model(machine);
  const auto longer = [&](const KernelOp& op) {
    const Estimate estimate = cost.kernel(op);
    return estimate.limited / estimate.time - 1;
  };
  // 0.2 (a / r)^4 / ((a / r)^4 + (b / s)^4) with the times of arithmetic a and bytes b and the
  // parts of the peak r = 0.80 and of the memory's rate s = 0.89 that large calls reach.
  const Gemm call = needs(256, 8192, 8192);
  const double ratio = std::pow(call.computing / 0.80 / (call.moving / 0.89), 4);
  EXPECT_NEAR(longer(testing::gemm(256, 8192, 8192)), 0.2 * ratio / (1 + ratio), 1e-12);
  // Half of the factor where both take as long: 2 m n k / 0.8e15 = 2 n k / (0.89 x 4.8e12) but for
  // the bytes of m rows, at m = 187 and a little above.
  EXPECT_LT(longer(testing::gemm(187, 8192, 8192)), 0.1);
  EXPECT_GT(longer(testing::gemm(200, 8192, 8192)), 0.1);
  EXPECT_NEAR(longer(testing::gemm(8192, 8192, 8192)), 0.2, 1e-3);
  EXPECT_NEAR(longer(testing::gemm(8192, 8192, 8192, DType::kFp8)), 0.1, 1e-3);
  EXPECT_LT(longer(testing::gemm(1, 8192, 8192)), 1e-6);  // weights are streamed
}

// A tile computes all of its rows: 32 more than there are in each group of more than 54, which go
// in tiles.
TEST(PowerLimit, GroupedGemmsComputeTheEmptyRowsOfTheirTiles) {
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost = model(machine);
  constexpr double kGroups = 4;
  for (const auto& [rows, computed] : {std::pair{200.0, 232.0}, {48.0, 48.0}}) {
    const auto size = [](std::string_view name, double value) {
      return Dim{.name = std::string(name), .size = std::llround(value), .axis = {}};
    };
    const KernelOp op{.kernel = "grouped_gemm",
                      .dtype = DType::kBf16,
                      .dims = {size("rows", kGroups * rows), size("n", 8192), size("k", 8192),
                               size("groups", kGroups), size("active", kGroups)}};
    const double ratio = std::pow(
        needs(computed, 8192, 8192).computing / 0.80 / (needs(rows, 8192, 8192).moving / 0.89), 4);
    const Estimate estimate = cost.kernel(op);
    EXPECT_NEAR(estimate.limited / estimate.time - 1, 0.2 * ratio / (1 + ratio), 1e-4);
  }
}

TEST(PowerLimit, WhatNeitherComputesNorStreamsFollowsTheClock) {
  const testing::TableDirectory directory;
  // 48 MB at 0.89 x 4.8e12 bytes a second take 11.2 us of the 20.
  directory.write("residual_add.csv", "dtype,tokens,hidden,time_us\nbf16,2000,4000,20\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const KernelOp op{.kernel = "residual_add",
                    .dtype = DType::kBf16,
                    .dims = {{.name = "tokens", .size = 2000, .axis = {}},
                             {.name = "hidden", .size = 4000, .axis = {}}}};
  CostOptions options;
  options.power = limit();
  options.power.attention = 1.3;
  const double streamed = 48e6 / (0.89 * 4.8e12);
  EXPECT_NEAR(CostModel(machine, &provider, nullptr, options).kernel(op).limited.value(),
              20e-6 + 0.3 * (20e-6 - streamed), 1e-12);
}

TEST(PowerLimit, WhatDrawsAsMuchAsLargeGemmsCountsAsArithmetic) {
  const testing::TableDirectory directory;
  // Times that follow from the rates of large calls (0.80 of 1e15 operations, 0.89 of 4.8e12 bytes
  // a second), whichever takes longer.
  const Gemm large = needs(8192, 8192, 8192);
  const Gemm even = needs(200, 8192, 8192);
  const Gemm stream = needs(1, 8192, 8192);
  const auto row = [](int m, double seconds) {
    return "bf16," + std::to_string(m) + ",8192,8192," + std::to_string(seconds * 1e6) + "\n";
  };
  directory.write("gemm.csv", "dtype,m,n,k,time_us\n" + row(8192, large.computing / 0.80) +
                                  row(200, even.computing / 0.80) + row(1, stream.moving / 0.89));
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const auto part = [&](std::int64_t m) {
    CostOptions options;
    options.power = limit();
    const Estimate estimate =
        CostModel(machine, &provider, nullptr, options).kernel(testing::gemm(m, 8192, 8192));
    return estimate.arithmetic / estimate.time;
  };
  EXPECT_NEAR(part(8192), 1, 1e-6);
  EXPECT_NEAR(part(200), 1, 1e-6);  // both at once: more than either
  EXPECT_LT(part(1), 0.01);
}

// Rows of up to 4 ms are at the full clock, those of 6 ms and more at the limit.
TEST(PowerLimit, AttentionThatLowersItsOwnClockWasTimedAtTheLimit) {
  const testing::TableDirectory directory;
  directory.write("mla_prefill.csv",
                  "dtype,batch,query,context,heads,qk_head_dim,v_head_dim,time_us\n"
                  "bf16,1,4096,0,128,192,128,1200\nbf16,1,16384,0,128,192,128,19000\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const auto time = [&](std::int64_t query) {
    const auto size = [](std::string_view name, std::int64_t value) {
      return Dim{.name = std::string(name), .size = value, .axis = {}};
    };
    const KernelOp op{
        .kernel = "mla_prefill",
        .dtype = DType::kBf16,
        .dims = {size("batch", 1), size("query", query), size("context", 0), size("heads", 128),
                 size("qk_head_dim", 192), size("v_head_dim", 128)}};
    CostOptions options;
    options.power = limit();
    options.power.full_rows = ms(20);
    options.power.limited_rows = ms(30);
    return CostModel(machine, &provider, nullptr, options).kernel(op).limited;
  };
  EXPECT_GT(time(4096), ms(1.4));  // 1.3 of 1.2 ms, nearly
  EXPECT_NEAR(time(16384).value(), 19e-3, 1e-9);
}

TEST(PowerLimit, RowsOfLongCallsAreAtTheLimitAlready) {
  const testing::TableDirectory directory;
  directory.write("gemm.csv",
                  "dtype,m,n,k,time_us\nbf16,8192,8192,8192,1000\nbf16,8192,65536,8192,8000\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const auto time = [&](Clock clock, std::int64_t n) {
    CostOptions options;
    options.power = limit();
    const CostModel cost(machine, &provider, nullptr, options);
    return cost.kernel(testing::gemm(8192, n, 8192)).at(clock).value();
  };
  EXPECT_NEAR(time(Clock::kFull, 8192), 1e-3, 1e-9);
  EXPECT_GT(time(Clock::kLimited, 8192), 1.15e-3);
  EXPECT_NEAR(time(Clock::kLimited, 65536), 8e-3, 1e-9);
  EXPECT_LT(time(Clock::kFull, 65536), 7e-3);
}

// fused_moe is timed in graphs that follow each other: 96 calls of 1 ms before the median lower the
// clock wholly, of 0.3 ms not at all.
TEST(PowerLimit, RowsOfRepeatedCallsAreAtTheLimitWhereTheseTakeLong) {
  const testing::TableDirectory directory;
  directory.write("fused_moe.csv",
                  "dtype,tokens,hidden,ffn,experts_total,topk,activation,experts,shared,time_us\n"
                  "bf16,16384,2048,2048,8,2,0,8,0,1000\nbf16,4096,2048,2048,8,2,0,8,0,300\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  CostOptions options;
  options.power = limit();
  const CostModel cost(machine, &provider, nullptr, options);
  const auto estimate = [&](std::int64_t tokens) {
    return cost.kernel({.kernel = "fused_moe",
                        .dtype = DType::kBf16,
                        .dims = {{"tokens", tokens},
                                 {"hidden", 2048},
                                 {"ffn", 2048},
                                 {"experts_total", 8},
                                 {"topk", 2},
                                 {"activation", 0},
                                 {"experts", 8},
                                 {"shared", 0}}});
  };
  EXPECT_NEAR(estimate(16384).at(Clock::kLimited).value(), 1e-3, 1e-9);
  EXPECT_LT(estimate(16384).at(Clock::kFull).value(), 0.85e-3);
  EXPECT_NEAR(estimate(4096).at(Clock::kFull).value(), 0.3e-3, 1e-9);
  EXPECT_GT(estimate(4096).at(Clock::kLimited).value(), 0.34e-3);
}

// Of our own tables no product is read that is long enough to come to the limit, so that a long one
// is priced at the full clock and takes longer at the limit. As measured on an H200 (2026-11-28), m
// rows by [4,096, 28,672] and [14,336, 4,096], of calls that had come to the limit.
TEST(PowerLimit, OwnProductsOfAnyLengthArePricedAtTheFullClock) {
  const Provider provider = Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) /
                                           "topologies/devices/h200-sxm/orrery");
  const Machine machine = make_machine(testing::node_spec());
  CostOptions options;
  options.power = limit();
  options.power.gemm = 1.16;
  options.power.full_rows = ms(20);
  options.power.limited_rows = ms(30);
  const CostModel cost(machine, &provider, nullptr, options);
  const auto limited = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    return cost.kernel(testing::gemm(m, n, k)).limited.value();
  };
  constexpr double kWithin = 0.05;
  EXPECT_NEAR(limited(65536, 28672, 4096) / 21.87e-3, 1, kWithin);
  EXPECT_NEAR(limited(131072, 28672, 4096) / 43.73e-3, 1, kWithin);
  EXPECT_NEAR(limited(131072, 4096, 14336) / 22.39e-3, 1, kWithin);
}

// Alone attention takes 1.13 at the limit, 1.3 between GEMMs.
TEST(PowerLimit, RowsOfLongAttentionWereAtTheLimitOfAttentionAlone) {
  const testing::TableDirectory directory;
  directory.write("attention_prefill.csv",
                  "dtype,batch,query,context,heads,kv_heads,head_dim,window,time_us\n"
                  "bf16,1,16384,0,64,8,128,0,9000\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  CostOptions options;
  options.power = limit();
  const KernelOp op = testing::prefill(1, 16384, 0, 64, 8);
  const Work work = work_of(op);
  const double computing = work.flops.value() / 1e15;
  const double moving = (work.bytes_read + work.bytes_written).value() / 4.8e12;
  const double share = computing / (computing + moving);
  EXPECT_NEAR(CostModel(machine, &provider, nullptr, options).kernel(op).limited.value(),
              9e-3 / (1 + 0.13 * share) * (1 + 0.3 * share), 1e-12);
}

}  // namespace
}  // namespace orrery
