// Decodes that verify drafts: laws of what they make, take and cost.

#include "sim/serve/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sim/model/step_shape.h"
#include "sim/serve/capacity.h"
#include "sim/serve/speculative_steps.h"
#include "tests/serve/fake_steps.h"
#include "tests/serve/simulated_steps_testing.h"

namespace orrery {
namespace {

using testing::FakeTimes;
using testing::kTolerance;
using testing::random_workload;
using testing::serve_fake;
using testing::SimulatedStepsTest;
using testing::small_deepseek;
using testing::small_llama;
using testing::small_service;
using testing::tight_service;
using testing::workload_of;

ServiceConfig drafting_service(ServiceConfig config, std::vector<double> acceptance) {
  config.engine.speculation = {.num_tokens = std::ssize(acceptance),
                               .acceptance = std::move(acceptance)};
  return config;
}

// Steps that decode, each of one request with nothing beside it.
std::int64_t num_decode_steps(const ServiceResult& result) {
  std::int64_t sum = 0;
  for (const StepRecord& step : result.steps) sum += step.num_decodes > 0 ? step.num_steps : 0;
  return sum;
}

Workload one_answer(std::int64_t output) {
  return workload_of({{.prompt_tokens = 10, .output_tokens = output}});
}

TEST(Speculation, DraftsThatAreNeverAcceptedMakeOneTokenAStep) {
  const auto result = serve_fake(one_answer(41), drafting_service(small_service(), {0, 1, 1}));
  EXPECT_EQ(num_decode_steps(result), 40);  // the prompt's step makes the first token
  EXPECT_EQ(result.metrics.speculation->acceptance_length, 1);
}

TEST(Speculation, DraftsThatAreAlwaysAcceptedMakeOneTokenMoreThanThemselves) {
  // 40 tokens after the first, four a step.
  const auto result = serve_fake(one_answer(41), drafting_service(small_service(), {1, 1, 1}));
  EXPECT_EQ(num_decode_steps(result), 10);
  EXPECT_EQ(result.metrics.speculation->acceptance_length, 4);
}

TEST(Speculation, AnAnswerEndsWithItsLastTokenWhateverIsAccepted) {
  // 42 tokens after the first: ten steps of four and one of two.
  const auto result = serve_fake(one_answer(43), drafting_service(small_service(), {1, 1, 1}));
  EXPECT_EQ(num_decode_steps(result), 11);
  EXPECT_DOUBLE_EQ(result.metrics.speculation->acceptance_length, 42.0 / 11);
  EXPECT_EQ(result.metrics.output_tokens, 43);
}

// A step of 10 ms makes four tokens: one gap of 10 ms and three of none.
TEST(Speculation, ClientsSeeTokensInBursts) {
  const auto result = serve_fake(one_answer(41), drafting_service(small_service(), {1, 1, 1}));
  EXPECT_NEAR(result.metrics.itl_s.max, 0.010, kTolerance);
  EXPECT_NEAR(result.metrics.itl_s.p50, 0, 1e-6);  // the smallest bin of the histogram
  EXPECT_NEAR(result.metrics.itl_s.mean, 0.0025, kTolerance);
  EXPECT_NEAR(result.metrics.tpot_s.mean, 0.0025, kTolerance);
}

// Of 200 answers of 2,000 tokens; a verification's tokens have a standard deviation below K.
TEST(Speculation, TokensOfAStepAreTheClosedFormOnAverage) {
  std::vector<Request> requests(200, {.prompt_tokens = 4, .output_tokens = 2000});
  ServiceConfig config = small_service();
  config.num_kv_blocks = 100'000;
  for (const std::vector<double>& acceptance :
       {std::vector{0.6}, {0.85, 0.7, 0.6}, {0.9, 0.5, 0.9, 0.1, 0.8}}) {
    const ServiceConfig drafting = drafting_service(config, acceptance);
    const auto result = serve_fake(workload_of(requests), drafting);
    double expected = 1;
    double all = 1;
    for (const double p : acceptance) expected += all *= p;
    EXPECT_DOUBLE_EQ(expected_tokens(drafting.engine.speculation), expected);
    // 400,000 tokens; the last step of an answer is cut, which is 1 step of hundreds.
    const double error = 5 * static_cast<double>(acceptance.size()) / std::sqrt(400'000 / expected);
    EXPECT_NEAR(result.metrics.speculation->acceptance_length, expected, error + 0.005);
  }
}

// Draws are of the seed, the request and its tokens: as many verifications one by one as in a
// batch.
TEST(Speculation, WhatIsAcceptedDoesNotDependOnWhatRunsBesideIt) {
  const Workload workload = random_workload(3, 40);
  ServiceConfig config = drafting_service(small_service(), {0.8, 0.7, 0.6});
  const auto length = [&] {
    return serve_fake(workload, config).metrics.speculation->acceptance_length;
  };
  const double together = length();
  config.engine.max_num_seqs = 1;
  EXPECT_EQ(length(), together);
  config.engine.speculation.seed = 2;
  EXPECT_NE(length(), together);
}

// With preemptions, synchronous and not: every token is one of a prompt's end or of a verification.
TEST(Speculation, TokensAreConservedUnderPressure) {
  std::int64_t num_preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Workload workload = random_workload(seed, 40);
    ServiceConfig config = drafting_service(tight_service(), {0.9, 0.8, 0.5, 0.5});
    config.engine.async_scheduling = seed % 2 == 0;
    std::vector<Batch> batches;
    const auto result = serve_fake(workload, config, {}, &batches);
    std::int64_t expected = 0;
    for (const Request& request : workload.requests) expected += request.output_tokens;
    std::int64_t of_prompts = 0;
    std::int64_t num_verifications = 0;
    for (const Batch& batch : batches) {
      EXPECT_LE(num_tokens(batch), config.engine.max_num_batched_tokens);
      of_prompts += std::ranges::count(batch.prefill, true, &PrefillChunk::produces_token);
      num_verifications += batch.num_decodes;
    }
    EXPECT_NEAR(
        static_cast<double>(expected - of_prompts),
        result.metrics.speculation->acceptance_length * static_cast<double>(num_verifications),
        1e-6);
    num_preemptions += result.metrics.num_preemptions;
  }
  EXPECT_GT(num_preemptions, 0);
}

TEST(Speculation, WithoutDraftsThereAreNoFiguresOfThem) {
  EXPECT_FALSE(serve_fake(one_answer(41), small_service()).metrics.speculation.has_value());
}

std::string refusal_of(const ServiceConfig& config) {
  try {
    serve_fake(one_answer(8), config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(served)";
}

TEST(Speculation, SettingsThatContradictEachOtherAreRefused) {
  EXPECT_NE(refusal_of(drafting_service(small_service(), {1.5})).find("0 to 1"), std::string::npos);
  ServiceConfig config = drafting_service(small_service(), {0.5, 0.5});
  config.engine.speculation.num_tokens = 3;
  EXPECT_NE(refusal_of(config).find("acceptance has 2 probabilities"), std::string::npos);
  config = drafting_service(small_service(), std::vector<double>(8, 0.5));
  // 8 sequences of 9 tokens are more than 64.
  EXPECT_NE(refusal_of(config).find("verifies in a step: 72"), std::string::npos);
}

using SpeculativeStepsTest = SimulatedStepsTest;

TEST_F(SpeculativeStepsTest, VerifyingNoDraftsIsAPlainDecode) {
  StepTimes times(config(small_llama(), {.tp = 2}));
  const Batch plain{.num_decodes = 12, .decode_context = 12 * 700};
  Batch verifying = plain;
  verifying.decode_query = 1;
  verifying.samples_last = true;
  EXPECT_EQ(times.step(plain).duration, times.step(verifying).duration);
}

// Templates against the plan of the shape itself, of dense and latent attention, with graphs and
// without, beside prompts and alone.
TEST_F(SpeculativeStepsTest, VerificationsTakeAsLongAsTheirPlans) {
  for (const ModelConfig& model : {small_llama(), small_deepseek()}) {
    for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.dp = 2}}) {
      for (const std::int64_t decodes : {4, 20, 100}) {
        for (const bool samples_last : {false, true}) {
          Batch batch{.num_decodes = decodes,
                      .decode_context = decodes * 512,  // a grid point
                      .decode_query = 4,
                      .samples_last = samples_last};
          SimulatedStepsConfig made = config(model, mesh);
          made.scheduler_base = Seconds(0);
          StepTimes times(made);
          EXPECT_NEAR(times.step(batch).duration / times.device_time(batch).duration, 1, 1e-9)
              << model.name << " " << decodes;
          batch.prefill = {{.query = 300, .context = 40}, {.query = 300, .context = 40}};
          EXPECT_NEAR(times.step(batch).duration / times.device_time(batch).duration, 1, 0.02)
              << model.name << " " << decodes << " with prompts";
        }
      }
    }
  }
}

// Keys and values are read once for all tokens of a sequence: far less than as many decodes.
TEST_F(SpeculativeStepsTest, AVerificationIsBetweenOneDecodeAndAsManyAsItHasTokens) {
  SimulatedStepsConfig made = config(small_llama(), {});
  made.scheduler_base = Seconds(0);
  StepTimes times(made);
  const auto time_of = [&](std::int64_t decodes, std::int64_t query) {
    return times
        .step({.num_decodes = decodes, .decode_context = decodes * 16'384, .decode_query = query})
        .duration;
  };
  EXPECT_GE(time_of(16, 4), time_of(16, 1));
  EXPECT_LT(time_of(16, 4), time_of(64, 1) * 0.6);
}

TEST_F(SpeculativeStepsTest, AStepIsItsVerificationAndThePassesThatDraft) {
  SimulatedStepsConfig of_draft = config(small_llama(), {});
  of_draft.model.layers.resize(1);
  of_draft.scheduler_base = Seconds(0);
  StepTimes target(config(small_llama(), {.tp = 2}));
  StepTimes draft(of_draft);
  SpeculativeSteps steps(target, draft, 3);
  const Batch batch{.num_decodes = 8, .decode_context = 8 * 512, .decode_query = 4};
  const FastForward taken = steps.fast_forward(std::span(&batch, 1), 1);
  Batch first = batch;
  first.samples_last = true;
  const Batch second{.num_decodes = 8, .decode_context = 8 * 513};
  const Batch third{.num_decodes = 8, .decode_context = 8 * 514};
  const Seconds drafting =
      draft.step(first).duration + draft.step(second).duration + draft.step(third).duration;
  EXPECT_NEAR(taken.draft / drafting, 1, 1e-9);
  EXPECT_NEAR(taken.first / (target.step(batch).duration + drafting), 1, 1e-9);
}

TEST_F(SpeculativeStepsTest, ALayerBehindTheTargetAddsOneProjection) {
  ModelConfig layer = small_llama();
  layer.layers.resize(1);
  ModelConfig joined = layer;
  joined.joins_hidden = true;
  const Batch batch{.num_decodes = 8, .decode_context = 80};
  const Plan plan = lower(joined, batch, {});
  EXPECT_EQ(plan.ops().size(), lower(layer, batch, {}).ops().size() + 3);  // two norms
  const auto hidden = static_cast<double>(layer.hidden_size);
  const Bytes more = memory_of(plan, 0).weights - memory_of(lower(layer, batch, {}), 0).weights;
  EXPECT_DOUBLE_EQ(more.value(), 2 * (2 * hidden * hidden + 2 * hidden));  // bf16
}

TEST(SpeculativeCapacity, WhatDraftsTakesWeightsAndItsPartOfEachBlock) {
  const Device device{.name = "gpu", .hbm_capacity = Bytes(1e9)};
  CapacityRequest request{.model = small_llama()};
  request.engine.max_num_seqs = 64;
  request.engine.max_num_batched_tokens = 512;
  const MemoryBudget plain = memory_budget(request, device);
  ModelConfig layer = small_llama();
  layer.layers.resize(1);
  request.engine.speculation = {.num_tokens = 3, .acceptance = {1, 1, 1}};
  request.draft = DraftRequest{.model = layer};
  const MemoryBudget own = memory_budget(request, device);
  request.draft->shares_embedding = true;
  const MemoryBudget shared = memory_budget(request, device);
  // One layer beside four.
  EXPECT_DOUBLE_EQ(own.kv_block.value(), plain.kv_block.value() * 5 / 4);
  EXPECT_DOUBLE_EQ((own.weights - plain.weights).value(), own.draft_weights.value());
  const double tables = layer.tie_word_embeddings ? 1 : 2;
  const auto elements = static_cast<double>(layer.vocab_size * layer.hidden_size);
  EXPECT_DOUBLE_EQ((own.weights - shared.weights).value(), tables * elements * 2);  // bf16
  EXPECT_LT(own.num_kv_blocks, plain.num_kv_blocks);
}

}  // namespace
}  // namespace orrery
