#include "kernels/execute/step_trace.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace orrery {
namespace {

// Two ops of stream 0, of which the second runs twice, and a communication op of stream 1.
Plan two_streams() {
  Plan plan;
  const GroupId both = plan.add_group({0, 1});
  plan.add_op({.name = "a", .body = KernelOp{.kernel = "gemm"}, .ranks = both, .stream = 0});
  plan.add_op({.name = "b", .body = KernelOp{.kernel = "gemm"}, .ranks = both, .stream = 0});
  plan.add_op({.name = "c", .body = CommOp{}, .ranks = both, .stream = 1});
  plan.add_repeat({.first = 1, .last = 2, .count = 2});
  return plan;
}
const std::vector<Task> kTasks = {
    {.op = 0, .copy = 0}, {.op = 1, .copy = 0}, {.op = 1, .copy = 1}, {.op = 2, .copy = 0}};
const std::vector<int> kNodes = {1, 2, 2, 1};

KernelRecord record(double start, double end, std::uint32_t stream, std::uint64_t node = 0,
                    int device = 3) {
  return {.device = device,
          .stream = stream,
          .graph_node = node,
          .name = "k",
          .start = Seconds(start),
          .end = Seconds(end)};
}

RankTrace trace_of(LaunchMode mode) {
  return {.rank = 1,
          .device = 3,
          .mode = mode,
          .tasks = kTasks,
          .num_nodes = kNodes,
          .num_before = 1,
          .num_after = 1};
}

// Upload, memset, then a, b#0, b#1 on stream 7 with c on stream 9 beside them, and the results.
std::vector<KernelRecord> eager_records() {
  return {record(0, 1, 7), record(1, 2, 7),
          record(2, 3, 7), record(2.5, 6, 9),
          record(3, 4, 7), record(4, 5, 7),
          record(5, 6, 7), record(6, 8, 7),
          record(8, 9, 7), record(2, 9, 7, 0, /*device=*/0)};
}

TEST(TraceSpans, EagerRecordsAreThoseOfTheTasksInOrder) {
  const std::vector<Span> spans =
      trace_spans(two_streams(), trace_of(LaunchMode::kEager), eager_records());
  ASSERT_EQ(spans.size(), 4U);
  const std::vector<double> starts = {2, 3, 5, 2.5};
  const std::vector<double> ends = {3, 5, 8, 6};
  for (std::size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].op, kTasks[i].op);
    EXPECT_EQ(spans[i].copy, kTasks[i].copy);
    EXPECT_EQ(spans[i].rank, 1);
    EXPECT_EQ(spans[i].start, Seconds(starts[i]));
    EXPECT_EQ(spans[i].end, Seconds(ends[i]));
  }
  EXPECT_EQ(spans[3].kind, SpanKind::kComm);
  EXPECT_EQ(spans[3].stream, 1);
}

TEST(TraceSpans, GraphNodesAreThoseOfTheTasksByTheirIds) {
  // As above, but nodes run in another order than they were captured, on streams of the graph's.
  const std::vector<KernelRecord> records = {
      record(0, 1, 7),        record(1, 2, 7, 100), record(2, 3, 7, 101),
      record(2.5, 6, 9, 106), record(3, 4, 7, 102), record(4, 5, 7, 103),
      record(5, 6, 8, 104),   record(6, 8, 8, 105), record(8, 9, 7)};
  const std::vector<Span> spans = trace_spans(two_streams(), trace_of(LaunchMode::kGraph), records);
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[2].start, Seconds(5));
  EXPECT_EQ(spans[2].end, Seconds(8));
  EXPECT_EQ(spans[3].start, Seconds(2.5));
}

TEST(TraceSpans, AKernelThatWasLaunchedEarlyStartsWhenItsPredecessorEnds) {
  std::vector<KernelRecord> records = eager_records();
  records[4].start = Seconds(2.25);  // b, launched while a runs until 3
  const std::vector<Span> spans = trace_spans(two_streams(), trace_of(LaunchMode::kEager), records);
  EXPECT_EQ(spans[1].start, Seconds(3));
  EXPECT_EQ(spans[1].end, Seconds(5));
  // Another stream's spans may overlap.
  EXPECT_EQ(spans[3].start, Seconds(2.5));
}

TEST(TraceSpans, TasksWithoutKernelsHaveNoSpan) {
  const std::vector<int> nodes = {1, 0, 0, 0};
  RankTrace trace = trace_of(LaunchMode::kEager);
  trace.num_nodes = nodes;
  const std::vector<KernelRecord> records = {record(0, 1, 7), record(1, 2, 7), record(2, 3, 7),
                                             record(3, 4, 7)};
  EXPECT_EQ(trace_spans(two_streams(), trace, records).size(), 1U);
}

TEST(TraceSpans, AMissingRecordIsNoticed) {
  std::vector<KernelRecord> records = eager_records();
  records.erase(records.begin() + 4);
  EXPECT_THROW(trace_spans(two_streams(), trace_of(LaunchMode::kEager), records),
               std::runtime_error);
  EXPECT_THROW(trace_spans(two_streams(), trace_of(LaunchMode::kGraph), records),
               std::runtime_error);
}

TEST(TraceSpans, AMissingStreamIsNoticed) {
  std::vector<KernelRecord> records = eager_records();
  records.erase(records.begin() + 3);
  EXPECT_THROW(trace_spans(two_streams(), trace_of(LaunchMode::kEager), records),
               std::runtime_error);
}

TEST(LaunchedKernels, AreCountedByOpAndNameOverAllCopies) {
  std::vector<KernelRecord> records = eager_records();
  records[2].name = "_ZN6orrery4gemmIfEEvPKT_";
  for (const std::size_t second : {5, 7}) records[second].name = "split_k_sum";
  const std::vector<LaunchedKernel> kernels =
      launched_kernels(two_streams(), trace_of(LaunchMode::kEager), records);
  ASSERT_EQ(kernels.size(), 4U);
  const std::vector<std::string> names = {"void orrery::gemm<float>(float const*)", "k",
                                          "split_k_sum", "k"};
  const std::vector<OpId> ops = {0, 1, 1, 2};
  const std::vector<std::int64_t> launches = {1, 2, 2, 1};
  const std::vector<double> times = {1, 2, 3, 3.5};
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    EXPECT_EQ(kernels[i].kernel, names[i]);
    EXPECT_EQ(kernels[i].op, ops[i]);
    EXPECT_EQ(kernels[i].rank, 1);
    EXPECT_EQ(kernels[i].stream, i == 3 ? 1 : 0);
    EXPECT_EQ(kernels[i].launches, launches[i]);
    EXPECT_EQ(kernels[i].time, Seconds(times[i]));
  }
}

TEST(LaunchedKernels, WaitingForAPredecessorIsNoTime) {
  std::vector<KernelRecord> records = eager_records();
  records[4].start = Seconds(2.25);  // b, launched while a runs until 3
  const std::vector<LaunchedKernel> kernels =
      launched_kernels(two_streams(), trace_of(LaunchMode::kEager), records);
  ASSERT_EQ(kernels.size(), 3U);
  EXPECT_EQ(kernels[1].launches, 4);
  EXPECT_EQ(kernels[1].time, Seconds(5));  // from 3 to 8
}

TEST(StartCollectivesTogether, ACollectiveStartsWithItsLastRank) {
  const auto span = [](OpId op, std::int32_t copy, int rank, SpanKind kind, double start,
                       double end) {
    return Span{.op = op,
                .copy = copy,
                .rank = rank,
                .kind = kind,
                .start = Seconds(start),
                .end = Seconds(end)};
  };
  std::vector<Span> spans = {
      span(0, 0, 0, SpanKind::kComm, 1, 6), span(0, 0, 1, SpanKind::kComm, 4, 5),
      span(0, 1, 0, SpanKind::kComm, 7, 9), span(1, 0, 0, SpanKind::kKernel, 1, 2),
      span(1, 0, 1, SpanKind::kKernel, 3, 4),
      // A sender that is done before the receiver comes.
      span(2, 0, 0, SpanKind::kComm, 10, 11), span(2, 0, 1, SpanKind::kComm, 12, 13)};
  start_collectives_together(spans);
  const std::vector<double> starts = {4, 4, 7, 1, 3, 11, 12};
  for (std::size_t i = 0; i < spans.size(); ++i) EXPECT_EQ(spans[i].start, Seconds(starts[i])) << i;
}

}  // namespace
}  // namespace orrery
