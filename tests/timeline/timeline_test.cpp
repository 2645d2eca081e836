#include "sim/timeline/timeline.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/timeline/spans.h"

namespace orrery {
namespace {

TEST(Makespan, IsTheEndOfTheLastSpan) {
  EXPECT_EQ(makespan(timeline_of({kernel_span(0, 9), kernel_span(2, 3, 1)})), Seconds(9));
}

TEST(Makespan, CountsTheTimeBeforeTheFirstSpan) {
  EXPECT_EQ(makespan(timeline_of({kernel_span(2, 3)})), Seconds(3));
}

TEST(Makespan, OfNothingIsZero) { EXPECT_EQ(makespan({}), Seconds()); }

TEST(Busy, CountsOverlappingSpansOnce) {
  //  0   1   2   3   4   5   6
  //  [-------]               [-]    1 alone + 1 shared
  //      [-------]                  1 alone
  const Timeline t = timeline_of({kernel_span(0, 2), kernel_span(1, 3, 0, 1), kernel_span(6, 7)});
  EXPECT_EQ(busy(t, 0, SpanKind::kKernel), Seconds(3 + 1));
}

TEST(Busy, CountsASpanInsideAnotherNotAtAll) {
  const Timeline t = timeline_of({kernel_span(0, 10), kernel_span(2, 3, 0, 1), kernel_span(9, 11)});
  EXPECT_EQ(busy(t, 0, SpanKind::kKernel), Seconds(11));
}

TEST(Busy, IsOfOneRankAndOneKind) {
  const Timeline t = timeline_of({kernel_span(0, 2), comm_span(0, 5), kernel_span(0, 7, 1)});
  EXPECT_EQ(busy(t, 0, SpanKind::kKernel), Seconds(2));
  EXPECT_EQ(busy(t, 0, SpanKind::kComm), Seconds(5));
  EXPECT_EQ(busy(t, 1, SpanKind::kKernel), Seconds(7));
  EXPECT_EQ(busy(t, 0, SpanKind::kHost), Seconds());
  EXPECT_EQ(busy(t, 2, SpanKind::kKernel), Seconds());
}

TEST(ExposedCommunication, IsCommunicationThatNoKernelCovers) {
  //  comm    [0-----------6]   [8--10]
  //  kernel    [1-2] [3-4]  [7----9]
  const Timeline t = timeline_of(
      {comm_span(0, 6), kernel_span(1, 2), kernel_span(3, 4), kernel_span(7, 9), comm_span(8, 10)});
  EXPECT_EQ(exposed_communication(t, 0), Seconds((6 - 2) + (10 - 9)));
}

TEST(ExposedCommunication, IsNoneUnderOneLongKernel) {
  const Timeline t = timeline_of({kernel_span(0, 9), comm_span(1, 3), comm_span(4, 9)});
  EXPECT_EQ(exposed_communication(t, 0), Seconds());
}

TEST(ExposedCommunication, OfOtherRanksDoesNotCount) {
  const Timeline t = timeline_of({comm_span(0, 5), kernel_span(0, 5, 1), comm_span(0, 3, 2)});
  EXPECT_EQ(exposed_communication(t, 0), Seconds(5));  // the kernel of rank 1 does not cover it
}

TEST(ExposedCommunication, AndKernelsFillTheTimeWhenSomethingAlwaysRuns) {
  // A law: kernel + exposed comm is the union of both.
  const Timeline t = timeline_of(
      {kernel_span(0, 2), comm_span(1, 4), kernel_span(3, 6), comm_span(5, 8), comm_span(8, 9)});
  EXPECT_EQ(busy(t, 0, SpanKind::kKernel) + exposed_communication(t, 0), makespan(t));
}

}  // namespace
}  // namespace orrery
