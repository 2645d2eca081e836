// What backends are told of the sequences in a step: every request's tokens once and in order,
// again after a preemption, and KV blocks given back once.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sim/serve/workload.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeSteps;
using testing::FakeTimes;
using testing::small_service;

// Times without a common divisor: no step ends by chance when a request arrives.
const FakeTimes kTimes{
    .base = Seconds(0.0101), .per_prefill = Seconds(0.00100737), .per_context = Seconds(1.0123e-5)};

Workload bursty_workload(std::uint64_t seed) {
  return open_loop(40, 1.5, 150, {.kind = LengthKind::kUniform, .min = 1, .max = 150},
                   lognormal_of_mean_cv(20, 1, 1, 120), seed);
}

// Of one request.
struct RequestProgress {
  std::int64_t computed = 0;  // tokens in its KV cache
  std::int64_t generated = 0;
  std::int64_t num_releases = 0;
  bool holds_blocks = false;
};

// Follows every request as an executor would and holds each call against the last.
class FollowingSteps : public StepBackend {
 public:
  FollowingSteps(const Workload& workload, const ServiceConfig& config,
                 std::vector<RequestProgress>& progress)
      : workload_(workload), config_(config), progress_(progress), fake_(kTimes) {
    progress_.resize(workload.requests.size());
  }

  [[nodiscard]] bool wants_sequences() const override { return true; }

  void begin(Seconds now, std::span<const StepSequence> prefill,
             std::span<const StepSequence> decodes) override {
    EXPECT_GE(now, end_) << "steps overlap";
    begin_ = now;
    prefill_.assign(prefill.begin(), prefill.end());
    decodes_.assign(decodes.begin(), decodes.end());
    std::set<std::int64_t> seen;
    for (const StepSequence& chunk : prefill) {
      EXPECT_TRUE(seen.insert(chunk.request).second) << "request twice in a step";
      compute(chunk);
    }
    for (const StepSequence& decode : decodes) {
      EXPECT_TRUE(seen.insert(decode.request).second) << "request twice in a step";
      EXPECT_EQ(decode.query, 1);
      EXPECT_GT(progress(decode.request).generated, 0) << "decodes before its first token";
      compute(decode);
    }
    EXPECT_LE(blocks_held(), config_.num_kv_blocks);
  }

  void release(std::int64_t request) override {
    RequestProgress& of = progress(request);
    EXPECT_TRUE(of.holds_blocks) << "request " << request << " has nothing to give back";
    of.holds_blocks = false;
    of.computed = 0;
    ++of.num_releases;
  }

  StepTime run(std::span<const Batch> ranks) override {
    expect_announced(ranks);
    const StepTime time = fake_.run(ranks);
    end_ = begin_ + time.duration;
    return time;
  }
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) override {
    expect_announced(ranks);
    EXPECT_EQ(max_steps, 1);
    const FastForward time = fake_.fast_forward(ranks, max_steps);
    end_ = begin_ + time.first;
    return time;
  }

 private:
  RequestProgress& progress(std::int64_t request) {
    return progress_[static_cast<std::size_t>(request)];
  }

  void compute(const StepSequence& sequence) {
    RequestProgress& of = progress(sequence.request);
    EXPECT_EQ(sequence.context, of.computed) << "request " << sequence.request;
    EXPECT_GE(sequence.query, 1);
    of.computed += sequence.query;
    of.holds_blocks = true;
    const Request& request = workload_.requests[static_cast<std::size_t>(sequence.request)];
    const std::int64_t length = request.prompt_tokens + of.generated;
    EXPECT_LE(of.computed, length) << "a token that is not there yet";
    EXPECT_EQ(sequence.produces_token, of.computed == length);
    if (sequence.produces_token) ++of.generated;
  }
  [[nodiscard]] std::int64_t blocks_held() const {
    std::int64_t blocks = 0;
    for (const RequestProgress& of : progress_) {
      blocks += (of.computed + config_.engine.block_size - 1) / config_.engine.block_size;
    }
    return blocks;
  }
  void expect_announced(std::span<const Batch> ranks) const {
    std::vector<Batch> announced(ranks.size());
    for (const StepSequence& chunk : prefill_) {
      announced[static_cast<std::size_t>(chunk.rank)].prefill.push_back(
          {chunk.query, chunk.context, chunk.produces_token});
    }
    for (const StepSequence& decode : decodes_) {
      Batch& batch = announced[static_cast<std::size_t>(decode.rank)];
      ++batch.num_decodes;
      batch.decode_context += decode.context + 1;
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], announced[i]) << i;
  }

  const Workload& workload_;
  const ServiceConfig& config_;
  std::vector<RequestProgress>& progress_;
  FakeSteps fake_;
  Seconds begin_;
  Seconds end_;
  std::vector<StepSequence> prefill_;
  std::vector<StepSequence> decodes_;
};

// Serves random requests and checks that each was computed whole; returns the preemptions.
std::int64_t follow(const ServiceConfig& config) {
  std::int64_t num_preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Workload workload = bursty_workload(seed);
    std::vector<RequestProgress> progress;
    const ServiceResult result = serve(workload, config, {}, [&](int) {
      return std::make_unique<FollowingSteps>(workload, config, progress);
    });
    FakeTimes single = kTimes;
    single.fast_forwards = false;
    const ServiceResult silent = testing::serve_fake(workload, config, single);
    for (std::size_t i = 0; i < progress.size(); ++i) {
      const RequestRecord& record = result.requests[i];
      EXPECT_EQ(progress[i].generated, record.output_tokens) << "request " << i;
      EXPECT_FALSE(progress[i].holds_blocks) << "request " << i;
      EXPECT_EQ(progress[i].num_releases, record.num_preemptions + 1) << "request " << i;
      EXPECT_EQ(record.finish, silent.requests[i].finish) << "being told changes the times";
      num_preemptions += record.num_preemptions;
    }
  }
  return num_preemptions;
}

// 70 blocks of 4 tokens hold one longest request and little more; 1000 hold all.
class StepSequences : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(StepSequences, EveryTokenIsComputedOnceAndAgainAfterAPreemption) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = GetParam();
  EXPECT_EQ(follow(config) > 0, GetParam() < 1000);
}

TEST_P(StepSequences, AlsoUnderEveryPolicyAndAdmission) {
  for (const SchedulerPolicy policy : {SchedulerPolicy::kMixed, SchedulerPolicy::kPrefillFirst}) {
    for (const KvAdmission admission :
         {KvAdmission::kPrompt, KvAdmission::kFullLength, KvAdmission::kEstimated}) {
      for (const bool is_async : {false, true}) {
        SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + " admission " +
                     std::to_string(static_cast<int>(admission)) + " async " +
                     std::to_string(is_async));
        ServiceConfig config = small_service();
        config.num_kv_blocks = GetParam();
        config.engine.scheduler_policy = policy;
        config.engine.kv_admission = admission;
        config.engine.new_token_ratio = admission == KvAdmission::kEstimated ? 0.3 : 0;
        config.engine.async_scheduling = is_async;
        follow(config);
      }
    }
  }
}

TEST_P(StepSequences, AlsoWhenARequestIsAdmittedForItsFirstChunk) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = GetParam();
  config.engine.scheduler_reserve_full_isl = false;
  EXPECT_EQ(follow(config) > 0, GetParam() < 1000);
}

INSTANTIATE_TEST_SUITE_P(Blocks, StepSequences, ::testing::Values(70, 90, 1000));

// Counts calls that only backends which ask for sequences get.
class SilentSteps : public FakeSteps {
 public:
  explicit SilentSteps(int& num_calls) : FakeSteps(kTimes), num_calls_(num_calls) {}
  void begin(Seconds /*now*/, std::span<const StepSequence> /*prefill*/,
             std::span<const StepSequence> /*decodes*/) override {
    ++num_calls_;
  }
  void release(std::int64_t /*request*/) override { ++num_calls_; }

 private:
  int& num_calls_;
};

TEST(StepSequencesUnasked, ABackendThatDoesNotAskIsNotTold) {
  int num_calls = 0;
  serve(bursty_workload(1), small_service(), {},
        [&](int) { return std::make_unique<SilentSteps>(num_calls); });
  EXPECT_EQ(num_calls, 0);
}

}  // namespace
}  // namespace orrery
