// launch_mode: megakernel: which steps run as one kernel, at what price, and what is refused.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/scenario/assembly.h"
#include "sim/scenario/explain.h"
#include "sim/scenario/run.h"
#include "sim/scenario/validation.h"
#include "sim/serve/simulated_steps.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kPaths;

Scenario one_kernel(const std::vector<std::string>& overrides = {}) {
  return load_scenario(kPaths.root / "scenarios" / "validate" / "megakernel_1b.yaml", kPaths,
                       overrides);
}

Batch decodes(std::int64_t count, std::int64_t context) {
  return {.num_decodes = count, .decode_context = count * context};
}

std::string refusal_of(const std::string& override) {
  try {
    static_cast<void>(megakernel_batch_sizes(one_kernel({override})));
  } catch (const ScenarioError& error) {
    return error.what();
  }
  return "taken";
}

TEST(MegakernelMode, FewDecodesAreOneKernelOthersAsWithGraphs) {
  const Scenario scenario = one_kernel();
  // Eight sequences of this model leave two pages of shared memory; three are the fewest.
  EXPECT_EQ(megakernel_batch_sizes(scenario), (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(launch_mode(scenario, decodes(1, 512)), LaunchMode::kMegakernel);
  EXPECT_EQ(launch_mode(scenario, decodes(3, 512)), LaunchMode::kMegakernel);  // padded to 4
  EXPECT_EQ(launch_mode(scenario, decodes(5, 512)), LaunchMode::kGraph);
  EXPECT_EQ(launch_mode(scenario, {.prefill = {{.query = 16}}}), LaunchMode::kEager);
  const Scenario graphs = one_kernel({"engine.launch_mode=graph"});
  EXPECT_TRUE(megakernel_batch_sizes(graphs).empty());
  EXPECT_EQ(launch_mode(graphs, decodes(1, 512)), LaunchMode::kGraph);
  EXPECT_EQ(deployment_of(scenario, memory_budget(scenario)).megakernel_batch_sizes,
            (std::vector<std::int64_t>{1, 2, 4}));
}

TEST(MegakernelMode, AServiceTakesTheTimeOfTheStep) {
  const Scenario scenario = one_kernel();
  const Assembly assembly(scenario);
  StepTimes times(steps_config(scenario, assembly, false));
  const Batch one = decodes(1, 2048);  // a point of the grid of contexts
  const Seconds device = times.device_time(one).duration;
  EXPECT_EQ(makespan(simulate_step(scenario, one, StepLevel::kClosedForm).timeline), device);
  EXPECT_EQ(explain_step(scenario, one).device, device);
  EXPECT_EQ(explain_step(scenario, one).mode, LaunchMode::kMegakernel);
  const SimulatedStepsConfig config = steps_config(scenario, assembly, false);
  EXPECT_NEAR(times.step(one).duration.value(),
              (device + config.scheduler_base + config.scheduler_per_sequence).value(), 1e-12);
  EXPECT_EQ(times.device_time(decodes(3, 2048)).duration,
            times.device_time(decodes(4, 2048)).duration);
  EXPECT_EQ(makespan(simulate_step(scenario, decodes(3, 2048), StepLevel::kClosedForm).timeline),
            times.device_time(decodes(4, 2048)).duration);
  // Measured: 740 us against 1,054 of the graph, docs/kernels/megakernel.md.
  const Scenario as_graph = one_kernel({"engine.launch_mode=graph"});
  const Assembly of_graph(as_graph);
  StepTimes graph(steps_config(as_graph, of_graph, false));
  EXPECT_LT(device / graph.device_time(one).duration, 0.85);
  EXPECT_EQ(times.device_time(decodes(16, 512)).duration,
            graph.device_time(decodes(16, 512)).duration);
}

TEST(MegakernelMode, WhatHasNoInstructionIsRefused) {
  EXPECT_EQ(refusal_of("seed=2"), "taken");
  EXPECT_EQ(refusal_of("model.weights=fp8"), "taken");
  for (const auto& [override, part] :
       {std::pair{"model.config=qwen3-30b-a3b", "no instruction for \"routing_scores\""},
        std::pair{"model.kv_cache=fp8", "layers.0.kv_append\": fp8, expected bf16"},
        std::pair{"engine.graph_batch_sizes=[16]", "expected 1, 2, 4 or 8 among them"}}) {
    EXPECT_NE(refusal_of(override).find(part), std::string::npos) << refusal_of(override);
  }
  EXPECT_THROW(static_cast<void>(one_kernel({"engine.profile=vllm"})), ScenarioError);
}

TEST(MegakernelMode, AStepOfOtherSequencesIsNotValidated) {
  try {
    static_cast<void>(predict_validation(
        one_kernel({"validate.steps=[{decodes: 3, context: 64}]", "validate.serve=false"})));
    FAIL() << "predicted";
  } catch (const ScenarioError& error) {
    EXPECT_NE(std::string(error.what()).find("3 sequences, expected 1, 2, 4 or 8; nearest is 4"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace orrery
