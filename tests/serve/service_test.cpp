// The scheduler against closed forms: a step takes 10 ms + 1 ms for each prompt token unless
// stated.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "sim/serve/records_csv.h"
#include "sim/serve/step_store.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::kTolerance;
using testing::serve_fake;
using testing::small_service;
using testing::workload_of;

TEST(Service, ALoneRequestTakesItsPrefillAndItsDecodeSteps) {
  const auto result =
      serve_fake(workload_of({{.arrival = Seconds(1), .prompt_tokens = 20, .output_tokens = 5}}),
                 small_service());
  const RequestRecord& record = result.requests[0];
  EXPECT_NEAR(record.first_token.value(), 1 + 0.010 + 0.020, kTolerance);
  EXPECT_NEAR(record.finish.value(), 1.030 + 4 * 0.010, kTolerance);
  EXPECT_EQ(result.metrics.num_steps, 5);  // the first token comes from the prefill
  EXPECT_NEAR(result.metrics.tpot_s.mean, 0.010, kTolerance);
}

TEST(Service, AFastForwardOfGrowingStepsIsAnArithmeticSeries) {
  // Contexts of the decode steps: 20 + 1, 20 + 2, ..., 20 + 4 = 90 tokens at 1 ms each.
  const auto result = serve_fake(workload_of({{.prompt_tokens = 20, .output_tokens = 5}}),
                                 small_service(), {.per_context = Seconds(0.001)});
  EXPECT_NEAR(result.requests[0].finish.value(), 0.030 + 4 * 0.010 + 0.090, kTolerance);
}

TEST(Service, OneOutputTokenEndsWithThePrefill) {
  const auto result =
      serve_fake(workload_of({{.prompt_tokens = 7, .output_tokens = 1}}), small_service());
  EXPECT_EQ(result.requests[0].first_token, result.requests[0].finish);
  EXPECT_EQ(result.metrics.num_steps, 1);
}

TEST(Service, ALongPromptIsCutIntoChunksOfTheBudget) {
  std::vector<Batch> batches;
  serve_fake(workload_of({{.prompt_tokens = 150, .output_tokens = 1}}), small_service(), {},
             &batches);
  ASSERT_EQ(batches.size(), 3U);  // 64 + 64 + 22
  EXPECT_EQ(batches[0].prefill[0], (PrefillChunk{64, 0, false}));
  EXPECT_EQ(batches[1].prefill[0], (PrefillChunk{64, 64, false}));
  EXPECT_EQ(batches[2].prefill[0], (PrefillChunk{22, 128, true}));
}

// Prompts of the steps of three prompts of 20 tokens that come at once, beside a budget of 64.
std::vector<std::size_t> prompts_of_steps(std::int64_t max_prefill_tokens) {
  ServiceConfig config = small_service();
  config.engine.max_prefill_tokens = max_prefill_tokens;
  std::vector<Batch> batches;
  serve_fake(workload_of(std::vector<Request>(3, {.prompt_tokens = 20, .output_tokens = 1})),
             config, {}, &batches);
  std::vector<std::size_t> counts;
  for (const Batch& batch : batches) {
    for (const PrefillChunk& chunk : batch.prefill) EXPECT_EQ(chunk.query, 20);  // none is cut
    counts.push_back(batch.prefill.size());
  }
  return counts;
}

TEST(Service, APrefillLimitKeepsFurtherPromptsOutOfAStepAndCutsNone) {
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(prompts_of_steps(0), (Counts{3}));
  EXPECT_EQ(prompts_of_steps(61), (Counts{3}));
  EXPECT_EQ(prompts_of_steps(60), (Counts{2, 1}));  // 20 are not fewer than the 20 left
  EXPECT_EQ(prompts_of_steps(40), (Counts{1, 1, 1}));
  EXPECT_EQ(prompts_of_steps(5), (Counts{1, 1, 1}));  // the first is taken, however long
}

TEST(Service, DecodesTakeFromAPrefillLimit) {
  // The first decodes when two of 10 tokens come: one decode and 10 tokens leave 11 or 10.
  const auto steps_with_both = [](std::int64_t limit) {
    ServiceConfig config = small_service();
    config.engine.max_prefill_tokens = limit;
    std::vector<Batch> batches;
    serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 50},
                            {.arrival = Seconds(0.02), .prompt_tokens = 10, .output_tokens = 1},
                            {.arrival = Seconds(0.02), .prompt_tokens = 10, .output_tokens = 1}}),
               config, {}, &batches);
    return std::ranges::count_if(batches,
                                 [](const Batch& batch) { return batch.prefill.size() == 2; });
  };
  EXPECT_EQ(steps_with_both(22), 1);
  EXPECT_EQ(steps_with_both(21), 0);
}

TEST(Service, WithoutChunkingAPromptWaitsForAWholeBudget) {
  ServiceConfig config = small_service();
  config.engine.enable_chunked_prefill = false;
  std::vector<Batch> batches;
  serve_fake(workload_of({{.prompt_tokens = 40, .output_tokens = 1},
                          {.prompt_tokens = 30, .output_tokens = 1}}),
             config, {}, &batches);
  ASSERT_EQ(batches.size(), 2U);  // 40 + 30 > 64
  EXPECT_EQ(batches[0].prefill.size(), 1U);
  EXPECT_EQ(batches[1].prefill[0].query, 30);
}

TEST(Service, DecodesComeBeforePromptsInTheBudget) {
  std::vector<Batch> batches;
  serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 50},
                          {.arrival = Seconds(0.02), .prompt_tokens = 100, .output_tokens = 1}}),
             small_service(), {}, &batches);
  // Some step decodes the first and spends the other 63 tokens on the second's prompt.
  const auto mixed = std::ranges::find_if(
      batches, [](const Batch& batch) { return batch.num_decodes > 0 && !batch.prefill.empty(); });
  ASSERT_NE(mixed, batches.end());
  EXPECT_EQ(mixed->prefill[0].query, 63);
  EXPECT_EQ(num_tokens(*mixed), 64);
}

TEST(Service, AnArrivalEndsAFastForwardAtTheNextStep) {
  // First: prefill ends at 14 ms, then steps end at 24, 34, 44 ms, ... The second arrives at 31 ms
  // and is first scheduled at 34 ms.
  const auto result =
      serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 100},
                              {.arrival = Seconds(0.031), .prompt_tokens = 4, .output_tokens = 1}}),
                 small_service());
  EXPECT_NEAR(result.requests[1].first_scheduled.value(), 0.034, kTolerance);
  EXPECT_NEAR(result.requests[1].finish.value(), 0.034 + 0.014, kTolerance);
}

TEST(Service, AsynchronouslyAnArrivalRunsInTheStepAfterTheNext) {
  // As above, but when the second arrives at 31 ms the step of 34 ms is fixed already.
  ServiceConfig config = small_service();
  config.engine.async_scheduling = true;
  const auto result =
      serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 100},
                              {.arrival = Seconds(0.031), .prompt_tokens = 4, .output_tokens = 1}}),
                 config);
  EXPECT_EQ(result.requests[0].first_scheduled, Seconds(0));  // an idle engine starts at once
  EXPECT_NEAR(result.requests[1].first_scheduled.value(), 0.044, kTolerance);
}

TEST(Service, AsynchronouslyAPlaceIsRefilledOneStepLater) {
  // Two seats. Both prefill until 18 ms; the first ends at 28 ms. The third takes its seat in the
  // step of 38 ms, or of 28 ms without asynchronous scheduling.
  for (const bool is_async : {false, true}) {
    ServiceConfig config = small_service();
    config.engine.max_num_seqs = 2;
    config.engine.async_scheduling = is_async;
    const auto result = serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 2},
                                                {.prompt_tokens = 4, .output_tokens = 50},
                                                {.prompt_tokens = 4, .output_tokens = 1}}),
                                   config);
    EXPECT_NEAR(result.requests[2].first_scheduled.value(), is_async ? 0.038 : 0.028, kTolerance);
  }
}

TEST(Service, AClosedLoopOfOneIsNotDelayedByAsynchronousScheduling) {
  // Nothing runs when the next request comes, so no batch is fixed.
  Workload workload =
      workload_of(std::vector<Request>(5, {.prompt_tokens = 4, .output_tokens = 4}));
  workload.closed_loop_concurrency = 1;
  ServiceConfig config = small_service();
  config.engine.async_scheduling = true;
  EXPECT_NEAR(serve_fake(workload, config).metrics.duration.value(), 5 * 0.044, kTolerance);
}

TEST(Service, TheFrontEndServesOneRequestAtATime) {
  // 3 ms + 10 * 0.2 ms = 5 ms each, so the third is seen at 15 ms. The first runs from 5 to 25 ms,
  // the others together from 25 to 55 ms; clients have each token 4 ms later.
  ServiceConfig config = small_service();
  config.front_end = {.per_request = Seconds(0.003),
                      .per_prompt_token = Seconds(0.0002),
                      .stream_latency = Seconds(0.004)};
  const auto result = serve_fake(
      workload_of(std::vector<Request>(3, {.prompt_tokens = 10, .output_tokens = 1})), config);
  EXPECT_NEAR(result.requests[0].first_scheduled.value(), 0.005, kTolerance);
  EXPECT_NEAR(result.requests[0].first_token.value(), 0.029, kTolerance);
  EXPECT_NEAR(result.requests[2].first_scheduled.value(), 0.025, kTolerance);
  EXPECT_NEAR(result.requests[2].first_token.value(), 0.059, kTolerance);
}

TEST(Service, TheNextRequestOfAClosedLoopIsSentWhenTheClientHasTheLastToken) {
  // Each takes 2 ms in the front end, 14 + 3 * 10 ms in the engine and 1 ms back.
  Workload workload =
      workload_of(std::vector<Request>(5, {.prompt_tokens = 4, .output_tokens = 4}));
  workload.closed_loop_concurrency = 1;
  ServiceConfig config = small_service();
  config.front_end = {.per_request = Seconds(0.002), .stream_latency = Seconds(0.001)};
  const auto result = serve_fake(workload, config);
  EXPECT_NEAR(result.metrics.duration.value(), 5 * 0.047, kTolerance);
  EXPECT_NEAR(result.metrics.ttft_s.max, 0.002 + 0.014 + 0.001, kTolerance);
  EXPECT_NEAR(result.metrics.tpot_s.mean, 0.010, kTolerance);
}

// Request 0 (4 tokens of prompt) begins at once: 14 ms. Requests 1 and 2 come at 15 ms, while its
// second token is made (14 to 24 ms), and together have 8 tokens of prompt.
Workload one_then_two() {
  return workload_of({{.prompt_tokens = 4, .output_tokens = 20},
                      {.arrival = Seconds(0.015), .prompt_tokens = 4, .output_tokens = 2},
                      {.arrival = Seconds(0.015), .prompt_tokens = 4, .output_tokens = 2}});
}

TEST(Service, PromptsBesideDecodesWaitForSoManySteps) {
  ServiceConfig config = small_service();
  config.engine.batch_wait_timeout_iters = 3;
  config.engine.batch_wait_max_tokens_ratio = 0.9;
  const auto result = serve_fake(one_then_two(), config);
  // Nothing decodes when the first comes. The steps from 24, 34 and 44 ms go without the others.
  EXPECT_NEAR(result.requests[0].first_token.value(), 0.014, kTolerance);
  EXPECT_NEAR(result.requests[1].first_scheduled.value(), 0.054, kTolerance);
  EXPECT_NEAR(result.requests[2].first_token.value(), 0.054 + 0.018, kTolerance);
}

TEST(Service, PromptsThatFillTheirShareOfTheBudgetWaitForNothing) {
  ServiceConfig config = small_service();
  config.engine.batch_wait_timeout_iters = 3;
  // 8 tokens of prompts and one decode are 9 of 64.
  config.engine.batch_wait_max_tokens_ratio = 9.0 / 64;
  EXPECT_NEAR(serve_fake(one_then_two(), config).requests[1].first_scheduled.value(), 0.024,
              kTolerance);
  config.engine.batch_wait_max_tokens_ratio = 9.5 / 64;
  EXPECT_NEAR(serve_fake(one_then_two(), config).requests[1].first_scheduled.value(), 0.054,
              kTolerance);
}

TEST(Service, AStreamIntervalHoldsNoFirstTokenBack) {
  const Workload workload = workload_of({{.prompt_tokens = 4, .output_tokens = 20}});
  ServiceConfig config = small_service();
  config.engine.stream_interval = 10;
  EXPECT_NEAR(serve_fake(workload, config).requests[0].first_token.value(), 0.014, kTolerance);
}

TEST(Service, OnlyAColdServerStartsCold) {
  Workload workload =
      workload_of(std::vector<Request>(2, {.prompt_tokens = 4, .output_tokens = 2}));
  ServiceConfig config = small_service();
  config.front_end.cold_start = Seconds(0.5);
  EXPECT_NEAR(serve_fake(workload, config).requests[1].first_token.value(), 0.018, kTolerance);
  workload.is_cold = true;
  EXPECT_NEAR(serve_fake(workload, config).requests[1].first_token.value(), 0.518, kTolerance);
}

TEST(Service, PrefillFirstNeverMixes) {
  // The first decodes from 14 ms; the second arrives at 20 ms, so its 100 tokens run alone in
  // chunks of 64 and 36 from 24 ms to 98 ms and to 144 ms; then both decode.
  ServiceConfig config = small_service();
  config.engine.scheduler_policy = SchedulerPolicy::kPrefillFirst;
  std::vector<Batch> batches;
  const auto result = serve_fake(
      workload_of({{.prompt_tokens = 4, .output_tokens = 5},
                   {.arrival = Seconds(0.02), .prompt_tokens = 100, .output_tokens = 2}}),
      config, {}, &batches);
  for (const Batch& batch : batches) EXPECT_TRUE(batch.prefill.empty() || batch.num_decodes == 0);
  EXPECT_NEAR(result.requests[1].first_token.value(), 0.144, kTolerance);
  EXPECT_NEAR(result.requests[1].finish.value(), 0.154, kTolerance);
  EXPECT_NEAR(result.requests[0].finish.value(), 0.174, kTolerance);
  // Tokens of the first: 24, 154, 164, 174 ms after 14; of the second: 154 after 144.
  EXPECT_NEAR(result.metrics.itl_s.mean, (0.174 - 0.014 + 0.010) / 5, kTolerance);
  EXPECT_NEAR(result.metrics.itl_s.max, 0.130, kTolerance);
}

TEST(Service, AdmissionByFullLengthWaitsInsteadOfPreempting) {
  // 4 + 9 - 1 = 12 tokens take 3 of the 5 blocks, so one runs after the other: 14 + 8 * 10 ms each.
  ServiceConfig config = small_service();
  config.num_kv_blocks = 5;
  config.engine.kv_admission = KvAdmission::kFullLength;
  const Workload workload = workload_of(
      {{.prompt_tokens = 4, .output_tokens = 9}, {.prompt_tokens = 4, .output_tokens = 9}});
  const auto result = serve_fake(workload, config);
  EXPECT_EQ(result.metrics.num_preemptions, 0);
  EXPECT_NEAR(result.requests[1].first_scheduled.value(), 0.094, kTolerance);
  config.num_kv_blocks = 6;
  EXPECT_EQ(serve_fake(workload, config).requests[1].first_scheduled, Seconds(0));
}

TEST(Service, EstimatedAdmissionKeepsAShareOfTheOutputFree) {
  // 10 blocks of 4. At 14 ms the first takes its second block and may make 35 more tokens; the
  // second needs 2 blocks at full length (5 tokens). At ratio r the first keeps r * 35 tokens free:
  // the 6 blocks left are enough for 24 tokens, r = 0.68, and not for 24.5, r = 0.7.
  ServiceConfig config = small_service();
  config.num_kv_blocks = 10;
  config.engine.kv_admission = KvAdmission::kEstimated;
  const Workload workload =
      workload_of({{.prompt_tokens = 4, .output_tokens = 36},
                   {.arrival = Seconds(0.001), .prompt_tokens = 4, .output_tokens = 2}});
  config.engine.new_token_ratio = 0.68;
  EXPECT_NEAR(serve_fake(workload, config).requests[1].first_scheduled.value(), 0.014, kTolerance);
  config.engine.new_token_ratio = 0.7;
  EXPECT_GT(serve_fake(workload, config).requests[1].first_scheduled, Seconds(0.014));
}

TEST(Service, OfflineRequestsPassNoFrontEnd) {
  ServiceConfig config = small_service();
  config.front_end = {.per_request = Seconds(0.002), .stream_latency = Seconds(0.001)};
  Workload workload =
      workload_of(std::vector<Request>(3, {.prompt_tokens = 4, .output_tokens = 1}));
  workload.is_offline = true;
  // 12 prompt tokens in one step.
  EXPECT_NEAR(serve_fake(workload, config).metrics.ttft_s.max, 0.022, kTolerance);
}

TEST(Service, AStaticBatchPrefillsInOneStepWhateverTheBudget) {
  // 10 prompts of 20 tokens against a budget of 64 and 8 seats: 10 + 200 ms, then 4 steps of 10 ms.
  Workload workload =
      workload_of(std::vector<Request>(10, {.prompt_tokens = 20, .output_tokens = 5}));
  workload.is_static_batch = true;
  ServiceConfig config = small_service();
  config.engine.enable_chunked_prefill = false;
  std::vector<Batch> batches;
  const auto result = serve_fake(workload, config, {}, &batches);
  EXPECT_EQ(batches.front().prefill.size(), 10U);
  EXPECT_NEAR(result.metrics.ttft_s.max, 0.210, kTolerance);
  EXPECT_NEAR(result.metrics.duration.value(), 0.250, kTolerance);
}

TEST(Service, EachDataParallelRankHasItsOwnBudget) {
  ServiceConfig config = small_service();
  config.num_dp_ranks = 2;
  std::vector<Batch> batches;
  serve_fake(workload_of(std::vector<Request>(2, {.prompt_tokens = 100, .output_tokens = 1})),
             config, {}, &batches);
  ASSERT_EQ(batches.size(), 4U);  // two steps of two ranks: both prompts are cut, each on its rank
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(batches[rank].prefill, (std::vector<PrefillChunk>{{64, 0, false}}));
    EXPECT_EQ(batches[2 + rank].prefill, (std::vector<PrefillChunk>{{36, 64, true}}));
  }
  batches.clear();
  serve_fake(workload_of(std::vector<Request>(20, {.prompt_tokens = 4, .output_tokens = 5})),
             config, {}, &batches);
  EXPECT_EQ(batches[0].prefill.size(), 8U);  // 8 seats on each
  EXPECT_EQ(batches[1].prefill.size(), 8U);
}

TEST(Service, StepsOutsideOfMemoryHaveTheWaitsOfTheirRanks) {
  ServiceConfig config = small_service();
  config.num_dp_ranks = 3;
  const Workload workload = testing::random_workload(5, 40);
  const std::string inside = steps_csv(serve_fake(workload, config));
  EXPECT_NE(inside.find(",time_balance,rank_0_wait_s,rank_1_wait_s,rank_2_wait_s\n"),
            std::string::npos);
  config.step_store = std::make_shared<StepStore>(std::filesystem::temp_directory_path(), 1);
  EXPECT_EQ(steps_csv(serve_fake(workload, config)), inside);
}

TEST(Service, RanksWaitForTheSlowest) {
  // 60 tokens beside 4: 10 + 60 ms, of which the second rank waits 56; then 10 ms each.
  ServiceConfig config = small_service();
  config.num_dp_ranks = 2;
  const auto result = serve_fake(workload_of({{.prompt_tokens = 60, .output_tokens = 3},
                                              {.prompt_tokens = 4, .output_tokens = 3}}),
                                 config);
  EXPECT_EQ(result.requests[0].dp_rank, 0);
  EXPECT_EQ(result.requests[1].dp_rank, 1);
  EXPECT_NEAR(result.metrics.ttft_s.mean, 0.070, kTolerance);
  EXPECT_NEAR(result.metrics.tpot_s.mean, 0.010, kTolerance);
  ASSERT_EQ(result.steps.size(), 2U);
  EXPECT_NEAR(result.steps[0].mean_wait.value(), 0.028, kTolerance);
  EXPECT_NEAR(result.steps[0].longest_wait.value(), 0.056, kTolerance);
  EXPECT_NEAR(result.steps[1].longest_wait.value(), 0, kTolerance);
  EXPECT_NEAR(result.steps[0].token_balance, 64.0 / (2 * 60), kTolerance);
  EXPECT_EQ(result.steps[1].token_balance, 1);
  ASSERT_EQ(result.steps[0].rank_wait.size(), 2U);
  EXPECT_NEAR(result.steps[0].rank_wait[0].value(), 0, kTolerance);
  EXPECT_NEAR(result.steps[0].rank_wait[1].value(), 0.056, kTolerance);
  EXPECT_NEAR(result.steps[0].time_balance, (0.070 + 0.014) / 2 / 0.070, kTolerance);
  EXPECT_NEAR(result.steps[1].time_balance, 1, kTolerance);
  ASSERT_TRUE(result.metrics.ranks.has_value());
  EXPECT_NEAR(result.metrics.ranks->balance, (0.070 + 0.014 + 2 * 0.020) / 2 / 0.090, kTolerance);
  EXPECT_NEAR(result.metrics.ranks->wait[0].value(), 0, kTolerance);
  EXPECT_NEAR(result.metrics.ranks->wait[1].value(), 0.056 / 3, kTolerance);
}

TEST(Service, RanksAreChosenInTurnByTokensOrByRequests) {
  // The second rank gets a short prompt, so the third request joins it unless ranks take turns.
  const std::vector<Request> requests{{.prompt_tokens = 60, .output_tokens = 9},
                                      {.prompt_tokens = 4, .output_tokens = 2},
                                      {.prompt_tokens = 4, .output_tokens = 2},
                                      {.prompt_tokens = 4, .output_tokens = 2}};
  const auto ranks = [&](DpRouter router) {
    ServiceConfig config = small_service();
    config.num_dp_ranks = 2;
    config.engine.dp_router = router;
    std::vector<int> chosen;
    for (const RequestRecord& record : serve_fake(workload_of(requests), config).requests) {
      chosen.push_back(record.dp_rank);
    }
    return chosen;
  };
  EXPECT_EQ(ranks(DpRouter::kRoundRobin), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(ranks(DpRouter::kLeastTokens), (std::vector{0, 1, 1, 1}));
  EXPECT_EQ(ranks(DpRouter::kLeastRequests), (std::vector{0, 1, 0, 1}));
}

TEST(Service, PromptsWaitUntilAllRanksHaveSome) {
  // Both ranks decode when a third prompt comes; it waits for one on the other rank, 3 steps at
  // most.
  ServiceConfig config = small_service();
  config.num_dp_ranks = 2;
  std::vector<Request> requests(2, {.prompt_tokens = 4, .output_tokens = 40});
  requests.push_back({.arrival = Seconds(0.101), .prompt_tokens = 4, .output_tokens = 2});
  const auto scheduled = [&] {
    return serve_fake(workload_of(requests), config).requests.at(2).first_scheduled.value();
  };
  const double at_once = scheduled();
  config.engine.dp_balance_timeout_iters = 4;
  EXPECT_NEAR(scheduled() - at_once, 0.030, kTolerance);
  // A fourth on the other rank ends the wait, but for the steps in which more may come.
  requests.push_back({.arrival = Seconds(0.111), .prompt_tokens = 4, .output_tokens = 2});
  EXPECT_NEAR(scheduled() - at_once, 0.010, kTolerance);
  config.engine.dp_balance_batching_wait_iters = 1;
  EXPECT_NEAR(scheduled() - at_once, 0.020, kTolerance);
  // Where a rank has nothing else to do prompts do not wait, so that no wait is without end.
  requests[1].output_tokens = 1;
  requests.pop_back();
  EXPECT_NEAR(scheduled() - at_once, 0, kTolerance);
}

TEST(Service, NoMoreThanMaxNumSeqsRun) {
  ServiceConfig config = small_service();
  config.engine.max_num_seqs = 2;
  std::vector<Request> requests(5, {.prompt_tokens = 4, .output_tokens = 10});
  std::vector<Batch> batches;
  const auto result = serve_fake(workload_of(requests), config, {}, &batches);
  for (const Batch& batch : batches) {
    EXPECT_LE(batch.num_decodes + static_cast<std::int64_t>(batch.prefill.size()), 2);
  }
  EXPECT_LE(result.requests[1].finish, result.requests[2].first_token);
}

TEST(Service, PreemptionHappensExactlyWhenBlocksRunOut) {
  // Blocks of 4 tokens, 5 blocks. Two prompts of 4 tokens take one block each; both take a second
  // block at position 4 (4 used), and a third at position 8, where only one is left: the later
  // request gives up its 2 blocks. The first then ends with 4 + 9 - 1 = 12 tokens in 3 blocks.
  ServiceConfig config = small_service();
  config.num_kv_blocks = 5;
  const auto result = serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 9},
                                              {.prompt_tokens = 4, .output_tokens = 9}}),
                                 config);
  EXPECT_EQ(result.requests[0].num_preemptions, 0);
  EXPECT_EQ(result.requests[1].num_preemptions, 1);
  EXPECT_EQ(result.metrics.num_preemptions, 1);

  config.num_kv_blocks = 6;
  const auto roomy = serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 9},
                                             {.prompt_tokens = 4, .output_tokens = 9}}),
                                config);
  EXPECT_EQ(roomy.metrics.num_preemptions, 0);
}

TEST(Service, APreemptedRequestComputesItsPromptAndItsTokensAgain) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 5;
  std::vector<Batch> batches;
  serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 9},
                          {.prompt_tokens = 4, .output_tokens = 9}}),
             config, {}, &batches);
  // At position 8 the second had made 1 + 4 tokens: 4 + 5 = 9 tokens to compute again.
  const bool is_recomputed = std::ranges::any_of(batches, [](const Batch& batch) {
    return batch.prefill.size() == 1 && batch.prefill[0] == PrefillChunk{9, 0, true};
  });
  EXPECT_TRUE(is_recomputed);
}

Request with_prefix(double arrival, std::int64_t prompt, std::vector<std::uint64_t> hashes) {
  return {.arrival = Seconds(arrival),
          .prompt_tokens = prompt,
          .output_tokens = 2,
          .block_hashes = std::move(hashes)};
}

TEST(Service, ARepeatedPromptComputesOnlyWhatIsNotCached) {
  ServiceConfig config = small_service();
  config.engine.enable_prefix_caching = true;
  Workload workload =
      workload_of({with_prefix(0, 40, {1, 2, 3, 4, 5}), with_prefix(1, 40, {1, 2, 3, 9, 8}),
                   with_prefix(2, 40, {1, 2, 3, 4, 5})});
  workload.hash_block_tokens = 8;
  const auto result = serve_fake(workload, config);
  EXPECT_EQ(result.requests[0].cached_tokens, 0);
  EXPECT_EQ(result.requests[1].cached_tokens, 24);
  // All 40 tokens are cached, but at least one must be computed: 4 units of 8.
  EXPECT_EQ(result.requests[2].cached_tokens, 32);
  EXPECT_NEAR((result.requests[2].first_token - result.requests[2].arrival).value(), 0.010 + 0.008,
              kTolerance);
}

TEST(Service, WithoutThePrefixCacheHashesChangeNothing) {
  Workload workload =
      workload_of({with_prefix(0, 40, {1, 2, 3, 4, 5}), with_prefix(1, 40, {1, 2, 3, 4, 5})});
  workload.hash_block_tokens = 8;
  EXPECT_EQ(serve_fake(workload, small_service()).requests[1].cached_tokens, 0);
}

TEST(Service, AClosedLoopKeepsItsConcurrency) {
  // One at a time: each takes 10 + 4 ms and 3 decode steps of 10 ms, so n requests take n * 44 ms.
  Workload workload =
      workload_of(std::vector<Request>(5, {.prompt_tokens = 4, .output_tokens = 4}));
  workload.closed_loop_concurrency = 1;
  const auto result = serve_fake(workload, small_service());
  EXPECT_NEAR(result.metrics.duration.value(), 5 * 0.044, kTolerance);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(result.requests[i].arrival, result.requests[i - 1].finish);
  }
}

TEST(Service, RoundRobinTakesReplicasInTurn) {
  ServiceConfig config = small_service();
  config.num_replicas = 3;
  const auto result = serve_fake(
      workload_of(std::vector<Request>(7, {.prompt_tokens = 4, .output_tokens = 2})), config);
  for (std::size_t i = 0; i < 7; ++i)
    EXPECT_EQ(result.requests[i].replica, static_cast<int>(i % 3));
}

TEST(Service, LeastLoadedAvoidsTheBusyReplica) {
  ServiceConfig config = small_service();
  config.num_replicas = 2;
  config.router = RouterKind::kLeastLoaded;
  const auto result =
      serve_fake(workload_of({{.prompt_tokens = 60, .output_tokens = 200},
                              {.arrival = Seconds(0.001), .prompt_tokens = 4, .output_tokens = 4},
                              {.arrival = Seconds(0.5), .prompt_tokens = 4, .output_tokens = 4}}),
                 config);
  EXPECT_EQ(result.requests[0].replica, 0);
  EXPECT_EQ(result.requests[1].replica, 1);
  EXPECT_EQ(result.requests[2].replica, 1);  // the first still has tokens to make
}

TEST(Service, PrefixAwareFollowsTheCache) {
  ServiceConfig config = small_service();
  config.num_replicas = 3;
  config.router = RouterKind::kPrefixAware;
  config.engine.enable_prefix_caching = true;
  Workload workload =
      workload_of({with_prefix(0, 40, {1, 2, 3, 4, 5}), with_prefix(0.001, 40, {7, 8, 9, 10, 11}),
                   with_prefix(5, 40, {7, 8, 9, 10, 11})});
  workload.hash_block_tokens = 8;
  const auto result = serve_fake(workload, config);
  EXPECT_EQ(result.requests[2].replica, result.requests[1].replica);
  EXPECT_NE(result.requests[1].replica, result.requests[0].replica);
}

TEST(Service, StepRecordsAddUpToTheBusyTime) {
  const auto result =
      serve_fake(workload_of(std::vector<Request>(9, {.prompt_tokens = 10, .output_tokens = 20})),
                 small_service());
  Seconds end;
  std::int64_t steps = 0;
  for (const StepRecord& step : result.steps) {
    EXPECT_NEAR(step.start.value(), end.value(), kTolerance);  // no gap: there is always work
    end = step.start + step.duration;
    steps += step.num_steps;
  }
  EXPECT_EQ(steps, result.metrics.num_steps);
  // The ninth request ends alone: 10 + 20 - 1 tokens in blocks of 4.
  EXPECT_EQ(result.steps.back().kv_blocks_used, 8);
}

}  // namespace
}  // namespace orrery
