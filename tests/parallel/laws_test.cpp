// What sharding conserves: weights, flops, and the bytes that its collectives carry.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/public_configs.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::bytes_on_rank_0;
using testing::comm_named;
using testing::flops_by_op;
using testing::kDecode;
using testing::kPrefill;
using testing::placed;
using testing::total_weights;

std::int64_t num_comm(const Plan& plan) {
  return std::ranges::count_if(
      plan.ops(), [](const Op& op) { return std::holds_alternative<CommOp>(op.body); });
}

TEST(Parallelize, AMeshOfOneRankChangesNothing) {
  const Plan plan = lower(testing::small_deepseek(), kDecode, {});
  EXPECT_EQ(parallelize(plan, {}), plan);
}

TEST(Parallelize, EveryShippedModelVerifiesOnItsMeshes) {
  const std::vector<Mesh> meshes{{.tp = 4},
                                 {.tp = 8, .sp = true},
                                 {.dp = 2, .tp = 2},
                                 {.tp = 2, .pp = 4, .num_micro_batches = 3},
                                 {.dp = 2, .tp = 4, .pp = 2, .sp = true}};
  const std::vector<Mesh> expert_meshes{
      {.tp = 4, .ep = 4},
      {.tp = 4, .ep = 2, .sp = true},
      {.dp = 8, .ep = 8},
      {.dp = 4, .tp = 2, .ep = 8, .sp = true},
      {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kAllGather},
      {.dp = 4, .tp = 2, .ep = 4, .pp = 2, .sp = true, .num_micro_batches = 2}};
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    const ModelConfig model = model_config(file, testing::config_fields(file));
    std::vector<Mesh> all = meshes;
    if (model.num_experts > 0) all.insert(all.end(), expert_meshes.begin(), expert_meshes.end());
    for (const Mesh& mesh : all) {
      if (!testing::divides_heads(model, mesh.tp)) continue;
      for (const Batch& batch : {kDecode, kPrefill}) {
        for (const bool fuses : {false, true}) {
          const LoweringOptions options{.precision = testing::kFp8Precision,
                                        .fuse_residual_norm = fuses};
          try {
            (void)placed(model, batch, mesh, options);
          } catch (const std::invalid_argument& error) {
            ADD_FAILURE() << file << " dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep
                          << " pp " << mesh.pp << ": " << error.what();
          }
        }
      }
    }
  }
}

// Head counts such as 40 or 71 leave some meshes out; a form of layers that no shipped model has
// must not.
TEST(Parallelize, EveryPublicModelVerifiesOnItsLegalMeshes) {
  const std::vector<Mesh> meshes{{.dp = 2},
                                 {.tp = 2},
                                 {.tp = 4, .sp = true},
                                 {.dp = 2, .tp = 2, .pp = 2, .sp = true, .num_micro_batches = 2},
                                 {.dp = 4, .tp = 2, .ep = 8}};
  for (const testing::PublicConfig& config : testing::public_configs()) {
    if (config.parameters == 0) continue;
    const ModelConfig model = model_config(config.id, config.fields);
    for (const Mesh& mesh : meshes) {
      if (mesh.ep > 1 && model.num_experts == 0) continue;
      try {
        check_mesh(model, mesh);
      } catch (const std::invalid_argument&) {
        continue;
      }
      for (const Batch& batch : {kDecode, kPrefill}) {
        for (const bool fuses : {false, true}) {
          try {
            const LoweringOptions options{.precision = testing::kFp8Precision,
                                          .fuse_residual_norm = fuses};
            (void)placed(model, batch, mesh, options);
          } catch (const std::invalid_argument& error) {
            ADD_FAILURE() << config.id << " dp " << mesh.dp << " tp " << mesh.tp << " pp "
                          << mesh.pp << " ep " << mesh.ep << ": " << error.what();
          }
        }
      }
    }
  }
}

// Only norms are replicated: (2 * 80 + 1) * 8192 on each of three further ranks.
TEST(Weights, AreConservedUnderTensorParallelism) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const std::int64_t norms = std::int64_t{161} * 8192;
  EXPECT_EQ(total_weights(placed(model, kDecode, {.tp = 4})),
            count_parameters(model).total + 3 * norms);
}

// tp 16 on 8 KV heads: each head is on 2 ranks, so k and v columns are there twice.
TEST(Weights, OfKvHeadsAreReplicatedWhenThereAreFewerThanRanks) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const std::int64_t norms = std::int64_t{161} * 8192;
  const std::int64_t kv_columns = std::int64_t{80} * 2 * 8 * 128 * 8192;
  EXPECT_EQ(total_weights(placed(model, kDecode, {.tp = 16})),
            count_parameters(model).total + 15 * norms + kv_columns);
}

// Mixtral, ep 4 of tp 4: experts are split, the rest as in tensor parallelism; norms (2*32+1) *
// 4096 and routers 32 * 8 * 4096 are replicated.
TEST(Weights, AreConservedUnderExpertParallelism) {
  const ModelConfig model = testing::shipped_model("mistralai--Mixtral-8x7B-v0.1");
  const std::int64_t replicated = std::int64_t{65} * 4096 + std::int64_t{32} * 8 * 4096;
  for (const int ep : {1, 2, 4}) {
    EXPECT_EQ(total_weights(placed(model, kDecode, {.tp = 4, .ep = ep})),
              count_parameters(model).total + 3 * replicated)
        << ep;
  }
}

// dp 4: attention, router, norms and embeddings are on every rank, experts once in all.
TEST(Weights, OfExpertsAreThereOnceUnderDataParallelism) {
  const ModelConfig model = testing::shipped_model("mistralai--Mixtral-8x7B-v0.1");
  const std::int64_t experts = std::int64_t{32} * 8 * 3 * 4096 * 14336;
  const std::int64_t other = count_parameters(model).total - experts;
  for (const int ep : {1, 2, 4}) {
    EXPECT_EQ(total_weights(placed(model, kDecode, {.dp = 4, .ep = ep})), experts + 4 * other)
        << ep;
  }
}

// DeepSeek-V3 on 320 ranks: 256 + 64 experts, one each, so a rank computes 1/320 of tokens * topk
// rows, and the 64 are 58 layers of 3 * 7168 * 2048 elements more.
TEST(Weights, OfRedundantExpertsAreOneMoreExpertEach) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  const Batch batch{.prefill = {}, .num_decodes = 3200, .decode_context = 3'200'000};
  const Plan plan = placed(model, batch, {.dp = 320, .ep = 320, .num_redundant_experts = 64});
  const std::int64_t expert = std::int64_t{58} * 3 * 7168 * 2048;
  const std::int64_t other = count_parameters(model).total - 256 * expert;
  EXPECT_EQ(num_weight_elements(plan, 319), other + expert);
  const double routed = flops_by_op(plan).at("layers.3.experts");
  EXPECT_NEAR(routed, 58 * 2.0 * 3 * 3200 * 8 * 7168 * 2048, 1e-9 * routed);
}

TEST(Weights, AreConservedUnderPipelineParallelism) {
  for (const std::string name : {"meta-llama--Meta-Llama-3.1-8B", "openai--gpt-oss-20b",
                                 "deepseek-ai--DeepSeek-V2-Lite", "stepfun-ai--Step-3.7-Flash"}) {
    const ModelConfig model = testing::shipped_model(name);
    EXPECT_EQ(total_weights(placed(model, kDecode, {.pp = 3, .num_micro_batches = 2})),
              count_parameters(model).total)
        << name;
  }
}

// A tied embedding is needed by the first and by the last stage.
TEST(Weights, OfATiedEmbeddingAreOnTheFirstAndTheLastStage) {
  const ModelConfig model = testing::shipped_model("meta-llama--Llama-3.2-1B-Instruct");
  EXPECT_EQ(total_weights(placed(model, kDecode, {.pp = 2})),
            count_parameters(model).total + model.vocab_size * model.hidden_size);
}

// 128815 rows over 4 ranks: 32204 each, one row of padding in the embedding and in the head.
TEST(Weights, OfTheVocabularyArePadded) {
  const ModelConfig model = testing::shipped_model("stepfun-ai--Step3");
  const Plan plan = placed(model, kDecode, {.tp = 4});
  EXPECT_EQ(plan.tensors()[static_cast<std::size_t>(plan.ops()[0].reads[1])].axes[0].size, 32204);
}

// FP8 linear layers: 80 (8192 10240 + 8192 8192 + 3 8192 28672) = 68 451 041 280 bytes; bf16
// embedding and head 2 * 2 * 128256 * 8192 = 4 202 692 608 bytes; a quarter of both on each rank,
// and all bf16 norms, 161 * 8192 * 2 = 2 637 824 bytes.
TEST(Memory, OfLlama70bFp8OnFourRanksIsAQuarterAndTheNorms) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const Plan plan = placed(model, kDecode, {.tp = 4}, {.precision = testing::kFp8Precision});
  const double expected = (68'451'041'280.0 + 4'202'692'608.0) / 4 + 2'637'824.0;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(memory_of(plan, rank).weights.value(), expected);
  }
}

// Split ops add up to the whole; norms, rope's and the cache's share of replicated heads, sampling
// and routing are done by every rank. 8 KV heads on 4 ranks: nothing but that is replicated.
TEST(Flops, AreConservedUnderTensorParallelism) {
  for (const std::string name : {"meta-llama--Meta-Llama-3.1-70B", "deepseek-ai--DeepSeek-V3",
                                 "mistralai--Mixtral-8x7B-v0.1", "stepfun-ai--Step3"}) {
    const ModelConfig model = testing::shipped_model(name);
    for (const Batch& batch : {kDecode, kPrefill}) {
      const auto whole = flops_by_op(lower(model, batch, {}));
      const auto split = flops_by_op(placed(model, batch, {.tp = 4}));
      for (const auto& [op, flops] : whole) {
        const bool is_split =
            op.ends_with("qkv_proj") || op.ends_with("o_proj") || op.ends_with("gate_up_proj") ||
            op.ends_with("down_proj") || op.ends_with("silu_mul") || op.ends_with("experts") ||
            op.ends_with("_b_proj") || op.ends_with("absorb_k") || op.ends_with("absorb_v") ||
            op.ends_with("attn_decode") || op.ends_with("attn_prefill") ||
            op.ends_with("mla_decode") || op.ends_with("mla_prefill");
        if (is_split) {
          EXPECT_NEAR(split.at(op), flops, 1e-9 * flops) << name << " " << op;
        } else if (op.ends_with("qkv_a_proj") || op.ends_with("router") || op.ends_with("_norm")) {
          EXPECT_NEAR(split.at(op), 4 * flops, 1e-9 * flops) << name << " " << op;
        }
      }
    }
  }
}

// 64 decodes over 4 dp ranks: 16 each, so every op but those of the experts adds up as well.
TEST(Flops, AreConservedUnderDataAndExpertParallelism) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  const auto whole = flops_by_op(lower(model, kDecode, {}));
  const auto split = flops_by_op(placed(model, kDecode, {.dp = 4, .ep = 4}));
  for (const auto& [op, flops] : whole) {
    EXPECT_NEAR(split.at(op), flops, 1e-9 * flops) << op;
  }
}

TEST(Flops, OfNormsAreDividedBySequenceParallelism) {
  const ModelConfig model = testing::small_llama();
  const auto whole = flops_by_op(lower(model, kDecode, {}));
  const auto split = flops_by_op(placed(model, kDecode, {.tp = 4, .sp = true}));
  for (const std::string op : {"layers.0.attn_norm", "layers.0.ffn_norm", "final_norm"}) {
    EXPECT_EQ(split.at(op), whole.at(op)) << op;
  }
}

// One after the embedding and two per layer, of tokens * hidden bf16 elements; logits are gathered.
TEST(CollectiveBytes, OfTensorParallelismAreTwoAllReducesPerLayer) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const Plan plan = placed(model, kDecode, {.tp = 4});
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllReduce), (2 * 80 + 1) * 64.0 * 8192 * 2);
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllGather), 64.0 * 128256 / 4 * 2);
}

// Shared and routed experts are both partial, so their sum is reduced once (PS-26): two all_reduces
// per MoE layer as in a dense one.
TEST(CollectiveBytes, SharedAndRoutedExpertsShareOneAllReduce) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  const Plan plan = placed(model, kDecode, {.tp = 4, .ep = 4});
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllReduce), (2 * 61 + 1) * 64.0 * 7168 * 2);
}

// The module's output projection sums over heads: prefill and decode rows of a mixed batch are
// reduced together.
TEST(CollectiveBytes, OfAnMlaModuleAreOneAllReduce) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  const Batch mixed{.prefill = {{512, 0}}, .num_decodes = 32, .decode_context = 22'400};
  for (const MlaForm form :
       {MlaForm::kAuto, MlaForm::kAbsorbed, MlaForm::kExpanded, MlaForm::kModule}) {
    const Plan plan = placed(model, mixed, {.tp = 4}, {.mla_form = form});
    EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllReduce), (2 * 61 + 1) * 544.0 * 7168 * 2)
        << static_cast<int>(form);
  }
}

// On a ring of n ranks, all_reduce moves 2 (n-1)/n B per rank, reduce_scatter (n-1)/n B and
// all_gather (n-1) contributions of B/n: equal bytes on the wire (bf16 norms).
TEST(CollectiveBytes, SequenceParallelismMovesWhatTensorParallelismDoes) {
  const ModelConfig model = testing::small_llama();
  const double n = 4;
  const Plan tensor = placed(model, kDecode, {.tp = 4});
  const Plan sequence = placed(model, kDecode, {.tp = 4, .sp = true});
  const double logits = bytes_on_rank_0(tensor, CollectiveKind::kAllGather);
  const double reduced = bytes_on_rank_0(tensor, CollectiveKind::kAllReduce) * 2 * (n - 1) / n;
  const double scattered =
      bytes_on_rank_0(sequence, CollectiveKind::kReduceScatter) * (n - 1) / n +
      (bytes_on_rank_0(sequence, CollectiveKind::kAllGather) - logits) * (n - 1);
  EXPECT_EQ(bytes_on_rank_0(sequence, CollectiveKind::kAllReduce), 0);
  EXPECT_DOUBLE_EQ(scattered, reduced);
}

// Reference plan PS-03, DP2 TP2 EP4 with all_gather: M = 64 tokens of which each dp rank has 32.
//   attention     all_reduce over tp of 32 h bf16
//   into experts  all_gather over dp of 32 (h bf16 + topk (id, weight))
//   out of them   reduce_scatter over dp of 64 h bf16, then all_reduce over tp of 32 h bf16
TEST(CollectiveBytes, OfTheReferencePlanDp2Tp2Ep4) {
  const ModelConfig model = testing::small_deepseek();  // h 256, topk 4
  const Plan plan =
      placed(model, kDecode, {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kAllGather});
  const double rows = 32.0 * 256 * 2;
  EXPECT_EQ(comm_named(plan, "layers.1.o_proj.all_reduce.r0").bytes_per_rank.value(), rows);
  EXPECT_EQ(comm_named(plan, "layers.1.experts.all_gather.r0").bytes_per_rank.value(),
            rows + 32.0 * 2 * 4 * 4);
  EXPECT_EQ(comm_named(plan, "layers.1.experts.reduce_scatter.r0").bytes_per_rank.value(),
            2 * rows);
  EXPECT_EQ(comm_named(plan, "layers.1.shared_add.all_reduce.r0").bytes_per_rank.value(), rows);
  const auto experts = std::ranges::find(plan.ops(), "layers.1.experts", &Op::name);
  ASSERT_NE(experts, plan.ops().end());
  const auto& kernel = std::get<KernelOp>(experts->body);
  EXPECT_EQ(dim(kernel.dims, "tokens"), 64);
  EXPECT_EQ(dim(kernel.dims, "experts"), 4);
  EXPECT_EQ(dim(kernel.dims, "inter"), 128);
}

// dp 4, tp 2: a rank has 16 of 64 tokens, its tp peer too, so it dispatches 8 of them to topk 4
// experts: 8 * 4 rows of 256, fp8 out and bf16 back (PS-22).
TEST(CollectiveBytes, OfDispatchAndCombineAreTopkRowsPerToken) {
  const ModelConfig model = testing::small_deepseek();
  const Plan plan =
      placed(model, kDecode, {.dp = 4, .tp = 2, .ep = 8}, {.precision = testing::kFp8Precision});
  const CommOp& dispatch = comm_named(plan, "layers.1.experts.dispatch");
  EXPECT_EQ(dispatch.kind, CollectiveKind::kAllToAll);
  EXPECT_EQ(dispatch.dtype, DType::kFp8);
  EXPECT_EQ(dispatch.bytes_per_rank.value(), 8.0 * 4 * 256);
  const CommOp& combine = comm_named(plan, "layers.1.experts.combine");
  EXPECT_EQ(combine.dtype, DType::kBf16);
  EXPECT_EQ(combine.bytes_per_rank.value(), 8.0 * 4 * 256 * 2);
  EXPECT_EQ(comm_named(plan, "layers.1.experts.all_gather.r0").bytes_per_rank.value(),
            8.0 * 256 * 2);
}

TEST(CollectiveBytes, SequenceParallelismKeepsTheSliceThatCombineReturns) {
  const ModelConfig model = testing::small_deepseek();
  const Plan plan = placed(model, kDecode, {.dp = 4, .tp = 2, .ep = 8, .sp = true});
  for (const Op& op : plan.ops()) {
    EXPECT_EQ(op.name.find("experts.all_gather"), std::string::npos) << op.name;
  }
}

TEST(DataParallel, DenseReplicasDoNotCommunicate) {
  const Plan plan = placed(testing::small_llama(), kDecode, {.dp = 4});
  EXPECT_EQ(num_comm(plan), 0);
}

TEST(DataParallel, SharesAreRoundedUp) {
  const Batch batch{.prefill = {}, .num_decodes = 10, .decode_context = 500};
  const Plan plan = placed(testing::small_llama(), batch, {.dp = 4});
  EXPECT_EQ(dim(std::get<KernelOp>(plan.ops()[0].body).dims, "tokens"), 3);  // ceil(10 / 4)
}

// One chunk on two ranks is not cut: the rank that has it computes all of its tokens.
TEST(DataParallel, AChunkStaysOnOneRank) {
  const Batch batch{.prefill = {{1000, 0}}, .num_decodes = 8, .decode_context = 400};
  const Plan plan = placed(testing::small_llama(), batch, {.dp = 2});
  EXPECT_EQ(dim(std::get<KernelOp>(plan.ops()[0].body).dims, "tokens"), 1000 + 4);
}

// Groups of tp ranks are neighbours, data-parallel ranks tp apart.
TEST(RankOrder, TensorParallelRanksAreNeighbours) {
  const Plan plan = placed(testing::small_deepseek(), kDecode,
                           {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kAllGather});
  const auto ranks_of = [&](const std::string& name) {
    const auto op = std::ranges::find(plan.ops(), name, &Op::name);
    const auto ranks = plan.ranks(op->ranks);
    return std::vector<int>(ranks.begin(), ranks.end());
  };
  EXPECT_EQ(ranks_of("layers.1.o_proj.all_reduce.r0"), (std::vector{0, 1}));
  EXPECT_EQ(ranks_of("layers.1.o_proj.all_reduce.r2"), (std::vector{2, 3}));
  EXPECT_EQ(ranks_of("layers.1.experts.all_gather.r0"), (std::vector{0, 2}));
  EXPECT_EQ(ranks_of("layers.1.experts.all_gather.r1"), (std::vector{1, 3}));
}

// 80 layers in 4 stages; 8 KV heads over tp 4; MLA's latent is on every rank.
TEST(KvBytesPerRank, FollowStagesAndHeads) {
  const ModelConfig llama = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const double per_layer = 2.0 * 8 * 128 * 2 * 100;
  EXPECT_EQ(kv_bytes_per_rank(llama, {}, DType::kBf16, 100).value(), 80 * per_layer);
  EXPECT_EQ(kv_bytes_per_rank(llama, {.tp = 4}, DType::kBf16, 100).value(), 80 * per_layer / 4);
  EXPECT_EQ(kv_bytes_per_rank(llama, {.tp = 16}, DType::kBf16, 100).value(), 80 * per_layer / 8);
  EXPECT_EQ(kv_bytes_per_rank(llama, {.tp = 4, .pp = 4}, DType::kBf16, 100).value(),
            20 * per_layer / 4);
  // 61 layers in 3 stages: 20, 21, 20.
  const ModelConfig v3 = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  EXPECT_EQ(kv_bytes_per_rank(v3, {.tp = 8, .pp = 3}, DType::kBf16, 100).value(),
            21.0 * 576 * 2 * 100);
}

TEST(Passes, AreNamedInTheOrderInWhichTheyApply) {
  std::vector<std::string> names;
  for (const ParallelPass& pass : parallel_passes()) names.emplace_back(pass.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"data", "tensor", "context", "balanced_rows", "expert",
                                      "sharded_weights", "joined_head", "split_reduce", "sequence",
                                      "pipeline", "two_batch", "room_for_collectives"}));
}

}  // namespace
}  // namespace orrery
