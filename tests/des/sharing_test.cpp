// Where activities overlap on SMs and links, the SimGrid levels show it and the heap does not.

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "sim/des/flows.h"
#include "tests/des/step_builder.h"

#ifndef ORRERY_NO_SIMGRID

namespace orrery::test {
namespace {

using enum StepLevel;

double end_us(const Timeline& timeline, OpId op) {
  double end = 0;
  for (const Span& span : timeline.spans) {
    if (span.op == op) end = std::max(end, span.end.value() * 1e6);
  }
  return end;
}

Timeline run_at(const StepBuilder& step, const Machine& machine, StepLevel level) {
  return run(step, machine, {.level = level, .comm_sms = 20});
}

TEST(Sharing, AKernelThatFillsTheGpuKeepsTheNextOneWaiting) {
  // Both want all SMs. Heap: max(10, 20) = 20. Shared: the second begins when the first ends.
  StepBuilder step;
  const OpId a = step.kernel({0}, 10, 0);
  const OpId b = step.kernel({0}, 20, 1);
  const Machine machine = nvswitch_machine(1);
  EXPECT_DOUBLE_EQ(makespan_us(step, machine, kHeap), 20);
  for (const StepLevel level : {kRepresentative, kAllRanks}) {
    const Timeline timeline = run_at(step, machine, level);
    EXPECT_NEAR(end_us(timeline, a), 10, 1e-8);
    EXPECT_NEAR(end_us(timeline, b), 30, 3e-8);
  }
}

TEST(Sharing, AWaitingKernelGoesBeforeTheNextOneOfTheRunningStream) {
  // a, a (10 each) on one stream, b (4) on the other from 3 us on: b follows the first a. Ends at
  // 10, 24 and 14.
  StepBuilder step;
  const OpId first = step.kernel({0}, 10, 0);
  const OpId second = step.kernel({0}, 10, 0);
  step.host(HostKind::kScheduler, {0}, 3);
  const OpId other = step.kernel({0}, 4, 1);
  const Timeline timeline = run_at(step, nvswitch_machine(1), kAllRanks);
  EXPECT_NEAR(end_us(timeline, first), 10, 1e-8);
  EXPECT_NEAR(end_us(timeline, other), 14, 1e-8);
  EXPECT_NEAR(end_us(timeline, second), 24, 1e-8);
}

TEST(Sharing, KernelsOnHalfOfTheSmsShareTheMemory) {
  // Each has half of the SMs and asks for 0.8 of the memory rate: together 1.6, so both run at 1 /
  // 1.6 until the first has done its 10 at 16 us; the second has 10 left alone: 26.
  StepBuilder step;
  const OpId a = step.kernel({0}, 10, 0);
  const OpId b = step.kernel({0}, 20, 1);
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const Machine machine = nvswitch_machine(1);
  const des::GpuDemand half{.sms = 0.5, .math = 0, .hbm = 0.8};
  const Timeline timeline = des::simulate(
      {.priced = &priced, .machine = &machine, .demands = {half, half}}, {.level = kAllRanks});
  EXPECT_NEAR(end_us(timeline, a), 16, 2e-8);
  EXPECT_NEAR(end_us(timeline, b), 26, 3e-8);
}

constexpr double kFew = 1e-3;  // bytes: kernels beside a collective of them are as fast as alone

TEST(Sharing, ACollectiveTakesItsSmsFromAKernelThatComesLater) {
  // 100 SMs, of which the collective holds 20 until 60 us: the kernel that comes at 5 us has 80
  // until then, has done 44 of its 100 us and needs 56 more: 116. The collective is not slowed.
  StepBuilder step;
  const OpId comm = step.comm(CollectiveKind::kAllReduce, {0, 1}, kFew, 60, 1);
  step.host(HostKind::kScheduler, {0, 1}, 5);
  const OpId kernel = step.kernel({0, 1}, 100, 0);
  const Machine machine = nvswitch_machine(2, 100);
  EXPECT_DOUBLE_EQ(makespan_us(step, machine, kHeap), 105);
  for (const StepLevel level : {kRepresentative, kAllRanks}) {
    const Timeline timeline = run_at(step, machine, level);
    EXPECT_NEAR(end_us(timeline, comm), 60, 6e-8);
    EXPECT_NEAR(end_us(timeline, kernel), 116, 1.2e-7);
  }
}

// A collective holds 20 of 100 SMs for `held_us`; a kernel of 100 us and so many rounds comes at 5
// us.
double end_beside_collective(double held_us, int rounds, int comm_sms = 20) {
  StepBuilder step;
  step.comm(CollectiveKind::kAllReduce, {0, 1}, kFew, held_us, 1);
  step.host(HostKind::kScheduler, {0, 1}, 5);
  const OpId kernel = step.kernel({0, 1}, 100, 0);
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const Machine machine = nvswitch_machine(2, 100);
  const des::GpuDemand demand{.rounds = rounds};
  const des::Step full{.priced = &priced, .machine = &machine, .demands = {{}, {}, demand}};
  const double all =
      end_us(des::simulate(full, {.level = kAllRanks, .comm_sms = comm_sms}), kernel);
  EXPECT_DOUBLE_EQ(
      end_us(des::simulate(full, {.level = kRepresentative, .comm_sms = comm_sms}), kernel), all);
  return all;
}

TEST(Sharing, BlocksThatFindNoSmBeginWhenTheOthersHaveEnded) {
  // One round: 80 blocks from 5 to 105 us, the other 20 from 105 to 205.
  EXPECT_NEAR(end_beside_collective(300, 1), 205, 1e-7);
  // Four rounds of 25 us: 300 pieces behind the first ones take the 80 blocks four rounds, 5 in
  // all, and the other 20 one: 5 + 6 * 25.
  EXPECT_NEAR(end_beside_collective(300, 4), 155, 1e-7);
}

TEST(Sharing, BlocksThatWaitBeginWhenACollectiveEnds) {
  // At 60 us. One round: from 60 to 160.
  EXPECT_NEAR(end_beside_collective(60, 1), 160, 1e-7);
  // Four rounds: of 300 pieces 80 are taken at 30, 55 and 80 us, and 60 are left. The 20 blocks
  // that began at 60 take 20 of them at 85; the 80, the last 40 at 105. All have ended at 130.
  EXPECT_NEAR(end_beside_collective(60, 4), 130, 1e-7);
}

TEST(Sharing, SmsOfBlocksThatHaveEndedGoToTheNextKernel) {
  // As above with one round: from 105 us on 20 SMs are the collective's and 20 those of blocks that
  // waited. The next kernel has 60 for its 40 us: until 105 + 40 / 0.6.
  StepBuilder step;
  step.comm(CollectiveKind::kAllReduce, {0, 1}, kFew, 300, 1);
  step.host(HostKind::kScheduler, {0, 1}, 5);
  const OpId first = step.kernel({0, 1}, 100, 0);
  step.host(HostKind::kScheduler, {0, 1}, 5);
  const OpId next = step.kernel({0, 1}, 40, 2);
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const Machine machine = nvswitch_machine(2, 100);
  const Timeline timeline =
      des::simulate({.priced = &priced,
                     .machine = &machine,
                     .demands = {{}, {}, des::GpuDemand{.rounds = 1}, {}, {}}},
                    {.level = kAllRanks, .comm_sms = 20});
  EXPECT_NEAR(end_us(timeline, first), 205, 1e-7);
  EXPECT_NEAR(end_us(timeline, next), 105 + 40 / 0.6, 1e-7);
}

TEST(Sharing, WorkThatIsDealtIsNeverFasterThanWorkThatIsNot) {
  for (const double held : {1.0, 6.0, 30.0, 77.7, 104.0, 120.0, 500.0}) {
    for (const int comm_sms : {1, 7, 20, 45, 60, 90}) {
      const double fluid = end_beside_collective(held, 0, comm_sms);
      double longest = 0;
      for (const int rounds : {1, 2, 3, 4, 7, 16}) {
        const double end = end_beside_collective(held, rounds, comm_sms);
        EXPECT_GE(end, fluid * (1 - 1e-9)) << held << " us, " << comm_sms << " SMs, " << rounds;
        longest = std::max(longest, end);
      }
      EXPECT_NEAR(end_beside_collective(held, 1000, comm_sms), fluid, 2);
      if (held < 5) {
        EXPECT_NEAR(longest, 105, 1e-7);
      }
    }
    // Nothing is held.
    for (const int rounds : {0, 1, 4})
      EXPECT_NEAR(end_beside_collective(held, rounds, 0), 105, 1e-7);
  }
}

TEST(Sharing, ACollectiveWaitsForItsSmsOnAllItsRanks) {
  // The kernel on rank 1 fills its GPU until 30 us; the collective begins there and ends at 90,
  // having kept its 20 SMs of rank 0 all the time: the kernel of 80 us that came there at 5 has 80
  // of 100 SMs until 90, has done 68, and ends at 102.
  StepBuilder step;
  const OpId busy = step.kernel({1}, 30, 0);
  const OpId comm = step.comm(CollectiveKind::kAllReduce, {0, 1}, 1e3, 60, 1);
  step.host(HostKind::kScheduler, {0}, 5);
  const OpId kernel = step.kernel({0}, 80, 0);
  const Timeline timeline = run_at(step, nvswitch_machine(2, 100), kAllRanks);
  EXPECT_NEAR(end_us(timeline, busy), 30, 3e-8);
  // Its 1 KB take 0.4 ns more.
  EXPECT_NEAR(end_us(timeline, comm), 90, 5e-4);
  EXPECT_NEAR(end_us(timeline, kernel), 102, 5e-4);
}

TEST(Sharing, BytesTakeLongerOnceACollectiveHadToWait) {
  // All of its 60 us are bytes: 1.15 times as long behind a kernel of 30 us that fills the GPU.
  const auto end = [](bool has_kernel) {
    StepBuilder step;
    if (has_kernel) step.kernel({0, 1}, 30, 0);
    const OpId comm = step.comm(CollectiveKind::kAllGather, {0, 1}, 1e9, 60, 1);
    return end_us(run_at(step, nvswitch_machine(2, 100), kAllRanks), comm);
  };
  EXPECT_NEAR(end(false), 60, 1e-7);
  EXPECT_NEAR(end(true), 30 + 1.15 * 60, 1e-7);
}

// A collective of 60 us on 20 of 100 SMs beside a kernel on 80 that draws so much of the memory's
// rate until `kernel_us`; `latency_us` of it do not grow with its bytes.
double end_beside_load(double hbm, double latency_us, double kernel_us, StepLevel level) {
  StepBuilder step;
  step.kernel({0, 1}, kernel_us, 0);
  const OpId comm = step.comm(CollectiveKind::kAllGather, {0, 1}, 1e3, 60, 1);
  step.times.back().latency = Seconds(latency_us * 1e-6);
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const Machine machine = nvswitch_machine(2, 100);
  const des::GpuDemand demand{.sms = 0.8, .math = 0, .hbm = hbm};
  return end_us(des::simulate({.priced = &priced, .machine = &machine, .demands = {demand, {}}},
                              {.level = level, .comm_sms = 20}),
                comm);
}

TEST(Sharing, BytesTakeLongerBesideAKernelThatDrawsTheMemorysRate) {
  for (const StepLevel level : {kRepresentative, kAllRanks}) {
    // 3.2 times as long beside all of the rate, 1 + 2.2 / 8 beside half of it.
    EXPECT_NEAR(end_beside_load(1, 0, 1000, level), 3.2 * 60, 1e-3);
    EXPECT_NEAR(end_beside_load(0.5, 0, 1000, level), 1.275 * 60, 1e-3);
    EXPECT_NEAR(end_beside_load(0, 0, 1000, level), 60, 1e-3);
    // Of which 40 us are no bytes.
    EXPECT_NEAR(end_beside_load(1, 40, 1000, level), 40 + 3.2 * 20, 1e-3);
    // Until 32 us 10 of its 60 are done.
    EXPECT_NEAR(end_beside_load(1, 0, 32, level), 32 + 50, 1e-3);
  }
}

// Its flows share a link with another collective's, so they run in SimGrid, and what the kernel
// costs comes behind them.
TEST(Sharing, ACollectiveOnASharedLinkIsSlowedLikewise) {
  const auto end = [](double hbm) {
    StepBuilder step;
    step.kernel({0, 1, 2}, 2000, 0);
    const OpId first = step.comm(CollectiveKind::kSendRecv, {0, 1}, 40e6, 100, 1);
    step.comm(CollectiveKind::kSendRecv, {0, 2}, 40e6, 100, 2);
    const PricedPlan priced = des::assemble(step.plan, step.times);
    const Machine machine = nvswitch_machine(3, 100);
    const des::GpuDemand demand{.sms = 0.5, .math = 0, .hbm = hbm};
    return end_us(
        des::simulate({.priced = &priced, .machine = &machine, .demands = {demand, {}, {}}},
                      {.level = kAllRanks, .comm_sms = 20}),
        first);
  };
  EXPECT_NEAR(end(0), 200, 1e-3);
  EXPECT_GT(end(0.8), 1.5 * 200);
  EXPECT_LT(end(0.8), (1 + 2.2 * 0.512) * 200 + 1e-3);
}

TEST(Sharing, WithoutSmsForCollectivesOverlapIsFree) {
  StepBuilder step;
  step.kernel({0, 1}, 100, 0);
  step.comm(CollectiveKind::kAllReduce, {0, 1}, 1e3, 60, 1);
  const Timeline timeline = run(step, nvswitch_machine(2), {.level = kAllRanks, .comm_sms = 0});
  EXPECT_NEAR(makespan(timeline).value(), 100e-6, 1e-13);
}

TEST(Sharing, RowsBetweenSidesTakeNoSms) {
  // They go from rank 0 to rank 1 from 0 to 60 us, whatever kernels run there for 100 us from 5 us
  // on; those of one side are moved by a kernel with 20 of 100 SMs, as above.
  const auto run_exchange = [](bool is_between_sides) {
    StepBuilder step;
    const TensorId sent = step.tensor(is_between_sides ? std::vector<int>{0} : range(0, 2));
    const TensorId received = step.tensor(is_between_sides ? std::vector<int>{1} : range(0, 2));
    step.kernel({0}, 0, 1, {}, {sent});
    const OpId comm = step.comm(CollectiveKind::kAllToAll, {0, 1}, kFew, 60, 1, {sent}, {received});
    step.host(HostKind::kScheduler, {0, 1}, 5);
    const OpId kernel = step.kernel({0, 1}, 100, 0);
    const Timeline timeline = run_at(step, nvswitch_machine(2, 100), kAllRanks);
    EXPECT_NEAR(end_us(timeline, comm), 60, 6e-8);
    return end_us(timeline, kernel);
  };
  EXPECT_NEAR(run_exchange(true), 105, 1.1e-7);
  EXPECT_NEAR(run_exchange(false), 116, 1.2e-7);
}

// 400 GB/s: 40 MB take 100 us.
constexpr double kBytes = 40e6;

TEST(Sharing, TwoFlowsOnOneLinkShareItMaxMin) {
  // 0 -> 1 and 0 -> 2 meet on the up-link of GPU 0: 2 * 40 MB / 400 GB/s = 200 us.
  StepBuilder step;
  step.comm(CollectiveKind::kSendRecv, {0, 1}, kBytes, 100, 0);
  step.comm(CollectiveKind::kSendRecv, {0, 2}, kBytes, 100, 1);
  const Machine machine = nvswitch_machine(3);
  EXPECT_DOUBLE_EQ(makespan_us(step, machine, kHeap), 100);
  EXPECT_NEAR(makespan_us(step, machine, kAllRanks), 200, 2e-7);
}

TEST(Sharing, AFlowThatStartsLateSharesOnlyTheRest) {
  // The second starts at 50. Until then the first has sent half; the other half takes 100 at half
  // rate: ends at 150. The second has half left then: 200.
  StepBuilder step;
  const OpId first = step.comm(CollectiveKind::kSendRecv, {0, 1}, kBytes, 100, 0);
  step.kernel({2}, 50, 1);
  const OpId second = step.comm(CollectiveKind::kSendRecv, {0, 2}, kBytes, 100, 1);
  const Timeline timeline = run_at(step, nvswitch_machine(3), kAllRanks);
  EXPECT_NEAR(end_us(timeline, first), 150, 2e-7);
  EXPECT_NEAR(end_us(timeline, second), 200, 2e-7);
}

TEST(Sharing, UnequalFlowsShareMaxMinAndTheRestIsTaken) {
  // Down-link of 3 carries 0 -> 3 and 1 -> 3; up-link of 0 carries 0 -> 3 and 0 -> 2. All rates 200
  // GB/s until 1 -> 3 (10 MB, 50 us) and 0 -> 2 (10 MB, 50 us) end; 0 -> 3 has 30 of 40 MB left at
  // 400 GB/s: 75 us. It ends at 125.
  StepBuilder step;
  const OpId large = step.comm(CollectiveKind::kSendRecv, {0, 3}, kBytes, 100, 0);
  const OpId a = step.comm(CollectiveKind::kSendRecv, {1, 3}, kBytes / 4, 25, 1);
  const OpId b = step.comm(CollectiveKind::kSendRecv, {0, 2}, kBytes / 4, 25, 2);
  const Timeline timeline = run_at(step, nvswitch_machine(4), kAllRanks);
  EXPECT_NEAR(end_us(timeline, a), 50, 1e-7);
  EXPECT_NEAR(end_us(timeline, b), 50, 1e-7);
  EXPECT_NEAR(end_us(timeline, large), 125, 2e-7);
}

TEST(Sharing, DirectionsOfALinkAreIndependent) {
  // Ranks 0 and 1 send to each other's neighbours on disjoint links; no wait.
  StepBuilder step;
  step.comm(CollectiveKind::kSendRecv, {0, 1}, kBytes, 100, 0);
  step.comm(CollectiveKind::kSendRecv, {1, 2}, kBytes, 100, 1);
  EXPECT_NEAR(makespan_us(step, nvswitch_machine(3), kAllRanks), 100, 1e-7);
}

TEST(Sharing, OnlyTheBytesShareNotTheFixedPart) {
  // 110 us each: 10 us fixed, then 100 us of bytes, which share: 10 + 200.
  StepBuilder step;
  step.comm(CollectiveKind::kSendRecv, {0, 1}, kBytes, 110, 0);
  step.comm(CollectiveKind::kSendRecv, {0, 2}, kBytes, 110, 1);
  EXPECT_NEAR(makespan_us(step, nvswitch_machine(3), kAllRanks), 210, 2e-7);
}

TEST(Sharing, AnOversubscribedSpineIsShared) {
  // Nodes 0, 1 (pod 0) send on rail 0 to nodes 2, 3 (pod 1). NIC 50 GB/s; the leaf's trunk is
  // 2 * 50 / 2 = 50 GB/s for both: 5 MB each take 100 us alone and 200 us together.
  StepBuilder step;
  step.comm(CollectiveKind::kSendRecv, {0, 16}, 5e6, 100, 0);
  step.comm(CollectiveKind::kSendRecv, {8, 24}, 5e6, 100, 0);
  EXPECT_NEAR(makespan_us(step, rail_machine(32, 2), kAllRanks), 200, 2e-7);
  EXPECT_NEAR(makespan_us(step, rail_machine(32, 1), kAllRanks), 100, 1e-7);
}

TEST(Sharing, AnImbalancedRankIsTheOneAllWaitFor) {
  // Expert load 10 us on ranks 0..6 and 16 us on rank 7; the barrier waits: 16 + 20, not the mean.
  StepBuilder step;
  step.kernel(range(0, 7), 10);
  step.kernel({7}, 16);
  step.comm(CollectiveKind::kAllToAll, range(0, 8), 1e6, 20);
  for (const StepLevel level : {kHeap, kRepresentative, kAllRanks}) {
    EXPECT_NEAR(makespan_us(step, nvswitch_machine(8), level), 36, 4e-8) << to_text(level);
  }
}

// Every activity in SimGrid from its start: an isolated one must take exactly its own time.
double always_us(const StepBuilder& step, const Machine& machine, des::SharingMode mode) {
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const des::Step full{.priced = &priced, .machine = &machine};
  const SimulateOptions options{.level = kAllRanks};
  return makespan(des::run_events(full, options, des::all_ranks(step.plan), mode)).value() * 1e6;
}

TEST(Sharing, IsolatedCollectivesTakeTheirOwnTimeInSimGrid) {
  // 2 nodes on different pods of a 4:1 oversubscribed fabric, so the flows of one collective share
  // trunks; and inside one node.
  const Machine machine = rail_machine(32, 4);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kBroadcast}) {
    for (const auto& ranks : {range(0, 32), range(0, 8), std::vector<int>{0, 1, 9, 17}}) {
      StepBuilder step;
      step.comm(kind, ranks, 3e6, 777);
      EXPECT_NEAR(always_us(step, machine, des::SharingMode::kAlways), 777, 777e-9)
          << to_text(kind) << " over " << ranks.size();
    }
  }
}

StepBuilder overlapped_layers(int num_ranks, int layers) {
  StepBuilder step;
  const std::vector<int> ranks = range(0, num_ranks);
  const TensorId x = step.tensor(ranks);
  const TensorId y = step.tensor(ranks);
  step.kernel(ranks, 5, 0, {}, {x});
  const OpId first = step.kernel(ranks, 11, 0, {x}, {x});
  step.comm(CollectiveKind::kAllToAll, ranks, 6e6, 31, 1, {x}, {y});
  step.kernel(ranks, 33, 0, {x}, {});
  for (int rank = 0; rank < num_ranks; rank += 2) {
    step.comm(CollectiveKind::kAllReduce, {rank, rank + 1}, 1e6, 9, 2, {x}, {x});
  }
  step.kernel(ranks, 7, 0, {x, y}, {x});
  step.repeat(first, layers);
  return step;
}

TEST(Sharing, EnteringSimGridOnlyWhenContendedChangesNothing) {
  for (const int num_ranks : {8, 16}) {
    const Machine machine = rail_machine(num_ranks);
    const StepBuilder step = overlapped_layers(num_ranks, 5);
    const double lazy = always_us(step, machine, des::SharingMode::kWhenContended);
    const double always = always_us(step, machine, des::SharingMode::kAlways);
    EXPECT_NEAR(lazy, always, 1e-9 * always);
    EXPECT_GT(lazy, makespan_us(step, machine, kHeap));
  }
}

TEST(Sharing, ARepresentativeTakesAsLongAsAllRanksOfItsClass) {
  const Machine machine = nvswitch_machine(8);
  const StepBuilder step = overlapped_layers(8, 5);
  const double all = makespan_us(step, machine, kAllRanks);
  EXPECT_NEAR(makespan_us(step, machine, kRepresentative), all, 1e-9 * all);
}

bool same_bytes(const Timeline& a, const Timeline& b) {
  if (a.spans.size() != b.spans.size() || a.link_spans.size() != b.link_spans.size()) return false;
  for (std::size_t i = 0; i < a.spans.size(); ++i) {
    const Span& s = a.spans[i];
    const Span& t = b.spans[i];
    if (s.op != t.op || s.copy != t.copy || s.rank != t.rank || s.stream != t.stream) return false;
    if (s.start != t.start || s.end != t.end) return false;
  }
  return a.links == b.links;
}

TEST(Sharing, TwoRunsGiveTheSameBytes) {
  const Machine machine = nvswitch_machine(8);
  const StepBuilder step = overlapped_layers(8, 3);
  for (const StepLevel level : {kHeap, kRepresentative, kAllRanks}) {
    EXPECT_TRUE(same_bytes(run_at(step, machine, level), run_at(step, machine, level)))
        << to_text(level);
  }
}

TEST(Sharing, AnotherMachineInBetweenChangesNothing) {
  const Machine machine = nvswitch_machine(8);
  const StepBuilder step = overlapped_layers(8, 3);
  const Timeline before = run_at(step, machine, kAllRanks);
  EXPECT_GT(makespan_us(overlapped_layers(16, 2), rail_machine(16), kAllRanks), 0);
  EXPECT_TRUE(same_bytes(before, run_at(step, machine, kAllRanks)));
}

TEST(Sharing, TheEngineServesSeveralThreads) {
  const Machine machine = nvswitch_machine(8);
  const StepBuilder step = overlapped_layers(8, 3);
  const Timeline expected = run_at(step, machine, kAllRanks);
  std::array<Timeline, 4> results;
  {
    std::vector<std::jthread> threads;
    threads.reserve(results.size());
    for (Timeline& result : results) {
      threads.emplace_back([&] {
        for (int i = 0; i < 5; ++i) result = run_at(step, machine, kAllRanks);
      });
    }
  }
  for (const Timeline& result : results) EXPECT_TRUE(same_bytes(expected, result));
}

void on_interrupt(int) {}

TEST(Sharing, TheEngineLeavesSignalHandlersAlone) {
  struct sigaction own{};
  own.sa_handler = on_interrupt;
  struct sigaction before{};
  ASSERT_EQ(sigaction(SIGINT, &own, &before), 0);
  struct sigaction segv_before{};
  sigaction(SIGSEGV, nullptr, &segv_before);
  // A machine that no other test uses, so the engine is built here: 7 GPUs.
  StepBuilder step;
  step.comm(CollectiveKind::kSendRecv, {0, 1}, kBytes, 100, 0);
  step.comm(CollectiveKind::kSendRecv, {0, 2}, kBytes, 100, 1);
  EXPECT_NEAR(makespan_us(step, nvswitch_machine(7), kAllRanks), 200, 2e-7);
  struct sigaction after{};
  sigaction(SIGINT, &before, &after);
  EXPECT_EQ(after.sa_handler, on_interrupt);
  struct sigaction segv_after{};
  sigaction(SIGSEGV, nullptr, &segv_after);
  EXPECT_EQ(segv_after.sa_handler, segv_before.sa_handler);
}

TEST(Sharing, LinkSpansCarryTheBytesOfTheCollective) {
  // All-to-all of 4 MB over 4 ranks: each up-link and each down-link carries 3/4 of 4 MB.
  StepBuilder step;
  step.comm(CollectiveKind::kAllToAll, range(0, 4), 4e6, 50);
  const Timeline timeline = run_at(step, nvswitch_machine(8), kAllRanks);
  ASSERT_EQ(timeline.links.size(), 8U);  // links of the four ranks only
  ASSERT_EQ(timeline.link_spans.size(), 8U);
  for (const LinkSpan& span : timeline.link_spans) {
    EXPECT_DOUBLE_EQ(span.bytes.value(), 3e6);
    EXPECT_DOUBLE_EQ(span.end.value(), 50e-6);
  }
  EXPECT_TRUE(run(step, nvswitch_machine(8), {.level = kAllRanks, .record_links = false})
                  .link_spans.empty());
}

}  // namespace
}  // namespace orrery::test

#endif
