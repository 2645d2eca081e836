// Times of calls that no row has: between rows, in holes, outside, and of related families.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::gemm;
using testing::node;
using testing::prefill;
using testing::TableDirectory;
using testing::twice_the_work_model;
using testing::work_time;

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

// 128 queries of 32 heads are too few for the GPU: with twice the keys they take twice as long,
// which the square problem of equal work does not know. Rows of 8,192 and 32,768 cached tokens say
// so.
TEST(CostModel, FewQueriesOverACachedContextLieBetweenRowsOfOthers) {
  const TableDirectory directory;
  const std::string header = "dtype,batch,query,context,heads,kv_heads,head_dim,window,time_us\n";
  const std::string empty = "bf16,1,128,0,32,8,128,0,7\nbf16,1,16384,0,32,8,128,0,3600\n";
  directory.write("attention_prefill.csv",
                  header + empty +
                      "bf16,1,16,8192,32,8,128,0,100\nbf16,1,512,8192,32,8,128,0,110\n"
                      "bf16,1,16,32768,32,8,128,0,385\nbf16,1,512,32768,32,8,128,0,425\n");
  const Provider provider = Provider::load(directory.path());
  const CostModel cost(node(), &provider, nullptr, {});
  const Estimate estimate = cost.kernel(prefill(1, 128, 16384, 32, 8));
  EXPECT_EQ(estimate.basis, Basis::kInterpolated);
  EXPECT_GT(estimate.time.value(), 180e-6);
  EXPECT_LT(estimate.time.value(), 230e-6);
  // A context with a row of other queries alone does not hold the call.
  directory.write("attention_prefill.csv",
                  header + empty +
                      "bf16,1,16,8192,32,8,128,0,100\nbf16,1,512,8192,32,8,128,0,110\n"
                      "bf16,1,8192,16384,32,8,128,0,4200\n"
                      "bf16,1,16,32768,32,8,128,0,385\nbf16,1,512,32768,32,8,128,0,425\n");
  const Provider sparse = Provider::load(directory.path());
  const CostModel of_sparse(node(), &sparse, nullptr, {});
  EXPECT_NEAR(of_sparse.kernel(prefill(1, 128, 16384, 32, 8)).time / estimate.time, 1, 1e-9);
  // Beyond them, and of queries that fill the GPU, the square problem answers.
  EXPECT_EQ(cost.kernel(prefill(1, 128, 65536, 32, 8)).basis, Basis::kRoofline);
  EXPECT_EQ(cost.kernel(prefill(1, 4096, 16384, 32, 8)).basis, Basis::kRoofline);
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

}  // namespace
}  // namespace orrery
