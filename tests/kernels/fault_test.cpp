#include "kernels/execute/fault.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "kernels/execute/rank_error.h"

namespace orrery {
namespace {

TEST(Fault, IsReadFromItsFieldsInAnyOrder) {
  const Fault fault = parse_fault("how=nan,op=layers.0.o_proj,run=3,rank=1");
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.op, "layers.0.o_proj");
  EXPECT_EQ(fault.kind, FaultKind::kNan);
  EXPECT_EQ(fault.run, 3);
}

TEST(Fault, WithAWrongFieldIsAnErrorThatSaysWhatIsExpected) {
  for (const auto& [text, expected] :
       {std::pair{"rank=1,op=a,how=explode", "throw, hang, kill, nan, nccl, stall"},
        std::pair{"rank=one,op=a,how=throw", "whole number"}, std::pair{"rank=1,how=throw", "op="},
        std::pair{"rank=1,op=a,how=throw,run=0", "at least 1"},
        std::pair{"rank=1,op=a,when=now", "expected rank="},
        std::pair{"rank=1,phase=lunch,how=throw", "expected one of start, communicators"},
        std::pair{"rank=1,phase=step,op=a,how=throw", "op= or phase="},
        std::pair{"rank=1,phase=step,how=nan", "throw, hang or kill"}}) {
    try {
      static_cast<void>(parse_fault(text));
      FAIL() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(Fault, OfAPhaseComesAtTheAskedTimeOfThatRankAlone) {
  PhaseFault fault(parse_fault("rank=1,phase=capture,how=throw,run=2"));
  fault.reach(1, RunPhase::kCapture);
  fault.reach(0, RunPhase::kCapture);
  fault.reach(1, RunPhase::kStep);
  EXPECT_THROW(fault.reach(1, RunPhase::kCapture), std::runtime_error);
  fault.reach(1, RunPhase::kCapture);  // once
  PhaseFault none(std::nullopt);
  none.reach(1, RunPhase::kCapture);
}

TEST(RunPhase, HasALimitThatCanOnlyBeMadeShorter) {
  EXPECT_EQ(phase_limit(RunPhase::kCapture, Seconds(2)), Seconds(2));
  EXPECT_EQ(phase_limit(RunPhase::kCapture, Seconds(1e6)),
            phase_limit(RunPhase::kCapture, std::nullopt));
}

TEST(RankError, OfOneReplicaHasItsRankAmongAll) {
  try {
    with_ranks_from(4, []() -> int { throw RankError(1, "a", "broken"); });
    FAIL();
  } catch (const RankError& error) {
    EXPECT_STREQ(error.what(), "rank 5, op a: broken");
  }
  EXPECT_EQ(with_ranks_from(4, "failed rank 1 op a: broken"), "failed rank 5 op a: broken");
  EXPECT_EQ(with_ranks_from(4, "failed rank - op -: gone"), "failed rank - op -: gone");
}

TEST(RankError, NamesRankAndOpInItsTextAndInTheStatus) {
  const RankError error(1, "layers.0.o_proj", "broken\nin two");
  EXPECT_STREQ(error.what(), "rank 1, op layers.0.o_proj: broken\nin two");
  EXPECT_EQ(failure_status(error), "failed rank 1 op layers.0.o_proj: broken in two");
}

TEST(RankError, OfNothingKnownHasDashesInTheStatus) {
  EXPECT_EQ(failure_status(std::runtime_error("no space left")),
            "failed rank - op -: no space left");
  EXPECT_EQ(failure_status(RankError(2, "", "gone")), "failed rank 2 op -: gone");
}

TEST(RankError, IsKeptWhereItIsThrownOnAnotherRank) {
  const RankError error(1, "a", "broken");
  EXPECT_EQ(on_rank(0, "b", error).rank(), 1);
  EXPECT_STREQ(on_rank(0, "b", std::runtime_error("gone")).what(), "rank 0, op b: gone");
}

}  // namespace
}  // namespace orrery
