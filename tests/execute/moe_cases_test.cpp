// Layers of experts that are checked by themselves: their models, what routing they impose, and
// that those in a row follow each other.

#include "kernels/tool/moe_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/execute/hazards.h"
#include "kernels/execute/rank_program.h"
#include "sim/memory/buffers.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/chain.h"

namespace orrery::tool {
namespace {

TEST(MoeCases, TheirTextSaysWhatTheyAre) {
  const MoeCase one{.model = "tiny_qwen3",
                    .tokens = 134,
                    .mesh = {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph, .moe_chunks = 3},
                    .fuses_gather = true,
                    .mode = LaunchMode::kEager,
                    .load = ImposedLoad::kBias,
                    .zipf = 1};
  EXPECT_EQ(to_text(one),
            "tiny_qwen3 bf16 tokens=134 shuffling eager dp=2 ep=2 chunks=3 comm=graph gather zipf "
            "by bias");
  EXPECT_EQ(to_text(MoeCase{.model = "scout_tp8", .dtype = DType::kFp8, .streams = 2}),
            "scout_tp8 fp8 tokens=64 shuffling graph streams=2");
}

TEST(MoeCases, TheFirstGroupedGemmMayGather) {
  const MoeCase one{.model = "tiny_llama4", .fuses_scatter = true, .fuses_gather = true};
  const Plan plan = moe_plan(one);
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(plan.ops(), [&](const Op& op) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      return kernel != nullptr && kernel->kernel == name;
    });
  };
  EXPECT_TRUE(has("grouped_gemm_gather"));
  EXPECT_FALSE(has("gather_mul"));
  EXPECT_THROW(static_cast<void>(
                   moe_plan({.model = "tiny_qwen3", .dtype = DType::kFp8, .fuses_gather = true})),
               std::invalid_argument);
}

// The kernel makes its scores itself: it takes a load as a bias on the router's logits.
TEST(MoeCases, ALoadOfTheOneKernelIsABiasOnTheRouter) {
  const auto has_imposed_scores = [](const MoeCase& one) {
    const Plan plan = moe_plan(one);
    return std::ranges::any_of(
        plan.tensors(), [](const Tensor& tensor) { return tensor.name == "imposed_scores"; });
  };
  MoeCase one{.model = "tiny_qwen3", .load = ImposedLoad::kBias, .zipf = 1};
  EXPECT_FALSE(has_imposed_scores(one));
  EXPECT_EQ(moe_lowering(one).expert_load.shares.size(), 16U);
  one.design = MoeDesign::kPersistent;
  EXPECT_FALSE(has_imposed_scores(one));
  one.load = ImposedLoad::kScores;
  EXPECT_THROW(static_cast<void>(moe_plan(one)), std::invalid_argument);
  one.design = MoeDesign::kShuffling;
  EXPECT_TRUE(has_imposed_scores(one));
}

// As their configs in models/ say.
TEST(MoeCases, ModelsAreRoutedAsTheirConfigsSay) {
  const ModelConfig v3 = moe_model("deepseek_v3");
  EXPECT_EQ(v3.scoring_func, ScoringFunc::kSigmoid);
  EXPECT_TRUE(v3.has_correction_bias && v3.norm_topk_prob);
  EXPECT_EQ(std::pair(v3.n_group, v3.topk_group), std::pair(std::int64_t{8}, std::int64_t{4}));
  EXPECT_EQ(v3.routed_scaling_factor, 2.5);
  const ModelConfig scout = moe_model("scout_tp8");
  EXPECT_TRUE(scout.weighs_expert_inputs && !scout.norm_topk_prob);
  EXPECT_EQ(scout.num_experts_per_tok, 1);
  EXPECT_EQ(scout.moe_intermediate_size, 8192 / 8);
  EXPECT_EQ(scout.shared_expert_intermediate_size, 8192 / 8);
  EXPECT_TRUE(moe_model("tiny_qwen3").norm_topk_prob);
  EXPECT_EQ(moe_model("tiny_deepseek").routed_scaling_factor, 2.5);
}

TEST(MoeCases, AnUnknownModelIsAnErrorThatNamesTheNearest) {
  try {
    static_cast<void>(moe_model("scuot"));
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("scout"), std::string::npos) << error.what();
  }
}

// Each token's largest score is that of an expert drawn by its share: over 4,000 tokens, experts of
// equal shares 1/16 are chosen 250 times each, with a standard deviation of 15.
std::vector<int> times_chosen(const MoeCase& one, std::int64_t experts) {
  const std::vector<float> scores = imposed_scores(one, experts);
  std::vector<int> times(static_cast<std::size_t>(experts));
  for (auto token = scores.begin(); token != scores.end(); token += experts) {
    ++times[static_cast<std::size_t>(std::max_element(token, token + experts) - token)];
  }
  return times;
}

TEST(MoeCases, UniformScoresChooseAllExpertsAlike) {
  for (const int times :
       times_chosen({.model = "scout", .tokens = 4000, .load = ImposedLoad::kScores}, 16)) {
    EXPECT_NEAR(times, 250, 5 * 15);
  }
}

// Shares 1/k over the sum of 1/k to 16, 3.381: the busiest gets 4000 / 3.381 = 1183, with a
// standard deviation of 29, the least 74, with one of 9.
TEST(MoeCases, ZipfScoresChooseByRank) {
  std::vector<int> times =
      times_chosen({.model = "scout", .tokens = 4000, .load = ImposedLoad::kScores, .zipf = 1}, 16);
  std::ranges::sort(times);
  EXPECT_NEAR(times.back(), 1183, 5 * 29);
  EXPECT_NEAR(times.front(), 74, 5 * 9);
}

TEST(MoeCases, ScoresAreThoseOfTheSeed) {
  const MoeCase a{.model = "tiny_qwen3", .tokens = 9, .load = ImposedLoad::kScores};
  MoeCase b = a;
  b.seed = 2;
  EXPECT_EQ(imposed_scores(a, 16), imposed_scores(a, 16));
  EXPECT_NE(imposed_scores(a, 16), imposed_scores(b, 16));
}

// Each layer of a chain has weights of its own, and waits for the one ahead on every stream.
TEST(MoeCases, LayersOfAChainFollowEachOther) {
  const Plan layer = moe_plan({.model = "tiny_llama4", .tokens = 8, .streams = 2});
  const Plan chain = chained(layer, 3);
  EXPECT_EQ(chain.ops().size(), 3 * layer.ops().size());
  EXPECT_DOUBLE_EQ(memory_of(chain, 0).weights.value(), 3 * memory_of(layer, 0).weights.value());
  const std::vector<Task> tasks = rank_tasks(chain, 0);
  const auto place = [&](const std::string& name) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (task_name(chain, tasks[i]) == name) return static_cast<std::int32_t>(i);
    }
    throw std::invalid_argument("no op " + name);
  };
  const auto waits =
      event_waits(task_memory(chain, 0, tasks, plan_buffers(chain, 0), kv_layers(chain, 0)));
  const auto& shared = waits[static_cast<std::size_t>(place("shared.gate_up_proj#1"))];
  EXPECT_EQ(shared, std::vector<std::int32_t>{place("scatter#0")});
  EXPECT_EQ(chained(layer, 1), layer);
}

}  // namespace
}  // namespace orrery::tool
