#include "sim/scenario/validation.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "sim/serve/deployment.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kPaths;

constexpr const char* kScenario =
    "model: {config: llama-3.1-8b}\n"
    "machine: hgx-h200\n"
    "provider: vllm-0.24.0\n"
    "workload: {closed_loop: {concurrency: 2, num_requests: 8, prompt_tokens: 100, "
    "output_tokens: 5}, warmup_requests: 3}\n";

class ValidationTest : public testing::ScenarioDirectory {
 protected:
  Scenario load(const std::vector<std::string>& overrides = {}) const {
    return load_scenario(write("small.yaml", kScenario), kPaths, overrides);
  }

  std::string read(const std::string& name) const {
    std::ifstream file(directory_ / name);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(file.is_open()) << name;
    return text.str();
  }

  void expect_error(const std::vector<std::string>& overrides, const std::string& part) const {
    try {
      predict_validation(load(overrides));
      FAIL() << "no error, expected one with: " << part;
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
};

constexpr const char* kTwoSteps =
    "validate={steps: [{decodes: 4, context: 64}, {prefill: [128]}], serve: false}";

TEST_F(ValidationTest, WithoutStepsThoseOfTheRunAreTaken) {
  const ValidationPrediction prediction = predict_validation(load());
  const auto& steps = prediction.scenario.validation.steps;
  ASSERT_EQ(steps.size(), 3U);
  // At most two requests; prompts of 100 tokens, outputs of 5: steps at contexts 101 to 104.
  const std::int64_t decodes = steps[0].batch.num_decodes;
  EXPECT_TRUE(decodes == 1 || decodes == 2) << decodes;
  EXPECT_GE(steps[0].batch.decode_context, decodes * 101);
  EXPECT_LE(steps[0].batch.decode_context, decodes * 104);
  EXPECT_EQ(steps[1].batch, (Batch{.prefill = {{.query = 100, .context = 0}}}));
  EXPECT_EQ(steps[2].batch.prefill, steps[1].batch.prefill);
  EXPECT_EQ(steps[2].batch.num_decodes, decodes);
  EXPECT_TRUE(prediction.run.has_value());
}

// All seats decode in the run; a step with a prompt has one decode less.
TEST_F(ValidationTest, StepsOfAFullRunHaveASeatForTheirPrompt) {
  const ValidationPrediction prediction =
      predict_validation(load({"engine.max_num_seqs=2", "workload.closed_loop.output_tokens=50"}));
  const auto& steps = prediction.scenario.validation.steps;
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0].batch.num_decodes, 2);
  EXPECT_EQ(steps[2].batch.num_decodes, 1);
  EXPECT_EQ(2 * steps[2].batch.decode_context, steps[0].batch.decode_context);
  EXPECT_EQ(steps[2].batch.prefill, steps[1].batch.prefill);
}

TEST_F(ValidationTest, EachStepIsPredictedInEachOfItsModes) {
  const ValidationPrediction prediction = predict_validation(load({kTwoSteps}));
  ASSERT_EQ(prediction.steps.size(), 3U);
  EXPECT_EQ(prediction.steps[0].name, "decode4_context64_graph");
  EXPECT_EQ(prediction.steps[1].name, "decode4_context64_eager");
  EXPECT_EQ(prediction.steps[2].name, "prefill128_eager");
  EXPECT_FALSE(prediction.run.has_value());
  for (const StepPrediction& step : prediction.steps) {
    EXPECT_EQ(step.duration, makespan(step.timeline));
    EXPECT_LT(step.low, step.duration);
    EXPECT_GT(step.high, step.duration);
  }
  // The same kernels; the host launches them eagerly.
  EXPECT_EQ(to_text(prediction.steps[0].plan), to_text(prediction.steps[1].plan));
  EXPECT_LT(prediction.steps[0].duration, prediction.steps[1].duration);
}

TEST_F(ValidationTest, TheDirectoryHoldsWhatTheGpuSideReads) {
  write_validation(predict_validation(load({kTwoSteps, "placement.tp=2"})), directory_);
  EXPECT_EQ(read("steps/decode4_context64_graph.step"), "mode graph\ndecodes 4 64\n");
  EXPECT_EQ(read("steps/prefill128_eager.step"), "mode eager\nprefill 128 0 1\n");
  EXPECT_EQ(parse_plan(read("steps/prefill128_eager.plan")).num_ranks(), 2);
  const Deployment deployment = parse_deployment(read("deployment.txt"));
  EXPECT_EQ(deployment.name, "llama-3.1-8b");
  EXPECT_EQ(deployment.mesh.tp, 2);
  EXPECT_EQ(model_config(deployment.name, deployment.config), load().model_config);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "workload.csv"));
}

TEST_F(ValidationTest, WhereItServesRequestsAreWrittenOut) {
  write_validation(predict_validation(load()), directory_);
  const std::string workload = read("workload.csv");
  EXPECT_EQ(workload.substr(0, workload.find("\n0,100,5\n")),
            "arrival_s,prompt_tokens,output_tokens");
  EXPECT_EQ(read("serve.txt"), "closed_loop 2\nwarmup 3\n");
  for (const char* file : {"requests.csv", "serve_steps.csv", "summary.json", "calibration.csv"}) {
    EXPECT_FALSE(read(std::string("predicted/") + file).empty());
  }
}

TEST_F(ValidationTest, TheScenarioWrittenPredictsTheSameAgain) {
  const ValidationPrediction first = predict_validation(load());
  write_validation(first, directory_);
  const ValidationPrediction again =
      predict_validation(load_scenario(directory_ / "scenario.yaml", kPaths));
  ASSERT_EQ(again.steps.size(), first.steps.size());
  for (std::size_t i = 0; i < first.steps.size(); ++i) {
    EXPECT_EQ(again.steps[i].name, first.steps[i].name);
    EXPECT_EQ(again.steps[i].duration, first.steps[i].duration);
  }
}

TEST_F(ValidationTest, TermsOfARanksMemoryAddUpToItsTotal) {
  const ValidationPrediction prediction =
      predict_validation(load({kTwoSteps, "placement.pp=2", "engine.block_size=64"}));
  ASSERT_EQ(prediction.memory.size(), 2U);
  for (const auto& [rank, memory] : prediction.memory) {
    Bytes sum;
    for (const auto& [term, bytes] : memory_terms(memory)) {
      if (term != "total") sum += bytes;
    }
    EXPECT_EQ(memory.total(), sum);
    // 16 of 32 layers, keys and values of 8 heads of 128, bf16: 65,536 bytes a token.
    const auto tokens = static_cast<double>(prediction.deployment.num_kv_blocks * 64);
    EXPECT_EQ(memory.kv_cache, Bytes(65536) * tokens);
  }
}

TEST_F(ValidationTest, WhatOneInstanceCannotRunIsRefused) {
  expect_error({"placement.replicas=2"}, "placement: found 2 replicas; one is executed");
  expect_error({"workload.closed_loop.distinct_prompts=2", "machine=hgx-h200", "placement.dp=2"},
               "enable_prefix_caching is on");
  expect_error({"validate={steps: [{decodes: 1100, context: 64}]}"},
               "validate: step 'decode1100_context64' has 1100 sequences; engine.max_num_seqs "
               "allows 1024");
  expect_error({"validate={steps: [{prefill: [9000]}]}"}, "engine.max_num_batched_tokens");
  expect_error({"validate={steps: [{decodes: 1, context: 200000}]}"}, "engine.max_model_len");
  expect_error({"validate={steps: [{decodes: 256, context: 8192}]}"}, "KV blocks; memory allows");
  expect_error({"workload={static_batch: {batch: 2, prompt_tokens: 4, output_tokens: 4}}"},
               "a static batch is not replayed");
}

std::map<CollectiveKind, int> num_collectives(const Plan& plan) {
  std::map<CollectiveKind, int> counts;
  for (const Op& op : plan.ops()) {
    if (const auto* comm = std::get_if<CommOp>(&op.body)) ++counts[comm->kind];
  }
  return counts;
}

// Even parts are gathered; results of attention are sent where there are prompts. A graph of
// decodes cannot know how many rows go where.
TEST_F(ValidationTest, EvenRowsOfDataParallelRanksAreExecuted) {
  const ValidationPrediction prediction = predict_validation(
      load({"machine=hgx-h200", "placement={replicas: 1, dp: 2, dp_rows: balanced}",
            "validate={steps: [{prefill: [128, 16]}, {decodes: 4, context: 64}], serve: false}"}));
  ASSERT_GE(prediction.steps.size(), 2U);
  for (const StepPrediction& step : prediction.steps) {
    std::map<CollectiveKind, int> counts = num_collectives(step.plan);
    EXPECT_EQ(counts[CollectiveKind::kAllToAll] > 0, !step.batch.prefill.empty()) << step.name;
    EXPECT_GT(counts[CollectiveKind::kAllGather], 0) << step.name;
  }
}

TEST_F(ValidationTest, OneTierOfTheHostIsExecutedAndOthersAreRefused) {
  const std::string prompts = "workload.closed_loop.distinct_prompts=2";
  const auto tier = [](const std::string& name, const std::string& more = "") {
    return "{name: " + name + ", capacity: 64 GiB, bandwidth: 50 GB/s" + more + "}";
  };
  const auto tiers = [&](const std::string& list) { return "kv_cache.tiers=[" + list + "]"; };
  const ValidationPrediction prediction = predict_validation(load({prompts, tiers(tier("host"))}));
  EXPECT_EQ(prediction.run->kv_tiers.tiers.size(), 1U);
  EXPECT_GT(prediction.run->kv_tiers.block_of_gpu, Bytes(0));
  expect_error({prompts, tiers(tier("disk"))}, "simulated and not executed: disk; executed is one");
  expect_error({prompts, tiers(tier("host") + ", " + tier("disk"))}, "not executed: host, disk");
  expect_error({prompts, tiers(tier("host", ", shared: true"))}, "host (shared)");
  expect_error({prompts, tiers(tier("host")), "placement.pp=2", "engine.block_size=64"},
               "behind dp 1, pp 2");
}

}  // namespace
}  // namespace orrery
