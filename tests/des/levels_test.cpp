// The four levels agree on chains, repeats count as unrolled, hosts and streams do what
// sim/des/simulate.h says.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/des/step_builder.h"

namespace orrery::test {
namespace {

std::vector<StepLevel> all_levels() {
  if (!des::has_simgrid()) return {StepLevel::kClosedForm, StepLevel::kHeap};
  return {StepLevel::kClosedForm, StepLevel::kHeap, StepLevel::kRepresentative,
          StepLevel::kAllRanks};
}

void expect_all_levels(const StepBuilder& step, const Machine& machine, double us,
                       const Host& host = {}, const std::vector<double>& slowdown = {}) {
  for (const StepLevel level : all_levels()) {
    EXPECT_NEAR(makespan_us(step, machine, level, host, slowdown), us, 1e-9 * us) << to_text(level);
  }
  if (slowdown.empty()) {
    const PricedPlan priced = des::assemble(step.plan, step.times);
    const double found = des::closed_form(priced, host.mode, costs_of(host)).value() * 1e6;
    EXPECT_NEAR(found, us, 1e-9 * us);
  }
}

constexpr Host kGraph1{.mode = LaunchMode::kGraph, .launch_us = 5, .node_us = 1};
constexpr Host kEager5{.mode = LaunchMode::kEager, .launch_us = 5, .node_us = 1};

StepBuilder chain_of(int num_kernels, double us) {
  StepBuilder step;
  for (int i = 0; i < num_kernels; ++i) step.kernel({0}, us);
  return step;
}

TEST(Levels, AChainInAGraphTakesItsKernelsAndTheGapsBetweenThem) {
  // 4 * 10 + 3 * 1 us.
  expect_all_levels(chain_of(4, 10), nvswitch_machine(1), 43, kGraph1);
}

TEST(Levels, AnEagerChainOfLongKernelsWaitsForTheFirstLaunchOnly) {
  // Launch of the first 5 us, then 4 * 10 us; launches of the others hide.
  expect_all_levels(chain_of(4, 10), nvswitch_machine(1), 45, kEager5);
}

TEST(Levels, AnEagerChainOfShortKernelsRunsAtThePaceOfTheHost) {
  // The fourth is issued at 4 * 5 us and takes 2 us.
  expect_all_levels(chain_of(4, 2), nvswitch_machine(1), 22, kEager5);
}

TEST(Levels, AnEagerChainMayTurnFromHostBoundToGpuBound) {
  // Issued at 5, 10, 15, 20: 1 us kernels end at 6 and 11; the 30 us one runs 15..45, the last
  // to 46.
  StepBuilder step;
  for (const double us : {1.0, 1.0, 30.0, 1.0}) step.kernel({0}, us);
  expect_all_levels(step, nvswitch_machine(1), 46, kEager5);
}

StepBuilder spmd_chain(const std::vector<int>& ranks, int layers, bool with_repeat) {
  StepBuilder step;
  const TensorId x = step.tensor(ranks);
  step.kernel(ranks, 7, 0, {}, {x});
  const auto first = static_cast<OpId>(step.plan.ops().size());
  for (int layer = 0; layer < (with_repeat ? 1 : layers); ++layer) {
    step.kernel(ranks, 3, 0, {x}, {x});
    step.comm(CollectiveKind::kAllReduce, ranks, 1e6, 12, 0, {x}, {x});
    step.kernel(ranks, 5, 0, {x}, {x});
    step.comm(CollectiveKind::kAllToAll, ranks, 2e6, 20, 0, {x}, {x});
  }
  if (with_repeat) step.repeat(first, layers);
  step.kernel(ranks, 11, 0, {x}, {x});
  return step;
}

TEST(Levels, AnSpmdChainWithCollectivesOnEightRanksIsASum) {
  // 7 + 6 * (3 + 12 + 5 + 20) + 11 = 258; 25 gaps of 1 us between 26 ops.
  const Machine machine = nvswitch_machine(8);
  expect_all_levels(spmd_chain(range(0, 8), 6, false), machine, 283, kGraph1);
  // Eager: the first launch takes 5 us. The 3 us kernels fall behind the host only if the launches
  // did; op k (from 1) is issued at 5 k, work ahead grows by 40 us per 4 ops of 20 us launches.
  expect_all_levels(spmd_chain(range(0, 8), 6, false), machine, 263, kEager5);
}

TEST(Levels, RepeatsCountAsUnrolled) {
  const Machine machine = nvswitch_machine(8);
  for (const Host& host : {kGraph1, kEager5}) {
    const StepBuilder unrolled = spmd_chain(range(0, 8), 6, false);
    const StepBuilder repeated = spmd_chain(range(0, 8), 6, true);
    const double us = makespan_us(unrolled, machine, StepLevel::kHeap, host);
    expect_all_levels(repeated, machine, us, host);
    // The same through unroll().
    StepBuilder through;
    through.plan = unroll(repeated.plan);
    ASSERT_EQ(through.plan.ops().size(), unrolled.plan.ops().size());
    through.times = unrolled.times;
    expect_all_levels(through, machine, us, host);
  }
}

TEST(Levels, RepeatsWithAHostSyncAreUnrolledToo) {
  // Eager, per copy: two launches, kernels of 2 and 9 us, a sync of 4 us. Copy 1: issued 5 and 10,
  // runs 5..7 and 10..19, sync 19..23. Each copy starts 23 us after the one before it: 5 * 23.
  StepBuilder step;
  const TensorId flag = step.tensor({0});
  step.kernel({0}, 2);
  step.kernel({0}, 9, 0, {}, {flag});
  step.host(HostKind::kD2hSync, {0}, 4, {flag});
  step.repeat(0, 5);
  expect_all_levels(step, nvswitch_machine(1), 115, kEager5);
}

TEST(Levels, WhatIsLaunchedAfterASyncWaitsForItAndExpertsWithoutRowsAreNotLaunched) {
  // Eager: a kernel of 20 us is issued at 5, the sync takes from 25 to 29; then of three experts
  // the middle one has no rows: 34..37 and, issued at 39, 39..42.
  StepBuilder step;
  const TensorId counts = step.tensor({0});
  step.kernel({0}, 20, 0, {}, {counts});
  step.host(HostKind::kD2hSync, {0}, 4, {counts});
  for (const std::int64_t rows : {8, 0, 1}) {
    step.plan.add_op(
        {.name = "expert",
         .body =
             KernelOp{.kernel = "expert_gemm",
                      .dtype = DType::kBf16,
                      .dims = {{"m", rows, ""}, {"n", 64, ""}, {"k", 64, ""}, {"expert", 0, ""}}},
         .ranks = step.plan.add_group({0}),
         .stream = 0,
         .reads = {counts},
         .writes = {},
         .after = {}});
    step.times.push_back(
        {.time = Seconds(rows > 0 ? 3e-6 : 0), .basis = Basis::kMeasured, .spread = 0});
  }
  expect_all_levels(step, nvswitch_machine(1), 42, kEager5);
}

TEST(Levels, LongRepeatsOvertakenByTheHostAreExact) {
  // The host starts 100 us late on the GPU's side and gains 1 us per copy: kernels of 4 us,
  // launches of 5. The host wins after 100 copies; copy n ends at max(105 + 4 n, 5 (n + 1) + 4).
  StepBuilder step;
  step.kernel({0}, 100);
  const OpId first = step.kernel({0}, 4);
  step.repeat(first, 300);
  expect_all_levels(step, nvswitch_machine(1), 5.0 * 301 + 4, kEager5);
}

TEST(Levels, HostTimeBeforeKernelsDelaysThem) {
  // Scheduler 30 us, then 10 + 1 + 10 us; sampling after the last kernel 6 us.
  StepBuilder step;
  const TensorId token = step.tensor({0});
  step.host(HostKind::kScheduler, {0}, 30);
  step.kernel({0}, 10);
  step.kernel({0}, 10, 0, {}, {token});
  step.host(HostKind::kSampling, {0}, 6, {token});
  expect_all_levels(step, nvswitch_machine(1), 57, kGraph1);
}

TEST(Levels, AHostOpThatReadsNothingRunsBesideTheGpu) {
  // The kernel is issued at 0 and runs to 50; the host works 0..30; the next kernel waits for both.
  StepBuilder step;
  step.kernel({0}, 50);
  step.host(HostKind::kScheduler, {0}, 30);
  step.kernel({0}, 10);
  expect_all_levels(step, nvswitch_machine(1), 61, kGraph1);
}

StepBuilder pipeline(int num_micro_batches) {
  // Stage 0 on ranks 0, 1; stage 1 on ranks 2, 3; rank i sends to rank i + 2.
  StepBuilder step;
  for (int batch = 0; batch < num_micro_batches; ++batch) {
    step.kernel({0, 1}, 10);
    step.comm(CollectiveKind::kSendRecv, {0, 2}, 1e3, 2);
    step.comm(CollectiveKind::kSendRecv, {1, 3}, 1e3, 2);
    step.kernel({2, 3}, 10);
  }
  return step;
}

TEST(Levels, PipelineStagesOverlapAtEveryLevel) {
  // A stage is busy 10 us computing and 2 us in the transfer per micro-batch: 4 * 12 + 10 us.
  expect_all_levels(pipeline(4), nvswitch_machine(4), 58);
}

TEST(Levels, AStragglerMakesTheBarrierWait) {
  // Rank 5 takes twice as long: 2 * 10, then the all-reduce at the pace of its slowest 2 * 20, then
  // 2 * 5 on rank 5.
  StepBuilder step;
  const std::vector<int> ranks = range(0, 8);
  step.kernel(ranks, 10);
  step.comm(CollectiveKind::kAllReduce, ranks, 1e6, 20);
  step.kernel(ranks, 5);
  std::vector<double> slowdown(8, 1.0);
  slowdown[5] = 2;
  expect_all_levels(step, nvswitch_machine(8), 70, {}, slowdown);
}

TEST(Levels, StreamsOverlapAndDependenciesHoldThemBack) {
  // Stream 0: a 10, c 10 (reads b). Stream 1: b 25. c starts at 25.
  StepBuilder step;
  const TensorId y = step.tensor({0});
  step.kernel({0}, 10, 0);
  step.kernel({0}, 25, 1, {}, {y});
  step.kernel({0}, 10, 0, {y});
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(1), StepLevel::kHeap), 35);
}

TEST(Levels, AHopToAnotherStreamAndBackTakesItsTime) {
  StepBuilder step;
  const TensorId x = step.tensor({0, 1});
  const TensorId y = step.tensor({0, 1});
  step.kernel({0, 1}, 10, 0, {}, {x});
  step.comm(CollectiveKind::kAllGather, {0, 1}, 1e6, 20, 2, {x}, {y});
  step.kernel({0, 1}, 30, 0, {y}, {});
  step.kernel({0, 1}, 40, 0, {}, {});
  const Machine machine = nvswitch_machine(2);
  for (const StepLevel level : all_levels()) {
    if (level == StepLevel::kClosedForm) continue;  // one stream alone
    // Two hops, and a gap between the last two.
    EXPECT_NEAR(
        makespan_us(step, machine, level, {.mode = LaunchMode::kGraph, .node_us = 1, .hop_us = 2}),
        105, 1e-7)
        << to_text(level);
    // Launched eagerly: the first launch, and hops of 4 us.
    EXPECT_NEAR(makespan_us(step, machine, level,
                            {.mode = LaunchMode::kEager, .launch_us = 5, .hop_us = 2}),
                113, 1e-7)
        << to_text(level);
  }
}

TEST(Levels, AnAllToAllTakesTheHostAsLongAsItTakesAndAnAllReduceAsLongAsAKernel) {
  constexpr Host kSlow{.mode = LaunchMode::kEager, .launch_us = 5, .collective_us = 15};
  for (const auto& [kind, us] : {std::pair{CollectiveKind::kAllToAll, 26.0},
                                 {CollectiveKind::kSendRecv, 26.0},
                                 {CollectiveKind::kAllReduce, 16.0}}) {
    StepBuilder step;
    step.kernel({0, 1}, 1);
    step.comm(kind, {0, 1}, 1e6, 1);
    step.kernel({0, 1}, 1);
    expect_all_levels(step, nvswitch_machine(2), us, kSlow);
  }
}

TEST(Levels, AfterIsAControlDependency) {
  // The second kernel is on another stream but after the first.
  StepBuilder step;
  const OpId a = step.kernel({0}, 10, 0);
  step.kernel({0}, 10, 1, {}, {}, {a});
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(1), StepLevel::kHeap), 20);
}

TEST(Levels, ACopyReadsWhatTheCopyBeforeItWrote) {
  // Stream 0 reads y (2 us), stream 1 writes y (10 us) after it. Copy k's reader waits for copy
  // k - 1's writer: 3 * (2 + 10).
  StepBuilder step;
  const TensorId y = step.tensor({0});
  const TensorId z = step.tensor({0});
  step.kernel({0}, 2, 0, {y}, {z});
  step.kernel({0}, 10, 1, {z}, {y});
  step.repeat(0, 3);
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(1), StepLevel::kHeap), 36);
}

TEST(Levels, ASyncWaitsForItsStreamOnly) {
  // Stream 1 runs to 40; the sync on stream 0 waits for 10 and takes 5; the next kernel on stream 0
  // is issued at 15 and takes 10.
  StepBuilder step;
  step.kernel({0}, 10, 0);
  step.kernel({0}, 40, 1);
  step.host(HostKind::kD2hSync, {0}, 5, {}, {}, 0);
  step.kernel({0}, 10, 0);
  const Timeline timeline = run(step, nvswitch_machine(1), {.level = StepLevel::kHeap});
  ASSERT_EQ(timeline.spans.size(), 4U);
  EXPECT_DOUBLE_EQ(timeline.spans[2].start.value(), 10e-6);
  EXPECT_DOUBLE_EQ(timeline.spans[3].start.value(), 15e-6);
}

TEST(Levels, SpansCarryOpCopyRankStreamAndOrder) {
  const StepBuilder step = spmd_chain(range(0, 2), 3, true);
  const Timeline timeline = run(step, nvswitch_machine(2), {.level = StepLevel::kHeap});
  ASSERT_EQ(timeline.spans.size(), 2U * (2 + 3 * 4));
  EXPECT_EQ(timeline.op_names.size(), step.plan.ops().size());
  EXPECT_TRUE(timeline.represented.empty());
  for (std::size_t i = 1; i < timeline.spans.size(); ++i) {
    EXPECT_LE(timeline.spans[i - 1].start.value(), timeline.spans[i].start.value());
  }
  std::int32_t highest_copy = 0;
  for (const Span& span : timeline.spans) highest_copy = std::max(highest_copy, span.copy);
  EXPECT_EQ(highest_copy, 2);
}

TEST(Levels, BasisSumsTheTasksOfTheFirstRank) {
  // 7 + 6 * 40 + 11 us, all measured.
  const StepBuilder step = spmd_chain(range(0, 8), 6, true);
  const PricedPlan priced = des::assemble(step.plan, step.times);
  EXPECT_NEAR(priced.basis.measured.value(), 258e-6, 1e-15);
  EXPECT_EQ(priced.basis.interpolated.value(), 0);
}

// Random one-stream plans over 8 ranks: kernels and collectives on all ranks or on pairs, host work
// and repeats. The levels compute them in different ways and must agree.
TEST(Levels, RandomChainsTakeTheSameTimeAtAllLevels) {
  constexpr std::uint64_t kSeed = 20240607;
  std::uint64_t state = kSeed;
  const auto next = [&](std::uint64_t bound) {  // splitmix64
    std::uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (z ^ (z >> 31)) % bound;
  };
  const Machine machine = nvswitch_machine(8);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + " round " + std::to_string(round));
    StepBuilder step;
    const auto add_some = [&](std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i) {
        const double us = 0.5 + 0.1 * static_cast<double>(next(200));
        switch (next(6)) {
          case 0:
            step.comm(CollectiveKind::kAllReduce, range(0, 8), 1e5, us);
            break;
          case 1:
            for (int rank = 0; rank < 8; rank += 2) {
              step.comm(CollectiveKind::kAllGather, {rank, rank + 1}, 1e5, us);
            }
            break;
          case 2:
            step.host(next(2) == 0 ? HostKind::kD2hSync : HostKind::kScheduler, range(0, 8), us);
            break;
          case 3:  // unequal ranks: two classes
            step.kernel(range(0, 4), us);
            step.kernel(range(4, 8), us * 1.5);
            break;
          default:
            step.kernel(range(0, 8), us);
        }
      }
    };
    add_some(next(5));
    const auto first = static_cast<OpId>(step.plan.ops().size());
    add_some(1 + next(6));
    step.repeat(first, static_cast<std::int64_t>(1 + next(9)));
    add_some(next(5));
    for (const Host& host : {kGraph1, kEager5}) {
      const double us = makespan_us(step, machine, StepLevel::kHeap, host);
      expect_all_levels(step, machine, us, host);
    }
  }
}

}  // namespace
}  // namespace orrery::test
