#include "kernels/execute/watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/execute/interrupt.h"

namespace orrery {
namespace {

using namespace std::chrono_literals;

std::string text_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

// Stands for ranks: notes what the watch does to them.
class Ranks {
 public:
  Watch::Setup setup(int num_ranks = 2) {
    return {.num_ranks = num_ranks,
            .first_error = [this] { return error(); },
            .fail = [this](const std::exception_ptr& error) { fail(error); },
            .abort = [this] { aborts_.store(true); },
            .last_words = [this](const std::string& status) { last_words_ = status; },
            .end_process = [this] { ended_.store(true); },
            .grace = Seconds(0.1),
            .teardown = Seconds(0.5)};
  }
  void fail(const std::exception_ptr& error) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = error;
  }
  std::exception_ptr error() {
    const std::scoped_lock lock(mutex_);
    return error_;
  }
  [[nodiscard]] bool were_aborted() const { return aborts_.load(); }
  [[nodiscard]] bool ended_process() const { return ended_.load(); }
  [[nodiscard]] const std::string& last_words() const { return last_words_; }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> aborts_{false};
  std::atomic<bool> ended_{false};
  std::string last_words_;
};

template <typename Predicate>
bool soon(const Predicate& is_true) {
  for (int i = 0; i < 400 && !is_true(); ++i) std::this_thread::sleep_for(5ms);
  return is_true();
}

TEST(Watch, LeavesStepsThatEndInTimeAlone) {
  Ranks ranks;
  {
    Watch watch(ranks.setup());
    for (int step = 0; step < 20; ++step) {
      watch.begin(Seconds(0.05), Seconds(0.05));
      std::this_thread::sleep_for(5ms);
      watch.end();
    }
    std::this_thread::sleep_for(100ms);  // longer than a step may take, but between steps
  }
  EXPECT_FALSE(ranks.error());
  EXPECT_FALSE(ranks.were_aborted());
}

TEST(Watch, AbortsTheOthersWhenARankHasThrown) {
  Ranks ranks;
  Watch watch(ranks.setup());
  watch.begin(Seconds(60), Seconds(60));
  ranks.fail(std::make_exception_ptr(RankError(1, "a", "broken")));
  EXPECT_TRUE(soon([&] { return ranks.were_aborted(); }));
  watch.end();
  EXPECT_EQ(text_of(ranks.error()), "rank 1, op a: broken");
  EXPECT_FALSE(ranks.ended_process());
}

TEST(Watch, LeavesWhatFailsBetweenStepsToTheCaller) {
  Ranks ranks;
  Watch watch(ranks.setup());
  ranks.fail(std::make_exception_ptr(std::invalid_argument("a step that cannot be bound")));
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(ranks.were_aborted());
}

TEST(Watch, StopsAStepThatTakesTooLongAndNamesTheRankWhoseThreadIsStuck) {
  Ranks ranks;
  Watch watch(ranks.setup());
  const std::string op = "layers.3.o_proj";
  watch.begin(Seconds(0.05), Seconds(0.05));
  watch.waiting(0);
  watch.enqueueing(1, op);
  ASSERT_TRUE(soon([&] { return ranks.were_aborted(); }));
  watch.end();
  const std::string text = text_of(ranks.error());
  EXPECT_TRUE(text.starts_with("rank 1, op layers.3.o_proj: its thread has not gone on")) << text;
}

TEST(Watch, StopsALongStepSoonAfterTheLastRankHasStoppedGoingOn) {
  Ranks ranks;
  Watch watch(ranks.setup());
  const std::string op = "lm_head";
  watch.begin(Seconds(0.2), Seconds(60));
  watch.waiting(0);
  for (int i = 0; i < 20; ++i) {  // twice as long as it may stand still
    watch.enqueueing(1, op);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_FALSE(ranks.were_aborted());
  ASSERT_TRUE(soon([&] { return ranks.were_aborted(); }));
  watch.end();
  const std::string text = text_of(ranks.error());
  EXPECT_TRUE(text.starts_with("rank 1, op lm_head: its thread has not gone on")) << text;
}

TEST(Watch, StopsAStepThatTakesTooLongThoughRanksGoOn) {
  Ranks ranks;
  Watch watch(ranks.setup());
  const std::string op = "lm_head";
  watch.begin(Seconds(10), Seconds(0.1));
  EXPECT_TRUE(soon([&] {
    watch.enqueueing(0, op);
    return ranks.were_aborted();
  }));
  watch.end();
}

TEST(Watch, EndsTheProcessWithLastWordsWhenARankDoesNotStop) {
  Ranks ranks;
  Watch watch(ranks.setup());
  const std::string op = "layers.3.o_proj";
  watch.begin(Seconds(0.05), Seconds(0.05));
  watch.enqueueing(0, op);
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
  EXPECT_TRUE(ranks.last_words().starts_with("failed rank 0 op layers.3.o_proj: "))
      << ranks.last_words();
}

// Rank 0 is in a call that connects it to rank 1, which hangs at an earlier op of the second step.
TEST(Watch, NamesTheRankThatEnqueuedLeast) {
  Ranks ranks;
  Watch watch(ranks.setup());
  const std::string earlier = "layers.0.down_proj";
  const std::string later = "logits.all_gather";
  watch.begin(Seconds(0.05), Seconds(0.05));
  for (int op = 0; op < 5; ++op) watch.enqueueing(1, earlier);
  watch.waiting(1);
  watch.idle(1);
  watch.enqueueing(1, earlier);
  watch.enqueueing(0, earlier);
  watch.enqueueing(0, later);
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
  EXPECT_TRUE(ranks.last_words().starts_with("failed rank 1 op layers.0.down_proj: its thread"))
      << ranks.last_words();
}

TEST(Watch, SaysInItsLastWordsWhereTheGpusAre) {
  Ranks ranks;
  Watch::Setup setup = ranks.setup();
  setup.look_at = [](int rank, RankPlace& place) {
    place.progress = rank == 1 ? 3 : 4;
    place.reached = "layer " + std::to_string(place.progress);
  };
  Watch watch(std::move(setup));
  watch.begin(Seconds(0.05), Seconds(0.05));
  watch.waiting(0);
  watch.waiting(1);
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
  EXPECT_TRUE(ranks.last_words().starts_with("failed rank 1 op layer 3: its GPU"))
      << ranks.last_words();
  EXPECT_TRUE(ranks.last_words().ends_with("rank 0 waits in layer 4")) << ranks.last_words();
}

TEST(Watch, EndsTheProcessWhenAbortingHangs) {
  Ranks ranks;
  std::atomic<bool> releases{false};
  Watch::Setup setup = ranks.setup();
  setup.abort = [&] {
    while (!releases.load()) std::this_thread::sleep_for(1ms);
  };
  Watch watch(std::move(setup));
  watch.fail(std::make_exception_ptr(std::runtime_error("broken")));
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
  EXPECT_EQ(ranks.last_words(), "failed rank - op -: broken");
  releases.store(true);
}

TEST(Watch, EndsTheProcessWhenTheExecutorCannotBeTakenDown) {
  Ranks ranks;
  Watch watch(ranks.setup());
  watch.fail(std::make_exception_ptr(std::runtime_error("broken")));
  ASSERT_TRUE(soon([&] { return ranks.were_aborted(); }));
  EXPECT_FALSE(ranks.ended_process());  // has `teardown` left
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
}

TEST(Watch, CallsNothingThatMayBeGoneOnceItIsRetired) {
  Ranks ranks;
  Watch watch(ranks.setup());
  watch.retire();
  watch.fail(std::make_exception_ptr(std::runtime_error("broken")));
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(ranks.were_aborted());
}

TEST(Watch, EndsTheProcessWhenTakingDownHangsAfterItIsRetired) {
  Ranks ranks;
  Watch watch(ranks.setup());
  watch.fail(std::make_exception_ptr(std::runtime_error("broken")));
  ASSERT_TRUE(soon([&] { return ranks.were_aborted(); }));
  watch.retire();
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
  EXPECT_EQ(ranks.last_words(), "failed rank - op -: broken");
}

TEST(Watch, ReportsWhatNoCallReturned) {
  Ranks ranks;
  Watch::Setup setup = ranks.setup();
  setup.find_problem = [] {
    return std::make_exception_ptr(RankError(0, "a.all_reduce", "NCCL: remote process exited"));
  };
  Watch watch(std::move(setup));
  watch.begin(Seconds(60), Seconds(60));
  ASSERT_TRUE(soon([&] { return ranks.were_aborted(); }));
  watch.end();
  EXPECT_EQ(text_of(ranks.error()), "rank 0, op a.all_reduce: NCCL: remote process exited");
}

TEST(Watch, StopsOnASignalAndBeginsNoFurtherStep) {
  const InterruptGuard guard;
  Ranks ranks;
  Watch watch(ranks.setup());
  watch.begin(Seconds(60), Seconds(60));
  ASSERT_EQ(std::raise(SIGTERM), 0);
  ASSERT_TRUE(soon([&] { return ranks.were_aborted(); }));
  watch.end();
  EXPECT_EQ(text_of(ranks.error()), "stopped by SIGTERM");
  EXPECT_THROW(watch.begin(Seconds(60), Seconds(60)), std::runtime_error);
}

TEST(Watch, NamesARankThatHasNotComeAndThePhase) {
  Ranks ranks;
  Watch watch(ranks.setup());
  watch.begin(Seconds(0.05), Seconds(0.05), RunPhase::kWeights);
  watch.expect(0);
  watch.expect(1);
  watch.idle(0);
  EXPECT_TRUE(soon([&] { return ranks.ended_process(); }));
  EXPECT_TRUE(ranks.last_words().starts_with(
      "failed rank 1 op -: its thread has not gone on; phase weights has taken"))
      << ranks.last_words();
}

TEST(Watch, LeavesTheErrorOfARankThatWorksApartToTheCaller) {
  for (const RunPhase phase : {RunPhase::kWeights, RunPhase::kCapture}) {
    Ranks ranks;
    Watch watch(ranks.setup());
    watch.begin(Seconds(60), Seconds(60), phase);
    ranks.fail(std::make_exception_ptr(std::invalid_argument("a weight of no known dtype")));
    if (is_apart(phase)) {
      std::this_thread::sleep_for(50ms);
      EXPECT_FALSE(ranks.were_aborted());
    } else {
      EXPECT_TRUE(soon([&] { return ranks.were_aborted(); }));
    }
    watch.end();
  }
}

TEST(Watch, SaysWhichPhaseBeginsOncePerPhase) {
  Ranks ranks;
  std::vector<RunPhase> begun;
  Watch::Setup setup = ranks.setup();
  setup.phase_begun = [&](RunPhase phase) { begun.push_back(phase); };
  Watch watch(std::move(setup));
  for (const RunPhase phase :
       {RunPhase::kStart, RunPhase::kWarmUp, RunPhase::kStep, RunPhase::kStep}) {
    watch.begin(Seconds(60), Seconds(60), phase);
    watch.end();
  }
  EXPECT_EQ(begun, (std::vector{RunPhase::kStart, RunPhase::kWarmUp, RunPhase::kStep}));
}

TEST(StallError, NamesTheRankWhoseGpuIsLeastFarAndWhereTheOthersWait) {
  const std::vector<RankPlace> states = {
      {.phase = RankPhase::kWaiting, .progress = 5, .reached = "layers.2.o_proj.all_reduce"},
      {.phase = RankPhase::kWaiting, .progress = 4, .reached = "layers.1.down_proj.all_reduce"},
      {.phase = RankPhase::kIdle}};
  const RankError error = stall_error(states, Seconds(3));
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.op(), "layers.1.down_proj.all_reduce");
  EXPECT_EQ(error.message(),
            "its GPU has not gone on; phase step has taken 3.0 s; rank 0 waits in "
            "layers.2.o_proj.all_reduce");
}

TEST(StepLimit, GrowsWithTheWorkOfThePlanAndIsNeverShort) {
  const auto plan_of = [](std::int64_t tokens) {
    Plan plan;
    const GroupId ranks = plan.add_group({0});
    plan.add_op({.name = "a",
                 .body = KernelOp{.kernel = "silu_mul",
                                  .dtype = DType::kBf16,
                                  .dims = {{.name = "tokens", .size = tokens},
                                           {.name = "ffn", .size = 4096}}},
                 .ranks = ranks});
    return plan;
  };
  // Twice the tokens take twice as long beyond the 3 s.
  const double once = step_limit(plan_of(1 << 20)).value() - 3;
  EXPECT_GT(once, 0);
  EXPECT_NEAR(step_limit(plan_of(2 << 20)).value() - 3, 2 * once, 1e-9);
}

}  // namespace
}  // namespace orrery
