// Two-batch overlap changes no logits: the reference interpreter on steps in two halves.

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/rank_batches.h"
#include "kernels/execute/rank_program.h"
#include "sim/parallel/halves.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::Deployment;
using testing::deployment_of;
using testing::ReferenceRuns;
using testing::relative_difference;
using testing::TestSequence;
using testing::tiny_deepseek;

constexpr std::int64_t kLayers = 4;  // one dense, so that those of experts are a run

Mesh halved(Mesh mesh) {
  mesh.two_batch_overlap = true;
  mesh.num_micro_batches = 2;
  return mesh;
}

// Eight prompts, a decode of each, then chunks of four beside decodes of four, two and two on each
// of two data-parallel ranks.
std::vector<StepInput> halved_steps() {
  StepInput prefill;
  StepInput decode;
  StepInput mixed;
  for (int i = 0; i < 8; ++i) {
    const TestSequence sequence{i, 30};
    prefill.prefill.push_back(sequence.chunk(0, 5));
    decode.decodes.push_back(sequence.chunk(5, 6));
    if (i % 4 < 2) mixed.prefill.push_back(sequence.chunk(6, 9));
    if (i % 4 >= 2) mixed.decodes.push_back(sequence.chunk(6, 7));
  }
  return {prefill, decode, mixed};
}

void expect_logits_of_halves(const ModelConfig& model, const std::vector<Mesh>& meshes) {
  for (const bool fuses : {false, true}) {
    for (const Mesh& mesh : meshes) {
      check_mesh(model, mesh);
      ReferenceRuns halves(deployment_of(model, halved(mesh), fuses));
      ReferenceRuns single(deployment_of(model, {}, fuses));
      for (const StepInput& step : halved_steps()) {
        EXPECT_LT(relative_difference(halves.run(step).logits, single.run(step).logits), 1e-9)
            << "dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep << " sp " << mesh.sp
            << " " << kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)];
      }
    }
  }
}

TEST(ReferenceTwoBatch, HalvesGiveTheLogitsOfOneRank) {
  expect_logits_of_halves(testing::tiny_llama(),
                          {{.tp = 2},
                           {.tp = 4},
                           {.tp = 2, .sp = true},
                           {.dp = 2, .tp = 2},
                           {.tp = 2, .split_all_reduce = true},
                           {.dp = 2, .tp = 2, .o_proj = OProjection::kSharded}});
}

TEST(ReferenceTwoBatch, HalvesOfRoutedLayersGiveTheLogitsOfOneRank) {
  expect_logits_of_halves(
      tiny_deepseek(kLayers),
      {{.tp = 2},
       {.tp = 2, .ep = 2, .shared_expert = SharedExpert::kReplicated},
       {.tp = 4, .ep = 4, .sp = true},
       {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
       {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager, .split_shared_expert = false},
       {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph},
       {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph, .o_proj = OProjection::kSharded},
       {.dp = 2, .tp = 2, .ep = 4, .sp = true, .expert_comm = ExpertComm::kEager}});
}

// The second half of a prompt attends to what the first has left in the cache. Not for expanded
// latents: a plan has halves that are alike, and only the second has rows to gather from the cache.
TEST(ReferenceTwoBatch, APromptMayBeCut) {
  const TestSequence sequence{0, 30};
  ReferenceRuns halves(deployment_of(testing::tiny_llama(), halved({.tp = 2}), true));
  ReferenceRuns single(deployment_of(testing::tiny_llama(), {}, true));
  const StepInput cut{.prefill = {sequence.chunk(0, 6, false), sequence.chunk(6, 12)}};
  const StepInput whole{.prefill = {sequence.chunk(0, 12)}};
  EXPECT_LT(relative_difference(halves.run(cut).logits, single.run(whole).logits), 1e-9);
}

// One decode cannot be halved: it runs whole on the cache that prompts in halves have filled, whose
// layers are where they are without halves.
TEST(ReferenceTwoBatch, StepsInHalvesAndWholeOnesShareTheCache) {
  const Mesh mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager};
  const ModelConfig model = tiny_deepseek(kLayers);
  bool is_halved = true;
  Batch batch{.prefill = std::vector<PrefillChunk>(8, {.query = 5})};
  const Deployment whole = deployment_of(model, mesh, true);
  ReferenceRuns mixed(whole, [&](const Plan& plan) {
    return is_halved ? parallelize(lower(model, batch, whole.options), halved(mesh)) : plan;
  });
  ReferenceRuns single(deployment_of(model, {}, true));
  for (const StepInput& step : {halved_steps()[0], halved_steps()[1]}) {
    EXPECT_LT(relative_difference(mixed.run(step).logits, single.run(step).logits), 1e-9)
        << (is_halved ? "prompts" : "decodes");
    is_halved = false;
  }
}

// As GPUs run them: prompts of unequal lengths are cut where half of a rank's tokens end, and parts
// with fewer rows, or none, are padded.
void expect_logits_of_executed(const ModelConfig& model, const Mesh& mesh) {
  const Deployment whole = deployment_of(model, {}, true);
  Mesh overlapped = mesh;
  overlapped.two_batch_overlap = true;
  StepInput input;
  ReferenceRuns halves(deployment_of(model, mesh, true), [&](const Plan&) {
    return executed_plan(model, batch_of(input), whole.options, overlapped);
  });
  ReferenceRuns single(whole);
  const std::vector<TestSequence> sequences{{0, 30}, {1, 30}, {2, 30}, {3, 30}};
  StepInput prompts;
  StepInput mixed;
  StepInput decodes;
  for (const TestSequence& sequence : sequences) {
    const int length = 3 + 6 * sequence.index;
    const bool is_chunked = sequence.index % 2 == 1;
    const int end = length + (is_chunked ? 3 : 1);
    prompts.prefill.push_back(sequence.chunk(0, length, !is_chunked));
    (is_chunked ? mixed.prefill : mixed.decodes).push_back(sequence.chunk(length, end));
    decodes.decodes.push_back(sequence.chunk(end, end + 1));
  }
  for (const StepInput& step : {prompts, mixed, decodes}) {
    input = step;
    const StepInput parts = in_halves(step, mesh.dp);
    EXPECT_LT(relative_difference(halves.run(parts).logits, single.run(step).logits), 1e-9)
        << "dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep << ": " << step.prefill.size()
        << " chunks, " << step.decodes.size() << " decodes";
  }
}

TEST(ReferenceTwoBatch, UnequalHalvesGiveTheLogitsOfOneRank) {
  const ModelConfig model = testing::tiny_llama();
  expect_logits_of_executed(model, {.tp = 2});
  expect_logits_of_executed(model, {.dp = 2, .tp = 2});
  expect_logits_of_executed(model, {.tp = 2, .sp = true});
}

TEST(ReferenceTwoBatch, UnequalHalvesOfRoutedLayersGiveTheLogitsOfOneRank) {
  ConfigFields fields = testing::tiny_llama_fields();
  fields["model_type"] = std::string("qwen3_moe");
  fields["num_experts"] = std::int64_t{8};
  fields["num_experts_per_tok"] = std::int64_t{3};
  fields["moe_intermediate_size"] = std::int64_t{16};
  fields["norm_topk_prob"] = true;
  const ModelConfig model = model_config("tiny", fields);
  expect_logits_of_executed(model, {.tp = 2, .ep = 2});
  expect_logits_of_executed(model, {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager});
  expect_logits_of_executed(model, {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph});
}

// Halves of a prompt have other numbers of keys: latents are gathered for as many on each.
TEST(ReferenceTwoBatch, LatentAttentionTakesPromptsThatAreCut) {
  const Mesh mesh{.tp = 2, .two_batch_overlap = true};
  Deployment single = deployment_of(tiny_deepseek(), {});
  const Deployment split = deployment_of(tiny_deepseek(), mesh);
  const TestSequence sequence{0, 30};
  const TestSequence other{1, 30};
  const std::vector<StepInput> steps{
      {.prefill = {sequence.chunk(0, 7)}},
      {.prefill = {sequence.chunk(7, 12), other.chunk(0, 3)}},
      {.prefill = {other.chunk(3, 9)}, .decodes = {sequence.chunk(12, 13)}}};
  ReferenceRuns expected(single);
  reference::Model halves({.grid = grid_of(mesh),
                           .numbers = {.head_dim = split.model.rotary_dim(),
                                       .max_positions = 64,
                                       .routing = testing::routing_of(split.model)},
                           .num_kv_blocks = testing::kNumBlocks,
                           .block_size = testing::kBlockSize});
  for (const StepInput& step : steps) {
    const Plan plan = executed_plan(split.model, batch_of(step), split.options, mesh);
    ASSERT_EQ(num_micro_batches(plan), 2);
    const auto found = halves.run(plan, in_halves(step, 1));
    EXPECT_LT(relative_difference(found.logits, expected.run(step).logits), 1e-9);
  }
}

}  // namespace
}  // namespace orrery
