#include <gtest/gtest.h>

#include <thread>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::gemm;
using testing::node;
using testing::node_spec;
using testing::TableDirectory;
using testing::twice_the_work_model;
using testing::work_time;

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
  const KernelOp gemm_op = gemm(64, 256, 512);
  EXPECT_NEAR(inside.kernel(gemm_op).time.value(), 1.25 * plain.kernel(gemm_op).time.value(),
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

KernelOp experts_of(std::int64_t inter) {
  return {.kernel = "moe",
          .dtype = DType::kBf16,
          .dims = {{.name = "tokens", .size = 16, .axis = {}},
                   {.name = "hidden", .size = 1024, .axis = {}},
                   {.name = "inter", .size = inter, .axis = {}},
                   {.name = "topk", .size = 2, .axis = {}},
                   {.name = "experts", .size = 8, .axis = {}},
                   {.name = "experts_total", .size = 8, .axis = {}}}};
}

TEST(CostModel, RoutingDistributionChoosesTheRows) {
  const TableDirectory directory;
  directory.write("moe.csv",
                  "dtype,distribution,tokens,hidden,inter,topk,experts,experts_total,time_us\n"
                  "bf16,balanced,16,1024,512,2,8,8,50\nbf16,power_law_1.2,16,1024,512,2,8,8,70\n");
  const Provider provider = Provider::load(directory.path());
  const KernelOp op = experts_of(512);
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

// One engine's rows are of two backends, another's of the one that was chosen.
TEST(CostModel, ABackendOfExpertsChoosesTheRows) {
  constexpr const char* kMoeHeader =
      "dtype,distribution,tokens,hidden,inter,topk,experts,experts_total,time_us,source\n";
  const TableDirectory directory;
  std::filesystem::create_directories(directory.path() / "engine");
  std::filesystem::create_directories(directory.path() / "other");
  directory.write("engine/moe.csv", std::string(kMoeHeader) +
                                        "bf16,balanced,16,1024,512,2,8,8,50,3\n"
                                        "bf16,balanced,16,1024,256,2,8,8,30,4\n");
  directory.write("engine/backends.csv",
                  "kernel,dtype,source,backend\nmoe,bf16,3,cutlass\nmoe,bf16,4,triton\n"
                  "moe,fp8,3,marlin\n");
  directory.write("other/moe.csv",
                  std::string(kMoeHeader) + "bf16,balanced,16,1024,512,2,8,8,80,0\n");
  directory.write("other/backends.csv", "kernel,dtype,source,backend\nmoe,bf16,0,triton\n");
  const Provider own = Provider::load(directory.path() / "engine");
  const Provider stands_in = Provider::load(directory.path() / "other");
  const Machine& machine = node();
  const auto time_us = [&](std::int64_t inter, const std::string& backend, bool has_other) {
    std::vector<KernelSource> sources = {{.provider = &own, .device = &machine.device()}};
    if (has_other) {
      sources.push_back(
          {.provider = &stands_in, .device = &machine.device(), .origin = Origin::kOtherProvider});
    }
    CostOptions options;
    options.moe_distribution = "balanced";
    options.moe_backend = backend;
    return 1e6 * CostModel(machine, sources, {}, options).kernel(experts_of(inter)).time.value();
  };
  EXPECT_NEAR(time_us(512, "", true), 50, 1e-9);
  EXPECT_NEAR(time_us(256, "", true), 30, 1e-9);
  EXPECT_NEAR(time_us(512, "cutlass", true), 50, 1e-9);
  EXPECT_NEAR(time_us(256, "triton", true), 30, 1e-9);
  // Of a backend of its own the engine's rows beside the call answer before another's at it.
  EXPECT_LT(time_us(512, "triton", false), 80);
  EXPECT_NEAR(time_us(512, "triton", false), time_us(512, "triton", true), 1e-9);
  expect_contains(error_of([&] { (void)time_us(512, "marlin", true); }),
                  "moe.backend: found marlin, of which no table has rows of experts in bf16");
  EXPECT_EQ(own.backends("moe", DType::kBf16), (std::set<std::string>{"cutlass", "triton"}));
  EXPECT_TRUE(own.backends("gemm", DType::kBf16).empty());
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
