// Closed forms and laws of sharing one GPU.

#include "sim/des/gpu_shares.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace orrery::des {
namespace {

constexpr SharingRates kRates{
    .hbm_rate = BytesPerSecond(4e12), .sms_for_hbm = 0.5, .math_share = 0.6};

std::vector<double> speeds(const std::vector<GpuDemand>& demands) {
  std::vector<double> result;
  for (const GpuShare& share : share_gpu(kRates, demands)) result.push_back(share.speed);
  return result;
}

TEST(GpuShares, AnActivityAloneRunsAsAlone) {
  for (const GpuDemand& demand :
       {GpuDemand{}, GpuDemand{.sms = 0.2, .math = 0, .hbm = 1}, GpuDemand{.math = 0}}) {
    EXPECT_EQ(speeds({demand}), std::vector<double>{1});
  }
}

TEST(GpuShares, KernelsThatFillTheGpuRunOneAfterTheOther) {
  EXPECT_EQ(speeds({{}, {}, {.math = 0, .hbm = 1}}), (std::vector<double>{1, 0, 0}));
}

TEST(GpuShares, WhatIsBoundByTheSmsSlowsWithTheirShare) {
  // 0.25 of the SMs are taken: 0.75 are left.
  const auto both = speeds({{.sms = 0.25, .math = 0}, {.sms = 1, .math = 0.6}});
  EXPECT_DOUBLE_EQ(both[0], 1);
  EXPECT_DOUBLE_EQ(both[1], 0.75);
}

TEST(GpuShares, WhatIsBoundByMemorySlowsOnlyWhenItsSmsDrawLessThanItAsks) {
  // Half of the SMs draw the whole rate: 0.6 are enough, 0.25 give half of it.
  EXPECT_DOUBLE_EQ(speeds({{.sms = 0.4, .math = 0}, {.math = 0, .hbm = 1}})[1], 1);
  EXPECT_DOUBLE_EQ(speeds({{.sms = 0.75, .math = 0}, {.math = 0, .hbm = 1}})[1], 0.5);
}

// Of half of the rate a kernel's blocks wait for something else than the memory.
TEST(GpuShares, BlocksSpeedUpWhereTheMemoryIsWhatTheyWaitFor) {
  const auto beside = [](double hbm, int rounds) {
    return speeds({{.sms = 0.25, .math = 0}, {.math = 0, .hbm = hbm, .rounds = rounds}})[1];
  };
  EXPECT_DOUBLE_EQ(beside(0.5, 1), 0.75);
  EXPECT_DOUBLE_EQ(beside(0.7, 1), 0.75);
  EXPECT_DOUBLE_EQ(beside(0.8, 1), 1);  // a third faster each, of twice at most
  EXPECT_DOUBLE_EQ(beside(1, 1), 1);
  EXPECT_DOUBLE_EQ(beside(0.5, 0), 1);  // blocks of other kernels are not known
  EXPECT_GT(beside(0.75, 1), 0.75);
  EXPECT_LT(beside(0.75, 1), 1);
}

TEST(GpuShares, ACollectiveHasSmsBeforeKernelsThatYieldAndCameEarlier) {
  const GpuDemand collective{.sms = 0.25, .math = 0, .is_collective = true};
  const GpuDemand rows{.yields = true};
  EXPECT_EQ(speeds({rows, collective}), (std::vector<double>{0.75, 1}));
  EXPECT_EQ(speeds({rows, rows, collective}), (std::vector<double>{0.75, 0, 1}));
  EXPECT_EQ(speeds({{}, rows, collective}), (std::vector<double>{1, 0, 0}));  // it waits
}

TEST(GpuShares, KernelsSlowAsCollectivesBesideThemMove) {
  constexpr SharingRates rates{.hbm_rate = BytesPerSecond(4e12),
                               .sms_for_hbm = 0.5,
                               .math_share = 0.6,
                               .beside_collective = 2};
  const GpuDemand collective{.sms = 0.25, .math = 0, .hbm = 0.1, .is_collective = true};
  const GpuDemand kernel{.sms = 0.75, .math = 0.5};
  const std::vector<GpuShare> shares = share_gpu(rates, std::vector{collective, kernel, kernel});
  EXPECT_DOUBLE_EQ(shares[0].speed, 1);
  EXPECT_DOUBLE_EQ(shares[1].speed, 1 / 1.2);
  EXPECT_DOUBLE_EQ(shares[2].speed, 0);
}

TEST(GpuShares, ComputingBesideMemoryTrafficCostsNeither) {
  const auto both = speeds({{.sms = 0.7, .math = 0.5}, {.sms = 0.3, .math = 0, .hbm = 0.6}});
  EXPECT_EQ(both, (std::vector<double>{1, 1}));
}

TEST(GpuShares, TwoStreamsTakeTheSumOfTheirTimes) {
  // Both ask for the whole rate: half of it each.
  const auto both = speeds({{.sms = 0.5, .math = 0, .hbm = 1}, {.sms = 0.5, .math = 0, .hbm = 1}});
  EXPECT_EQ(both, (std::vector<double>{0.5, 0.5}));
}

TEST(GpuShares, MemoryIsSharedBySmsButNobodyGetsMoreThanItAsksFor) {
  // 0.2, 0.7 and 0.6 are asked for on 0.3, 0.4 and 0.3 of the SMs: the first has all it asks for,
  // the others share 0.8 as 4 to 3.
  const auto three = speeds({{.sms = 0.3, .math = 0, .hbm = 0.6},
                             {.sms = 0.3, .math = 0, .hbm = 0.2},
                             {.sms = 0.4, .math = 0, .hbm = 0.7}});
  EXPECT_DOUBLE_EQ(three[0], 0.8 * 3 / 7 / 0.6);
  EXPECT_DOUBLE_EQ(three[1], 1);
  EXPECT_DOUBLE_EQ(three[2], 0.8 * 4 / 7 / 0.7);
}

TEST(GpuShares, ACopyEngineTakesNoSmsAndHasTheMemoryItAsksFor) {
  const auto both = speeds({{.math = 0, .hbm = 1}, {.sms = 0, .math = 0, .hbm = 0.2}});
  EXPECT_DOUBLE_EQ(both[0], 0.8);
  EXPECT_DOUBLE_EQ(both[1], 1);
}

TEST(GpuShares, UnderThePowerLimitAllThatComputesSlowsAlike) {
  // 0.5 + 0.4 of the peak, and 0.6 is left: 2 / 3 of the speed each.
  const auto both = speeds({{.sms = 0.5, .math = 0.5}, {.sms = 0.5, .math = 0.4}});
  EXPECT_DOUBLE_EQ(both[0], 0.6 / 0.9);
  EXPECT_DOUBLE_EQ(both[1], 0.6 / 0.9);
}

TEST(GpuShares, ACollectiveAsksTheMemoryForWhatItSendsAndReceives) {
  // 1 GB each way in 1 ms are 2 TB/s of 4 TB/s.
  const GpuDemand demand = collective_demand(kRates, 0.1, Bytes(1e9), Seconds(1e-3));
  EXPECT_DOUBLE_EQ(demand.hbm, 0.5);
  EXPECT_DOUBLE_EQ(demand.sms, 0.1);
}

TEST(GpuShares, AKernelAsksForWhatItsWorkTakesOfItsTime) {
  // y = x w^T with m = n = k = 4096 in 500 us: 2 * 4096^3 = 137.4 GFLOP, of 989e12 per second
  // 0.278; 3 * 2 * 4096^2 = 100.7 MB, of 4 TB/s 0.0503.
  Device device;
  device.hbm_bandwidth = BytesPerSecond(4.8e12);
  device.dense_flops[DType::kBf16] = FlopsPerSecond(989e12);
  device.sharing = kRates;
  const KernelOp op{
      .kernel = "gemm", .dtype = DType::kBf16, .dims = {{"m", 4096}, {"n", 4096}, {"k", 4096}}};
  const GpuDemand demand = kernel_demand(device, op, {.time = Seconds(500e-6)});
  EXPECT_DOUBLE_EQ(demand.sms, 1);
  EXPECT_NEAR(demand.math, 2 * 4096.0 * 4096 * 4096 / 989e12 / 500e-6, 1e-12);
  EXPECT_NEAR(demand.hbm, 3 * 2 * 4096.0 * 4096 / 4e12 / 500e-6, 1e-12);
}

TEST(GpuShares, AGemmOfFewRowsFillsTheSmsThatItsBlocksDo) {
  Device device;
  device.num_sms = 132;
  device.hbm_bandwidth = BytesPerSecond(4.8e12);
  device.dense_flops[DType::kBf16] = FlopsPerSecond(989e12);
  device.sharing = kRates;
  const KernelOp op{
      .kernel = "gemm", .dtype = DType::kBf16, .dims = {{"m", 17}, {"n", 2048}, {"k", 2816}}};
  // 128 blocks of our own kernel, whose work is dealt; of another's 11.7 MB in 8 us say 0.37 of the
  // memory's rate and 0.7 of that all SMs.
  EXPECT_DOUBLE_EQ(kernel_demand(device, op, {.time = Seconds(8e-6), .rounds = 1}).sms,
                   128.0 / 132);
  const GpuDemand others = kernel_demand(device, op, {.time = Seconds(8e-6)});
  EXPECT_DOUBLE_EQ(others.sms, others.hbm / 0.7);
  EXPECT_NEAR(others.hbm, 0.37, 0.01);
}

// DeepEP's kernels for few tokens leave their rows to the NIC; those for prompts are of 20 blocks.
TEST(GpuShares, AnExchangeOfFewTokensByDeepEpHoldsNoSms) {
  Device device;
  device.num_sms = 132;
  device.hbm_bandwidth = BytesPerSecond(3.35e12);
  device.dense_flops[DType::kBf16] = FlopsPerSecond(989e12);
  device.dense_flops[DType::kFp8Block] = FlopsPerSecond(1979e12);
  const auto sms = [&](std::int64_t low_latency) {
    const KernelOp op{.kernel = "deepep_dispatch",
                      .dtype = DType::kFp8Block,
                      .dims = {{"tokens", 128},
                               {"hidden", 7168},
                               {"topk", 8},
                               {"ranks", 72},
                               {"low_latency", low_latency}}};
    return kernel_demand(device, op, {.time = Seconds(182e-6)}).sms;
  };
  EXPECT_EQ(sms(1), 0);
  EXPECT_DOUBLE_EQ(sms(0), 20.0 / 132);
}

TEST(GpuShares, MemoryIsNeverOversubscribedAndALaterActivitySpeedsUpNobody) {
  std::uint64_t state = 20261121;
  const auto next = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state >> 40) / static_cast<double>(1 << 24);
  };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<GpuDemand> demands;
    std::vector<double> before;
    for (int i = 0; i < 6; ++i) {
      demands.push_back({.sms = next() * 0.5, .math = 0, .hbm = next()});
      const auto now = speeds(demands);
      double drawn = 0;
      for (std::size_t j = 0; j < demands.size(); ++j) drawn += demands[j].hbm * now[j];
      EXPECT_LE(drawn, 1 + 1e-9) << "trial " << trial;
      for (std::size_t j = 0; j < before.size(); ++j) {
        EXPECT_LE(now[j], before[j] + 1e-9) << "trial " << trial;
      }
      before = now;
    }
  }
}

}  // namespace
}  // namespace orrery::des
