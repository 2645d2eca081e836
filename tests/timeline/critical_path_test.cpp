#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "sim/timeline/timeline.h"
#include "tests/timeline/spans.h"

namespace orrery {
namespace {

using Path = std::vector<std::size_t>;

// Adds a host op; host ops need no kernel and serve for any dependency.
OpId add(Plan& plan, GroupId ranks, int stream, std::vector<TensorId> reads,
         std::vector<TensorId> writes, std::vector<OpId> after = {}) {
  return plan.add_op(
      {"op", HostOp{}, ranks, stream, std::move(reads), std::move(writes), std::move(after)});
}
TensorId activation(Plan& plan, GroupId ranks) {
  return plan.add_tensor({"t", DType::kBf16, {}, TensorRole::kActivation, ranks});
}

TEST(CriticalPath, OfNothingIsEmpty) { EXPECT_EQ(critical_path({}, {}), Path{}); }

TEST(CriticalPath, OfAChainIsTheChain) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  for (int i = 0; i < 3; ++i) add(plan, group, 0, {}, {});
  const Timeline t = timeline_of(
      {kernel_span(0, 1, 0, 0, 0), kernel_span(1, 3, 0, 0, 1), kernel_span(3, 4, 0, 0, 2)});
  EXPECT_EQ(critical_path(t, plan), (Path{0, 1, 2}));
}

TEST(CriticalPath, FollowsTheDependencyThatEndedLast) {
  // A diamond: 0 -> {1 on stream 0, 2 on stream 1} -> 3, which waits for the slower 2.
  Plan plan;
  const GroupId group = plan.add_group({0});
  const TensorId a = activation(plan, group);
  const TensorId b = activation(plan, group);
  const TensorId c = activation(plan, group);
  add(plan, group, 0, {}, {a});
  add(plan, group, 0, {a}, {b});
  add(plan, group, 1, {a}, {c});
  add(plan, group, 0, {b, c}, {});
  const Timeline t = timeline_of({kernel_span(0, 1, 0, 0, 0), kernel_span(1, 2, 0, 0, 1),
                                  kernel_span(1, 5, 0, 1, 2), kernel_span(5, 6, 0, 0, 3)});
  EXPECT_EQ(critical_path(t, plan), (Path{0, 2, 3}));
}

TEST(CriticalPath, FollowsControlDependencies) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  add(plan, group, 0, {}, {});
  add(plan, group, 1, {}, {});
  add(plan, group, 2, {}, {}, {1});
  const Timeline t = timeline_of(
      {kernel_span(0, 4, 0, 0, 0), kernel_span(0, 4, 0, 1, 1), kernel_span(4, 5, 0, 2, 2)});
  EXPECT_EQ(critical_path(t, plan), (Path{1, 2}));
}

TEST(CriticalPath, GoesThroughTheRankACollectiveWaitedFor) {
  // Rank 1 is slow; the collective starts on both ranks when it is there.
  Plan plan;
  const GroupId both = plan.add_group({0, 1});
  const TensorId a = activation(plan, both);
  add(plan, both, 0, {}, {a});
  plan.add_op({"sum", CommOp{{}, DType::kBf16, Bytes(1)}, both, 1, {a}, {a}, {}});
  const Timeline t = timeline_of(
      {kernel_span(0, 1, 0), kernel_span(0, 4, 1), comm_span(4, 6, 0), comm_span(4, 6, 1)});
  EXPECT_EQ(critical_path(t, plan).front(), 1U);
}

TEST(CriticalPath, GoesThroughTheRankThatCameLastWhereWaitingIsPartOfTheSpan) {
  Plan plan;
  const GroupId both = plan.add_group({0, 1});
  const TensorId a = activation(plan, both);
  add(plan, both, 0, {}, {a});
  plan.add_op({"sum", CommOp{{}, DType::kBf16, Bytes(1)}, both, 1, {a}, {a}, {}});
  // Rank 0 waits in its span from 1 to 4.
  const Timeline t = timeline_of(
      {kernel_span(0, 1, 0), kernel_span(0, 4, 1), comm_span(1, 6, 0), comm_span(4, 6, 1)});
  EXPECT_EQ(critical_path(t, plan), (Path{1, 3}));
}

TEST(CriticalPath, StepsOverAGapToTheDependency) {
  // A graph node starts a while after the one before.
  Plan plan;
  const GroupId group = plan.add_group({0});
  for (int i = 0; i < 2; ++i) add(plan, group, 0, {}, {});
  const Timeline t = timeline_of({kernel_span(0, 1, 0, 0, 0), kernel_span(2, 3, 0, 0, 1)});
  EXPECT_EQ(critical_path(t, plan), (Path{0, 1}));
}

TEST(CriticalPath, PrefersWhatEndedJustThenToADependencyWithAGap) {
  // Op 2 needs op 0, done at 1, yet starts at 3, when the unrelated op 1 of its rank ends: it had
  // to wait for that (a launch, a shared resource).
  Plan plan;
  const GroupId group = plan.add_group({0});
  add(plan, group, 0, {}, {});
  add(plan, group, 1, {}, {});
  add(plan, group, 0, {}, {});
  const Timeline t = timeline_of(
      {kernel_span(0, 1, 0, 0, 0), kernel_span(0, 3, 0, 1, 1), kernel_span(3, 4, 0, 0, 2)});
  EXPECT_EQ(critical_path(t, plan), (Path{1, 2}));
}

TEST(CriticalPath, CrossesFromCopyToCopyOfARun) {
  // Op 0 on stream 0 and op 1 on stream 1 hand one tensor to and fro, twice.
  Plan plan;
  const GroupId group = plan.add_group({0});
  const TensorId a = activation(plan, group);
  add(plan, group, 0, {a}, {a});
  add(plan, group, 1, {a}, {a});
  plan.add_repeat({0, 2, 2});
  Timeline t = timeline_of({kernel_span(0, 1, 0, 0, 0), kernel_span(1, 2, 0, 1, 1),
                            kernel_span(2, 3, 0, 0, 0), kernel_span(3, 4, 0, 1, 1)});
  t.spans[2].copy = 1;
  t.spans[3].copy = 1;
  EXPECT_EQ(critical_path(t, plan), (Path{0, 1, 2, 3}));
}

TEST(CriticalPath, EndsWithSpansThatTakeNoTime) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  for (int i = 0; i < 3; ++i) add(plan, group, 0, {}, {});
  const Timeline t = timeline_of(
      {kernel_span(1, 1, 0, 0, 0), kernel_span(1, 1, 0, 0, 1), kernel_span(1, 1, 0, 0, 2)});
  const Path path = critical_path(t, plan);
  EXPECT_GE(path.size(), 1U);
  EXPECT_LE(path.size(), 3U);
}

TEST(CriticalPath, HasNoOverlapAndEndsAtTheMakespan) {
  // A law, on a fixed pseudo-random schedule: each span starts after a random earlier one.
  Plan plan;
  const GroupId group = plan.add_group({0});
  std::vector<Span> spans;
  std::uint32_t state = 1;
  for (int i = 0; i < 200; ++i) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes, chapter 7.1
    const int stream = static_cast<int>(state >> 30);
    const double start = i == 0 ? 0 : spans[(state >> 8) % spans.size()].end.value();
    add(plan, group, stream, {}, {});
    spans.push_back(kernel_span(start, start + 1 + (state >> 28), 0, stream, i));
  }
  std::ranges::sort(spans, {}, &Span::start);
  Timeline t = timeline_of(spans);
  const Path path = critical_path(t, plan);
  for (std::size_t i = 1; i < path.size(); ++i) {
    EXPECT_LE(t.spans[path[i - 1]].end, t.spans[path[i]].start);
  }
  EXPECT_EQ(t.spans[path.back()].end, makespan(t));
  EXPECT_EQ(t.spans[path.front()].start, Seconds());
}

}  // namespace
}  // namespace orrery
