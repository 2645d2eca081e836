// Where weights and collectives stand changes no logits: the reference interpreter on each choice.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::Deployment;
using testing::deployment_of;
using testing::ReferenceRuns;
using testing::relative_difference;
using testing::TestSequence;
using testing::tiny_deepseek;

// Four prompts, a decode of each, then chunks beside decodes.
std::vector<StepInput> short_steps() {
  const std::vector<TestSequence> sequences{{0, 30}, {1, 30}, {2, 30}, {3, 30}};
  StepInput prefill;
  StepInput decode;
  StepInput mixed;
  for (std::size_t i = 0; i < 4; ++i) {
    prefill.prefill.push_back(sequences[i].chunk(0, 5));
    decode.decodes.push_back(sequences[i].chunk(5, 6));
    if (i % 2 == 0) mixed.prefill.push_back(sequences[i].chunk(6, 9));
    if (i % 2 == 1) mixed.decodes.push_back(sequences[i].chunk(6, 7));
  }
  return {prefill, decode, mixed};
}

double worst_over_steps(const Deployment& found, const Deployment& expected) {
  ReferenceRuns a(found);
  ReferenceRuns b(expected);
  double worst = 0;
  for (const StepInput& step : short_steps()) {
    worst = std::max(worst, relative_difference(a.run(step).logits, b.run(step).logits));
  }
  return worst;
}

// Logits of every mesh against those of one rank, the sum of the residual fused with norms or not.
void expect_equal_logits(const ModelConfig& model, const std::vector<Mesh>& meshes) {
  for (const bool fuses : {false, true}) {
    const Deployment single = deployment_of(model, {}, fuses);
    for (const Mesh& mesh : meshes) {
      check_mesh(model, mesh);
      EXPECT_LT(worst_over_steps(deployment_of(model, mesh, fuses), single), 1e-9)
          << "dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep << " pp " << mesh.pp
          << " sp " << mesh.sp << " "
          << kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)];
    }
  }
}

TEST(ReferencePlacement, AReplicatedSharedExpertGivesTheLogitsOfOneRank) {
  const SharedExpert whole = SharedExpert::kReplicated;
  const ModelConfig model = tiny_deepseek();
  expect_equal_logits(
      model,
      {{.tp = 2, .shared_expert = whole},
       {.tp = 4, .ep = 2, .shared_expert = whole},
       {.tp = 2, .pp = 2, .shared_expert = whole},
       {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kEager, .shared_expert = whole},
       {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph, .shared_expert = whole}});
  for (const MoeDesign design :
       {MoeDesign::kPadding, MoeDesign::kSlicing, MoeDesign::kConcatenation}) {
    Deployment single = deployment_of(model, {});
    Deployment split = deployment_of(model, {.tp = 2, .shared_expert = whole});
    single.options.moe_design = split.options.moe_design = design;
    EXPECT_LT(worst_over_steps(split, single), 1e-9) << to_text(design);
  }
}

TEST(ReferencePlacement, AGatherFurtherBackGivesTheLogitsOfOneRank) {
  const auto projected = AttentionGather::kProjected;
  const auto routed = MoeGather::kRouted;
  const SharedExpert whole = SharedExpert::kReplicated;
  const ExpertComm eager = ExpertComm::kEager;
  expect_equal_logits(
      tiny_deepseek(),
      {{.tp = 2, .sp = true, .attention_gather = projected},
       {.tp = 4, .sp = true, .attention_gather = projected, .moe_gather = routed},
       {.tp = 4, .ep = 4, .sp = true, .moe_gather = routed},
       {.tp = 2, .sp = true, .shared_expert = whole, .moe_gather = routed},
       {.tp = 2, .pp = 2, .sp = true, .attention_gather = projected, .moe_gather = routed},
       {.dp = 2, .tp = 2, .ep = 4, .sp = true, .expert_comm = eager, .moe_gather = routed},
       {.dp = 2,
        .tp = 2,
        .ep = 4,
        .sp = true,
        .expert_comm = eager,
        .shared_expert = whole,
        .attention_gather = projected,
        .moe_gather = routed}});
}

TEST(ReferencePlacement, GatheredTokensGiveTheLogitsOfOneRank) {
  const ExpertComm tokens = ExpertComm::kTokens;
  const SharedExpert whole = SharedExpert::kReplicated;
  const ModelConfig model = tiny_deepseek();
  const std::vector<Mesh> meshes{
      {.dp = 2, .ep = 2, .expert_comm = tokens},
      {.dp = 4, .ep = 4, .expert_comm = tokens, .split_shared_expert = false},
      {.dp = 2, .tp = 2, .ep = 4, .expert_comm = tokens},
      {.dp = 2, .tp = 2, .ep = 2, .expert_comm = tokens, .shared_expert = whole},
      {.dp = 2, .tp = 2, .ep = 4, .sp = true, .expert_comm = tokens}};
  for (const Mesh& mesh : meshes) {
    Deployment single = deployment_of(model, {});
    Deployment split = deployment_of(model, mesh);
    for (const int streams : {1, 2}) {
      single.options.moe_streams = split.options.moe_streams = streams;
      ReferenceRuns a(split);
      ReferenceRuns b(single);
      // As many tokens on each rank: the reference has no others to leave out.
      for (const StepInput& step : {short_steps()[0], short_steps()[1]}) {
        EXPECT_LT(relative_difference(a.run(step).logits, b.run(step).logits), 1e-9)
            << "dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep << " sp " << mesh.sp;
      }
    }
  }
}

TEST(ReferencePlacement, AReplicatedOutputProjectionGivesTheLogitsOfOneRank) {
  const OProjection whole = OProjection::kReplicated;
  const std::vector<Mesh> meshes{{.tp = 2, .o_proj = whole},
                                 {.dp = 2, .tp = 2, .o_proj = whole},
                                 {.tp = 2, .pp = 2, .o_proj = whole}};
  expect_equal_logits(testing::tiny_llama(), meshes);
  expect_equal_logits(tiny_deepseek(), {meshes.front(), meshes.back()});
}

TEST(ReferencePlacement, AReplicatedLmHeadGivesTheLogitsOfOneRank) {
  expect_equal_logits(testing::tiny_llama(),
                      {{.tp = 2, .lm_head = LmHead::kReplicated},
                       {.dp = 2, .tp = 2, .pp = 2, .lm_head = LmHead::kReplicated},
                       {.tp = 4, .sp = true, .lm_head = LmHead::kReplicated}});
}

// Copies of experts 5 and 2, and experts in another order.
TEST(ReferencePlacement, CopiesOfExpertsGiveTheLogitsOfOneRank) {
  const std::vector<std::int64_t> slots{3, 5, 7, 0, 2, 1, 5, 4, 6, 2};
  std::vector<Mesh> meshes;
  for (const ExpertComm comm : {ExpertComm::kGraph, ExpertComm::kEager, ExpertComm::kTokens}) {
    meshes.push_back({.dp = 2, .ep = 2, .expert_comm = comm});
    meshes.push_back({.dp = 2, .tp = 2, .ep = 2, .expert_comm = comm});
  }
  meshes.push_back({.tp = 2, .ep = 2});
  for (Mesh& mesh : meshes) {
    mesh.num_redundant_experts = 2;
    mesh.expert_of_slot = slots;
  }
  meshes.push_back({.tp = 2, .ep = 2, .expert_of_slot = {7, 6, 5, 4, 3, 2, 1, 0}});
  ModelConfig model = tiny_deepseek();
  const std::vector<StepInput> steps{short_steps()[0], short_steps()[1]};
  for (const Mesh& mesh : meshes) {
    check_mesh(model, mesh);
    ReferenceRuns copies(deployment_of(model, mesh));
    ReferenceRuns single(deployment_of(model, {}));
    for (const StepInput& step : steps) {
      EXPECT_LT(relative_difference(copies.run(step).logits, single.run(step).logits), 1e-9)
          << "dp " << mesh.dp << " tp " << mesh.tp << " "
          << kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)];
    }
  }
}

// Weights that ranks bring together layer by layer.
TEST(ReferencePlacement, AShardedOutputProjectionGivesTheLogitsOfOneRank) {
  const OProjection sharded = OProjection::kSharded;
  const std::vector<Mesh> meshes{{.dp = 2, .o_proj = sharded},
                                 {.dp = 2, .tp = 2, .o_proj = sharded},
                                 {.dp = 2, .tp = 2, .pp = 2, .o_proj = sharded}};
  expect_equal_logits(testing::tiny_llama(), meshes);
  const ExpertComm graph = ExpertComm::kGraph;
  expect_equal_logits(tiny_deepseek(),
                      {{.dp = 2, .ep = 2, .expert_comm = graph, .o_proj = sharded},
                       {.dp = 2, .tp = 2, .ep = 4, .expert_comm = graph, .o_proj = sharded}});
}

// A vocabulary that divides over the ranks, and one that does not.
TEST(ReferencePlacement, AJoinedLmHeadGivesTheLogitsOfOneRank) {
  const LmHead joined = LmHead::kJoined;
  ModelConfig model = testing::tiny_llama();
  model.tie_word_embeddings = false;
  const std::vector<Mesh> meshes{{.dp = 2, .lm_head = joined},
                                 {.dp = 2, .tp = 2, .lm_head = joined},
                                 {.dp = 2, .pp = 2, .lm_head = joined}};
  expect_equal_logits(model, meshes);
  model.vocab_size += 1;
  expect_equal_logits(model, {meshes.front()});
}

TEST(ReferencePlacement, ASplitAllReduceGivesTheLogitsOfOneRank) {
  const std::vector<Mesh> meshes{{.tp = 2, .split_all_reduce = true},
                                 {.dp = 2, .tp = 2, .split_all_reduce = true},
                                 {.tp = 4, .pp = 2, .split_all_reduce = true}};
  expect_equal_logits(testing::tiny_llama(), meshes);
  expect_equal_logits(tiny_deepseek(), {meshes.front(), meshes.back()});
}

// Prompts, decodes of them, prompts beside decodes, and prompts after cached tokens.
TEST(ReferencePlacement, PartsOfTheContextGiveTheLogitsOfOneRank) {
  const CpWeights whole = CpWeights::kReplicated;
  const CpPrefill ring = CpPrefill::kRing;
  expect_equal_logits(testing::tiny_llama(), {{.cp = 2},
                                              {.cp = 4},
                                              {.tp = 2, .cp = 2},
                                              {.tp = 2, .cp = 4, .pp = 2},
                                              {.tp = 4, .cp = 2},
                                              {.cp = 2, .cp_weights = whole},
                                              {.tp = 2, .cp = 2, .cp_weights = whole},
                                              {.tp = 2, .cp = 3, .cp_weights = whole},
                                              {.cp = 2, .cp_prefill = ring},
                                              {.cp = 4, .cp_weights = whole, .cp_prefill = ring}});
  expect_equal_logits(
      tiny_deepseek(),
      {{.cp = 2}, {.cp = 4}, {.tp = 2, .cp = 2}, {.cp = 2, .ep = 2}, {.tp = 2, .cp = 2, .ep = 4}});
}

// Ranks of one page table, each with rows of its own, experts over all of them.
TEST(ReferencePlacement, DecodesThatAreDealtOutGiveTheLogitsOfOneRank) {
  Mesh ring = testing::dealt_mesh(2);
  ring.cp_prefill = CpPrefill::kRing;
  expect_equal_logits(testing::tiny_llama(), {testing::dealt_mesh(2), testing::dealt_mesh(3),
                                              testing::dealt_mesh(4), ring});
  std::vector<Mesh> of_experts{testing::dealt_mesh(2, 2), testing::dealt_mesh(4, 4),
                               testing::dealt_mesh(2, 2)};
  of_experts.back().expert_comm = ExpertComm::kEager;
  expect_equal_logits(tiny_deepseek(), of_experts);
}

TEST(ReferencePlacement, AReplicatedSharedExpertMayRunOnASecondStream) {
  const ModelConfig model = tiny_deepseek();
  Deployment single = deployment_of(model, {});
  Deployment split = deployment_of(model, {.dp = 2,
                                           .tp = 2,
                                           .ep = 4,
                                           .expert_comm = ExpertComm::kEager,
                                           .shared_expert = SharedExpert::kReplicated});
  single.options.moe_streams = split.options.moe_streams = 2;
  EXPECT_LT(worst_over_steps(split, single), 1e-9);
}

TEST(ReferencePlacement, AGemmThatAddsToTheSharedExpertNeedsItSplit) {
  Deployment split =
      deployment_of(tiny_deepseek(), {.tp = 2, .shared_expert = SharedExpert::kReplicated});
  split.options.fuse_scatter_add = true;
  try {
    ReferenceRuns runs(split);
    static_cast<void>(runs.run(short_steps().front()));
    FAIL() << "rows were added to a whole of which each rank has one";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(
        std::string(error.what()).find("expected shared_expert split, or no fuse_scatter_add"),
        std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace orrery
