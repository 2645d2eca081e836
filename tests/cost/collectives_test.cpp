#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "sim/units/largest_normal.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::node_spec;
using testing::TableDirectory;

constexpr const char* kHeader = "implementation,version,mode,dtype,num_gpus,bytes,time_us\n";

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

CommOp comm(CollectiveKind kind, double bytes) {
  return {.kind = kind, .dtype = DType::kBf16, .bytes_per_rank = Bytes(bytes)};
}

// Price on an 8-GPU node with tables of one file.
Estimate price(const std::string& file, const std::string& rows, const CommOp& op, int num_ranks,
               const CostOptions& options = {}) {
  const TableDirectory directory;
  directory.write(file, kHeader + rows);
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  const Machine machine = make_machine(node_spec());
  return CostModel(machine, nullptr, &tables, options).collective(op, first_ranks(num_ranks));
}

TEST(Collectives, RepeatsOfAPointCountByTheirMedian) {
  const Estimate estimate = price("all_reduce.csv",
                                  "nccl,1,unspecified,fp16,4,1024,10\n"
                                  "nccl,1,unspecified,fp16,4,1024,30\n"
                                  "nccl,1,unspecified,fp16,4,1024,11\n",
                                  comm(CollectiveKind::kAllReduce, 1024), 4);
  EXPECT_NEAR(estimate.time.value(), 11e-6, 1e-15);
  EXPECT_EQ(estimate.basis, Basis::kMeasured);
}

constexpr const char* kTwoPoints =
    "nccl,1,unspecified,fp16,4,1024,10\nnccl,1,unspecified,fp16,4,4096,40\n";

TEST(Collectives, BetweenTwoSizesTheTimeIsInterpolatedInLogarithms) {
  // 2048 is half way from 1024 to 4096 in octaves: sqrt(10 * 40) = 20 us.
  const Estimate estimate =
      price("all_reduce.csv", kTwoPoints, comm(CollectiveKind::kAllReduce, 2048), 4);
  EXPECT_NEAR(estimate.time.value(), 20e-6, 1e-15);
  EXPECT_EQ(estimate.basis, Basis::kInterpolated);
}

TEST(Collectives, AboveTheTableTimeGrowsWithBytesAndBelowItStays) {
  const Estimate above =
      price("all_reduce.csv", kTwoPoints, comm(CollectiveKind::kAllReduce, 40960), 4);
  EXPECT_NEAR(above.time.value(), 400e-6, 1e-12);
  EXPECT_EQ(above.basis, Basis::kRoofline);
  const Estimate below =
      price("all_reduce.csv", kTwoPoints, comm(CollectiveKind::kAllReduce, 16), 4);
  EXPECT_NEAR(below.time.value(), 10e-6, 1e-15);
  EXPECT_EQ(below.basis, Basis::kRoofline);
}

TEST(Collectives, AllGatherCountsItsOutput) {
  // 4 ranks contribute 1024 B each: the table's 4096 B.
  const Estimate estimate =
      price("all_gather.csv", kTwoPoints, comm(CollectiveKind::kAllGather, 1024), 4);
  EXPECT_NEAR(estimate.time.value(), 40e-6, 1e-15);
}

// Ranks that come with a standard deviation of 2 us: the last of 4 is 1.029 of them behind.
TEST(Collectives, CollectivesOfAStepWaitForTheLastRank) {
  const TableDirectory directory;
  for (const char* file : {"all_gather.csv", "all_reduce.csv"}) {
    directory.write(file, std::string(kHeader) + kTwoPoints);
  }
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  const Machine machine = make_machine(node_spec());
  Plan plan;
  const GroupId all = plan.add_group(first_ranks(4));
  const auto time = [&](CollectiveKind kind, double bytes, LaunchMode mode) {
    CostOptions options{.launch_mode = mode};
    options.host.graph_arrivals = Seconds(2e-6);
    const Op op{.name = "collective", .body = comm(kind, bytes), .ranks = all};
    return CostModel(machine, nullptr, &tables, options).price(plan, op).time.value();
  };
  using enum CollectiveKind;
  EXPECT_NEAR(time(kAllGather, 1024, LaunchMode::kGraph), 40e-6 + 2e-6 * largest_normal(4), 1e-12);
  EXPECT_NEAR(time(kAllGather, 1024, LaunchMode::kEager), 40e-6, 1e-12);
  EXPECT_NEAR(time(kAllReduce, 4096, LaunchMode::kGraph), 40e-6, 1e-12);
}

TEST(Collectives, ThreeGpusLieBetweenTwoAndFour) {
  // log 1.5 / log 2 = 0.585 of the way from 10 to 40 us in logarithms: 10 * 4^0.585 = 22.5 us.
  const Estimate estimate = price("all_reduce.csv",
                                  "nccl,1,unspecified,fp16,2,1024,10\n"
                                  "nccl,1,unspecified,fp16,4,1024,40\n",
                                  comm(CollectiveKind::kAllReduce, 1024), 3);
  EXPECT_NEAR(estimate.time.value(), 10e-6 * std::pow(4, std::log2(1.5)), 1e-12);
  EXPECT_EQ(estimate.basis, Basis::kInterpolated);
}

TEST(Collectives, MoreGpusThanMeasuredAreModelled) {
  const Estimate estimate =
      price("all_reduce.csv", kTwoPoints, comm(CollectiveKind::kAllReduce, 1024), 8);
  EXPECT_EQ(estimate.basis, Basis::kRoofline);
}

constexpr const char* kCustomAndNccl =
    "custom_vllm,1,graph,bf16,4,1024,5\ncustom_vllm,1,eager,bf16,4,1024,21\n"
    "custom_vllm,1,graph,bf16,4,4096,60\ncustom_vllm,1,eager,bf16,4,4096,70\n"
    "nccl,1,unspecified,fp16,4,1024,10\nnccl,1,unspecified,fp16,4,4096,40\n";

TEST(Collectives, AllReduceTakesTheFasterImplementation) {
  const CommOp small = comm(CollectiveKind::kAllReduce, 1024);
  const CommOp large = comm(CollectiveKind::kAllReduce, 4096);
  EXPECT_NEAR(price("all_reduce.csv", kCustomAndNccl, small, 4).time.value(), 5e-6, 1e-15);
  EXPECT_NEAR(price("all_reduce.csv", kCustomAndNccl, large, 4).time.value(), 40e-6, 1e-15);
}

TEST(Collectives, AllReduceImplementationCanBeFixed) {
  const CommOp small = comm(CollectiveKind::kAllReduce, 1024);
  CostOptions options;
  options.all_reduce_implementation = "nccl";
  EXPECT_NEAR(price("all_reduce.csv", kCustomAndNccl, small, 4, options).time.value(), 10e-6,
              1e-15);
}

TEST(Collectives, AnEngineTakesItsOwnImplementationAndNoOthers) {
  // 5 us is vLLM's kernel; TensorRT-LLM's is not measured here, so NCCL's 10 us stand.
  const CommOp small = comm(CollectiveKind::kAllReduce, 1024);
  CostOptions options;
  for (const std::string choice : {"", "custom"}) {
    options.all_reduce_implementation = choice;
    options.custom_all_reduce = "custom_vllm";
    EXPECT_NEAR(price("all_reduce.csv", kCustomAndNccl, small, 4, options).time.value(), 5e-6,
                1e-15);
    options.custom_all_reduce = "custom_trtllm";
    EXPECT_NEAR(price("all_reduce.csv", kCustomAndNccl, small, 4, options).time.value(), 10e-6,
                1e-15);
  }
}

// Price on a node of `rate` with the tables of another of 450 GB/s.
Estimate transferred(double rate, const CommOp& op) {
  const TableDirectory directory;
  directory.write("all_reduce.csv", std::string(kHeader) + kTwoPoints);
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  MachineSpec spec = node_spec();
  spec.nvlink_rate = BytesPerSecond(rate);
  const Machine machine = make_machine(spec);
  const CostModel cost(machine, {}, {{&tables, BytesPerSecond(450e9), false}}, {});
  return cost.collective(op, first_ranks(4));
}

TEST(Collectives, AnotherMachinesCurveKeepsItsLatencyAndScalesItsBandwidth) {
  // 10 us at the smallest size stay; the 30 us beyond it take 450/300 as long: 10 + 45 us.
  const Estimate slower = transferred(300e9, comm(CollectiveKind::kAllReduce, 4096));
  EXPECT_NEAR(slower.time.value(), 55e-6, 1e-15);
  EXPECT_EQ(slower.basis, Basis::kRoofline);
  const Estimate small = transferred(300e9, comm(CollectiveKind::kAllReduce, 1024));
  EXPECT_NEAR(small.time.value(), 10e-6, 1e-15);
}

TEST(Collectives, AnotherMachinesCurveAtTheSameRateIsInterpolated) {
  const Estimate same = transferred(450e9, comm(CollectiveKind::kAllReduce, 4096));
  EXPECT_NEAR(same.time.value(), 40e-6, 1e-15);
  EXPECT_EQ(same.basis, Basis::kInterpolated);
}

TEST(Collectives, EagerRowsHoldTheHostsTimeForBothImplementations) {
  // Custom eager takes 21 us whatever the size is, so an eager NCCL call of 10 us is no faster.
  CostOptions options;
  options.launch_mode = LaunchMode::kEager;
  const auto eager = [&](double bytes) {
    return price("all_reduce.csv", kCustomAndNccl, comm(CollectiveKind::kAllReduce, bytes), 4,
                 options)
        .time.value();
  };
  EXPECT_NEAR(eager(1024), 21e-6, 1e-15);
  EXPECT_NEAR(eager(4096), 40e-6, 1e-15);
}

TEST(Collectives, WithoutEagerRowsThoseOfAGraphStand) {
  CostOptions options;
  options.launch_mode = LaunchMode::kEager;
  const Estimate estimate = price("all_reduce.csv", "custom_vllm,1,graph,bf16,4,1024,5\n",
                                  comm(CollectiveKind::kAllReduce, 1024), 4, options);
  EXPECT_NEAR(estimate.time.value(), 5e-6, 1e-15);
}

TEST(Collectives, WithoutTablesAllToAllFollowsTheClosedForm) {
  // 5 us per call + 1 us + 7/8 * 8 MB / 370 GB/s
  const Machine machine = make_machine(node_spec());
  const CostModel cost(machine, nullptr, nullptr, {});
  const Estimate estimate = cost.collective(comm(CollectiveKind::kAllToAll, 8e6), first_ranks(8));
  EXPECT_NEAR(estimate.time.value(), 6e-6 + 7e6 / 370e9, 1e-12);
  EXPECT_EQ(estimate.basis, Basis::kRoofline);
}

TEST(Collectives, SendRecvPaysItsRouteAndItsBytes) {
  const Machine machine = make_machine(node_spec());
  const CostModel cost(machine, nullptr, nullptr, {});
  const std::vector<int> pair{2, 5};
  const Estimate estimate = cost.collective(comm(CollectiveKind::kSendRecv, 37e6), pair);
  // 37 MB / 370 GB/s = 100 us
  EXPECT_NEAR(estimate.time.value(), 5e-6 + machine.route(2, 5).latency.value() + 100e-6, 1e-12);
}

Machine two_nodes() {
  MachineSpec spec = node_spec(16);
  spec.kind = "rail_fat_tree";
  spec.nic_rate = BytesPerSecond(50e9);
  spec.nic_latency = Seconds(2e-6);
  spec.switch_latency = Seconds(0.5e-6);
  return make_machine(spec);
}

TEST(Collectives, AcrossNodesAllReduceIsHierarchical) {
  // Inside (8 GPUs, 370 GB/s, no tables): reduce-scatter 6 us + 7/8 B / 370 GB/s; all-gather of
  // shares B/8 the same; between: ring of 2 nodes over NICs at 47 GB/s with B/8, each of its two
  // steps paying the route's latency and 10 us.
  const Machine machine = two_nodes();
  const CostModel cost(machine, nullptr, nullptr, {});
  const double bytes = 64e6;
  const Estimate estimate =
      cost.collective(comm(CollectiveKind::kAllReduce, bytes), first_ranks(16));
  const double inside = 6e-6 + 7.0 / 8 * bytes / 370e9;
  const double step = machine.route(0, 8).latency.value() + 10e-6 + bytes / 8 / 2 / 47e9;
  EXPECT_NEAR(estimate.time.value(), 2 * inside + 2 * step, 1e-12);
}

TEST(Collectives, AcrossNodesTimeGrowsWithBytes) {
  const Machine machine = two_nodes();
  const CostModel cost(machine, nullptr, nullptr, {});
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast}) {
    const Seconds small = cost.collective(comm(kind, 1e6), first_ranks(16)).time;
    const Seconds large = cost.collective(comm(kind, 1e8), first_ranks(16)).time;
    EXPECT_GT(large, small) << to_text(kind);
    // And dearer than within one node.
    EXPECT_GT(large, cost.collective(comm(kind, 1e8), first_ranks(8)).time) << to_text(kind);
  }
}

TEST(Collectives, BusyMemorySlowsBytesOverNvlinkAndNoneOverNics) {
  const Machine machine = two_nodes();
  const CostModel cost(machine, nullptr, nullptr, {});
  const CommOp op = comm(CollectiveKind::kAllToAll, 64e6);
  const Estimate inside = cost.collective(op, first_ranks(8));
  EXPECT_LT(inside.latency, 0.1 * inside.time);  // the rest grows with bytes (sim/des/sharing.h)
  const Estimate between = cost.collective(op, first_ranks(16));
  EXPECT_EQ(between.latency, between.time);
}

TEST(Collectives, MeasuredPartsInsideTheNodesAreUsedAcrossThem) {
  // Reduce-scatter of 8 GPUs is measured as 1 ms: an all-reduce on two nodes cannot be faster.
  const TableDirectory directory;
  directory.write("reduce_scatter.csv",
                  std::string(kHeader) + "nccl,1,unspecified,fp16,8,1000000,1000\n");
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  const Machine machine = two_nodes();
  const CommOp op = comm(CollectiveKind::kAllReduce, 1e6);
  const double with =
      CostModel(machine, nullptr, &tables, {}).collective(op, first_ranks(16)).time.value();
  const double without =
      CostModel(machine, nullptr, nullptr, {}).collective(op, first_ranks(16)).time.value();
  // Without: reduce-scatter 6 us + 7/8 * 1 MB / 370 GB/s.
  EXPECT_NEAR(with - without, 1e-3 - (6e-6 + 7.0 / 8 * 1e6 / 370e9), 1e-12);
}

TEST(Collectives, ShippedTablesHoldEveryCollectiveOfTheNode) {
  const CollectiveTables tables =
      CollectiveTables::load(std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies" / "hgx-h200");
  const Machine machine = make_machine(node_spec());
  const CostModel cost(machine, nullptr, &tables, {});
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
    for (const int ranks : {2, 4, 8}) {
      const Estimate estimate = cost.collective(comm(kind, 1e6), first_ranks(ranks));
      EXPECT_EQ(estimate.basis, Basis::kInterpolated) << to_text(kind) << " " << ranks;
      EXPECT_GT(estimate.time.value(), 1e-6);
      EXPECT_LT(estimate.time.value(), 100e-6);
    }
  }
}

TEST(Collectives, FilesOfSeveralSourcesAddUp) {
  // 4 us by one implementation in one file, 3 us by another in the other; the engine's own wins.
  const TableDirectory directory;
  directory.write("all_reduce.csv", std::string(kHeader) + "nccl,1,graph,bf16,2,4096,4\n");
  directory.write("all_reduce.own.csv", std::string(kHeader) + "mine,1,graph,bf16,2,4096,3\n");
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  const Machine machine = make_machine(node_spec());
  const auto time = [&](const std::string& implementation) {
    const CostModel cost(
        machine, nullptr, &tables,
        {.all_reduce_implementation = implementation, .custom_all_reduce = "mine"});
    return cost.collective(comm(CollectiveKind::kAllReduce, 4096), first_ranks(2)).time.value();
  };
  EXPECT_NEAR(time("nccl"), 4e-6, 1e-15);
  EXPECT_NEAR(time("custom"), 3e-6, 1e-15);
}

// An all_to_all of 4096 bytes of each rank.
Plan exchange_plan(int num_ranks, bool is_copied) {
  CommOp op = comm(CollectiveKind::kAllToAll, 4096);
  op.is_copied = is_copied;
  Plan plan;
  const GroupId group = plan.add_group(first_ranks(num_ranks));
  for (const char* name : {"a", "b"}) {
    plan.add_tensor({.name = name, .axes = {{"rows", 2048}}, .ranks = group});
  }
  plan.add_op({.name = "x", .body = op, .ranks = group, .reads = {0}, .writes = {1}, .after = {}});
  return plan;
}

// Of 4096 bytes a rank keeps a quarter among four ranks, half between two: 3072 and 2048 bytes
// leave.
TEST(Collectives, RowsCopiedToAllOthersTakeAsLongAsWhatLeavesARank) {
  const TableDirectory directory;
  directory.write("send_recv.own.csv", std::string(kHeader) +
                                           "mine_copies,1,eager,bf16,2,2048,20\n"
                                           "mine_copies,1,eager,bf16,2,3072,30\n");
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  const Machine machine = make_machine(node_spec());
  const auto priced = [&](int num_ranks, bool is_copied, Seconds arrivals = Seconds(0)) {
    CostOptions options{.custom_all_reduce = "mine"};
    options.launch_mode = LaunchMode::kEager;
    options.host.eager_arrivals = arrivals;
    const Plan plan = exchange_plan(num_ranks, is_copied);
    return CostModel(machine, nullptr, &tables, options).price(plan, plan.ops().front());
  };
  EXPECT_NEAR(priced(2, true).time.value(), 20e-6, 1e-15);
  EXPECT_NEAR(priced(4, true).time.value(), 30e-6, 1e-15);
  EXPECT_EQ(priced(2, true).basis, Basis::kMeasured);
  EXPECT_EQ(priced(2, false).basis, Basis::kRoofline);
  // It waits for the last rank, as other exchanges do: of two, 1 / sqrt(pi) deviations later.
  EXPECT_NEAR(priced(2, true, Seconds(1e-6)).time.value(), 20e-6 + 1e-6 * largest_normal(2), 1e-15);
}

// What a curve of kernels says is not what copies take.
TEST(Collectives, CopiesWithoutRowsOfTheirOwnArePricedByTheFormula) {
  const TableDirectory directory;
  directory.write("all_to_all.csv", std::string(kHeader) + "nccl,1,unspecified,fp16,2,4096,1000\n");
  const CollectiveTables tables = CollectiveTables::load(directory.path());
  const Machine machine = make_machine(node_spec());
  const auto priced = [&](bool is_copied, const CollectiveTables* known) {
    const Plan plan = exchange_plan(2, is_copied);
    return CostModel(machine, nullptr, known, {}).price(plan, plan.ops().front());
  };
  EXPECT_NEAR(priced(false, &tables).time.value(), 1e-3, 1e-12);
  EXPECT_EQ(priced(true, &tables).time, priced(true, nullptr).time);
  EXPECT_EQ(priced(true, nullptr).time, priced(false, nullptr).time);
  EXPECT_EQ(priced(true, &tables).basis, Basis::kRoofline);
}

TEST(Collectives, RejectsTooFewRanksAndNoBytes) {
  const Machine machine = make_machine(node_spec());
  const CostModel cost(machine, nullptr, nullptr, {});
  const auto error = [&](CollectiveKind kind, double bytes, int ranks) {
    return error_of([&] { (void)cost.collective(comm(kind, bytes), first_ranks(ranks)); });
  };
  expect_contains(error(CollectiveKind::kAllReduce, 1, 1), "among 1 ranks; expected 2 or more");
  expect_contains(error(CollectiveKind::kSendRecv, 1, 3), "among 3 ranks; expected 2");
  expect_contains(error(CollectiveKind::kAllReduce, 0, 2), "expected more than 0");
}

std::string table_error(const std::string& file, const std::string& content) {
  const TableDirectory directory;
  directory.write(file, content);
  return error_of([&] { CollectiveTables::load(directory.path()); });
}

TEST(Collectives, RejectsMalformedTablesWithFileAndLine) {
  const std::string header = kHeader;
  expect_contains(table_error("all_reduce.csv", header + "nccl,1,replayed,fp16,2,8,1\n"),
                  "all_reduce.csv:2: column mode: found 'replayed'");
  expect_contains(table_error("all_reduce.csv", header + "nccl,1,graph,fp17,2,8,1\n"),
                  "all_reduce.csv:2: column dtype");
  expect_contains(table_error("all_reduce.csv", header + "nccl,1,graph,fp16,1,8,1\n"),
                  "column num_gpus: found 1");
  expect_contains(table_error("all_reduce.csv", header + "nccl,1,graph,fp16,2,8,0\n"),
                  "column time_us");
  expect_contains(table_error("all_reduced.csv", header), "no collective of that name");
  expect_contains(table_error("all_reduce.csv", "bytes,time_us\n"), "no column 'implementation'");
}

}  // namespace
}  // namespace orrery
