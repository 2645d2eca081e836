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

TEST(RankTimes, AreThoseOfEachRankByItself) {
  const Timeline t = timeline_of({comm_span(0, 6, 3), kernel_span(0, 4, 1), kernel_span(1, 2, 3)});
  const std::vector<RankTimes> times = rank_times(t);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0].rank, 1);
  EXPECT_EQ(times[1].rank, 3);
  for (const RankTimes& rank : times) {
    EXPECT_EQ(rank.kernel, busy(t, rank.rank, SpanKind::kKernel));
    EXPECT_EQ(rank.comm, busy(t, rank.rank, SpanKind::kComm));
    EXPECT_EQ(rank.host, busy(t, rank.rank, SpanKind::kHost));
    EXPECT_EQ(rank.exposed_comm, exposed_communication(t, rank.rank));
  }
}

TEST(BasisShares, AreSharesOfTimeAndAddToOne) {
  Timeline t = timeline_of({kernel_span(0, 5), kernel_span(5, 8), comm_span(8, 10)});
  t.spans[1].basis = Basis::kInterpolated;
  t.spans[2].basis = Basis::kRoofline;
  const BasisShares shares = basis_shares(t);
  EXPECT_DOUBLE_EQ(shares.measured, 0.5);
  EXPECT_DOUBLE_EQ(shares.interpolated, 0.3);
  EXPECT_DOUBLE_EQ(shares.roofline, 0.2);
  EXPECT_DOUBLE_EQ(shares.measured + shares.interpolated + shares.roofline, 1);
}

TEST(BasisShares, CountARankAsOftenAsItStandsForOthers) {
  // Rank 0 stands for 3: 3 x 1 s measured beside 1 s by roofline.
  Timeline t = timeline_of({kernel_span(0, 1), kernel_span(0, 1, 1)});
  t.spans[1].basis = Basis::kRoofline;
  t.represented = {{0, 3}};
  EXPECT_DOUBLE_EQ(basis_shares(t).measured, 0.75);
}

TEST(BasisShares, OfNothingAreZero) {
  for (const Timeline& t : {Timeline{}, timeline_of({kernel_span(1, 1)})}) {
    const BasisShares shares = basis_shares(t);
    EXPECT_EQ(shares.measured + shares.interpolated + shares.roofline, 0);
  }
}

TEST(Compare, TakesTheMeanOverRanksAndCopies) {
  Timeline a = timeline_of({kernel_span(0, 1, 0), kernel_span(0, 3, 1)});
  const Timeline b = timeline_of({kernel_span(0, 5, 0), kernel_span(0, 5, 1)});
  const Comparison c = compare(a, b);
  ASSERT_EQ(c.ops.size(), 1U);
  EXPECT_EQ(c.ops[0].op, 0);
  EXPECT_EQ(c.ops[0].a, Seconds(2));
  EXPECT_EQ(c.ops[0].b, Seconds(5));
  EXPECT_EQ(c.makespan_a, Seconds(3));
  EXPECT_EQ(c.makespan_b, Seconds(5));
  // Where rank 0 stands for three, the mean is (3 x 1 + 3) / 4.
  a.represented = {{0, 3}};
  EXPECT_EQ(compare(a, b).ops[0].a, Seconds(1.5));
}

TEST(Compare, PutsTheLargestTotalDifferenceFirst) {
  // Op 0 differs by 3 once; op 2 by 2 in each of two copies, 4 in all.
  const auto with_copies = [](double gemm, double norm) {
    Timeline t = timeline_of({kernel_span(0, gemm), kernel_span(5, 5 + norm, 0, 0, 2),
                              kernel_span(10, 10 + norm, 0, 0, 2)});
    t.spans[2].copy = 1;
    return t;
  };
  const Comparison c = compare(with_copies(1, 1), with_copies(4, 3));
  ASSERT_EQ(c.ops.size(), 2U);
  EXPECT_EQ(c.ops[0].op, 2);
  EXPECT_EQ(c.ops[1].op, 0);
}

TEST(Compare, OfATimelineWithItselfFindsNoDifference) {
  const Timeline t = timeline_of({kernel_span(0, 2), comm_span(2, 7)});
  const Comparison c = compare(t, t);
  EXPECT_EQ(c.makespan_a, c.makespan_b);
  for (const OpDifference& op : c.ops) EXPECT_EQ(op.a, op.b);
}

TEST(Compare, IsAntisymmetric) {
  const Timeline a = timeline_of({kernel_span(0, 2), comm_span(2, 7)});
  const Timeline b = timeline_of({kernel_span(0, 3), comm_span(3, 4)});
  const Comparison ab = compare(a, b);
  const Comparison ba = compare(b, a);
  ASSERT_EQ(ab.ops.size(), ba.ops.size());
  for (std::size_t i = 0; i < ab.ops.size(); ++i) {
    EXPECT_EQ(ab.ops[i].op, ba.ops[i].op);
    EXPECT_EQ(ab.ops[i].a, ba.ops[i].b);
  }
}

TEST(Compare, OfDifferentPlansIsAnErrorThatNamesTheFirstDifference) {
  const Timeline a = timeline_of({});
  Timeline b = a;
  b.op_names[1] = "all_gather";
  try {
    compare(a, b);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("op 1 is \"all_reduce\" in one and \"all_gather\""),
              std::string::npos)
        << error.what();
  }
  b = a;
  b.op_names.pop_back();
  EXPECT_THROW(compare(a, b), std::invalid_argument);
}

TEST(Compare, OfASpanWithoutAnOpIsAnError) {
  const Timeline t = timeline_of({kernel_span(0, 1, 0, 0, 3)});
  EXPECT_THROW(compare(t, t), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
