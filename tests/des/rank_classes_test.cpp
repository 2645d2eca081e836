#include "sim/des/rank_classes.h"

#include <gtest/gtest.h>

#include "tests/des/step_builder.h"

namespace orrery::test {
namespace {

des::RankSet classes_of(const StepBuilder& step, const std::vector<double>& slowdown = {}) {
  std::vector<Seconds> times;
  times.reserve(step.times.size());
  for (const Estimate& estimate : step.times) times.push_back(estimate.time);
  return des::representatives(step.plan, times, slowdown);
}

using Ranks = std::vector<int>;

TEST(RankClasses, TensorParallelGroupsOfEqualShapeAreOneClass) {
  StepBuilder step;
  step.kernel(range(0, 8), 10);
  step.comm(CollectiveKind::kAllReduce, range(0, 4), 1e6, 5);
  step.comm(CollectiveKind::kAllReduce, range(4, 8), 1e6, 5);
  step.comm(CollectiveKind::kAllToAll, range(0, 8), 1e6, 5);
  const des::RankSet set = classes_of(step);
  EXPECT_EQ(set.ranks, (Ranks{0}));
  EXPECT_EQ(set.counts, (Ranks{8}));
  // Both all-reduces are the representative's one; alone in its class it waits for nobody.
  EXPECT_EQ(set.slot_of_op[1], set.slot_of_op[2]);
  EXPECT_EQ(set.arrivals, (std::vector<std::int32_t>{1, 1}));
}

TEST(RankClasses, UnequalBodiesTimesOrSlownessSplitClasses) {
  StepBuilder step;
  step.kernel(range(0, 4), 10);
  step.kernel(range(4, 8), 11);
  EXPECT_EQ(classes_of(step).ranks, (Ranks{0, 4}));
  EXPECT_EQ(classes_of(step, {1, 1, 2, 1, 1, 1, 1, 1}).ranks, (Ranks{0, 2, 4}));
}

TEST(RankClasses, UnequalDependenciesSplitClasses) {
  // Equal kernels, but on ranks 2, 3 the second one reads what the first wrote.
  StepBuilder step;
  const TensorId x = step.tensor(range(0, 4));
  step.kernel({0, 1}, 10, 0, {}, {x});
  step.kernel({2, 3}, 10, 0, {}, {x});
  const TensorId y = step.tensor(range(0, 4));
  step.kernel({0, 1}, 10, 1, {y});
  step.kernel({2, 3}, 10, 1, {x});
  EXPECT_EQ(classes_of(step).ranks, (Ranks{0, 2}));
}

TEST(RankClasses, PipelineStagesAreClasses) {
  StepBuilder step;
  step.kernel({0, 1}, 10);
  step.comm(CollectiveKind::kSendRecv, {0, 3}, 1e3, 2);  // crossed on purpose
  step.comm(CollectiveKind::kSendRecv, {1, 2}, 1e3, 2);
  step.kernel({2, 3}, 10);
  const des::RankSet set = classes_of(step);
  EXPECT_EQ(set.ranks, (Ranks{0, 2}));
  // Both transfers are the one rendezvous between the stages' representatives.
  EXPECT_EQ(set.slot_of_op[1], set.slot_of_op[2]);
  EXPECT_EQ(set.arrivals, (std::vector<std::int32_t>{2}));
}

TEST(RankClasses, AClassThatMeetsItselfOutOfStepIsNotCollapsed) {
  // A ring of transfers: each rank has two, but at different positions; one rank cannot stand for
  // the others. In truth they run one after another: 4 * 2 us.
  StepBuilder step;
  step.comm(CollectiveKind::kSendRecv, {0, 1}, 1e3, 2);
  step.comm(CollectiveKind::kSendRecv, {1, 2}, 1e3, 2);
  step.comm(CollectiveKind::kSendRecv, {2, 3}, 1e3, 2);
  step.comm(CollectiveKind::kSendRecv, {0, 3}, 1e3, 2);
  EXPECT_EQ(classes_of(step).ranks.size(), 4U);
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(4), StepLevel::kHeap), 8);
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(4), StepLevel::kClosedForm), 8);
}

TEST(RankClasses, RanksWithoutOpsAreNotSimulated) {
  StepBuilder step;
  step.tensor(range(0, 8));
  step.kernel({3, 5}, 10);
  EXPECT_EQ(classes_of(step).ranks, (Ranks{3}));
  EXPECT_EQ(des::all_ranks(step.plan).ranks, (Ranks{3, 5}));
}

TEST(RankClasses, TimelineSaysWhomEachRankStandsFor) {
  StepBuilder step;
  step.kernel(range(0, 6), 10);
  step.kernel({6, 7}, 11);
  const Timeline timeline = run(step, nvswitch_machine(8), {.level = StepLevel::kClosedForm});
  EXPECT_EQ(timeline.represented, (std::vector<std::pair<int, int>>{{0, 6}, {6, 2}}));
}

}  // namespace
}  // namespace orrery::test
