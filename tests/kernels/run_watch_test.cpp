#include "kernels/execute/run_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/execute/interrupt.h"

namespace orrery {
namespace {

constexpr int kHung = 7;  // exit code of a run that the watch ended
constexpr RunPhase kAll[] = {RunPhase::kStart,   RunPhase::kCommunicators, RunPhase::kWeights,
                             RunPhase::kPrepare, RunPhase::kWarmUp,        RunPhase::kCapture,
                             RunPhase::kStep,    RunPhase::kTransfer,      RunPhase::kCall,
                             RunPhase::kResults, RunPhase::kTeardown};

// How a run through all phases ended that was a process of its own, and what it said.
struct Ended {
  int status = 0;
  std::string words;
  double seconds = 0;
};

Ended run_with(const std::string& fault, int rank) {
  int ends[2] = {};
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child == 0) {
    const auto say = [&](const std::string& text) {
      static_cast<void>(!write(ends[1], text.data(), text.size()));
    };
    RunWatch watch({.rank = rank,
                    .fault = parse_fault(fault),
                    .limit = Seconds(0.3),
                    .last_words = say,
                    .end_process = [] { std::_Exit(kHung); },
                    .grace = Seconds(0.05)});
    try {
      for (const RunPhase phase : kAll) watch.run(phase, [] {});
    } catch (const std::exception& error) {
      say(failure_status(error));
      std::_Exit(EXIT_FAILURE);
    }
    std::_Exit(EXIT_SUCCESS);
  }
  static_cast<void>(close(ends[1]));
  Ended ended;
  char text[256];
  for (ssize_t count = 0; (count = read(ends[0], text, sizeof(text))) > 0;) {
    ended.words.append(text, static_cast<std::size_t>(count));
  }
  static_cast<void>(close(ends[0]));
  static_cast<void>(waitpid(child, &ended.status, 0));
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ended;
}

// Phase x kind: each ends the run in the watch's time, as it should, with the rank's name.
TEST(RunWatch, EndsARunInEveryPhaseAndNamesRankAndPhase) {
  constexpr int kRank = 2;
  constexpr double kMost = 10;  // far above 0.35 s, on a busy machine
  for (const RunPhase phase : kAll) {
    const std::string name(to_text(phase));
    const std::string fault = "rank=2,phase=" + name + ",how=";
    const Ended thrown = run_with(fault + "throw", kRank);
    EXPECT_EQ(WEXITSTATUS(thrown.status), EXIT_FAILURE) << name;
    EXPECT_EQ(thrown.words, "failed rank 2 op -: in phase " + name + ": made to fail");
    const Ended hung = run_with(fault + "hang", kRank);
    EXPECT_EQ(WEXITSTATUS(hung.status), kHung) << name;
    EXPECT_TRUE(hung.words.starts_with("failed rank 2 op -: its thread has not gone on; phase " +
                                       name + " has taken"))
        << hung.words;
    EXPECT_LT(hung.seconds, kMost);
    const Ended killed = run_with(fault + "kill", kRank);
    EXPECT_TRUE(WIFSIGNALED(killed.status) && WTERMSIG(killed.status) == SIGKILL) << name;
  }
}

TEST(RunWatch, LeavesARunAloneWhoseFaultIsOfAnotherRank) {
  const Ended ended = run_with("rank=1,phase=step,how=throw", 0);
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.words, "");
}

TEST(RunWatch, ReturnsWhatThePhaseReturnsAndKeepsBadInputAsItIs) {
  RunWatch watch({});
  EXPECT_EQ(watch.run(RunPhase::kCall, [] { return 3; }), 3);
  EXPECT_THROW(watch.run(RunPhase::kCall, [] { throw std::invalid_argument("no such dim"); }),
               std::invalid_argument);
  try {
    watch.run(RunPhase::kCall, [] { throw std::runtime_error("lost"); }, "gemm bf16 m=1");
    FAIL();
  } catch (const RankError& error) {
    EXPECT_STREQ(error.what(), "rank 0, op gemm bf16 m=1: in phase call: lost");
  }
}

// Else results so far could not be written.
TEST(RunWatch, GoesOnAfterASignal) {
  const InterruptGuard guard;
  RunWatch watch({});
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_EQ(watch.run(RunPhase::kResults, [] { return 1; }), 1);
}

TEST(UnfinishedStatus, IsTheFurthestPhase) {
  std::vector<std::string> lines;
  UnfinishedStatus status([&](const std::string& line) { lines.push_back(line); });
  for (const RunPhase phase : {RunPhase::kWeights, RunPhase::kStep, RunPhase::kPrepare}) {
    status.begun(phase);
  }
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines.back(), "unfinished: killed, or still running; it came to phase step");
}

}  // namespace
}  // namespace orrery
