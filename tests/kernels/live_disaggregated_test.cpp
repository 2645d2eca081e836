// Prefill and decode on threads of their own: tokens are those of requests served alone, whatever
// moves at the same time.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/serve/live.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/replica.h"
#include "sim/serve/service_loop.h"
#include "sim/serve/workload.h"
#include "tests/kernels/fake_runner.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeRunner;
using testing::kVocabulary;
using testing::RepeatedSteps;
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
  Seconds move(const Move& move) override {
    const LiveClock clock;
    if (num_moves_before_failure-- == 0) throw std::runtime_error("link lost");
    FakeRunner& from = *runners_[static_cast<std::size_t>(move.prefill / num_prefill_ranks)];
    FakeRunner& to =
        *runners_[static_cast<std::size_t>(num_prefill_ + move.decode / num_decode_ranks)];
    // What a step has written is there when it has ended.
    while (from.num_ended < move.step && !from.has_failed) std::this_thread::yield();
    num_early += move.step > 0 ? 1 : 0;
    for (std::size_t i = 0; i < move.source.size(); ++i) {
      to.copy_block(from, move.source[i], move.destination[i], move.prefill % num_prefill_ranks,
                    move.decode % num_decode_ranks);
    }
    clock.wait_until(time_);
    num_blocks += static_cast<std::int64_t>(move.source.size());
    return clock.now();
  }

  std::atomic<std::int64_t> num_blocks = 0;
  std::atomic<int> num_moves_before_failure = -1;
  std::atomic<int> num_early = 0;  // that were asked for before their prompts were computed
  int num_prefill_ranks = 1;       // data-parallel ones, of a replica
  int num_decode_ranks = 1;

 private:
  std::vector<std::unique_ptr<FakeRunner>>& runners_;
  int num_prefill_;
  Seconds time_;
};

struct Pair {
  explicit Pair(int num_prefill = 1, int num_decode = 1, Seconds transfer = Seconds(0.0005))
      : mover(runners, num_prefill, transfer) {
    prefill().num_replicas = num_prefill;
    decode().num_replicas = num_decode;
    setup.kv_block = Bytes(100);
    setup.mover = &mover;
  }
  LiveResult run(const Workload& workload, const std::function<bool()>& is_stopped = {}) {
    for (LiveSide* side : {&setup.first, &*setup.decode}) {
      const ServiceConfig& service = side->service;
      side->steps = {.num_kv_blocks = service.num_kv_blocks,
                     .num_dp_ranks = service.num_dp_ranks,
                     .block_size = service.engine.block_size,
                     .vocab_size = kVocabulary,
                     .seed = kPairSeed};
      side->steps.num_kv_blocks = service.num_kv_blocks / service.num_dp_ranks;
      for (int i = 0; i < service.num_replicas; ++i) {
        runners.push_back(std::make_unique<FakeRunner>(
            side->steps.num_kv_blocks, service.engine.block_size, times, service.num_dp_ranks));
        side->runners.push_back(runners.back().get());
      }
    }
    mover.num_prefill_ranks = prefill().num_dp_ranks;
    mover.num_decode_ranks = decode().num_dp_ranks;
    if (fails_after >= 0) {
      (fails_in_prefill ? runners.front() : runners.back())->num_runs_before_failure = fails_after;
    }
    return serve_live(workload, setup, {}, clock, {}, is_stopped);
  }
  ServiceConfig& prefill() { return setup.first.service; }
  ServiceConfig& decode() { return setup.decode->service; }

  RunnerTimes times{.base = Seconds(0.001), .per_token = Seconds(1e-5)};
  std::int64_t fails_after = -1;  // the last decode replica, or
  bool fails_in_prefill = false;  // the first of prefill
  LiveClock clock;
  std::vector<std::unique_ptr<FakeRunner>> runners;
  FakeMover mover;
  LiveSetup setup{.first = {.service = small_service()},
                  .decode = LiveSide{.service = small_service()}};
};

Workload some_requests(std::uint64_t seed, std::int64_t concurrency) {
  Workload workload = open_loop(400, 1, 40, {.kind = LengthKind::kUniform, .min = 1, .max = 90},
                                {.kind = LengthKind::kUniform, .min = 1, .max = 25}, seed);
  workload.closed_loop_concurrency = concurrency;
  return workload;
}

void expect_whole(const Workload& workload, const LiveResult& result) {
  EXPECT_TRUE(result.is_complete);
  EXPECT_FALSE(result.error);
  ASSERT_EQ(result.service.requests.size(), workload.requests.size());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    EXPECT_EQ(result.tokens[i], whole_history(kPairSeed, workload.requests[i])) << "request " << i;
  }
}

TEST(LiveDisaggregated, TokensAreThoseOfRequestsServedAlone) {
  for (const std::int64_t concurrency : {0, 1, 7}) {
    const Workload workload = some_requests(3, concurrency);
    Pair pair;
    const LiveResult result = pair.run(workload);
    expect_whole(workload, result);
    std::int64_t blocks = 0;
    for (const RequestRecord& record : result.service.requests) {
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

// Transfers that end when they did before.
class RepeatedTransfers : public Transfers {
 public:
  explicit RepeatedTransfers(std::span<const RequestRecord> records) : records_(records) {}
  void submit(Seconds /*now*/, std::int64_t idx, int prefill, int decode, Bytes /*bytes*/,
              const Layers& /*layers*/) override {
    const RequestRecord& record = records_[static_cast<std::size_t>(idx)];
    ends_.push_back({.idx = idx,
                     .prefill = prefill,
                     .decode = decode,
                     .start = record.transfer_start,
                     .end = record.transfer_end});
    std::ranges::sort(ends_, {}, &Ended::end);
  }
  [[nodiscard]] std::optional<Seconds> next_event() const override {
    return ends_.empty() ? std::nullopt : std::optional(ends_.front().end);
  }
  void advance(Seconds now, std::vector<Ended>& ended) override {
    for (; !ends_.empty() && ends_.front().end <= now; ends_.erase(ends_.begin())) {
      ended.push_back(ends_.front());
    }
  }

 private:
  std::span<const RequestRecord> records_;
  std::vector<Ended> ends_;
};

// The loop in virtual time, with the same steps and transfers.
std::vector<RequestRecord> repeated(const Workload& workload, const LiveSetup& setup,
                                    const ServiceResult& lived) {
  std::vector<RequestRecord> records = new_records(workload);
  Replicas prefill;
  Replicas decode;
  for (const ReplicaRole role : {ReplicaRole::kPrefill, ReplicaRole::kDecode}) {
    const bool is_prefill = role == ReplicaRole::kPrefill;
    const ServiceConfig& service = is_prefill ? setup.first.service : setup.decode->service;
    for (int i = 0; i < service.num_replicas; ++i) {
      const auto index = static_cast<int>(prefill.size() + decode.size());
      (is_prefill ? prefill : decode)
          .push_back(std::make_unique<Replica>(index, service, 0, workload.requests, records,
                                               std::make_unique<RepeatedSteps>(lived.steps, index),
                                               role));
    }
  }
  RepeatedTransfers transfers(lived.requests);
  const DisaggregatedConfig config{.prefill = setup.first.service,
                                   .decode = setup.decode->service,
                                   .kv_block = setup.kv_block,
                                   .num_moved_layers = setup.moves_layers ? 1 : 0};
  const Progress none;
  ProgressCounter progress(none, std::ssize(records));
  std::vector<std::int64_t> all(records.size());
  std::iota(all.begin(), all.end(), 0);
  ServiceLoop(workload, records, prefill, decode, config, transfers, progress).run(all);
  return records;
}

TEST(LiveDisaggregated, IsWhatTheLoopMakesOfTheSameStepsAndTransfers) {
  for (const std::int64_t concurrency : {0, 7}) {
    for (const RouterKind router : {RouterKind::kRoundRobin, RouterKind::kLeastLoaded}) {
      SCOPED_TRACE(std::to_string(concurrency) + " clients, " + std::string(to_text(router)));
      const Workload workload = some_requests(9, concurrency);
      Pair pair(2, 2);
      for (ServiceConfig* side : {&pair.prefill(), &pair.decode()}) {
        side->router = router;
        side->engine.async_scheduling = concurrency == 0;
      }
      pair.decode().num_kv_blocks = 60;  // of 4 tokens: some wait for blocks
      const LiveResult result = pair.run(workload);
      expect_whole(workload, result);
      const std::vector<RequestRecord> expected = repeated(workload, pair.setup, result.service);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const RequestRecord& a = result.service.requests[i];
        const RequestRecord& b = expected[i];
        EXPECT_EQ(a.replica, b.replica) << "request " << i;
        EXPECT_EQ(a.decode_replica, b.decode_replica) << "request " << i;
        EXPECT_EQ(a.num_preemptions, b.num_preemptions) << "request " << i;
        for (const auto field :
             {&RequestRecord::arrival, &RequestRecord::first_scheduled, &RequestRecord::first_token,
              &RequestRecord::transfer_start, &RequestRecord::transfer_end,
              &RequestRecord::exposed_transfer, &RequestRecord::decode_start,
              &RequestRecord::second_token, &RequestRecord::finish}) {
          EXPECT_NEAR((a.*field).value(), (b.*field).value(), 1e-9) << "request " << i;
        }
      }
    }
  }
}

TEST(LiveDisaggregated, LayersMoveBesideTheStepThatComputesThem) {
  for (const std::int64_t concurrency : {0, 7}) {
    SCOPED_TRACE(std::to_string(concurrency) + " clients");
    const Workload workload = some_requests(9, concurrency);
    Pair pair(2, 2);
    pair.setup.moves_layers = true;
    pair.prefill().engine.async_scheduling = concurrency == 0;
    pair.decode().num_kv_blocks = 60;  // some wait for blocks, and move when they have them
    const LiveResult result = pair.run(workload);
    expect_whole(workload, result);
    EXPECT_GT(pair.mover.num_early, 0);
    for (const RequestRecord& record : result.service.requests) {
      if (record.output_tokens == 1) continue;
      EXPECT_LE(record.first_token, record.transfer_end);
      EXPECT_LE(record.transfer_end, record.decode_start);
      EXPECT_GE(record.exposed_transfer, Seconds(0));
    }
    const std::vector<RequestRecord> expected = repeated(workload, pair.setup, result.service);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const RequestRecord& a = result.service.requests[i];
      const RequestRecord& b = expected[i];
      EXPECT_EQ(a.decode_replica, b.decode_replica) << "request " << i;
      for (const auto field :
           {&RequestRecord::first_token, &RequestRecord::exposed_transfer,
            &RequestRecord::decode_start, &RequestRecord::second_token, &RequestRecord::finish}) {
        EXPECT_NEAR((a.*field).value(), (b.*field).value(), 1e-9) << "request " << i;
      }
    }
  }
}

TEST(LiveDisaggregated, AFailureOfTheStepWhoseLayersMoveEndsIt) {
  Pair pair;
  pair.setup.moves_layers = true;
  pair.fails_after = 3;
  pair.fails_in_prefill = true;
  const LiveResult result = pair.run(some_requests(3, 6));
  EXPECT_FALSE(result.is_complete);
  EXPECT_THROW(std::rethrow_exception(result.error), std::runtime_error);
}

TEST(LiveDisaggregated, DataParallelRanksOfEitherSideHaveTransfersOfTheirOwn) {
  for (const bool moves_layers : {false, true}) {
    const Workload workload = some_requests(5, 9);
    Pair pair;
    pair.setup.moves_layers = moves_layers;
    pair.prefill().num_dp_ranks = 2;
    pair.decode().num_dp_ranks = 3;
    pair.prefill().num_kv_blocks *= 2;
    pair.decode().num_kv_blocks *= 3;
    const LiveResult result = pair.run(workload);
    expect_whole(workload, result);
    std::set<std::pair<int, int>> pairs;
    for (const RequestRecord& record : result.service.requests) {
      if (record.output_tokens > 1) pairs.emplace(record.dp_rank, record.decode_dp_rank);
    }
    EXPECT_GT(pairs.size(), 4U) << "of 6";
  }
}

TEST(LiveDisaggregated, SeveralReplicasOnEitherSideShareTheWork) {
  const Workload workload = some_requests(5, 9);
  for (const RouterKind router : {RouterKind::kRoundRobin, RouterKind::kLeastLoaded}) {
    Pair pair(2, 3);
    pair.prefill().router = router;
    pair.decode().router = router;
    const LiveResult result = pair.run(workload);
    expect_whole(workload, result);
    std::vector<int> served(5, 0);
    for (const RequestRecord& record : result.service.requests) {
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
  pair.prefill().num_kv_blocks = 40;
  pair.decode().num_kv_blocks = 30;
  const LiveResult result = pair.run(workload);
  expect_whole(workload, result);
  EXPECT_GT(result.service.metrics.num_preemptions, 0) << "memory is meant to be tight";
}

TEST(LiveDisaggregated, ATransferRunsBesideTheStepsOfTheDecodeSide) {
  // The first request decodes for 60 steps of 4 ms; the second's transfer of 2 ms starts in one of
  // them, and the request joins at its end or at the next one's.
  Pair pair(1, 1, Seconds(0.002));
  pair.times = {.base = Seconds(0.004), .per_token = Seconds(0)};
  const Workload workload =
      workload_of({{.prompt_tokens = 4, .output_tokens = 60},
                   {.arrival = Seconds(0.05), .prompt_tokens = 40, .output_tokens = 5}});
  const LiveResult result = pair.run(workload);
  expect_whole(workload, result);
  const RequestRecord& second = result.service.requests[1];
  bool is_within = false;
  for (const StepRecord& step : result.service.steps) {
    is_within = is_within || (step.replica == 1 && step.start < second.transfer_start &&
                              second.transfer_start < step.start + step.duration);
  }
  EXPECT_TRUE(is_within);
}

TEST(LiveDisaggregated, AFailureEndsItAndKeepsWhatWasDone) {
  Pair pair(1, 2);
  pair.fails_after = 3;
  const LiveResult result = pair.run(some_requests(3, 6));
  EXPECT_FALSE(result.is_complete);
  EXPECT_THROW(std::rethrow_exception(result.error), std::runtime_error);
  Pair broken;
  broken.mover.num_moves_before_failure = 2;
  const LiveResult moved = broken.run(some_requests(3, 6));
  EXPECT_FALSE(moved.is_complete);
  EXPECT_THROW(std::rethrow_exception(moved.error), std::runtime_error);
}

TEST(LiveDisaggregated, ItStopsWhenAsked) {
  Pair pair;
  int num_asked = 0;
  const LiveResult result = pair.run(some_requests(3, 2), [&] { return ++num_asked > 2; });
  EXPECT_FALSE(result.is_complete);
  EXPECT_FALSE(result.error);
  EXPECT_LT(result.service.requests.size(), 40U);
}

TEST(LiveDisaggregated, WhatCannotBeServedIsRefused) {
  const Workload workload = workload_of({{.prompt_tokens = 12, .output_tokens = 9}});
  Pair cached;
  cached.prefill().engine.enable_prefix_caching = true;
  Workload shared = workload;
  shared.hash_block_tokens = 4;
  EXPECT_THROW(cached.run(shared), std::invalid_argument);
  Pair small;
  small.decode().num_kv_blocks = 4;
  EXPECT_THROW(small.run(workload), std::invalid_argument);
  Pair lacking;
  lacking.setup.decode->runners.push_back(nullptr);
  EXPECT_THROW(lacking.run(workload), std::invalid_argument);
  Pair immobile;
  immobile.setup.mover = nullptr;
  EXPECT_THROW(immobile.run(workload), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
