#include "sim/cost/corrections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "sim/cost/provider_tables.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::gemm;
using testing::node;
using testing::TableDirectory;

const Correction& named(std::string_view name) {
  return *std::ranges::find(corrections(), name, &Correction::name);
}

KernelOp rows_op(const char* kernel, std::int64_t tokens, std::int64_t columns) {
  const char* width = std::string_view(kernel) == "silu_mul" ? "ffn" : "hidden";
  return {.kernel = kernel,
          .dtype = DType::kBf16,
          .dims = {{.name = "tokens", .size = tokens, .axis = {}},
                   {.name = width, .size = columns, .axis = {}}}};
}

// A table of one provider, the row that answers `op`, and what one correction of the list makes of
// it.
class CorrectionTest : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& rows) {
    std::filesystem::create_directories(directory_.path() / name_);
    directory_.write(name_ + "/" + file, rows);
  }
  Estimate apply(std::string_view correction, const KernelOp& op, Estimate estimate) {
    const Provider provider = Provider::load(directory_.path() / name_);
    source_.provider = &provider;
    source_.device = &node().device();
    const KernelTable* table = provider.tables().table(op.kernel);
    std::vector<std::int64_t> dims;
    for (const Dim& dim : op.dims) dims.push_back(dim.size);
    const auto found = predict(*table, *source_.device, node().device(), op.dtype, 0, dims);
    named(correction)
        .of_kernel({.op = op,
                    .spec = kernel_spec(op.kernel),
                    .answered = op,
                    .device = node().device(),
                    .options = options_,
                    .source = &source_,
                    .table = table,
                    .found = &*found,
                    .slowest_of_others = slowest_of_others_},
                   estimate);
    return estimate;
  }

  TableDirectory directory_;
  std::string name_ = "orrery";
  KernelSource source_;
  CostOptions options_;
  std::optional<Seconds> slowest_of_others_;
};

TEST(Corrections, ActInThisOrderAndNameTheirSources) {
  std::vector<std::string> names;
  for (const Correction& correction : corrections()) {
    names.emplace_back(correction.name);
    EXPECT_FALSE(correction.source.empty()) << correction.name;
    const int acts = (correction.of_kernel != nullptr) + (correction.of_collective != nullptr) +
                     (correction.between_ops != nullptr);
    EXPECT_EQ(acts, 1) << correction.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"device",
                                             "untuned experts",
                                             "fastest row",
                                             "included quantising",
                                             "warm L2",
                                             "rows by group",
                                             "many groups",
                                             "experts reached",
                                             "streamed weights",
                                             "eager gap",
                                             "other rows",
                                             "same work",
                                             "power limit",
                                             "engine",
                                             "engine's kernel",
                                             "rows of a layer",
                                             "dealt work",
                                             "fewer SMs",
                                             "arrivals",
                                             "hop between streams",
                                             "collective launch",
                                             "GEMM launch",
                                             "latent launch"}));
}

// 260 pieces of work are two rounds of 132 blocks, and three of the 108 that are left.
TEST_F(CorrectionTest, KernelsThatLeaveSmsTakeAsLongAsTheirLaunchOnTheOthers) {
  write("attention_decode.csv",
        "dtype,batch,context,heads,kv_heads,head_dim,window,time_us,mode\n"
        "bf16,65,520,32,4,128,1073741824,22.4,graph\n");
  KernelOp op{.kernel = "attention_decode",
              .dims = {{.name = "batch", .size = 65},
                       {.name = "context", .size = 520},
                       {.name = "heads", .size = 32},
                       {.name = "kv_heads", .size = 4},
                       {.name = "head_dim", .size = 128},
                       {.name = "window", .size = 1 << 30}}};
  const Estimate before{.time = Seconds(22.4e-6), .basis = Basis::kMeasured, .rounds = 1};
  EXPECT_EQ(apply("fewer SMs", op, before), before);
  op.free_sms = 24;
  const Estimate after = apply("fewer SMs", op, before);
  EXPECT_NEAR(after.time / before.time, 1.5, 0.15);  // measured: 1.46
  EXPECT_EQ(after.rounds, 0);
  EXPECT_EQ(after.free_sms, 24);
  name_ = "engine";  // whose kernels leave none
  write("attention_decode.csv",
        "dtype,batch,context,heads,kv_heads,head_dim,window,time_us\n"
        "bf16,65,520,32,4,128,1073741824,22.4\n");
  EXPECT_EQ(apply("fewer SMs", op, before), before);
}

// Twice 2 us are 4: of 5 us that much is left, 3 us are no longer than that.
TEST_F(CorrectionTest, ExpertsTakeAtMostTwiceWhatTheSlowestOfOtherEnginesDoes) {
  write("silu_mul.csv", "dtype,tokens,ffn,time_us\nbf16,64,8192,5\n");
  const auto bounded = [&](Seconds time, Basis basis) {
    return apply("untuned experts", rows_op("silu_mul", 64, 8192), {.time = time, .basis = basis});
  };
  EXPECT_EQ(bounded(Seconds(5e-6), Basis::kMeasured).time.value(), 5e-6);  // no others are known
  slowest_of_others_ = Seconds(2e-6);
  EXPECT_EQ(bounded(Seconds(5e-6), Basis::kMeasured).time.value(), 4e-6);
  EXPECT_EQ(bounded(Seconds(5e-6), Basis::kMeasured).basis, Basis::kInterpolated);
  EXPECT_EQ(bounded(Seconds(5e-6), Basis::kRoofline).basis, Basis::kRoofline);
  EXPECT_EQ(bounded(Seconds(3e-6), Basis::kMeasured).time.value(), 3e-6);
  EXPECT_EQ(bounded(Seconds(3e-6), Basis::kMeasured).basis, Basis::kMeasured);
}

// A row of 1,024 tokens at 8e14 FLOP/s and one of 1 token at 4.5e12 bytes/s take 0.63 and 0.79 of
// the work model's time, part of which is the launch, and for the first its weights: larger calls
// at these ratios would be at 9.1e14 and 4.8e12.
TEST_F(CorrectionTest, NoCallIsFasterThanTheFastestRowsAllow) {
  constexpr double kSide = 8192;
  const auto computing = [](std::int64_t m) {
    return 2 * static_cast<double>(m) * kSide * kSide / 8e14;
  };
  const auto moving = [](double n) { return 2 * (kSide + n * kSide + n) / 4.5e12; };
  char rows[120];
  std::snprintf(rows, sizeof rows,
                "dtype,m,n,k,time_us\nbf16,1024,8192,8192,%.15g\nbf16,1,8192,8192,%.15g\n",
                1e6 * computing(1024), 1e6 * moving(kSide));
  write("gemm.csv", rows);
  EXPECT_EQ(apply("fastest row", gemm(1024, 8192, 8192), {.time = Seconds(1e-6)}).time.value(),
            1e-6);  // a row says what it takes
  const Provider provider = Provider::load(directory_.path() / name_);
  const CostModel cost(node(), &provider, nullptr, {});
  for (const std::int64_t m : {2048, 16384}) {
    EXPECT_NEAR(cost.kernel(gemm(m, 8192, 8192)).time / Seconds(computing(m)), 1, 1e-9);
  }
  EXPECT_NEAR(cost.kernel(gemm(1, 65536, 8192)).time / Seconds(moving(65536)), 1, 1e-9);
}

// floor + m k 3 bytes / (0.42 x 4.8 TB/s) = 9 + 8192 x 2560 x 3 / 2.016e6 us = 40.2 us of 100.
TEST_F(CorrectionTest, QuantisingThatAPlanHasAsAnOpOfItsOwnIsTakenOut) {
  name_ = "engine";
  write("gemm.csv", "dtype,m,n,k,time_us\nfp8,8192,2560,2560,100\n");
  write("includes.csv", "kernel,dtype,includes,floor_us\ngemm,fp8,quantize,9\n");
  const double quantizing = 9e-6 + 8192 * 2560 * 3 / (0.42 * 4.8e12);
  const Estimate after =
      apply("included quantising", gemm(8192, 2560, 2560, DType::kFp8), {.time = Seconds(1e-4)});
  EXPECT_NEAR(after.time.value(), 1e-4 - quantizing, 1e-15);
  EXPECT_EQ(after.basis, Basis::kRoofline);  // no better than it was
}

// Operands in the cache halve the time; 0.4 of that is left of it in a step: 1 - 0.4 / 2.
TEST_F(CorrectionTest, WhatWasJustWrittenIsPartlyInTheCache) {
  write("silu_mul.csv",
        "dtype,tokens,ffn,mode,l2,time_us\nbf16,128,8192,graph,cold,10\n"
        "bf16,128,8192,graph,warm,5\n");
  EXPECT_NEAR(
      apply("warm L2", rows_op("silu_mul", 128, 8192), {.time = Seconds(1e-5)}).time.value(), 8e-6,
      1e-15);
}

KernelOp grouped_op(std::int64_t rows, std::int64_t n, std::int64_t k) {
  return {.kernel = "grouped_gemm",
          .dtype = DType::kBf16,
          .dims = {{.name = "rows", .size = rows, .axis = {}},
                   {.name = "n", .size = n, .axis = {}},
                   {.name = "k", .size = k, .axis = {}},
                   {.name = "groups", .size = 8, .axis = {}},
                   {.name = "active", .size = 8, .axis = {}}}};
}

// One of eight groups has half of all rows.
TEST_F(CorrectionTest, FullGroupsReadTheirWeightsAgainWhereTheyAreStreamed) {
  write("grouped_gemm.csv",
        "dtype,rows,n,k,groups,active,time_us\nbf16,320,1024,1024,8,8,10\n"
        "bf16,320,8192,4096,8,8,100\n");
  const auto longer = [&](std::int64_t n, std::int64_t k) {
    return apply("rows by group", grouped_op(320, n, k), {.time = Seconds(1)}).time.value();
  };
  EXPECT_EQ(longer(1024, 1024), 1);  // alike
  options_.expert_choices.assign(8, 1.0 / 14);
  options_.expert_choices.front() = 0.5;
  // 160 rows in three passes, 23 in one each. 2 MB stay in the cache, 67 MB do not.
  const double held = 1 - 2.097152 / 40;
  EXPECT_NEAR(longer(1024, 1024), 1 + 2 * (held * 0.35 + 1 - held) / 8, 3e-3);
  EXPECT_NEAR(longer(8192, 4096), 1 + 2.0 / 8, 3e-3);
  name_ = "engine";
  write("grouped_gemm.csv", "dtype,rows,n,k,groups,active,time_us\nbf16,320,1024,1024,8,8,10\n");
  EXPECT_EQ(longer(1024, 1024), 1);  // another's kernel
}

TEST_F(CorrectionTest, GroupsInTilesTakeWhatGroupsAsFullTake) {
  // 80 rows a group; of 640 rows one group has 320, the others 46, which tiles take like 55.
  write("grouped_gemm.csv",
        "dtype,rows,n,k,groups,active,time_us\nbf16,366,1024,1024,8,8,8\n"
        "bf16,640,1024,1024,8,8,10\nbf16,2560,1024,1024,8,8,34\n");
  options_.expert_choices.assign(8, 1.0 / 14);
  options_.expert_choices.front() = 0.5;
  const double longer =
      apply("rows by group", grouped_op(640, 1024, 1024), {.time = Seconds(1)}).time.value();
  // By waves of tiles 440 rows take between what 366 and 640 do.
  EXPECT_GT(longer, (34 + 7 * 8) / (8 * 10.0));
  EXPECT_LE(longer, (34 + 7 * 10) / (8 * 10.0) + 1e-9);
}

// 88 rows a group go in tiles: 8 groups are an eighth of 64.
TEST_F(CorrectionTest, TilesOfManyGroupsTakeLongerInALayer) {
  const char* const rows =
      "dtype,rows,n,k,groups,active,time_us\nbf16,320,1024,1024,8,8,10\n"
      "bf16,704,1024,1024,8,8,12\nbf16,11264,1024,1024,128,128,100\n";
  write("grouped_gemm.csv", rows);
  const auto longer = [&](std::int64_t all, std::int64_t groups = 8) {
    KernelOp op = grouped_op(all, 1024, 1024);
    for (std::size_t i : {3, 4}) op.dims[i].size = groups;
    return apply("many groups", op, {.time = Seconds(1)}).time.value();
  };
  EXPECT_NEAR(longer(704), 1 + 0.06 / 8, 1e-12);
  EXPECT_NEAR(longer(11264, 128), 1.06, 1e-12);
  EXPECT_EQ(longer(320), 1);  // streamed
  name_ = "engine";
  write("grouped_gemm.csv", rows);
  EXPECT_EQ(longer(704), 1);
}

// Three tokens that choose two of eight experts each, alike: 4.6 have rows on average.
TEST_F(CorrectionTest, ExpertsThatAreReachedNeedNotBeAWholeNumber) {
  write("grouped_gemm.csv",
        "dtype,rows,n,k,groups,active,time_us\nbf16,6,1024,1024,8,4,40\n"
        "bf16,6,1024,1024,8,5,50\n");
  KernelOp op = grouped_op(6, 1024, 1024);
  options_.expert_choices.assign(8, 0.25);
  const double reached = 8 * (1 - std::pow(0.75, 3));
  for (const std::int64_t named : {4, 5}) {
    op.dims.back().size = named;
    const Seconds time =
        apply("experts reached", op, {.time = Seconds(static_cast<double>(named) * 1e-5)}).time;
    EXPECT_NEAR(time.value(), reached * 1e-5, 1e-9) << named;
  }
  options_.expert_choices.assign(16, 0.25);  // this rank has half of them
  EXPECT_EQ(apply("experts reached", op, {.time = Seconds(1)}).time.value(), 1);
}

TEST_F(CorrectionTest, BeforeAGemmThatStreamsWeightsACallTakesNoLongerThanUntilItHasBegun) {
  write("silu_mul.csv", "dtype,tokens,ffn,time_us\nbf16,64,8192,3\nbf16,65,8192,3\n");
  const auto time = [&](std::int64_t tokens) {
    return apply("streamed weights", rows_op("silu_mul", tokens, 8192), {.time = Seconds(3e-6)})
        .time.value();
  };
  EXPECT_EQ(time(64), 1.3e-6);
  EXPECT_EQ(time(65), 3e-6);  // cuBLASLt's waits
}

TEST_F(CorrectionTest, KernelsOfEnginesDoNotBeginEarly) {
  name_ = "engine";
  write("silu_mul.csv", "dtype,tokens,ffn,time_us\nbf16,64,8192,3\n");
  EXPECT_EQ(apply("streamed weights", rows_op("silu_mul", 64, 8192), {.time = Seconds(3e-6)}).time,
            Seconds(3e-6));
}

TEST_F(CorrectionTest, CallsLaunchedOneByOneTakeTheGapThatRowsOfBothModesShow) {
  write("silu_mul.csv",
        "dtype,tokens,ffn,mode,l2,time_us\nbf16,128,8192,graph,cold,10\n"
        "bf16,128,8192,eager,cold,11.5\n");
  const KernelOp op = rows_op("silu_mul", 128, 8192);
  options_.launch_mode = LaunchMode::kEager;
  EXPECT_NEAR(apply("eager gap", op, {.time = Seconds(1e-5)}).time.value(), 11.5e-6, 1e-15);
  options_.launch_mode = LaunchMode::kGraph;
  EXPECT_EQ(apply("eager gap", op, {.time = Seconds(1e-5)}).time, Seconds(1e-5));
}

TEST_F(CorrectionTest, RowsOfAnotherArchitectureAreNoBetterThanTheWorkModel) {
  write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,256,10\n");
  const Estimate own{.time = Seconds(1e-5), .basis = Basis::kMeasured, .spread = 0.01};
  EXPECT_EQ(apply("other rows", gemm(16, 256, 256), own), own);
  source_.origin = Origin::kSibling;
  const Estimate sibling = apply("other rows", gemm(16, 256, 256), own);
  EXPECT_EQ(sibling.time, own.time);
  EXPECT_EQ(sibling.basis, Basis::kBorrowed);
  EXPECT_EQ(sibling.spread, 0.1);
  source_.origin = Origin::kOtherProvider;
  EXPECT_EQ(apply("other rows", gemm(16, 256, 256), own).basis, Basis::kInterpolated);
  source_.origin = Origin::kOtherProviderOnSibling;
  EXPECT_EQ(apply("other rows", gemm(16, 256, 256), own).basis, Basis::kBorrowed);
  source_.origin = Origin::kOtherArchitecture;
  EXPECT_EQ(apply("other rows", gemm(16, 256, 256), own).basis, Basis::kRoofline);
}

TEST_F(CorrectionTest, FactorsOfTheEngineScaleAllThreeTimes) {
  write("gemm.csv", "dtype,m,n,k,time_us\nbf16,16,256,256,10\n");
  options_.kernel_time = 2;
  options_.moe_kernel_time = 3;
  options_.kernel_times = {{"gemm", 1.5}};
  const Estimate before{.time = Seconds(1), .limited = Seconds(2), .arithmetic = Seconds(0.5)};
  const Estimate all = apply("engine", gemm(16, 256, 256), before);
  EXPECT_EQ(all.time, Seconds(2));
  EXPECT_EQ(all.limited, Seconds(4));
  EXPECT_EQ(all.arithmetic, Seconds(1));
  EXPECT_EQ(apply("engine's kernel", gemm(16, 256, 256), before).time, Seconds(1.5));
}

TEST(Corrections, TimesBetweenOpsAreThoseOfTheLaunchMode) {
  const HostCosts host{.eager_launch = Seconds(4),
                       .gemm_launch = 1.5,
                       .latent_launch = 2.5,
                       .graph_hop = Seconds(1),
                       .eager_hop = Seconds(2),
                       .eager_collective = Seconds(6)};
  const auto between = [&](std::string_view name, LaunchMode mode) {
    return named(name).between_ops(mode, host);
  };
  EXPECT_EQ(between("hop between streams", LaunchMode::kGraph), Seconds(1));
  EXPECT_EQ(between("hop between streams", LaunchMode::kEager), Seconds(2));
  EXPECT_EQ(between("collective launch", LaunchMode::kEager), Seconds(6));
  EXPECT_EQ(between("collective launch", LaunchMode::kGraph), Seconds(0));
  EXPECT_EQ(between("GEMM launch", LaunchMode::kEager), Seconds(6));
  EXPECT_EQ(between("GEMM launch", LaunchMode::kGraph), Seconds(0));
  EXPECT_EQ(between("latent launch", LaunchMode::kEager), Seconds(10));
  EXPECT_EQ(between("latent launch", LaunchMode::kGraph), Seconds(0));
  HostCosts alike = host;
  alike.latent_launch.reset();
  EXPECT_EQ(named("latent launch").between_ops(LaunchMode::kEager, alike), Seconds(6));
}

TEST(Corrections, AHostEnqueuesWhatTheOpIs) {
  const auto launched = [](auto body) { return launched_for({.body = std::move(body)}); };
  EXPECT_EQ(launched(rows_op("silu_mul", 128, 8192)), Launched::kRows);
  EXPECT_EQ(launched(gemm(16, 256, 256)), Launched::kProduct);
  EXPECT_EQ(launched(KernelOp{.kernel = "batched_gemm",
                              .dims = {{.name = "batch", .size = 16, .axis = {}},
                                       {.name = "m", .size = 1, .axis = {}},
                                       {.name = "n", .size = 512, .axis = {}},
                                       {.name = "k", .size = 128, .axis = {}}}}),
            Launched::kLatent);
  EXPECT_EQ(launched(CommOp{.kind = CollectiveKind::kAllReduce}), Launched::kRows);
  EXPECT_EQ(launched(CommOp{.kind = CollectiveKind::kAllToAll}), Launched::kCollective);
  EXPECT_EQ(launched(HostOp{.kind = HostKind::kD2hSync}), Launched::kNothing);
}

// The times that `explain` gives lead from the rows to the price, and the price is that of `price`.
TEST_F(CorrectionTest, AnExplanationLeadsFromTheRowsToThePrice) {
  write("silu_mul.csv",
        "dtype,tokens,ffn,mode,l2,time_us\nbf16,128,8192,graph,cold,10\n"
        "bf16,128,8192,graph,warm,5\nbf16,128,8192,eager,cold,11\n");
  const Provider provider = Provider::load(directory_.path() / name_);
  const CostModel cost(node(), &provider, nullptr,
                       {.launch_mode = LaunchMode::kEager, .kernel_time = 1.1});
  Plan plan;
  plan.add_op({.name = "gate",
               .body = rows_op("silu_mul", 128, 8192),
               .ranks = plan.add_group({0}),
               .reads = {},
               .writes = {}});
  const PriceExplanation found = cost.explain(plan, plan.ops().front());
  EXPECT_EQ(found.price, cost.price(plan, plan.ops().front()));
  EXPECT_EQ(found.provider, "orrery");
  EXPECT_EQ(found.file.filename(), "silu_mul.csv");
  EXPECT_EQ(found.rows, "the row of the call");
  EXPECT_NEAR(found.row_time.value(), 10e-6, 1e-15);
  std::vector<std::string> names;
  Seconds reached = found.row_time;
  for (const AppliedCorrection& correction : found.corrections) {
    names.emplace_back(correction.name);
    EXPECT_EQ(correction.before.time, reached);
    reached = correction.after.time;
  }
  EXPECT_EQ(reached, found.price.time);
  EXPECT_EQ(names, (std::vector<std::string>{"warm L2", "eager gap", "engine"}));
}

}  // namespace
}  // namespace orrery
