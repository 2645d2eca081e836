// Layers of experts by themselves: what `validate: layers:` takes, refuses and prepares.

#include "sim/scenario/validation_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "sim/plan/step_file.h"
#include "sim/scenario/validation.h"
#include "sim/serve/deployment.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kPaths;

constexpr const char* kLayersScenario =
    "model: {config: qwen3-30b-a3b, weights: bf16, activations: bf16, kv_cache: bf16, "
    "expert_load: uniform}\n"
    "machine: hgx-h200\n"
    "provider: orrery\n"
    "placement: {dp: 2, ep: 2, expert_comm: eager}\n"
    "engine: {profile: orrery}\n"
    "workload: {offline: {num_requests: 1, prompt_tokens: 64, output_tokens: 2}}\n";

class ValidationLayersTest : public testing::ScenarioDirectory {
 protected:
  // `more` behind "layers: ", keys of `validate` before it.
  Scenario load(const std::string& layers, const std::vector<std::string>& overrides = {},
                const std::string& keys = "serve: false") const {
    const std::string text =
        std::string(kLayersScenario) + "validate:\n  " + keys + "\n  layers:\n";
    return load_scenario(write("layers.yaml", text + layers), kPaths, overrides);
  }

  void expect_error(const std::string& layers, const std::string& part,
                    const std::vector<std::string>& overrides = {}) const {
    try {
      static_cast<void>(predict_validation(load(layers, overrides)));
      FAIL() << "no error, expected one with: " << part;
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  std::string read(const std::string& name) const {
    std::ifstream file(directory_ / name);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(file.is_open()) << name;
    return text.str();
  }
};

TEST_F(ValidationLayersTest, AnEntrySaysWhatDiffersFromTheScenario) {
  const Scenario scenario = load(
      "    - {tokens: 64}\n"
      "    - {tokens: 64, moe: {design: persistent}}\n"
      "    - {name: chunks, tokens: 64, mode: eager, moe: {chunks: 2}, expert_comm: copies}\n"
      "    - {name: whole, tokens: 64, split_shared_expert: false}\n");
  const std::vector<ValidationLayer>& layers = scenario.validation.layers;
  ASSERT_EQ(layers.size(), 4U);
  EXPECT_EQ(layers[0].name, "shuffling_64");
  EXPECT_EQ(layers[0].expert_comm, ExpertComm::kEager);
  EXPECT_EQ(layers[1].name, "persistent_64");
  EXPECT_EQ(layers[1].moe.design, MoeDesign::kPersistent);
  // The kernel sends rows by itself.
  EXPECT_EQ(layers[1].expert_comm, ExpertComm::kAllToAll);
  EXPECT_EQ(layers[2].moe.chunks, 2);
  EXPECT_EQ(layers[2].mode, LaunchMode::kEager);
  EXPECT_EQ(layers[2].expert_comm, ExpertComm::kCopies);
  EXPECT_TRUE(layers[2].split_shared_expert);
  EXPECT_FALSE(layers[3].split_shared_expert);
}

TEST_F(ValidationLayersTest, WrittenOutTheyAreReadBack) {
  const Scenario scenario = load(
      "    - {tokens: 64, moe: {fuse_gather: false}}\n"
      "    - {tokens: 64, moe: {design: persistent, capacity_factor: 1.5}}\n",
      {"moe={fuse_gather: true}"});
  ASSERT_FALSE(scenario.validation.layers[0].moe.fuse_gather);
  const Scenario again = load_scenario(write("again.yaml", to_yaml(scenario)), kPaths);
  EXPECT_EQ(again.validation, scenario.validation);
}

TEST_F(ValidationLayersTest, ModesAreThoseThatTheHostLetsThemHave) {
  const Scenario scenario = load(
      "    - {name: eager, tokens: 64}\n"
      "    - {name: graph, tokens: 64, expert_comm: graph}\n"
      "    - {name: asked, tokens: 64, expert_comm: graph, mode: eager}\n");
  const auto modes = [&](std::size_t i) {
    return modes_of(scenario, scenario.validation.layers[i]);
  };
  EXPECT_EQ(modes(0), std::vector{LaunchMode::kEager});  // counts are read on the host
  EXPECT_EQ(modes(1), (std::vector{LaunchMode::kGraph, LaunchMode::kEager}));
  EXPECT_EQ(modes(2), std::vector{LaunchMode::kEager});
}

TEST_F(ValidationLayersTest, ALayerIsPreparedAsAChainAndNeedsNoWholeModel) {
  // Of 109 billion parameters, which no H200 holds.
  const ValidationPrediction prediction = predict_validation(
      load("    - {tokens: 64, mode: graph}\n",
           {"model.config=llama-4-scout-17b-16e", "placement={}", "moe={streams: 2}"}));
  ASSERT_EQ(prediction.steps.size(), 1U);
  EXPECT_TRUE(prediction.memory.empty());
  const StepPrediction& layer = prediction.steps[0];
  EXPECT_EQ(layer.name, "shuffling_64_graph");
  ASSERT_TRUE(layer.layers);
  EXPECT_EQ(layer.host, Seconds(0));
  EXPECT_LT(layer.low, layer.duration);
  // A layer's experts are 16 x 3 x 5120 x 8192 and the shared one as much as one of them: 4.28 GB
  // with the router in bf16, of which 48 GB hold 11.
  EXPECT_EQ(*layer.layers, (LayersOfStep{.count = 11, .tokens = 64}));
  EXPECT_EQ(std::ssize(layer.plan.ops()) % 11, 0);
  write_validation(prediction, directory_);
  EXPECT_EQ(read("steps/shuffling_64_graph.step"), "mode graph\nlayers 11 64\n");
  EXPECT_EQ(parse_plan(read("steps/shuffling_64_graph.plan")), layer.plan);
  EXPECT_EQ(parse_deployment(read("deployment.txt")).num_kv_blocks, 0);
}

TEST_F(ValidationLayersTest, StepsMayStandBesideLayers) {
  const ValidationPrediction prediction = predict_validation(
      load("    - {tokens: 64}\n", {},
           "serve: false\n  modes: [eager]\n  steps: [{name: decode, decodes: 2, context: 64}]"));
  ASSERT_EQ(prediction.steps.size(), 2U);
  EXPECT_FALSE(prediction.steps[0].layers);
  EXPECT_TRUE(prediction.steps[1].layers);
  EXPECT_EQ(prediction.memory.size(), 2U);
}

// A layer's designs in one file: those of fewer launches, without the host, are predicted shorter.
TEST_F(ValidationLayersTest, DesignsArePredictedSideBySide) {
  const ValidationPrediction prediction =
      predict_validation(load("    - {name: graph, tokens: 64, expert_comm: graph, mode: graph}\n"
                              "    - {name: eager, tokens: 64}\n"));
  ASSERT_EQ(prediction.steps.size(), 2U);
  EXPECT_LT(prediction.steps[0].duration, prediction.steps[1].duration);
}

TEST_F(ValidationLayersTest, WhatIsWrongIsNamedWithItsEntry) {
  expect_error("    - {name: a, tokens: 64, desing: padding}\n", "did you mean");
  expect_error("    - {name: a}\n", "tokens");
  expect_error("    - {tokens: 0}\n", "tokens: found '0'");
  expect_error("    - {tokens: 64}\n    - {tokens: 64}\n",
               "a second layer or step named 'shuffling_64'");
  expect_error("    - {name: a/b, tokens: 64}\n", "for file names");
  expect_error("    - {tokens: 64, mode: megakernel}\n", "graph");
  expect_error("    - {tokens: 64, moe: {experts: balanced}}\n", "which all layers");
  expect_error("    - {tokens: 64, moe: {design: fused}}\n", "found design fused");
  expect_error("    - {tokens: 64, mode: graph}\n",
               "layer 'shuffling_64': op \"sync\" has the host wait");
  // Padding dispatches nothing.
  expect_error("    - {tokens: 64, moe: {design: padding}}\n", "layer 'padding_64': ");
  expect_error("    - {name: parts, tokens: 64, expert_comm: tokens, moe: {chunks: 2}}\n",
               "layer 'parts': ");
  expect_error("    - {tokens: 64, moe: {design: persistent}, expert_comm: graph}\n",
               "layer 'persistent_64': ");
}

TEST_F(ValidationLayersTest, ScenariosWithoutLayersOfTheirOwnAreRefused) {
  const std::string layers = "    - {tokens: 64}\n";
  expect_error(layers, "has no routed experts",
               {"model={config: llama-3.1-8b}", "placement={dp: 2}"});
  expect_error(layers, "found moe design fused",
               {"moe={design: fused}", "placement={dp: 2, ep: 2}"});
  expect_error(layers, "one of dp, tp and ep alone", {"placement={pp: 2}"});
}

}  // namespace
}  // namespace orrery
