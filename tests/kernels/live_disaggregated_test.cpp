// Prefill and decode on threads of their own: tokens are those of requests served alone, whatever
// moves at the same time.

#include "kernels/serve/live_disaggregated.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "sim/serve/workload.h"
#include "tests/kernels/fake_runner.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeRunner;
using testing::kVocabulary;
using testing::RunnerTimes;
using testing::small_service;
using testing::whole_history;
using testing::workload_of;

constexpr std::uint64_t kPairSeed = 11;

// Between fake runners; takes `time`.
class FakeMover : public KvMover {
 public:
  FakeMover(std::vector<std::unique_ptr<FakeRunner>>& runners, int num_prefill, Seconds time)
      : runners_(runners), num_prefill_(num_prefill), time_(time) {}
  Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
               std::span<const std::int32_t> destination) override {
    const LiveClock clock;
    if (num_moves_before_failure-- == 0) throw std::runtime_error("link lost");
    for (std::size_t i = 0; i < source.size(); ++i) {
      runners_[static_cast<std::size_t>(num_prefill_ + decode)]->copy_block(
          *runners_[static_cast<std::size_t>(prefill)], source[i], destination[i]);
    }
    clock.wait_until(time_);
    num_blocks += static_cast<std::int64_t>(source.size());
    return clock.now();
  }

  std::atomic<std::int64_t> num_blocks = 0;
  std::atomic<int> num_moves_before_failure = -1;

 private:
  std::vector<std::unique_ptr<FakeRunner>>& runners_;
  int num_prefill_;
  Seconds time_;
};

struct Pair {
  explicit Pair(int num_prefill = 1, int num_decode = 1, Seconds transfer = Seconds(0.0005))
      : mover(runners, num_prefill, transfer) {
    setup.prefill = small_service();
    setup.prefill.num_replicas = num_prefill;
    setup.decode = small_service();
    setup.decode.num_replicas = num_decode;
    setup.kv_block = Bytes(100);
    setup.mover = &mover;
  }
  LiveDisaggregatedResult run(const Workload& workload,
                              const std::function<bool()>& is_stopped = {}) {
    const auto steps = [](const ServiceConfig& side) {
      return ExecutedStepsConfig{.num_kv_blocks = side.num_kv_blocks,
                                 .block_size = side.engine.block_size,
                                 .vocab_size = kVocabulary,
                                 .seed = kPairSeed};
    };
    setup.prefill_steps = steps(setup.prefill);
    setup.decode_steps = steps(setup.decode);
    for (const ServiceConfig* side : {&setup.prefill, &setup.decode}) {
      for (int i = 0; i < side->num_replicas; ++i) {
        runners.push_back(
            std::make_unique<FakeRunner>(side->num_kv_blocks, side->engine.block_size, times));
        setup.runners.push_back(runners.back().get());
      }
    }
    if (fails_after >= 0) runners.back()->num_runs_before_failure = fails_after;
    return serve_live_disaggregated(workload, setup, {}, clock, {}, is_stopped);
  }

  RunnerTimes times{.base = Seconds(0.001), .per_token = Seconds(1e-5)};
  std::int64_t fails_after = -1;  // the last decode replica
  LiveClock clock;
  std::vector<std::unique_ptr<FakeRunner>> runners;
  FakeMover mover;
  LiveDisaggregatedSetup setup;
};

Workload some_requests(std::uint64_t seed, std::int64_t concurrency) {
  Workload workload = open_loop(400, 1, 40, {.kind = LengthKind::kUniform, .min = 1, .max = 90},
                                {.kind = LengthKind::kUniform, .min = 1, .max = 25}, seed);
  workload.closed_loop_concurrency = concurrency;
  return workload;
}

void expect_whole(const Workload& workload, const LiveDisaggregatedResult& result) {
  EXPECT_TRUE(result.live.is_complete);
  EXPECT_FALSE(result.live.error);
  ASSERT_EQ(result.live.service.requests.size(), workload.requests.size());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    EXPECT_EQ(result.tokens[i], whole_history(kPairSeed, workload.requests[i])) << "request " << i;
  }
}

TEST(LiveDisaggregated, TokensAreThoseOfRequestsServedAlone) {
  for (const std::int64_t concurrency : {0, 1, 7}) {
    const Workload workload = some_requests(3, concurrency);
    Pair pair;
    const LiveDisaggregatedResult result = pair.run(workload);
    expect_whole(workload, result);
    std::int64_t blocks = 0;
    for (const RequestRecord& record : result.live.service.requests) {
      if (record.output_tokens == 1) continue;
      blocks += (record.prompt_tokens + 3) / 4;
      EXPECT_EQ(record.decode_replica, 1);
      EXPECT_LE(record.first_token, record.transfer_end);
      EXPECT_GE((record.transfer_end - record.transfer_start).value(), 0.0005);
      EXPECT_LE(record.transfer_end, record.decode_start);
      EXPECT_LT(record.decode_start, record.second_token);
      EXPECT_LE(record.second_token, record.finish);
      EXPECT_GE(record.exposed_transfer, Seconds(0));
    }
    EXPECT_EQ(pair.mover.num_blocks, blocks);
  }
}

TEST(LiveDisaggregated, SeveralReplicasOnEitherSideShareTheWork) {
  const Workload workload = some_requests(5, 9);
  for (const RouterKind router : {RouterKind::kRoundRobin, RouterKind::kLeastLoaded}) {
    Pair pair(2, 3);
    pair.setup.prefill.router = router;
    pair.setup.decode.router = router;
    const LiveDisaggregatedResult result = pair.run(workload);
    expect_whole(workload, result);
    std::vector<int> served(5, 0);
    for (const RequestRecord& record : result.live.service.requests) {
      ++served[static_cast<std::size_t>(record.replica)];
      if (record.decode_replica >= 0) ++served[static_cast<std::size_t>(record.decode_replica)];
    }
    for (const int count : served) EXPECT_GT(count, 0);
  }
}

TEST(LiveDisaggregated, WhatADecodeReplicaPreemptsIsComputedAgain) {
  // 30 blocks of 4 hold one longest request (114 tokens) and little more.
  const Workload workload = some_requests(7, 8);
  Pair pair;
  pair.setup.prefill.num_kv_blocks = 40;
  pair.setup.decode.num_kv_blocks = 30;
  const LiveDisaggregatedResult result = pair.run(workload);
  expect_whole(workload, result);
  EXPECT_GT(result.live.service.metrics.num_preemptions, 0) << "memory is meant to be tight";
}

TEST(LiveDisaggregated, ATransferRunsBesideTheStepsOfTheDecodeSide) {
  // The first request decodes for 60 steps of 4 ms; the second's transfer of 2 ms starts in one of
  // them, and the request joins at its end or at the next one's.
  Pair pair(1, 1, Seconds(0.002));
  pair.times = {.base = Seconds(0.004), .per_token = Seconds(0)};
  const Workload workload =
      workload_of({{.prompt_tokens = 4, .output_tokens = 60},
                   {.arrival = Seconds(0.05), .prompt_tokens = 40, .output_tokens = 5}});
  const LiveDisaggregatedResult result = pair.run(workload);
  expect_whole(workload, result);
  const RequestRecord& second = result.live.service.requests[1];
  bool is_within = false;
  for (const StepRecord& step : result.live.service.steps) {
    is_within = is_within || (step.replica == 1 && step.start < second.transfer_start &&
                              second.transfer_start < step.start + step.duration);
  }
  EXPECT_TRUE(is_within);
}

TEST(LiveDisaggregated, AFailureEndsItAndKeepsWhatWasDone) {
  Pair pair(1, 2);
  pair.fails_after = 3;
  const LiveDisaggregatedResult result = pair.run(some_requests(3, 6));
  EXPECT_FALSE(result.live.is_complete);
  EXPECT_THROW(std::rethrow_exception(result.live.error), std::runtime_error);
  Pair broken;
  broken.mover.num_moves_before_failure = 2;
  const LiveDisaggregatedResult moved = broken.run(some_requests(3, 6));
  EXPECT_FALSE(moved.live.is_complete);
  EXPECT_THROW(std::rethrow_exception(moved.live.error), std::runtime_error);
}

TEST(LiveDisaggregated, ItStopsWhenAsked) {
  Pair pair;
  int num_asked = 0;
  const LiveDisaggregatedResult result =
      pair.run(some_requests(3, 2), [&] { return ++num_asked > 2; });
  EXPECT_FALSE(result.live.is_complete);
  EXPECT_FALSE(result.live.error);
  EXPECT_LT(result.live.service.requests.size(), 40U);
}

TEST(LiveDisaggregated, WhatCannotBeServedIsRefused) {
  const Workload workload = workload_of({{.prompt_tokens = 12, .output_tokens = 9}});
  Pair cached;
  cached.setup.prefill.engine.enable_prefix_caching = true;
  EXPECT_THROW(cached.run(workload), std::invalid_argument);
  Pair small;
  small.setup.decode.num_kv_blocks = 4;
  EXPECT_THROW(small.run(workload), std::invalid_argument);
  Pair lacking;
  lacking.setup.runners.push_back(nullptr);
  EXPECT_THROW(lacking.run(workload), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
