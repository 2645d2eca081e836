#include "kernels/execute/reference/conversation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/serve/rank_grid.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

CheckedDeployment checked_deployment(const Mesh& mesh,
                                     const ModelConfig& model = testing::tiny_llama()) {
  const LoweringOptions options{.moe_design = MoeDesign::kShuffling};
  return {.name = model.name,
          .grid = grid_of(mesh),
          .numbers = {.head_dim = model.rotary_dim(),
                      .max_positions = 256,
                      .routing = testing::routing_of(model)},
          .vocab = model.vocab_size,
          .lower = [=](const StepInput& input, std::int64_t num_decodes) {
            StepPlans plans{.whole = lower(model, batch_of(input, num_decodes), options)};
            Mesh of_step = mesh;
            if (mesh.ffn_instances > 0 && !input.prefill.empty()) of_step.num_micro_batches = 1;
            plans.plan = parallelize(plans.whole, of_step);
            return plans;
          }};
}

reference::Model model_of(const CheckedDeployment& deployment) {
  return reference::Model({.grid = deployment.grid,
                           .numbers = deployment.numbers,
                           .seed = deployment.seed,
                           .num_kv_blocks = kConversationBlocks,
                           .block_size = kConversationBlockSize,
                           .rounding = reference::Rounding::kStored});
}

// Rounding to bf16 of other partial sums moves logits by some 2^-8.
TEST(Conversation, RunsOnEveryMeshWithTheSameLogits) {
  const std::vector<CheckedStep> steps = reference_conversation(checked_deployment({}), 3);
  ASSERT_EQ(steps.size(), 5U);
  for (const Mesh& mesh :
       {Mesh{.tp = 2}, Mesh{.dp = 2}, Mesh{.tp = 2, .sp = true},
        Mesh{.pp = 2, .num_micro_batches = 2}, Mesh{.tp = 2, .pp = 2},
        Mesh{.num_micro_batches = 2, .ffn_instances = 1},
        Mesh{.num_micro_batches = 3, .ffn_instances = 1}, Mesh{.cp = 2},
        Mesh{.cp = 2, .cp_weights = CpWeights::kReplicated}, Mesh{.tp = 2, .cp = 2},
        testing::dealt_mesh(2), testing::dealt_mesh(3)}) {
    const CheckedDeployment deployment = checked_deployment(mesh);
    reference::Model model = model_of(deployment);
    for (const CheckedStep& step : steps) {
      const Plan plan = deployment.lower(step.input, std::ssize(step.input.decodes)).plan;
      EXPECT_LT(testing::relative_difference(model.run(plan, step.input).logits, step.logits),
                5e-2);
    }
  }
}

// Latents and routed experts of ranks with rows of their own and one page table.
TEST(Conversation, RunsWithExpertsWhereDecodesAreDealtOut) {
  const ModelConfig model = testing::tiny_deepseek();
  const std::vector<CheckedStep> steps = reference_conversation(checked_deployment({}, model), 3);
  for (const Mesh& mesh : {testing::dealt_mesh(2, 2), testing::dealt_mesh(4, 4)}) {
    const CheckedDeployment deployment = checked_deployment(mesh, model);
    reference::Model ranks = model_of(deployment);
    for (const CheckedStep& step : steps) {
      // More rows than sequences, as in graphs.
      const std::int64_t rows =
          step.is_decode ? 2 * kConversationSequences : std::ssize(step.input.decodes);
      const Plan plan = deployment.lower(step.input, rows).plan;
      EXPECT_LT(testing::relative_difference(ranks.run(plan, step.input).logits, step.logits),
                5e-2);
    }
  }
}

// Scores that others have found are of a rank's own rows.
TEST(Conversation, TakesScoresOfTheRowsThatARankHas) {
  const ModelConfig model = testing::tiny_deepseek();
  const CheckedDeployment deployment = checked_deployment(testing::dealt_mesh(2, 2), model);
  reference::Model ranks = model_of(deployment);
  // Prompts, chunks beside decodes, and decodes alone.
  for (const CheckedStep& step : reference_conversation(checked_deployment({}, model), 1)) {
    const Plan plan = deployment.lower(step.input, std::ssize(step.input.decodes)).plan;
    reference::GivenScores scores(2);
    for (std::size_t id = 0; id < plan.ops().size(); ++id) {
      const Op& op = plan.ops()[id];
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr || kernel->kernel != "routing_scores") continue;
      const Tensor& found = plan.tensors()[static_cast<std::size_t>(op.writes.front().tensor)];
      for (auto& of_rank : scores) {
        for (std::int64_t copy = 0; copy < std::ssize(model.layers); ++copy) {
          of_rank[{static_cast<OpId>(id), copy}].assign(
              static_cast<std::size_t>(num_elements(found)), 0.5F);
        }
      }
    }
    const reference::StepResult result = ranks.run(plan, step.input, scores);
    EXPECT_GT(result.score_difference, 0);
    EXPECT_LT(result.score_difference, 1);
  }
}

// Decodes after a mixed step, each of the token that was the likeliest before.
TEST(Conversation, DecodesWhatTheReferenceFound) {
  const std::vector<CheckedStep> steps = reference_conversation(checked_deployment({}), 2);
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_FALSE(steps[1].is_decode);
  EXPECT_TRUE(steps[2].is_decode);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(steps[3].input.decodes[i].tokens[0], steps[2].next_tokens[i]);
    EXPECT_EQ(steps[3].input.decodes[i].context, steps[2].input.decodes[i].context + 1);
  }
}

// Sequences begin three steps apart, at their first tokens; behind their prompts each decodes what
// was found last.
TEST(Conversation, OfDecodesAloneTakesThePromptsTokenByToken) {
  const std::vector<CheckedStep> steps = decoded_conversation(checked_deployment({}), 55);
  const std::vector<CheckedStep> prompts = reference_conversation(checked_deployment({}), 0);
  ASSERT_EQ(steps.size(), 55U);
  EXPECT_EQ(steps[2].input.decodes.size(), 1U);
  ASSERT_EQ(steps[3].input.decodes.size(), 2U);
  EXPECT_EQ(steps[3].input.decodes[0].context, 3);
  EXPECT_EQ(steps[3].input.decodes[1].context, 0);
  // The first prompt has 53 tokens in two chunks.
  EXPECT_EQ(steps[52].input.decodes[0].tokens[0], prompts[1].input.prefill[0].tokens.back());
  EXPECT_EQ(steps[53].input.decodes[0].tokens[0], steps[52].next_tokens[0]);
}

TEST(Conversation, OfDecodesAloneHasTheSameLogitsWhereRanksShareContexts) {
  const std::vector<CheckedStep> steps = decoded_conversation(checked_deployment({}), 14);
  for (const Mesh& mesh :
       {Mesh{.cp = 2}, Mesh{.cp = 2, .cp_weights = CpWeights::kReplicated}, Mesh{.tp = 2, .cp = 2},
        testing::dealt_mesh(2), testing::dealt_mesh(3)}) {
    const CheckedDeployment deployment = checked_deployment(mesh);
    reference::Model model = model_of(deployment);
    for (const CheckedStep& step : steps) {
      // Half of the rows of some steps hold no sequence.
      const Plan plan = deployment.lower(step.input, kConversationSequences).plan;
      EXPECT_LT(testing::relative_difference(model.run(plan, step.input).logits, step.logits),
                5e-2);
    }
  }
}

// A row for each rank and micro-batch, so that sequences stay where their KV caches are; some rows
// hold none.
TEST(Conversation, OfDecodesAloneHasTheSameLogitsWhereAttentionRanksShareFfns) {
  const std::vector<CheckedStep> steps = decoded_conversation(checked_deployment({}), 14);
  for (const Mesh& mesh : {Mesh{.dp = 2, .num_micro_batches = 2, .ffn_instances = 1},
                           Mesh{.dp = 2, .num_micro_batches = 2, .ffn_instances = 1, .ffn_tp = 2},
                           Mesh{.dp = 3, .num_micro_batches = 2, .ffn_instances = 1},
                           Mesh{.dp = 3, .num_micro_batches = 2, .ffn_instances = 1, .ffn_tp = 2},
                           Mesh{.dp = 4, .ffn_instances = 1, .ffn_tp = 3}}) {
    const CheckedDeployment deployment = checked_deployment(mesh);
    reference::Model model = model_of(deployment);
    for (const CheckedStep& step : steps) {
      const Plan plan =
          deployment.lower(step.input, std::int64_t{mesh.dp} * mesh.num_micro_batches).plan;
      EXPECT_LT(testing::relative_difference(model.run(plan, step.input).logits, step.logits),
                5e-2);
    }
  }
}

// One row over three tokens, of which 1 is the likeliest; the largest logit is 4.
const std::vector<std::vector<double>> kLogits{{1, 4, 3.9}};
const std::vector<std::vector<std::int32_t>> kTokens{{1}};

TEST(CompareConversations, TellsNearTiesFromWrongTokens) {
  const ExecutedConversation tie{.logits = {{1, 4, 4.1F}}, .next_tokens = {{2}}};
  const ConversationDifference near = compare_conversations(tie, kLogits, kTokens, 0.05);
  EXPECT_NEAR(near.logits, 0.2 / 4, 1e-6);
  EXPECT_EQ(near.near_ties, 1);
  EXPECT_EQ(near.wrong_tokens, 0);
  // 3.9 and 4 differ by 0.1, more than 2 * 0.01 * 4.
  EXPECT_EQ(compare_conversations(tie, kLogits, kTokens, 0.01).wrong_tokens, 1);
}

TEST(CompareConversations, ATokenThatIsNotTheLargestLogitIsWrong) {
  for (const std::int32_t token : {0, 2, 7, -1}) {
    const ExecutedConversation found{.logits = {{1, 4, 3.9F}}, .next_tokens = {{token}}};
    EXPECT_EQ(compare_conversations(found, kLogits, kTokens, 0.05).wrong_tokens, 1) << token;
  }
}

TEST(CompareConversations, AValueThatIsNotFiniteIsInfinitelyFar) {
  const ExecutedConversation found{.logits = {{1, std::nanf(""), 3.9F}}, .next_tokens = {{1}}};
  EXPECT_EQ(compare_conversations(found, kLogits, kTokens, 0.05).logits,
            std::numeric_limits<double>::infinity());
}

TEST(CompareConversations, OtherNumbersOfRowsAreAnError) {
  const ExecutedConversation found{.logits = {{1, 4}}, .next_tokens = {{1}}};
  EXPECT_THROW((void)compare_conversations(found, kLogits, kTokens, 0.05), std::runtime_error);
}

}  // namespace
}  // namespace orrery
