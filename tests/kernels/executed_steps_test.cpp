// The scheduler before a step runner: tokens, blocks and graphs of every step.

#include "kernels/serve/executed_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/serve/workload.h"
#include "tests/kernels/fake_runner.h"

namespace orrery {
namespace {

using testing::FakeRunner;
using testing::KeptSteps;
using testing::kVocabulary;
using testing::whole_history;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kBlockSize = 4;

ServiceConfig service(std::int64_t num_kv_blocks) {
  ServiceConfig config;
  config.engine.max_num_seqs = 8;
  config.engine.max_num_batched_tokens = 64;
  config.engine.block_size = kBlockSize;
  config.num_kv_blocks = num_kv_blocks;
  return config;
}

ExecutedStepsConfig steps_config(const ServiceConfig& config,
                                 std::vector<std::int64_t> graphs = {}) {
  return {.num_kv_blocks = config.num_kv_blocks,
          .block_size = kBlockSize,
          .graph_batch_sizes = std::move(graphs),
          .vocab_size = kVocabulary,
          .seed = kSeed};
}

Workload random_workload(std::uint64_t seed) {
  return closed_loop(12, 60, {.kind = LengthKind::kUniform, .min = 1, .max = 150},
                     {.kind = LengthKind::kUniform, .min = 1, .max = 60}, seed);
}

// All requests get the tokens that each would get alone; returns the preemptions.
std::int64_t expect_own_tokens(const ServiceConfig& config) {
  const LiveClock clock;
  std::int64_t num_preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Workload workload = random_workload(seed);
    FakeRunner runner(config.num_kv_blocks, kBlockSize);
    testing::Kept kept;
    const ServiceResult result = serve(workload, config, {}, [&](int) {
      return std::make_unique<KeptSteps>(steps_config(config), workload.requests, runner, clock,
                                         kept);
    });
    for (const Request& request : workload.requests) {
      EXPECT_EQ(kept.tokens[static_cast<std::size_t>(request.id)], whole_history(kSeed, request))
          << "seed " << seed << " request " << request.id;
    }
    EXPECT_EQ(kept.num_blocks, 0U);
    num_preemptions += result.metrics.num_preemptions;
  }
  return num_preemptions;
}

TEST(ExecutedSteps, EveryRequestGetsItsOwnTokens) {
  EXPECT_EQ(expect_own_tokens(service(1000)), 0);
}

TEST(ExecutedSteps, PreemptedRequestsGetTheSameTokens) {
  EXPECT_GT(expect_own_tokens(service(70)), 0);
}

TEST(ExecutedSteps, TokensDoNotDependOnThePolicy) {
  for (const SchedulerPolicy policy : {SchedulerPolicy::kMixed, SchedulerPolicy::kPrefillFirst}) {
    for (const bool is_async : {false, true}) {
      ServiceConfig config = service(70);
      config.engine.scheduler_policy = policy;
      config.engine.async_scheduling = is_async;
      EXPECT_GT(expect_own_tokens(config), 0);
    }
  }
}

TEST(ExecutedSteps, AMixedUpBlockIsNoticed) {
  // Of two sequences that decode from one block the second has the first one's token.
  FakeRunner runner(4, kBlockSize);
  const std::vector<std::int32_t> next = runner.run(
      {.decodes = {{.tokens = {1}, .blocks = {0}}, {.tokens = {2}, .blocks = {0}}}}, 0, {});
  EXPECT_NE(next[0], testing::next_token(std::vector<std::int32_t>{1}));
}

// Two requests that prefill in one step and then decode together.
TEST(ExecutedSteps, DecodesAreReplayedFromTheNextLargerGraph) {
  const ServiceConfig config = service(100);
  Workload workload;
  for (const std::int64_t id : {0, 1, 2}) {
    workload.requests.push_back({.id = id, .prompt_tokens = 5, .output_tokens = 3 + id});
  }
  FakeRunner runner(config.num_kv_blocks, kBlockSize);
  const LiveClock clock;
  serve(workload, config, {}, [&](int) {
    return std::make_unique<ExecutedSteps>(steps_config(config, {1, 2}), workload.requests, runner,
                                           clock);
  });
  // Prefill; 3 decodes twice, more than the largest graph; then 2; then 1.
  EXPECT_EQ(runner.runs, (std::vector<std::int64_t>{0, 0, 0, 2, 1}));
}

// Requests 0 and 2 on rank 0, request 1 on rank 1, which ends first.
TEST(ExecutedSteps, AllRanksReplayTheGraphOfTheFullest) {
  ServiceConfig config = service(200);
  config.num_dp_ranks = 2;
  Workload workload;
  for (const std::int64_t id : {0, 1, 2}) {
    workload.requests.push_back({.id = id, .prompt_tokens = 5, .output_tokens = id == 1 ? 2 : 4});
  }
  FakeRunner runner(100, kBlockSize, {}, 2);
  const LiveClock clock;
  serve(workload, config, {}, [&](int) {
    ExecutedStepsConfig steps = steps_config(config, {1, 2});
    steps.num_kv_blocks = 100;
    steps.num_dp_ranks = 2;
    return std::make_unique<ExecutedSteps>(steps, workload.requests, runner, clock);
  });
  // 3 decodes fit the graph of 2 rows; then rank 1 is idle and takes part with padding.
  EXPECT_EQ(runner.runs, (std::vector<std::int64_t>{0, 2, 2, 2}));
  EXPECT_EQ(runner.num_decodes,
            (std::vector<std::vector<std::int64_t>>{{0, 0}, {2, 1}, {2, 0}, {2, 0}}));
}

TEST(ExecutedSteps, AStepTakesWhatPassesSinceItsBegin) {
  const ServiceConfig config = service(100);
  const Workload workload = {.requests = {{.prompt_tokens = 10, .output_tokens = 2}}};
  FakeRunner runner(config.num_kv_blocks, kBlockSize,
                    {.base = Seconds(0.002), .per_token = Seconds(0.0005)});
  const LiveClock clock;
  ExecutedSteps steps(steps_config(config), workload.requests, runner, clock);
  // The scheduler took 3 ms since the step before.
  const Seconds begin = clock.now() - Seconds(0.003);
  const StepSequence chunk{.request = 0, .query = 10};
  steps.begin(begin, {&chunk, 1}, {});
  const StepTime time = steps.run({});
  EXPECT_GE(time.duration, Seconds(0.003 + 0.002 + 0.005));
  EXPECT_LE(time.duration, clock.now() - begin);
  EXPECT_EQ(time.basis.measured, time.duration);
}

TEST(ExecutedSteps, AnAdoptedRequestGoesOnWhereItWas) {
  // Prefilled elsewhere: its prompt and first token come with it, and its cache.
  const ServiceConfig config = service(100);
  const Request request{.prompt_tokens = 9, .output_tokens = 4};
  const std::vector<std::int32_t> whole = whole_history(kSeed, request);
  FakeRunner runner(config.num_kv_blocks, kBlockSize);
  const LiveClock clock;
  ExecutedSteps steps(steps_config(config), {&request, 1}, runner, clock);
  steps.take_over(0, std::span(whole).first(10));
  const auto blocks = steps.adopt(0, 9, 0);
  ASSERT_EQ(blocks.size(), 3U);
  // What a transfer does: the prompt is in the cache.
  runner.run({.prefill = {{.tokens = {whole.begin(), whole.begin() + 9},
                           .blocks = {blocks.begin(), blocks.end()}}}},
             0, {});
  for (std::int64_t step = 0; step < 3; ++step) {
    const StepSequence decode{.request = 0, .query = 1, .context = 9 + step};
    steps.begin(clock.now(), {}, {&decode, 1});
    EXPECT_EQ(steps.fast_forward({}, 1).num_steps, 1);
  }
  EXPECT_EQ(std::vector(steps.tokens(0).begin(), steps.tokens(0).end()), whole);
}

TEST(ExecutedSteps, PromptsAreRandomAndTheSameForASeed) {
  std::set<std::int32_t> tokens;
  for (std::int64_t request = 0; request < 10; ++request) {
    for (std::int64_t position = 0; position < 100; ++position) {
      const std::int32_t token = prompt_token(1, request, position, kVocabulary);
      EXPECT_EQ(token, prompt_token(1, request, position, kVocabulary));
      EXPECT_GE(token, 0);
      EXPECT_LT(token, kVocabulary);
      tokens.insert(token);
    }
  }
  // Of 1000 draws from 50,000 about 1000^2 / (2 * 50,000) = 10 repeat one before.
  EXPECT_GT(tokens.size(), 970U);
}

TEST(ExecutedSteps, MoreTokensThanTheCacheHoldsAreAnError) {
  KvBlocks blocks(2, kBlockSize, 2);
  EXPECT_EQ(blocks.cover(0, 5).size(), 2U);
  EXPECT_THROW(blocks.cover(1, 1), std::runtime_error);
  blocks.release(0);
  EXPECT_EQ(blocks.cover(1, 1).size(), 1U);
}

TEST(ExecutedSteps, SizesThatMakeNoSenseAreRefused) {
  const LiveClock clock;
  FakeRunner runner(1, 1);
  const auto make = [&](ExecutedStepsConfig config) {
    const ExecutedSteps steps(std::move(config), {}, runner, clock);
  };
  EXPECT_NO_THROW(make(steps_config(service(10), {1, 2})));
  EXPECT_THROW(make(steps_config(service(0))), std::invalid_argument);
  EXPECT_THROW(make(steps_config(service(10), {2, 1})), std::invalid_argument);
  EXPECT_THROW(make(steps_config(service(10), {0, 1})), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
