// Even parts of all data-parallel ranks' rows (dp_rows balanced), on the reference interpreter:
// sequences of unequal lengths give the logits of one rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/parallel/halves.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::deployment_of;
using testing::ReferenceRuns;
using testing::relative_difference;
using testing::TestSequence;
using testing::tiny_deepseek;
using testing::tiny_llama;

constexpr auto kProjected = AttentionGather::kProjected;
constexpr auto kBalanced = DpRows::kBalanced;

SequenceTokens of_rank(int dp_rank, SequenceTokens tokens) {
  tokens.dp_rank = dp_rank;
  return tokens;
}

// A long prompt beside short ones; a decode beside prompts and a chunk; more chunks; decodes alone.
// Of four ranks the third has nothing until the second step, the fourth nothing at all.
std::vector<StepInput> unequal_steps(int dp) {
  const TestSequence a(0, 20);
  const TestSequence b(1, 20);
  const TestSequence c(2, 20);
  const TestSequence d(3, 20);
  const int last = std::min(2, dp - 1);
  std::vector<StepInput> steps(4);
  steps[0].prefill = {of_rank(0, a.chunk(0, 11)), of_rank(1, b.chunk(0, 2, false)),
                      of_rank(1, c.chunk(0, 3))};
  steps[1].prefill = {of_rank(1, b.chunk(2, 7)), of_rank(last, d.chunk(0, 6, false))};
  steps[1].decodes = {of_rank(0, a.chunk(11, 12)), of_rank(1, c.chunk(3, 4))};
  steps[2].prefill = {of_rank(last, d.chunk(6, 10))};
  steps[2].decodes = {of_rank(0, a.chunk(12, 13)), of_rank(1, b.chunk(7, 8)),
                      of_rank(1, c.chunk(4, 5))};
  steps[3].decodes = {of_rank(0, a.chunk(13, 14)), of_rank(1, b.chunk(8, 9)),
                      of_rank(1, c.chunk(5, 6)), of_rank(last, d.chunk(10, 11))};
  return steps;
}

// Two layers of eight experts, of which a token chooses three.
ModelConfig keys_and_experts() {
  ConfigFields fields = testing::tiny_llama_fields();
  fields["model_type"] = std::string("qwen3_moe");
  fields["num_hidden_layers"] = std::int64_t{2};
  fields["num_experts"] = std::int64_t{8};
  fields["num_experts_per_tok"] = std::int64_t{3};
  fields["moe_intermediate_size"] = std::int64_t{16};
  fields["norm_topk_prob"] = true;
  return model_config("tiny", fields);
}

StepInput without_ranks(StepInput step) {
  for (auto* sequences : {&step.prefill, &step.decodes}) {
    for (SequenceTokens& sequence : *sequences) sequence.dp_rank = -1;
  }
  return step;
}

void expect_balanced_logits(const ModelConfig& model, const std::vector<Mesh>& meshes) {
  for (const bool fuses : {false, true}) {
    for (const Mesh& mesh : meshes) {
      check_mesh(model, mesh);
      ReferenceRuns split(deployment_of(model, mesh, fuses));
      ReferenceRuns single(deployment_of(model, {}, fuses));
      int at = 0;
      for (const StepInput& step : unequal_steps(mesh.dp)) {
        EXPECT_LT(
            relative_difference(split.run(step).logits, single.run(without_ranks(step)).logits),
            1e-9)
            << "step " << at << " dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep
            << " pp " << mesh.pp << (mesh.attention_gather == kProjected ? " projected" : "");
        ++at;
      }
    }
  }
}

TEST(ReferenceBalancedRows, OfKeysAndValuesGiveTheLogitsOfOneRank) {
  expect_balanced_logits(tiny_llama(), {{.dp = 2, .dp_rows = kBalanced},
                                        {.dp = 3, .dp_rows = kBalanced},
                                        {.dp = 4, .dp_rows = kBalanced},
                                        {.dp = 2, .tp = 2, .dp_rows = kBalanced},
                                        {.dp = 2, .tp = 2, .pp = 2, .dp_rows = kBalanced}});
}

// Experts over all ranks take in even parts of the tokens.
TEST(ReferenceBalancedRows, OfRoutedExpertsGiveTheLogitsOfOneRank) {
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph}) {
    expect_balanced_logits(keys_and_experts(),
                           {{.dp = 2, .ep = 2, .dp_rows = kBalanced, .expert_comm = comm},
                            {.dp = 4, .ep = 4, .dp_rows = kBalanced, .expert_comm = comm}});
  }
}

TEST(ReferenceBalancedRows, OfLatentsGiveTheLogitsOfOneRank) {
  for (const AttentionGather gather : {AttentionGather::kNorm, kProjected}) {
    const ExpertComm eager = ExpertComm::kEager;
    expect_balanced_logits(
        tiny_deepseek(),
        {{.dp = 2, .ep = 2, .dp_rows = kBalanced, .expert_comm = eager, .attention_gather = gather},
         {.dp = 4,
          .ep = 4,
          .dp_rows = kBalanced,
          .expert_comm = ExpertComm::kGraph,
          .attention_gather = gather},
         {.dp = 2,
          .tp = 2,
          .ep = 4,
          .dp_rows = kBalanced,
          .expert_comm = eager,
          .attention_gather = gather}});
  }
}

// Steps whose sequences are dealt out in order, by the plans that `orrery validate` writes: long
// prompts on the first rank, short ones on the second; chunks beside decodes; decodes alone.
TEST(ReferenceBalancedRows, OfExecutedPlansGiveTheLogitsOfOneRank) {
  const TestSequence a(0, 20);
  const TestSequence b(1, 20);
  const TestSequence c(2, 20);
  const TestSequence d(3, 20);
  std::vector<StepInput> steps(3);
  steps[0].prefill = {a.chunk(0, 9, false), b.chunk(0, 4), c.chunk(0, 2, false), d.chunk(0, 1)};
  steps[1].prefill = {a.chunk(9, 11), c.chunk(2, 7)};
  steps[1].decodes = {b.chunk(4, 5), d.chunk(1, 2)};
  steps[2].decodes = {a.chunk(11, 12), b.chunk(5, 6), c.chunk(7, 8)};
  for (const ModelConfig& model : {tiny_llama(), tiny_deepseek()}) {
    const int ep = model.num_experts > 0 ? 2 : 1;
    Mesh mesh{.dp = 2, .ep = ep, .expert_comm = ExpertComm::kGraph};
    const testing::Deployment own = deployment_of(model, mesh);
    mesh.dp_rows = kBalanced;
    const StepInput* step = nullptr;
    ReferenceRuns split(own, [&](const Plan& /*plan*/) {
      return executed_plan(model, batch_of(*step), own.options, mesh);
    });
    ReferenceRuns single(deployment_of(model, {}));
    for (const StepInput& input : steps) {
      step = &input;
      EXPECT_LT(relative_difference(split.run(input).logits, single.run(input).logits), 1e-9)
          << "step " << &input - steps.data();
    }
  }
}

}  // namespace
}  // namespace orrery
