#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::gemm;
using testing::node_spec;
using testing::prefill;
using testing::TableDirectory;

const Machine& node() {
  static const Machine machine = make_machine(node_spec());
  return machine;
}

// Work-model time: what a model without measurements says.
Seconds work_time(const KernelOp& op) {
  return CostModel(node(), nullptr, nullptr, {}).kernel(op).time;
}

// A gemm table of m, n, k in powers of four whose every time is twice the work model's.
std::string twice_the_work_model(std::int64_t skipped_m = 0) {
  std::string csv = "dtype,m,n,k,time_us\n";
  for (const std::int64_t m : {16, 64, 256, 1024}) {
    for (const std::int64_t n : {256, 1024, 4096}) {
      for (const std::int64_t k : {256, 1024, 4096}) {
        if (m == skipped_m && n == 1024 && k == 1024) {
          continue;
        }
        char line[80];
        std::snprintf(line, sizeof line, "bf16,%ld,%ld,%ld,%.15g\n", static_cast<long>(m),
                      static_cast<long>(n), static_cast<long>(k),
                      2e6 * work_time(gemm(m, n, k)).value());
        csv += line;
      }
    }
  }
  return csv;
}

TEST(CostModel, AMeasuredPointIsReturnedAsItIs) {
  const TableDirectory directory;
  directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12.5\nbf16,32,256,512,15\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  const Estimate estimate = cost.kernel(gemm(16, 256, 512));
  EXPECT_NEAR(estimate.time.value(), 12.5e-6, 1e-18);
  EXPECT_EQ(estimate.basis, Basis::kMeasured);
  // And again from memory.
  EXPECT_EQ(cost.kernel(gemm(16, 256, 512)).time, estimate.time);
}

TEST(CostModel, WhatRowsHoldBesidesTheirKernelIsPaidOnce) {
  const TableDirectory directory;
  directory.write("gemm.csv",
                  "dtype,m,n,k,time_us\nfp8,16,256,8192,40\nfp8,16,512,8192,60\n"
                  "bf16,16,256,8192,40\nfp8,16,1024,8192,12\n");
  directory.write("includes.csv",
                  "kernel,dtype,includes,floor_us\ngemm,fp8,quantize,9\n"
                  "attention_decode,any,rope,0\ngemm,fp8_block,quantize,0\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  // 9 us and 16 x 8192 elements of 3 bytes at 0.42 of 4.8 TB/s.
  const double quantize = 9e-6 + 16 * 8192 * 3 / (0.42 * 4.8e12);
  const Estimate fp8 = cost.kernel(gemm(16, 256, 8192, DType::kFp8));
  EXPECT_NEAR(fp8.time.value(), 40e-6 - quantize, 1e-12);
  EXPECT_EQ(fp8.basis, Basis::kInterpolated);
  EXPECT_NEAR(cost.kernel(gemm(16, 256, 8192)).time.value(), 40e-6, 1e-12);
  // Something is left of a row in any case.
  EXPECT_NEAR(cost.kernel(gemm(16, 1024, 8192, DType::kFp8)).time.value(), 0.4 * 12e-6, 1e-12);
  const KernelOp rope{.kernel = "rope",
                      .dims = {{.name = "tokens", .size = 16},
                               {.name = "heads", .size = 8},
                               {.name = "head_dim", .size = 128}}};
  EXPECT_EQ(cost.kernel(rope).time, Seconds(0));
  EXPECT_EQ(cost.kernel(rope).basis, Basis::kMeasured);
  KernelOp quantize_op{.kernel = "quantize",
                       .dtype = DType::kFp8Block,
                       .dims = {{.name = "tokens", .size = 16}, {.name = "hidden", .size = 8192}}};
  EXPECT_EQ(cost.kernel(quantize_op).time, Seconds(0));
  quantize_op.dtype = DType::kFp8;
  EXPECT_GT(cost.kernel(quantize_op).time, Seconds(0));
}

TEST(CostModel, KernelsInsideAStepTakeTheFactorOfTheProfile) {
  CostOptions options;
  options.kernel_time = 1.25;
  options.moe_kernel_time = 1.5;
  const CostModel plain(node(), nullptr, nullptr, {});
  const CostModel inside(node(), nullptr, nullptr, options);
  const KernelOp product = gemm(64, 256, 512);
  EXPECT_NEAR(inside.kernel(product).time.value(), 1.25 * plain.kernel(product).time.value(),
              1e-15);
  const KernelOp moe{.kernel = "moe",
                     .dims = {{.name = "tokens", .size = 64},
                              {.name = "hidden", .size = 2048},
                              {.name = "inter", .size = 768},
                              {.name = "topk", .size = 8},
                              {.name = "experts", .size = 128},
                              {.name = "experts_total", .size = 128}}};
  EXPECT_NEAR(inside.kernel(moe).time.value(), 1.5 * plain.kernel(moe).time.value(), 1e-15);
}

TEST(CostModel, AKernelMayHaveAFactorOfItsOwn) {
  CostOptions options;
  options.kernel_time = 1.25;
  options.kernel_times["gemm"] = 1.1;
  const CostModel plain(node(), nullptr, nullptr, {});
  const CostModel inside(node(), nullptr, nullptr, options);
  const KernelOp norm{.kernel = "rms_norm",
                      .dims = {{.name = "tokens", .size = 64}, {.name = "hidden", .size = 2048}}};
  EXPECT_NEAR(inside.kernel(gemm(64, 256, 512)).time / plain.kernel(gemm(64, 256, 512)).time,
              1.25 * 1.1, 1e-12);
  EXPECT_NEAR(inside.kernel(norm).time / plain.kernel(norm).time, 1.25, 1e-12);
}

TEST(CostModel, ATimeBetweenTwoMeasurementsIsInterpolatedBetweenThem) {
  const TableDirectory directory;
  directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12.5\nbf16,32,256,512,15\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  for (const std::int64_t m : {17, 22, 31}) {
    const Estimate estimate = cost.kernel(gemm(m, 256, 512));
    EXPECT_EQ(estimate.basis, Basis::kInterpolated);
    EXPECT_GT(estimate.time.value(), 12.5e-6);
    EXPECT_LT(estimate.time.value(), 15e-6);
  }
}

TEST(CostModel, AConstantRatioToTheWorkModelIsKeptInsideAndOutside) {
  // The interpolated quantity is log(time / work-model time) = log 2 everywhere, so every
  // prediction is twice the work model: between nodes, in a hole, and beyond the table.
  const TableDirectory directory;
  directory.write("gemm.csv", twice_the_work_model(/*skipped_m=*/64));
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  const auto expect_twice = [&](const KernelOp& op, Basis basis) {
    const Estimate estimate = cost.kernel(op);
    EXPECT_NEAR(estimate.time / work_time(op), 2, 1e-9);
    EXPECT_EQ(estimate.basis, basis);
  };
  expect_twice(gemm(100, 700, 3000), Basis::kInterpolated);
  expect_twice(gemm(64, 1024, 1024), Basis::kInterpolated);  // the hole
  expect_twice(gemm(64, 700, 1024), Basis::kInterpolated);   // beside it
  expect_twice(gemm(1, 1024, 1024), Basis::kRoofline);
  expect_twice(gemm(5000, 1024, 1024), Basis::kRoofline);
  expect_twice(gemm(64, 1024, 50000), Basis::kRoofline);
}

TEST(CostModel, AHoleWhoseLinesAreOpenIsFilledThroughFilledNodes) {
  // m      n: 256  512  1024       A calibration adds single points, here (32, 256) and (16, 512).
  // 16         x    x    x         On neither line through the hole (32, 512) are there measured
  // 32         x    ?    .         nodes on both sides, but (32, 1024) and (64, 512) can be filled.
  // 64         x    .    x
  const TableDirectory directory;
  std::string rows = "dtype,m,n,k,time_us\n";
  for (const auto& [m, n] : std::vector<std::pair<int, int>>{
           {16, 256}, {16, 512}, {16, 1024}, {32, 256}, {64, 256}, {64, 1024}}) {
    // Ratios 1 at m 16, 2 at m 64 and, between, a power of m; none depends on n.
    const double ratio = std::sqrt(m / 16.0);
    const double time_us = ratio * work_time(gemm(m, n, 512)).value() * 1e6;
    rows += "bf16," + std::to_string(m) + "," + std::to_string(n) + ",512," +
            std::to_string(time_us) + "\n";
  }
  directory.write("gemm.csv", rows);
  const Provider provider = Provider::load(directory.path());
  const Estimate estimate = CostModel(node(), &provider, nullptr, {}).kernel(gemm(32, 512, 512));
  EXPECT_EQ(estimate.basis, Basis::kInterpolated);
  EXPECT_NEAR(estimate.time / work_time(gemm(32, 512, 512)), std::sqrt(2.0), 1e-3);
}

TEST(CostModel, SpreadGrowsFromMeasuredToInterpolatedToExtrapolated) {
  const TableDirectory directory;
  directory.write("gemm.csv", twice_the_work_model());
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  EXPECT_LT(cost.kernel(gemm(64, 1024, 1024)).spread, cost.kernel(gemm(65, 1024, 1024)).spread);
  EXPECT_LT(cost.kernel(gemm(65, 1024, 1024)).spread, cost.kernel(gemm(1, 1024, 1024)).spread);
}

TEST(CostModel, OfTwoRowsOfOnePointTheFasterCounts) {
  const TableDirectory directory;
  directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12\nbf16,16,256,512,9\n");
  const Provider provider = Provider::load(directory.path());
  EXPECT_NEAR(CostModel(node(), &provider, nullptr, {}).kernel(gemm(16, 256, 512)).time.value(),
              9e-6, 1e-18);
}

TEST(CostModel, AHostBoundRowIsPricedFromItsFp8Twin) {
  // Where both are real, fp8_block takes 1.5 times fp8; at m = 16 the row shows the host's 60 us
  // while fp8 takes 10 us, so 15 us.
  const TableDirectory directory;
  directory.write("gemm.csv",
                  "dtype,m,n,k,time_us,host_bound\n"
                  "fp8,16,1024,1024,10,0\nfp8,4096,1024,1024,100,0\n"
                  "fp8_block,16,1024,1024,60,1\nfp8_block,4096,1024,1024,150,0\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  const Estimate estimate = cost.kernel(gemm(16, 1024, 1024, DType::kFp8Block));
  EXPECT_NEAR(estimate.time.value(), 15e-6, 1e-12);
  EXPECT_EQ(estimate.basis, Basis::kInterpolated);
  EXPECT_EQ(cost.kernel(gemm(4096, 1024, 1024, DType::kFp8Block)).basis, Basis::kMeasured);
}

TEST(CostModel, KvHeadsBetweenTwoMeasuredGroupsAreInterpolated) {
  const TableDirectory directory;
  directory.write("attention_prefill.csv",
                  "dtype,batch,query,context,heads,kv_heads,head_dim,window,time_us\n"
                  "bf16,1,1024,0,32,2,128,0,100\nbf16,1,1024,0,32,8,128,0,120\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  const Estimate between = cost.kernel(prefill(1, 1024, 0, 32, 4));
  EXPECT_EQ(between.basis, Basis::kInterpolated);
  EXPECT_GT(between.time.value(), 100e-6);
  EXPECT_LT(between.time.value(), 120e-6);
  EXPECT_EQ(cost.kernel(prefill(1, 1024, 0, 32, 16)).basis, Basis::kRoofline);
}

TEST(CostModel, AWindowThatCoversAllKeysIsFullAttention) {
  const TableDirectory directory;
  directory.write("attention_prefill.csv",
                  "dtype,batch,query,context,heads,kv_heads,head_dim,window,time_us\n"
                  "bf16,1,1024,0,32,8,128,0,120\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  const Estimate full = cost.kernel(prefill(1, 1024, 0, 32, 8, 4096));
  EXPECT_NEAR(full.time.value(), 120e-6, 1e-15);
  EXPECT_EQ(full.basis, Basis::kMeasured);
}

TEST(CostModel, PrefillOverCachedContextTakesLongerAndSaysItIsExtrapolated) {
  const Provider provider = Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) /
                                           "topologies/devices/h200-sxm/vllm-0.24.0");
  const CostModel cost(node(), &provider, nullptr, {});
  Seconds before = cost.kernel(prefill(1, 512, 0, 16, 2)).time;
  for (const std::int64_t context : {2048, 8192, 32768}) {
    const Estimate estimate = cost.kernel(prefill(1, 512, context, 16, 2));
    EXPECT_GT(estimate.time, before);
    EXPECT_EQ(estimate.basis, Basis::kRoofline);
    before = estimate.time;
  }
}

TEST(CostModel, AShortQueryOverALongContextTakesAboutADecodeStep) {
  // Both stream the same keys and values once; one new token is what a decode step is.
  const Provider provider = Provider::load(std::filesystem::path(ORRERY_SOURCE_DIR) /
                                           "topologies/devices/h200-sxm/vllm-0.24.0");
  const CostModel cost(node(), &provider, nullptr, {});
  for (const std::int64_t batch : {1, 8}) {
    for (const std::int64_t context : {8192, 32768}) {
      const KernelOp decode{.kernel = "attention_decode",
                            .dtype = DType::kBf16,
                            .dims = {{.name = "batch", .size = batch, .axis = {}},
                                     {.name = "context", .size = context, .axis = {}},
                                     {.name = "heads", .size = 32, .axis = {}},
                                     {.name = "kv_heads", .size = 8, .axis = {}},
                                     {.name = "head_dim", .size = 128, .axis = {}},
                                     {.name = "window", .size = 1 << 30, .axis = {}}}};
      const double ratio =
          cost.kernel(prefill(batch, 1, context - 1, 32, 8)).time / cost.kernel(decode).time;
      EXPECT_GT(ratio, 0.8) << batch << " " << context;
      EXPECT_LT(ratio, 1.35) << batch << " " << context;
    }
  }
}

KernelOp moe(std::int64_t tokens, std::int64_t topk, std::int64_t experts_total) {
  return {.kernel = "moe",
          .dtype = DType::kBf16,
          .dims = {{.name = "tokens", .size = tokens, .axis = {}},
                   {.name = "hidden", .size = 1024, .axis = {}},
                   {.name = "inter", .size = 512, .axis = {}},
                   {.name = "topk", .size = topk, .axis = {}},
                   {.name = "experts", .size = 16, .axis = {}},
                   {.name = "experts_total", .size = experts_total, .axis = {}}}};
}

TEST(CostModel, AnUnmeasuredMoeTakesTheEfficiencyAtEqualTokensPerExpert) {
  // Measured: 2 of 16 experts. 16 tokens at twice the work model, 32 tokens at three times. Asked:
  // 4 of 16 experts with 16 tokens, 4 tokens per expert as in the second row.
  char rows[160];
  std::snprintf(
      rows, sizeof rows,
      "bf16,balanced,16,1024,512,2,16,16,%.15g\nbf16,balanced,32,1024,512,2,16,16,%.15g\n",
      2e6 * work_time(moe(16, 2, 16)).value(), 3e6 * work_time(moe(32, 2, 16)).value());
  const TableDirectory directory;
  directory.write("moe.csv", std::string("dtype,distribution,tokens,hidden,inter,topk,experts,"
                                         "experts_total,time_us\n") +
                                 rows);
  const Provider provider = Provider::load(directory.path());
  const Estimate estimate = CostModel(node(), &provider, nullptr, {}).kernel(moe(16, 4, 16));
  EXPECT_NEAR(estimate.time / work_time(moe(16, 4, 16)), 3, 1e-9);
  EXPECT_EQ(estimate.basis, Basis::kRoofline);
}

TEST(CostModel, ShippedRowComesBackFromTheShippedProvider) {
  const std::filesystem::path directory =
      std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices/h200-sxm/vllm-0.24.0";
  std::ifstream file(directory / "gemm.csv");
  std::string header;
  std::string row;
  std::getline(file, header);
  ASSERT_TRUE(header.starts_with("dtype,m,n,k,time_us"));
  std::getline(file, row);
  long m = 0;
  long n = 0;
  long k = 0;
  double time_us = 0;
  ASSERT_EQ(std::sscanf(row.c_str(), "bf16,%ld,%ld,%ld,%lf", &m, &n, &k, &time_us), 4);
  const Provider provider = Provider::load(directory);
  const Estimate estimate = CostModel(node(), &provider, nullptr, {}).kernel(gemm(m, n, k));
  EXPECT_EQ(estimate.basis, Basis::kMeasured);
  EXPECT_NEAR(estimate.time.value(), time_us * 1e-6, 1e-15);
}

TEST(CostModel, RoutingDistributionChoosesTheRows) {
  const TableDirectory directory;
  directory.write("moe.csv",
                  "dtype,distribution,tokens,hidden,inter,topk,experts,experts_total,time_us\n"
                  "bf16,balanced,16,1024,512,2,8,8,50\nbf16,power_law_1.2,16,1024,512,2,8,8,70\n");
  const Provider provider = Provider::load(directory.path());
  const KernelOp op{.kernel = "moe",
                    .dtype = DType::kBf16,
                    .dims = {{.name = "tokens", .size = 16, .axis = {}},
                             {.name = "hidden", .size = 1024, .axis = {}},
                             {.name = "inter", .size = 512, .axis = {}},
                             {.name = "topk", .size = 2, .axis = {}},
                             {.name = "experts", .size = 8, .axis = {}},
                             {.name = "experts_total", .size = 8, .axis = {}}}};
  const auto time_us = [&](const std::string& distribution) {
    CostOptions options;
    options.moe_distribution = distribution;
    return 1e6 * CostModel(node(), &provider, nullptr, options).kernel(op).time.value();
  };
  EXPECT_NEAR(time_us("power_law_1.2"), 70, 1e-9);
  EXPECT_NEAR(time_us("balanced"), 50, 1e-9);
  // Not in the table: the nearest skew that is.
  EXPECT_NEAR(time_us("power_law_1.01"), 70, 1e-9);
  EXPECT_NEAR(time_us("uniform"), 50, 1e-9);
  expect_contains(error_of([&] { (void)time_us("skewed"); }),
                  "unknown routing distribution 'skewed'; expected one of balanced, uniform");
}

TEST(CostModel, AKernelWithoutMeasurementsComesFromTheWorkModel) {
  // rms_norm of 1024 x 8192 in bf16: 2 us + bytes / (0.64 * 4.8 TB/s) + flops / (0.6 * 1 PFLOP/s).
  const KernelOp op{.kernel = "rms_norm",
                    .dtype = DType::kBf16,
                    .dims = {{.name = "tokens", .size = 1024, .axis = {}},
                             {.name = "hidden", .size = 8192, .axis = {}}}};
  const TableDirectory directory;
  directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12.5\n");
  const Provider provider = Provider::load(directory.path());
  const Estimate estimate = CostModel(node(), &provider, nullptr, {}).kernel(op);
  const Work work = work_of(op);
  const double expected = 2e-6 + (work.bytes_read + work.bytes_written).value() / (0.64 * 4.8e12) +
                          work.flops.value() / (0.6 * 1e15);
  EXPECT_NEAR(estimate.time.value(), expected, 1e-12);
  EXPECT_EQ(estimate.basis, Basis::kRoofline);
  EXPECT_GT(estimate.spread, 0.1);
}

TEST(CostModel, Fp16IsPricedAsBf16) {
  const TableDirectory directory;
  directory.write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,512,12.5\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  EXPECT_EQ(cost.kernel(gemm(16, 256, 512, DType::kFp16)).time,
            cost.kernel(gemm(16, 256, 512)).time);
}

TEST(CostModel, OrderOfDimsDoesNotMatter) {
  KernelOp shuffled = gemm(16, 256, 512);
  std::swap(shuffled.dims[0], shuffled.dims[2]);
  EXPECT_EQ(work_time(shuffled), work_time(gemm(16, 256, 512)));
}

TEST(CostModel, WorkModelTimeGrowsWithEveryDim) {
  const Seconds base = work_time(gemm(128, 1024, 1024));
  EXPECT_GT(work_time(gemm(129, 1024, 1024)), base);
  EXPECT_GT(work_time(gemm(128, 1025, 1024)), base);
  EXPECT_GT(work_time(gemm(128, 1024, 1025)), base);
}

TEST(CostModel, RejectsAnUnknownKernel) {
  KernelOp op = gemm(1, 1, 1);
  op.kernel = "gem";
  expect_contains(error_of([&] { (void)work_time(op); }), "gem");
}

TEST(CostModel, RejectsAMissingAndANonPositiveDim) {
  KernelOp op = gemm(1, 1, 1);
  op.dims.pop_back();
  expect_contains(error_of([&] { (void)work_time(op); }), "lacks dim 'k'; expected m, n, k");
  expect_contains(error_of([&] { (void)work_time(gemm(1, 0, 1)); }), "dim n is 0");
  expect_contains(error_of([&] { (void)work_time(gemm(-5, 1, 1)); }), "dim m is -5");
}

TEST(CostModel, RejectsAFormatTheDeviceDoesNotCompute) {
  MachineSpec spec = node_spec();
  spec.device.dense_flops = {{DType::kBf16, FlopsPerSecond(312e12)}};
  const Machine machine = make_machine(spec);
  const CostModel cost(machine, nullptr, nullptr, {});
  expect_contains(error_of([&] { (void)cost.kernel(gemm(1, 64, 64, DType::kFp8)); }),
                  "does not compute in fp8; it has bf16");
  // Four-bit weights are multiplied in bf16, so they work anywhere.
  EXPECT_GT(cost.kernel(gemm(1, 64, 64, DType::kInt4)).time.value(), 0);
}

TEST(CostModel, ThreadsGetTheSameAnswers) {
  const TableDirectory directory;
  directory.write("gemm.csv", twice_the_work_model());
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  std::vector<std::vector<Seconds>> times(4);
  {
    std::vector<std::jthread> threads;
    threads.reserve(times.size());
    for (std::vector<Seconds>& mine : times) {
      threads.emplace_back([&cost, &mine] {
        for (std::int64_t m = 1; m < 500; ++m) {
          mine.push_back(cost.kernel(gemm(m, 777, 999)).time);
        }
      });
    }
  }
  for (const std::vector<Seconds>& other : times) {
    EXPECT_EQ(other, times.front());
  }
}

TEST(CostModel, HostOpsCostWhatTheProfileSays) {
  CostOptions options;
  options.host = {.eager_launch = Seconds(5e-6),
                  .graph_node = Seconds(1e-6),
                  .d2h_sync = Seconds(20e-6),
                  .scheduler = Seconds(1e-3),
                  .sampling = Seconds(2e-3)};
  const CostModel graph(node(), nullptr, nullptr, options);
  EXPECT_EQ(graph.host({HostKind::kLaunchGap}).time, Seconds(1e-6));
  EXPECT_EQ(graph.host({HostKind::kD2hSync}).time, Seconds(20e-6));
  EXPECT_EQ(graph.host({HostKind::kScheduler}).time, Seconds(1e-3));
  EXPECT_EQ(graph.host({HostKind::kSampling}).time, Seconds(2e-3));
  options.launch_mode = LaunchMode::kEager;
  EXPECT_EQ(CostModel(node(), nullptr, nullptr, options).host({HostKind::kLaunchGap}).time,
            Seconds(5e-6));
}

TEST(CostModel, PricesEachKindOfOpOfAPlan) {
  Plan plan;
  const GroupId pair = plan.add_group({0, 1});
  const auto add = [&](OpBody body) {
    Op op;
    op.name = "op";
    op.body = std::move(body);
    op.ranks = pair;
    plan.add_op(op);
  };
  add(gemm(16, 256, 512));
  add(CommOp{
      .kind = CollectiveKind::kAllReduce, .dtype = DType::kBf16, .bytes_per_rank = Bytes(1e6)});
  add(HostOp{HostKind::kD2hSync});
  CostOptions options;
  options.host.d2h_sync = Seconds(3e-6);
  const CostModel cost(node(), nullptr, nullptr, options);
  EXPECT_EQ(cost.price(plan, plan.ops()[0]).time, cost.kernel(gemm(16, 256, 512)).time);
  const std::array<int, 2> ranks{0, 1};
  EXPECT_EQ(cost.price(plan, plan.ops()[1]).time,
            cost.collective(std::get<CommOp>(plan.ops()[1].body), ranks).time);
  EXPECT_EQ(cost.price(plan, plan.ops()[2]).time, Seconds(3e-6));
}

}  // namespace
}  // namespace orrery
