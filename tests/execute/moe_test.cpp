// Mixtures of experts on the reference interpreter: the same logits in every design and however
// experts are split over ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/hazards.h"
#include "kernels/execute/reference/collective_call.h"
#include "kernels/execute/weights.h"
#include "kernels/execute/wrong_plan.h"
#include "sim/memory/buffers.h"
#include "sim/model/expert_load_sources.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::Deployment;
using testing::ReferenceRuns;
using testing::relative_difference;
using testing::TestSequence;

// 2 layers, 8 experts of 16 columns; kinds as Qwen3 (softmax, 3 of 8, normalised), Llama 4 (sigmoid
// of the best, which weighs inputs, one shared expert) and DeepSeek-V3 (sigmoid, 2 of 8 from 2 of 4
// groups, bias, scaled, shared experts).
ModelConfig tiny_moe(const std::string& kind) {
  ConfigFields fields = testing::tiny_llama_fields();
  fields["model_type"] = std::string("qwen3_moe");
  fields["num_hidden_layers"] = std::int64_t{2};
  fields["num_experts"] = std::int64_t{8};
  fields["num_experts_per_tok"] = std::int64_t{3};
  fields["moe_intermediate_size"] = std::int64_t{16};
  fields["norm_topk_prob"] = true;
  ModelConfig model = model_config("tiny", fields);
  if (kind == "qwen3") return model;
  model.scoring_func = ScoringFunc::kSigmoid;
  model.shared_expert_intermediate_size = 32;
  if (kind == "llama4") {
    model.num_experts_per_tok = 1;
    model.norm_topk_prob = false;
    model.weighs_expert_inputs = true;
    return model;
  }
  model.num_experts_per_tok = 2;
  model.n_group = 4;
  model.topk_group = 2;
  model.router_bias = model.has_correction_bias = true;
  model.routed_scaling_factor = 2.5;
  return model;
}
const std::vector<std::string> kKinds{"qwen3", "llama4", "deepseek"};

Deployment deployment_of(const std::string& kind, MoeDesign design, const Mesh& mesh = {}) {
  Deployment deployment{.model = tiny_moe(kind), .options = {.moe_design = design}, .mesh = mesh};
  return deployment;
}

std::vector<StepInput> moe_steps() {
  const std::vector<TestSequence> sequences{{0, 30}, {1, 30}, {2, 30}, {3, 30}};
  const std::vector<std::int64_t> lengths{5, 5, 5, 5};
  StepInput prefill;
  StepInput decode;
  for (std::size_t i = 0; i < 4; ++i) {
    prefill.prefill.push_back(sequences[i].chunk(0, lengths[i]));
    decode.decodes.push_back(sequences[i].chunk(lengths[i], lengths[i] + 1));
  }
  return {prefill, decode};
}

double worst_difference(const Deployment& found, const Deployment& expected) {
  ReferenceRuns a(found);
  ReferenceRuns b(expected);
  double worst = 0;
  for (const StepInput& step : moe_steps()) {
    worst = std::max(worst, relative_difference(a.run(step).logits, b.run(step).logits));
  }
  return worst;
}

TEST(ReferenceMoe, EveryDesignGivesTheSameLogits) {
  using enum MoeDesign;
  for (const std::string& kind : kKinds) {
    const Deployment shuffling = deployment_of(kind, kShuffling);
    for (const MoeDesign design : {kPadding, kSlicing, kConcatenation}) {
      EXPECT_LT(worst_difference(deployment_of(kind, design), shuffling), 1e-9)
          << kind << " " << to_text(design);
    }
    Deployment fused = shuffling;
    fused.options.fuse_gather = true;
    EXPECT_LT(worst_difference(fused, shuffling), 1e-9) << kind;
    if (kind == "qwen3") continue;  // no shared expert
    for (const bool gathers : {false, true}) {
      fused.options.fuse_gather = gathers;
      fused.options.fuse_scatter_add = true;
      fused.options.moe_streams = 2;
      EXPECT_LT(worst_difference(fused, shuffling), 1e-9) << kind;
    }
  }
}

// Experts' columns on each rank, or experts; tokens on both.
TEST(ReferenceMoe, AFusedGatherGivesTheSameLogitsOnTensorParallelRanks) {
  for (const std::string& kind : kKinds) {
    const Deployment expected = deployment_of(kind, MoeDesign::kShuffling);
    for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 2, .sp = true}, Mesh{.tp = 2, .ep = 2}}) {
      Deployment fused = deployment_of(kind, MoeDesign::kShuffling, mesh);
      fused.options.fuse_gather = true;
      EXPECT_LT(worst_difference(fused, expected), 1e-9) << kind << " ep " << mesh.ep;
    }
  }
}

// As one kernel, which weighs no inputs; of one rank and of two with experts on each.
TEST(ReferenceMoe, OneKernelGivesTheSameLogits) {
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::string kind : {"qwen3", "deepseek"}) {
      const auto of = [&](MoeDesign design, const Mesh& mesh) {
        Deployment deployment = deployment_of(kind, design, mesh);
        deployment.options.precision.weights = deployment.options.precision.activations = dtype;
        return deployment;
      };
      const Deployment expected = of(MoeDesign::kShuffling, {});
      for (const Mesh& mesh : {Mesh{}, Mesh{.dp = 2, .ep = 2}}) {
        EXPECT_LT(worst_difference(of(MoeDesign::kPersistent, mesh), expected), 1e-9)
            << kind << " " << to_text(dtype) << " dp " << mesh.dp;
        if (kind == "qwen3") continue;  // no shared expert
        Deployment inside = of(MoeDesign::kPersistent, mesh);
        inside.options.shared_inside = true;
        EXPECT_LT(worst_difference(inside, expected), 1e-9)
            << to_text(dtype) << " dp " << mesh.dp << " with the shared expert";
      }
    }
  }
}

// Experts of the second rank and of the first, mixed; groups and the correction bias of
// DeepSeek-V3's router go by experts, whatever slots hold them.
TEST(ReferenceMoe, OneKernelWithExpertsInAnotherOrderGivesTheSameLogits) {
  for (const std::string kind : {"qwen3", "deepseek"}) {
    const Deployment expected = deployment_of(kind, MoeDesign::kShuffling);
    for (const bool is_inside : {false, true}) {
      if (is_inside && kind == "qwen3") continue;  // no shared expert
      Deployment split =
          deployment_of(kind, MoeDesign::kPersistent,
                        {.dp = 2, .ep = 2, .expert_of_slot = {7, 2, 4, 1, 0, 6, 3, 5}});
      split.options.shared_inside = is_inside;
      EXPECT_LT(worst_difference(split, expected), 1e-9) << kind;
    }
  }
}

// Logits of sequences [first, last) of each step, run by themselves.
std::vector<std::vector<double>> logits_of(const Deployment& deployment, std::size_t first,
                                           std::size_t last) {
  ReferenceRuns runs(deployment);
  std::vector<std::vector<double>> logits;
  for (StepInput step : moe_steps()) {
    for (auto* sequences : {&step.prefill, &step.decodes}) {
      if (sequences->empty()) continue;
      *sequences = {sequences->begin() + static_cast<std::ptrdiff_t>(first),
                    sequences->begin() + static_cast<std::ptrdiff_t>(last)};
    }
    logits.push_back(runs.run(step).logits);
  }
  return logits;
}

// An expert counts the tokens of each rank by themselves: two ranks drop what each would alone, and
// not what one with all tokens would. Of 8 experts 2 or 3 to a token, and 10 tokens of a rank, each
// takes ceil(0.5 * 10 * 3 / 8) = 2, where four get all: so most choices are dropped.
TEST(ReferenceMoe, ACapacityIsOfTheTokensOfEachRank) {
  for (const std::string kind : {"qwen3", "deepseek"}) {
    const auto of = [&](std::int64_t percent, const Mesh& mesh) {
      Deployment deployment = deployment_of(kind, MoeDesign::kPersistent, mesh);
      deployment.options.capacity_percent = percent;
      deployment.options.shared_inside = kind == "deepseek";
      return deployment;
    };
    const Mesh two{.dp = 2, .ep = 2};
    const Deployment whole = deployment_of(kind, MoeDesign::kShuffling);
    for (const Mesh& mesh : {Mesh{}, two}) {
      EXPECT_LT(worst_difference(of(51'200, mesh), whole), 1e-9) << kind;
      EXPECT_GT(worst_difference(of(50, mesh), whole), 1e-3) << kind;
    }
    EXPECT_GT(worst_difference(of(50, two), of(50, {})), 1e-3) << kind;
    const auto found = logits_of(of(50, two), 0, 4);
    const auto first = logits_of(of(50, {}), 0, 2);
    const auto second = logits_of(of(50, {}), 2, 4);
    for (std::size_t step = 0; step < found.size(); ++step) {
      std::vector<double> expected = first[step];
      expected.insert(expected.end(), second[step].begin(), second[step].end());
      EXPECT_LT(relative_difference(found[step], expected), 1e-9) << kind << " step " << step;
    }
  }
}

// What is added to the logits chooses as in the ops of the other designs.
TEST(ReferenceMoe, OneKernelTakesABiasOnTheRouter) {
  for (const std::string kind : {"qwen3", "deepseek"}) {
    Deployment expected = deployment_of(kind, MoeDesign::kShuffling);
    const Deployment free = expected;
    expected.router_bias = {1, 0.5, -2, 0, 0.25, -1, 3, 0};
    EXPECT_GT(worst_difference(expected, free), 1e-3) << kind;
    for (const Mesh& mesh : {Mesh{}, Mesh{.dp = 2, .ep = 2}}) {
      Deployment found = deployment_of(kind, MoeDesign::kPersistent, mesh);
      found.router_bias = expected.router_bias;
      EXPECT_LT(worst_difference(found, expected), 1e-9) << kind << " dp " << mesh.dp;
    }
  }
}

TEST(ReferenceMoe, KindsOfRoutingDiffer) {
  const auto first = [](const std::string& kind, bool normalises) {
    Deployment deployment = deployment_of(kind, MoeDesign::kShuffling);
    deployment.model.norm_topk_prob = normalises;
    ReferenceRuns runs(deployment);
    return runs.run(moe_steps()[0]).logits;
  };
  for (const std::string& kind : kKinds) {
    EXPECT_GT(relative_difference(first(kind, true), first(kind, false)), 1e-3) << kind;
  }
}

// Of 8 experts 1, 4 and 6 have the rows of all tokens, so any design leaves out the others.
TEST(ReferenceMoe, ABiasOnTheRouterSaysWhichExpertsAreChosen) {
  const Deployment free = deployment_of("qwen3", MoeDesign::kShuffling);
  Deployment bound = free;
  bound.router_bias = {0, 40, 0, 0, 40, 0, 40, 0};
  EXPECT_GT(worst_difference(bound, free), 1e-3);
  Deployment padded = bound;
  padded.options.moe_design = MoeDesign::kPadding;
  EXPECT_LT(worst_difference(padded, bound), 1e-9);
  Deployment more = bound;  // none of the others was chosen before either
  for (const std::size_t e : {0, 2, 3, 5, 7}) more.router_bias[e] = -40;
  EXPECT_LT(worst_difference(more, bound), 1e-9);
}

TEST(ReferenceMoe, EveryMeshGivesTheLogitsOfOneRank) {
  using enum MoeDesign;
  const std::vector<Mesh> meshes{
      {.tp = 2},
      {.tp = 2, .ep = 2},
      {.tp = 4, .ep = 2},
      {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
      {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph},
      {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kGraph},
      {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kCopies},
      {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kCopies},
      {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kCopies},
      {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kEager},
      {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kGraph},
      {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph},
      {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kDedup},
      {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kDedupGraph}};
  for (const std::string& kind : kKinds) {
    for (const MoeDesign design : {kShuffling, kPadding, kSlicing, kConcatenation}) {
      const Deployment single = deployment_of(kind, design);
      for (const Mesh& mesh : meshes) {
        if (mesh.ep > 1 && design != kShuffling) continue;
        const Deployment split = deployment_of(kind, design, mesh);
        EXPECT_LT(worst_difference(split, single), 1e-9)
            << kind << " " << to_text(design) << " dp " << mesh.dp << " tp " << mesh.tp << " ep "
            << mesh.ep << " " << kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)];
      }
    }
  }
}

// Ranks have 10 and 5 tokens in prompts, in chunks as even as can be, and 2 and 1 in decodes: fewer
// than chunks.
TEST(ReferenceMoe, ChunksOfTokensGiveTheLogitsOfOneRank) {
  for (const std::string& kind : kKinds) {
    const Deployment single = deployment_of(kind, MoeDesign::kShuffling);
    for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kCopies}) {
      for (const int chunks : {2, 3, 7}) {
        for (Mesh mesh : {Mesh{.dp = 2, .ep = 2}, Mesh{.dp = 4, .ep = 4},
                          Mesh{.dp = 2, .tp = 2, .ep = 4}, Mesh{.dp = 2, .tp = 2, .ep = 2}}) {
          mesh.expert_comm = comm;
          mesh.moe_chunks = chunks;
          Deployment split = deployment_of(kind, MoeDesign::kShuffling, mesh);
          split.options.moe_streams = chunks % 2 + 1;
          EXPECT_LT(worst_difference(split, single), 1e-9)
              << kind << " dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep << " "
              << chunks << " chunks " << kExpertCommNames[static_cast<std::size_t>(comm)];
        }
      }
    }
  }
}

TEST(ReferenceMoe, ChunksWithCopiesOfExpertsAndASkewedLoadGiveTheLogitsOfOneRank) {
  const Deployment single = deployment_of("deepseek", MoeDesign::kShuffling);
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kCopies}) {
    Mesh mesh{.dp = 2, .ep = 2, .expert_comm = comm, .moe_chunks = 2};
    mesh.expert_load = zipf_load(8, 1, 3);
    EXPECT_LT(worst_difference(deployment_of("deepseek", MoeDesign::kShuffling, mesh), single),
              1e-9);
    mesh.expert_load = {};
    mesh.num_redundant_experts = 2;
    mesh.expert_of_slot = {7, 3, 0, 1, 2, 3, 4, 5, 6, 0};
    EXPECT_LT(worst_difference(deployment_of("deepseek", MoeDesign::kShuffling, mesh), single),
              1e-9);
  }
}

// Ops of ranks that expect other amounts stand apart in the plan; what is computed is the same.
TEST(ReferenceMoe, AnExpectedSkewChangesNoLogits) {
  for (const std::string& kind : kKinds) {
    const Deployment single = deployment_of(kind, MoeDesign::kShuffling);
    for (const ExpertComm comm :
         {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kDedup, ExpertComm::kDedupGraph}) {
      for (const bool splits : {false, true}) {
        Deployment split = deployment_of(kind, MoeDesign::kShuffling,
                                         {.dp = 2,
                                          .tp = 2,
                                          .ep = 2,
                                          .expert_comm = comm,
                                          .split_shared_expert = splits,
                                          .expert_load = zipf_load(8, 1, 3)});
        split.options.moe_streams = 2;
        EXPECT_LT(worst_difference(split, single), 1e-9)
            << kind << " " << kExpertCommNames[static_cast<std::size_t>(comm)];
      }
    }
  }
}

// Whoever found other scores is followed, and the distance told.
TEST(ReferenceMoe, GivenScoresChooseTheExperts) {
  const Deployment deployment = deployment_of("qwen3", MoeDesign::kShuffling);
  const StepInput input = moe_steps()[0];
  const Plan plan = lower(deployment.model, batch_of(input), deployment.options);
  const reference::ModelSetup setup{.numbers = {.head_dim = deployment.model.head_dim,
                                                .max_positions = 64,
                                                .routing = {.normalises = true}},
                                    .num_kv_blocks = testing::kNumBlocks,
                                    .block_size = testing::kBlockSize};
  reference::Model own(setup);
  const auto expected = own.run(plan, input);
  reference::GivenScores given(1);
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const auto* kernel = std::get_if<KernelOp>(&plan.ops()[i].body);
    if (kernel == nullptr || kernel->kernel != "routing_scores") continue;
    const std::int64_t tokens = dim(kernel->dims, "tokens");
    for (std::int64_t copy = 0; copy < plan.multiplicity(static_cast<OpId>(i)); ++copy) {
      auto& scores = given[0][{static_cast<OpId>(i), copy}];
      for (std::int64_t at = 0; at < tokens * 8; ++at) {
        scores.push_back(at % 8 < 3 ? 0.25F : 0.0F);  // experts 0, 1 and 2
      }
    }
  }
  ASSERT_EQ(given[0].size(), 2U);
  reference::Model other(setup);
  const auto found = other.run(plan, input, given);
  EXPECT_GT(found.score_difference, 0.05);
  EXPECT_EQ(expected.score_difference, 0);
  EXPECT_GT(relative_difference(found.logits, expected.logits), 1e-3);
}

TEST(ReferenceMoe, ACollectiveLeftOutIsNoticed) {
  for (const Mesh& mesh :
       {Mesh{.tp = 2}, Mesh{.tp = 2, .ep = 2},
        Mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
        Mesh{.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kGraph},
        Mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager, .moe_chunks = 2}}) {
    const Deployment deployment = deployment_of("deepseek", MoeDesign::kShuffling, mesh);
    const Deployment single = deployment_of("deepseek", MoeDesign::kShuffling);
    const StepInput step = moe_steps()[0];
    ReferenceRuns one(single);
    const auto expected = one.run(step);
    const Plan plan =
        parallelize(lower(deployment.model, batch_of(step), deployment.options), mesh);
    for (const std::string& name : collective_names(plan)) {
      ReferenceRuns wrong(deployment, [&](const Plan& right) { return without_op(right, name); });
      bool is_noticed = false;
      try {
        is_noticed = relative_difference(wrong.run(step).logits, expected.logits) > 1e-6;
      } catch (const std::invalid_argument&) {
        is_noticed = true;
      }
      EXPECT_TRUE(is_noticed) << name;
    }
  }
}

// Elements of the whole that ranks hold, each on as many ranks as there are copies of it.
std::map<std::pair<std::int64_t, std::int64_t>, int> held(const Plan& plan,
                                                          const std::string& name) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> elements;
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    for (const WeightShard& shard : weight_shards(plan, rank).shards) {
      if (shard.name.find(name) == std::string::npos) continue;
      for (const AxisRange& rows : shard.row_ranges) {
        for (const AxisRange& columns : shard.column_ranges) {
          for (std::int64_t row = 0; row < rows.count; ++row) {
            for (std::int64_t column = 0; column < columns.count; ++column) {
              ++elements[{rows.global + row, columns.global + column}];
            }
          }
        }
      }
    }
  }
  return elements;
}

TEST(MoeWeights, RanksHoldEveryElementOfTheExpertsOnce) {
  const Deployment deployment = deployment_of("qwen3", MoeDesign::kShuffling);
  const Plan whole = lower(deployment.model, batch_of(moe_steps()[0]), deployment.options);
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 2, .ep = 2}, Mesh{.tp = 4, .ep = 2},
                           Mesh{.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kEager},
                           Mesh{.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph}}) {
    const Plan plan = parallelize(whole, mesh);
    // 8 experts x 32 gate and up rows x 64, and x 64 rows x 16.
    for (const auto& [name, count] : std::vector<std::pair<std::string, std::size_t>>{
             {"experts.gate_up_proj", 8 * 32 * 64}, {"experts.down_proj", 8 * 64 * 16}}) {
      const auto elements = held(plan, name);
      EXPECT_EQ(elements.size(), count) << name << " tp " << mesh.tp << " ep " << mesh.ep;
      for (const auto& [place, times] : elements) ASSERT_EQ(times, 1);
    }
  }
}

// 8 experts on 4 ranks, two shares of columns for each half.
TEST(MoeWeights, NeighboursShareTheColumnsOfTheSameExperts) {
  const Deployment deployment = deployment_of("qwen3", MoeDesign::kShuffling);
  const Plan whole = lower(deployment.model, batch_of(moe_steps()[0]), deployment.options);
  const Plan plan = parallelize(whole, {.tp = 4, .ep = 2});
  std::vector<std::int64_t> firsts;
  for (int rank = 0; rank < 4; ++rank) firsts.push_back(first_expert(plan, rank));
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 0, 4, 4}));
}

TEST(MoeWeights, ACorrectionBiasIsSmallAndInFull) {
  for (const MoeDesign design : {MoeDesign::kShuffling, MoeDesign::kPersistent}) {
    const Deployment deployment = deployment_of("deepseek", design);
    const Plan whole = lower(deployment.model, batch_of(moe_steps()[0]), deployment.options);
    const WeightShards shards = weight_shards(whole, 0);
    int num_found = 0;
    for (const WeightShard& shard : shards.shards) {
      if (shard.name.find("correction_bias") == std::string::npos) continue;
      ++num_found;
      const StoredWeight stored = stored_weight(shard, 0, DType::kFp32, 1);
      ASSERT_EQ(stored.values.size(), 8U);
      for (const float value : stored.values) EXPECT_LE(std::abs(value), 0.005F);
    }
    EXPECT_EQ(num_found, 1) << to_text(design);
  }
}

TEST(MoeWeights, TheEmbeddingKeepsTokensApart) {
  const auto bound = [](MoeDesign design) {
    const Deployment deployment = deployment_of("qwen3", design);
    const Plan whole = lower(deployment.model, batch_of(moe_steps()[0]), deployment.options);
    for (const WeightShard& shard : weight_shards(whole, 0).shards) {
      if (shard.name.find("embed") != std::string::npos) return shard.bound;
    }
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(bound(MoeDesign::kShuffling), 4 * std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(bound(MoeDesign::kFused), std::sqrt(3.0 / 64));  // as in dense models
}

TEST(MoeSteps, OnlyDesignsThatReadCountsWaitForThem) {
  const auto waits = [](MoeDesign design) {
    const Deployment deployment = deployment_of("qwen3", design);
    const Plan plan = lower(deployment.model, batch_of(moe_steps()[0]), deployment.options);
    return host_waits(plan, 0).size();
  };
  EXPECT_EQ(waits(MoeDesign::kShuffling), 0U);
  EXPECT_EQ(waits(MoeDesign::kPadding), 0U);
  EXPECT_EQ(waits(MoeDesign::kSlicing), 1U);
  EXPECT_EQ(waits(MoeDesign::kConcatenation), 1U);
}

// With the shared expert on a stream of its own: it starts at once, whatever router and shuffle
// use, and of the ops of stream 0 only the scatter waits for it.
TEST(MoeSteps, TheSharedExpertsStreamRunsBesideTheRouter) {
  const LoweringOptions options{.moe_design = MoeDesign::kShuffling, .moe_streams = 2};
  const Plan plan = moe_layer_plan(tiny_moe("llama4"), 6, options);
  ASSERT_TRUE(is_layer_plan(plan));
  const std::vector<Task> tasks = rank_tasks(plan, 0);
  const auto waits =
      event_waits(task_memory(plan, 0, tasks, plan_buffers(plan, 0), kv_layers(plan, 0)));
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::string name = task_name(plan, tasks[i]);
    std::vector<std::string> waited;
    for (const std::int32_t task : waits[i]) {
      waited.push_back(task_name(plan, tasks[static_cast<std::size_t>(task)]));
    }
    const bool is_scatter = name == "scatter";
    EXPECT_EQ(waited, is_scatter ? std::vector<std::string>{"shared.down_proj"}
                                 : std::vector<std::string>{})
        << name;
  }
}

Tensor rows_tensor(std::int64_t rows) {
  return {.name = "rows", .axes = {{"routed_rows", rows}, {"hidden", 2}}};
}

// Rank 0 keeps 1 row and sends 2, rank 1 sends 1 and keeps none; columns 10 * rank + row.
// No wait comes of memory that tensors share: what is to run side by side can.
using AwaitedOps = std::map<std::string, std::vector<std::string>>;
// Of rank 0, ops of other streams that an op waits for.
AwaitedOps awaited_ops(const Plan& plan) {
  const std::vector<Task> tasks = rank_tasks(plan, 0);
  const auto waits =
      event_waits(task_memory(plan, 0, tasks, plan_buffers(plan, 0), kv_layers(plan, 0)));
  AwaitedOps found;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (const std::int32_t task : waits[i]) {
      found[task_name(plan, tasks[i])].push_back(
          task_name(plan, tasks[static_cast<std::size_t>(task)]));
    }
  }
  return found;
}

// The experts of a chunk wait for no way back of another. The third dispatch follows the first way
// back on its stream, and so all gathers; the experts behind it, and so the scatters, follow both.
TEST(MoeSteps, AChunkWaitsForItsOwnRowsAlone) {
  const Plan plan =
      parallelize(moe_layer_plan(tiny_moe("qwen3"), 64, {.moe_design = MoeDesign::kShuffling}),
                  {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager, .moe_chunks = 3});
  AwaitedOps expected{{"counts.all_to_all", {"shuffle.chunk2"}}};
  for (const std::string chunk : {".chunk0", ".chunk1", ".chunk2"}) {
    expected["dispatch.all_to_all" + chunk] = {"gather" + chunk};
    expected["combine" + chunk] = {"dispatch.all_to_all" + chunk};
    expected["return.all_to_all" + chunk] = {"split" + chunk};
    expected["scatter" + chunk] = {"return.all_to_all" + chunk};
  }
  expected.erase("dispatch.all_to_all.chunk2");
  expected.erase("scatter.chunk0");
  EXPECT_EQ(awaited_ops(plan), expected);
}

TEST(MoeSteps, DispatchWaitsForItsRowsAndTheSharedExpertForItsTurn) {
  const auto waits_of = [](ExpertComm comm) {
    const LoweringOptions options{.moe_design = MoeDesign::kShuffling, .moe_streams = 2};
    return awaited_ops(parallelize(moe_layer_plan(tiny_moe("llama4"), 64, options),
                                   {.dp = 2, .ep = 2, .expert_comm = comm}));
  };
  const AwaitedOps eager{{"counts.all_to_all", {"shuffle"}},
                         {"shared.gate_up_proj", {"shuffle"}},
                         {"dispatch.all_to_all", {"gather"}},
                         {"combine", {"dispatch.all_to_all"}},
                         {"return.all_to_all", {"split"}},
                         {"shared.down_proj", {"split"}},
                         {"scatter", {"shared.down_proj", "return.all_to_all"}}};
  EXPECT_EQ(waits_of(ExpertComm::kEager), eager);
  const AwaitedOps graph{{"counts.all_gather", {"shuffle"}},
                         {"dispatch.all_gather", {"gather"}},
                         {"shared.gate_up_proj", {"counts.all_gather"}},
                         {"combine", {"dispatch.all_gather"}},
                         {"return.all_to_all", {"split"}},
                         {"shared.down_proj", {"split"}},
                         {"scatter", {"shared.down_proj", "return.all_to_all"}}};
  EXPECT_EQ(waits_of(ExpertComm::kGraph), graph);
}

TEST(AllToAllV, RowsArriveInTheOrderOfTheRanks) {
  const std::vector<std::vector<double>> rows{{1, 1, 2, 2, 3, 3}, {11, 11, 0, 0, 0, 0}};
  const auto found =
      reference::all_to_all_v("dispatch", rows_tensor(3), rows, {{1, 2}, {1, 0}}, {{1, 1}, {2, 0}});
  EXPECT_EQ(found[0], (std::vector<double>{1, 1, 11, 11, 0, 0}));
  EXPECT_EQ(found[1], (std::vector<double>{2, 2, 3, 3, 0, 0}));
}

TEST(AllToAllV, CountsThatContradictEachOtherAreAnError) {
  const std::vector<std::vector<double>> rows{{1, 1, 2, 2}, {3, 3, 4, 4}};
  EXPECT_THROW((void)reference::all_to_all_v("dispatch", rows_tensor(2), rows, {{1, 1}, {1, 1}},
                                             {{1, 1}, {0, 1}}),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery
