// Where weights and collectives stand: what each choice of a mesh adds to and takes from a plan.

#include <gtest/gtest.h>

#include <string>

#include "sim/parallel/output_projection.h"
#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::bytes_on_rank_0;
using testing::comm_named;
using testing::flops_by_op;
using testing::kDecode;
using testing::placed;
using testing::tensor_named;
using testing::total_weights;

constexpr double kTokens = 64;  // of kDecode

ModelConfig deepseek_v3() { return testing::shipped_model("deepseek-ai--DeepSeek-V3"); }

// 58 layers of 3 * 7168 * 2048 elements, once more on each of three further ranks.
TEST(ReplicatedSharedExpert, IsOnEachRankOfATensorParallelGroup) {
  const ModelConfig model = deepseek_v3();
  const std::int64_t shared = std::int64_t{58} * 3 * 7168 * 2048;
  const std::int64_t split = total_weights(placed(model, kDecode, {.tp = 4, .ep = 4}));
  const Plan plan =
      placed(model, kDecode, {.tp = 4, .ep = 4, .shared_expert = SharedExpert::kReplicated});
  EXPECT_EQ(total_weights(plan), split + 3 * shared);
}

// Each rank computes all columns: four times the FLOPs of all ranks, and of nothing else.
TEST(ReplicatedSharedExpert, IsComputedByEachRankAndNoOtherOpIs) {
  const ModelConfig model = deepseek_v3();
  const auto split = flops_by_op(placed(model, kDecode, {.tp = 4, .ep = 4}));
  const auto whole = flops_by_op(
      placed(model, kDecode, {.tp = 4, .ep = 4, .shared_expert = SharedExpert::kReplicated}));
  ASSERT_EQ(split.size(), whole.size());
  for (const auto& [op, flops] : split) {
    const bool is_shared = op.find(".shared.") != std::string::npos;
    EXPECT_DOUBLE_EQ(whole.at(op), (is_shared ? 4 : 1) * flops) << op;
  }
}

// Split, its sum shares the routed experts' all_reduce, so there is none to save: only the routed
// rows are reduced, as many bytes.
TEST(ReplicatedSharedExpert, LeavesTheMergedAllReduceAsLargeAsItWas) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.tp = 4, .ep = 4};
  const double merged = bytes_on_rank_0(placed(model, kDecode, mesh), CollectiveKind::kAllReduce);
  mesh.shared_expert = SharedExpert::kReplicated;
  EXPECT_EQ(bytes_on_rank_0(placed(model, kDecode, mesh), CollectiveKind::kAllReduce), merged);
}

// Rows that come back by all_to_all are whole, so a split shared expert has an all_reduce of its
// own: 58 of tokens / dp * 7168 bf16 elements, and these are all that is saved.
TEST(ReplicatedSharedExpert, SavesAnAllReduceWhereRoutedRowsComeBackWhole) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.dp = 2, .tp = 2, .ep = 4};
  const Plan split = placed(model, kDecode, mesh);
  mesh.shared_expert = SharedExpert::kReplicated;
  const Plan whole = placed(model, kDecode, mesh);
  EXPECT_EQ(bytes_on_rank_0(split, CollectiveKind::kAllReduce) -
                bytes_on_rank_0(whole, CollectiveKind::kAllReduce),
            58 * kTokens / 2 * 7168 * 2);
  for (const CollectiveKind kind : {CollectiveKind::kAllToAll, CollectiveKind::kAllGather}) {
    EXPECT_EQ(bytes_on_rank_0(split, kind), bytes_on_rank_0(whole, kind));
  }
}

TEST(ReplicatedSharedExpert, LeavesDenseLayersSplit) {
  const ModelConfig model = testing::small_deepseek();
  for (const bool fuses : {false, true}) {
    const Plan plan = placed(model, kDecode, {.tp = 4, .shared_expert = SharedExpert::kReplicated},
                             {.fuse_residual_norm = fuses});
    EXPECT_EQ(tensor_named(plan, "layers.0.down_proj.weight").axes[1].size, 512 / 4);
    EXPECT_EQ(tensor_named(plan, "layers.1.shared.down_proj.weight").axes[1].size, 128);
  }
}

// Columns that tp does not divide need not be divided.
TEST(ReplicatedSharedExpert, MayHaveColumnsThatTpDoesNotDivide) {
  ConfigFields fields = testing::small_deepseek_fields();
  fields["moe_intermediate_size"] = std::int64_t{132};
  const ModelConfig model = model_config("m", fields);
  EXPECT_THROW(check_mesh(model, {.tp = 8, .ep = 8}), std::invalid_argument);
  EXPECT_NO_THROW(
      check_mesh(model, {.tp = 8, .ep = 8, .shared_expert = SharedExpert::kReplicated}));
}

const LoweringOptions kFp8{.precision = testing::kFp8Precision, .fuse_residual_norm = true};
const Batch kPrompt{.prefill = {{2048, 0}}, .num_decodes = 0, .decode_context = 0};

// What sequence parallelism gathers in one layer: bytes per rank of its all_gathers.
double gathered_in_layer(const Plan& plan, const std::string& prefix) {
  double bytes = 0;
  for (const Op& op : plan.ops()) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || comm->kind != CollectiveKind::kAllGather) continue;
    if (op.name.starts_with(prefix)) bytes += comm->bytes_per_rank.value();
  }
  return bytes;
}

// DeepSeek-V3, a prompt of 2,048 tokens, tp 4. Of a layer's attention, in all ranks together:
//   projection down   2 * 2048 * 7168 * (1536 + 576) FLOPs, behind the gather on each of tp ranks
//   norm of queries   4 * 2048 * 1536                       likewise
TEST(GatherBehindProjections, ComputesTheProjectionsOnSharesOfTheTokens) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.tp = 4, .ep = 4, .sp = true};
  const auto norm = flops_by_op(placed(model, kPrompt, mesh, kFp8));
  mesh.attention_gather = AttentionGather::kProjected;
  const auto projected = flops_by_op(placed(model, kPrompt, mesh, kFp8));
  ASSERT_EQ(norm.size(), projected.size());
  const double layers = 58;  // named by the first of them
  EXPECT_EQ(projected.at("layers.3.qkv_a_proj"), layers * 2 * 2048 * 7168 * (1536 + 576));
  for (const auto& [op, flops] : norm) {
    const bool is_before = op.ends_with("qkv_a_proj") || op.ends_with("q_a_norm") ||
                           op.ends_with("kv_a_norm") || op.ends_with("attn_norm.quant") ||
                           op.ends_with("q_a_quant");
    EXPECT_DOUBLE_EQ(projected.at(op), flops / (is_before ? 4 : 1)) << op;
  }
}

// A token's row: 7168 fp8 behind the norm; behind the projections 1536 fp8 of the query's latent,
// 512 bf16 of that of keys and values, 64 bf16 of the key that turns.
TEST(GatherBehindProjections, SendsLatentsInPlaceOfHiddenStates) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.tp = 4, .ep = 4, .sp = true};
  const double share = 2048.0 / 4;
  const std::string layer = "layers.3.";
  const double norm = gathered_in_layer(placed(model, kPrompt, mesh, kFp8), layer);
  mesh.attention_gather = AttentionGather::kProjected;
  const double projected = gathered_in_layer(placed(model, kPrompt, mesh, kFp8), layer);
  EXPECT_DOUBLE_EQ(norm - projected, share * (7168 - (1536 + 2 * 512 + 2 * 64)));
}

// The router's FLOPs on 1 / tp of the tokens: 2 * 2048 * 7168 * 256 in all ranks together, where
// behind the gather each rank has as many.
TEST(GatherBehindRouting, ComputesRouterAndQuantisationOnSharesOfTheTokens) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.tp = 4, .ep = 4, .sp = true};
  const auto norm = flops_by_op(placed(model, kPrompt, mesh, kFp8));
  mesh.moe_gather = MoeGather::kRouted;
  const auto routed = flops_by_op(placed(model, kPrompt, mesh, kFp8));
  EXPECT_EQ(routed.at("layers.3.router"), 58 * 2.0 * 2048 * 7168 * 256);
  for (const auto& [op, flops] : norm) {
    const bool is_before =
        op.ends_with("router") || op.ends_with("route") || op.ends_with("ffn_quant");
    EXPECT_DOUBLE_EQ(routed.at(op), flops / (is_before ? 4 : 1)) << op;
  }
}

// A token's row: 7168 bf16 behind the norm; behind routing 7168 fp8 and 8 experts with their
// weights, of 4 bytes each. The router's 256 scores stay where they are.
TEST(GatherBehindRouting, SendsQuantisedRowsAndChoices) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.tp = 4, .ep = 4, .sp = true};
  const double share = 2048.0 / 4;
  const std::string layer = "layers.3.";
  const double norm = gathered_in_layer(placed(model, kPrompt, mesh, kFp8), layer);
  mesh.moe_gather = MoeGather::kRouted;
  const Plan plan = placed(model, kPrompt, mesh, kFp8);
  EXPECT_DOUBLE_EQ(norm - gathered_in_layer(plan, layer), share * (2 * 7168 - (7168 + 8 * 2 * 4)));
}

// Each rank of a tp group sends its own share of the tokens to their experts: nothing is gathered
// for the routed path, and with a replicated shared expert nothing at all in the block.
TEST(GatherBehindRouting, IsNotNeededWhereTokensAreDispatched) {
  const ModelConfig model = deepseek_v3();
  for (const ExpertComm comm : {ExpertComm::kAllToAll, ExpertComm::kDeepEp}) {
    const Mesh mesh{.dp = 2,
                    .tp = 2,
                    .ep = 4,
                    .sp = true,
                    .expert_comm = comm,
                    .shared_expert = SharedExpert::kReplicated,
                    .moe_gather = MoeGather::kRouted};
    const Plan plan = placed(model, kPrompt, mesh, kFp8);
    EXPECT_EQ(gathered_in_layer(plan, "layers.3.ffn"), 0);
    EXPECT_EQ(gathered_in_layer(plan, "layers.3.rout"), 0);
    EXPECT_EQ(gathered_in_layer(plan, "layers.3.shared"), 0);
    EXPECT_EQ(gathered_in_layer(plan, "layers.3.experts"), 0);
  }
}

// Design shuffling quantises rows where it gathers them by expert, so the gather over tp stays in
// bf16 and takes the router's scores along; a copy for the shared expert alone would be more.
TEST(GatherBehindRouting, OfDesignShufflingGathersRowsAndScoresAtOnce) {
  const ModelConfig model = testing::small_deepseek();  // h 256, 16 experts
  const Plan plan = placed(model, kDecode, {.tp = 4, .sp = true, .moe_gather = MoeGather::kRouted},
                           {.moe_design = MoeDesign::kShuffling});
  EXPECT_EQ(gathered_in_layer(plan, "layers.1.router"), kTokens / 4 * (16 * 4 + 256 * 2));
  EXPECT_EQ(gathered_in_layer(plan, "layers.1.ffn"), 0);
}

TEST(GatherBehindProjections, IsRefusedOfAModuleInOneOp) {
  const ModelConfig model = testing::small_deepseek();
  LoweringOptions options;
  options.mla_form = MlaForm::kModule;
  const Mesh mesh{.tp = 4, .sp = true, .attention_gather = AttentionGather::kProjected};
  EXPECT_THROW((void)parallelize(lower(model, kDecode, options), mesh), std::invalid_argument);
}

constexpr LoweringOptions kShuffling{.moe_design = MoeDesign::kShuffling};

// The reference plan's form: of 32 tokens on each of dp 2 ranks, h 256 in bf16 and 16 scores in
// fp32 are gathered, results of all 64 are scattered, and the rest is added up over tp.
TEST(GatheredTokens, AreSentOnceHoweverManyExpertsTheyChoose) {
  const Mesh mesh{.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kTokens};
  for (const std::int64_t topk : {1, 4}) {
    ConfigFields fields = testing::small_deepseek_fields();
    fields["num_experts_per_tok"] = topk;
    const Plan plan = placed(model_config("m", fields), kDecode, mesh, kShuffling);
    EXPECT_EQ(comm_named(plan, "layers.1.tokens.all_gather.r0").bytes_per_rank.value(),
              32.0 * (256 * 2 + 16 * 4));
    EXPECT_EQ(comm_named(plan, "layers.1.tokens.reduce_scatter.r0").bytes_per_rank.value(),
              64.0 * 256 * 2);
    EXPECT_EQ(comm_named(plan, "layers.1.scatter.all_reduce.r0").bytes_per_rank.value(),
              32.0 * 256 * 2);
  }
}

// `graph` gathers a row for each of the four choices, tokens * topk * h bf16, and counts.
TEST(GatheredTokens, AreFewerBytesThanRowsOfAllChoices) {
  const ModelConfig model = testing::small_deepseek();
  Mesh mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph};
  const Plan rows = placed(model, kDecode, mesh, kShuffling);
  EXPECT_EQ(comm_named(rows, "layers.1.dispatch.all_gather").bytes_per_rank.value(),
            32.0 * 4 * 256 * 2);
  mesh.expert_comm = ExpertComm::kTokens;
  const Plan tokens = placed(model, kDecode, mesh, kShuffling);
  EXPECT_EQ(comm_named(tokens, "layers.1.tokens.all_gather").bytes_per_rank.value(),
            32.0 * (256 * 2 + 16 * 4));
}

// What experts compute does not depend on how rows come to them.
TEST(GatheredTokens, GiveExpertsTheRowsThatDispatchGivesThem) {
  const ModelConfig model = deepseek_v3();
  for (const Mesh& base :
       {Mesh{.dp = 4, .ep = 4}, Mesh{.dp = 2, .tp = 2, .ep = 4}, Mesh{.dp = 2, .tp = 2, .ep = 2}}) {
    Mesh mesh = base;
    mesh.expert_comm = ExpertComm::kEager;
    const auto dispatched = flops_by_op(placed(model, kDecode, mesh, kShuffling));
    mesh.expert_comm = ExpertComm::kTokens;
    const auto gathered = flops_by_op(placed(model, kDecode, mesh, kShuffling));
    for (const auto& [op, flops] : dispatched) {
      if (op.find(".experts.") == std::string::npos) continue;
      EXPECT_EQ(gathered.at(op), flops) << op;
    }
  }
}

// layers * heads * v_head_dim * hidden * bytes of an element, in GiB.
//   DeepSeek-V3 FP8   61 * 128 * 128 * 7168 * 1 = 6.67
//   Qwen3-32B BF16    64 *  64 * 128 * 5120 * 2 = 5.0
TEST(OutputProjection, TakesTheMemoryThatItsSizesSay) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  const Plan v3 = lower(deepseek_v3(), kDecode, {.precision = testing::kFp8Precision});
  EXPECT_EQ(output_projection_bytes(v3, 0).value(), 61.0 * 128 * 128 * 7168);
  EXPECT_NEAR(output_projection_bytes(v3, 0).value() / kGib, 6.67, 0.005);
  const Plan qwen = lower(testing::shipped_model("Qwen--Qwen3-32B"), kDecode, {});
  EXPECT_EQ(output_projection_bytes(qwen, 0).value() / kGib, 5.0);
}

// Split over tp a rank has 1 / tp, sharded over dp besides 1 / (tp dp), replicated all.
TEST(OutputProjection, IsOnARankAsTheMeshSays) {
  const ModelConfig model = deepseek_v3();
  const double whole = 61.0 * 128 * 128 * 7168;
  const auto bytes = [&](const Mesh& mesh) {
    return output_projection_bytes(
               placed(model, kDecode, mesh, {.precision = testing::kFp8Precision}), 1)
        .value();
  };
  EXPECT_EQ(bytes({.dp = 4, .tp = 2, .ep = 8}), whole / 2);
  EXPECT_EQ(bytes({.dp = 4, .tp = 2, .ep = 8, .o_proj = OProjection::kReplicated}), whole);
  EXPECT_EQ(bytes({.dp = 4, .tp = 2, .ep = 8, .o_proj = OProjection::kSharded}), whole / 8);
  EXPECT_EQ(bytes({.dp = 4, .ep = 4, .o_proj = OProjection::kSharded}), whole / 4);
}

// Memory of a rank falls by what others keep, and one layer's weights are whole at a time.
TEST(ShardedOutputProjection, TakesOneLayersBufferForTheWeightsOfAll) {
  const ModelConfig model = deepseek_v3();
  const LoweringOptions fp8{.precision = testing::kFp8Precision};
  Mesh mesh{.dp = 4, .ep = 4};
  const MemoryUse split = memory_of(placed(model, kDecode, mesh, fp8), 0);
  mesh.o_proj = OProjection::kSharded;
  const Plan plan = placed(model, kDecode, mesh, fp8);
  const MemoryUse sharded = memory_of(plan, 0);
  const double layer = 128.0 * 128 * 7168;
  EXPECT_EQ((split.weights - sharded.weights).value(), 61 * layer * 3 / 4);
  EXPECT_GT(sharded.activations, split.activations);
  EXPECT_LE((sharded.activations - split.activations).value(), layer);
  EXPECT_EQ(total_weights(plan), total_weights(placed(model, kDecode, {.dp = 4, .ep = 4}, fp8)) -
                                     61 * std::int64_t{128} * 128 * 7168 * 3);
}

// DP4 of DeepSeek-V3 in FP8: each rank contributes a quarter of 117 MB, so 88 MB reach it.
TEST(ShardedOutputProjection, GathersEachLayersWeightsOnce) {
  const Plan plan =
      placed(deepseek_v3(), kDecode, {.dp = 4, .ep = 4, .o_proj = OProjection::kSharded},
             {.precision = testing::kFp8Precision});
  double contributed = 0;
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const Op& op = plan.ops()[i];
    if (op.name.find("o_proj.weight.all_gather") == std::string::npos) continue;
    const CommOp& comm = std::get<CommOp>(op.body);
    EXPECT_EQ(comm.bytes_per_rank.value(), 128.0 * 128 * 7168 / 4);
    contributed +=
        comm.bytes_per_rank.value() * static_cast<double>(plan.multiplicity(static_cast<OpId>(i)));
  }
  EXPECT_NEAR(3 * contributed / 61, 88e6, 0.1e6);
  EXPECT_EQ(contributed, 61 * 128.0 * 128 * 7168 / 4);
}

TEST(ShardedOutputProjection, ChangesNoOtherOp) {
  const ModelConfig model = deepseek_v3();
  const auto split = flops_by_op(placed(model, kDecode, {.dp = 2, .tp = 2, .ep = 4}));
  const Plan plan =
      placed(model, kDecode, {.dp = 2, .tp = 2, .ep = 4, .o_proj = OProjection::kSharded});
  EXPECT_EQ(flops_by_op(plan), split);
}

// Heads are gathered in place of sums being reduced: tokens * heads * v_head_dim / tp of each rank,
// FP8 where the projection reads it; the projection itself is computed tp times.
TEST(ReplicatedOutputProjection, GathersHeadsInPlaceOfReducingSums) {
  const ModelConfig model = deepseek_v3();
  const LoweringOptions fp8{.precision = testing::kFp8Precision};
  const Plan split = placed(model, kDecode, {.tp = 4, .ep = 4}, fp8);
  const Plan whole =
      placed(model, kDecode, {.tp = 4, .ep = 4, .o_proj = OProjection::kReplicated}, fp8);
  EXPECT_EQ(bytes_on_rank_0(split, CollectiveKind::kAllReduce) -
                bytes_on_rank_0(whole, CollectiveKind::kAllReduce),
            61 * kTokens * 7168 * 2);
  EXPECT_EQ(bytes_on_rank_0(whole, CollectiveKind::kAllGather) -
                bytes_on_rank_0(split, CollectiveKind::kAllGather),
            61 * kTokens * 128 * 128 / 4);
  const auto before = flops_by_op(split);
  for (const auto& [op, flops] : flops_by_op(whole)) {
    EXPECT_DOUBLE_EQ(flops, (op.ends_with(".o_proj") ? 4 : 1) * before.at(op)) << op;
  }
}

TEST(OutputProjection, OfAModuleInOneOpStaysSplit) {
  LoweringOptions options;
  options.mla_form = MlaForm::kModule;
  const Plan plan = lower(testing::small_deepseek(), kDecode, options);
  for (const OProjection other : {OProjection::kReplicated, OProjection::kSharded}) {
    EXPECT_THROW((void)parallelize(plan, {.dp = 2, .tp = 2, .ep = 4, .o_proj = other}),
                 std::invalid_argument);
  }
}

// Llama 70B, tp 4: all of the 128256 * 8192 weights on each rank, and no logits gathered.
TEST(LmHead, ReplicatedNeedsNoGatherOfLogits) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const Plan split = placed(model, kDecode, {.tp = 4});
  const Plan whole = placed(model, kDecode, {.tp = 4, .lm_head = LmHead::kReplicated});
  EXPECT_EQ(bytes_on_rank_0(split, CollectiveKind::kAllGather), kTokens * 128256 / 4 * 2);
  EXPECT_EQ(bytes_on_rank_0(whole, CollectiveKind::kAllGather), 0);
  EXPECT_EQ(total_weights(whole) - total_weights(split), std::int64_t{3} * 128256 * 8192);
  EXPECT_DOUBLE_EQ(flops_by_op(whole).at("lm_head"), 4 * flops_by_op(split).at("lm_head"));
}

// DeepSeek-V3 on dp 4: n = 4 ranks of M = 16 sampled rows, V = 129280, h = 7168, bf16.
//   all_gather    M h of each rank      all_to_all   n M V / n, its own part included
//   weights       V h / n of each rank, read once for the rows of all
TEST(LmHead, JoinedOverDpReadsAPartOfTheWeightsForTheRowsOfAll) {
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.dp = 4, .ep = 4};
  const Plan split = placed(model, kDecode, mesh);
  mesh.lm_head = LmHead::kJoined;
  const Plan joined = placed(model, kDecode, mesh);
  EXPECT_EQ(comm_named(joined, "lm_head.all_gather").bytes_per_rank.value(), 16.0 * 7168 * 2);
  EXPECT_EQ(comm_named(joined, "lm_head.all_to_all").bytes_per_rank.value(), 16.0 * 129280 * 2);
  EXPECT_EQ(flops_by_op(joined), flops_by_op(split));
  EXPECT_EQ(num_weight_elements(split, 0) - num_weight_elements(joined, 0),
            std::int64_t{129280} * 7168 * 3 / 4);
}

// Over tp 2 and dp 2 a rank has a quarter of the vocabulary, and the other half of its tp group's
// columns is gathered as before.
TEST(LmHead, JoinedOverDpAndTpGathersOverTpAsBefore) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  Mesh mesh{.dp = 2, .tp = 2, .pp = 2, .lm_head = LmHead::kJoined};
  const Plan joined = placed(model, kDecode, mesh);
  EXPECT_EQ(tensor_named(joined, "lm_head.weight").axes[0].size, 128256 / 4);
  EXPECT_EQ(tensor_named(joined, "logits").axes[1].size, 128256 / 2);
  mesh.lm_head = LmHead::kSplit;
  EXPECT_EQ(flops_by_op(joined).at("lm_head"),
            flops_by_op(placed(model, kDecode, mesh)).at("lm_head"));
}

TEST(LmHead, OfAStepThatSamplesNothingMovesNothing) {
  const Batch chunk{.prefill = {{512, 0, false}}, .num_decodes = 0, .decode_context = 0};
  const ModelConfig model = deepseek_v3();
  Mesh mesh{.dp = 4, .ep = 4};
  const Plan split = placed(model, chunk, mesh);
  mesh.lm_head = LmHead::kJoined;
  EXPECT_EQ(placed(model, chunk, mesh), split);
}

// On a ring an all_reduce of n ranks moves 2 (n - 1) / n B, a reduce_scatter and an all_gather of
// B / n each half of it; nothing that computes changes.
TEST(SplitAllReduce, MovesAsMuchInTwoCollectives) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const double n = 4;
  const Plan whole = placed(model, kDecode, {.tp = 4});
  const Plan split = placed(model, kDecode, {.tp = 4, .split_all_reduce = true});
  const double logits = bytes_on_rank_0(whole, CollectiveKind::kAllGather) * (n - 1);
  const double reduced = bytes_on_rank_0(whole, CollectiveKind::kAllReduce);
  EXPECT_EQ(bytes_on_rank_0(split, CollectiveKind::kAllReduce), 0);
  EXPECT_EQ(bytes_on_rank_0(split, CollectiveKind::kReduceScatter), reduced);
  EXPECT_DOUBLE_EQ(bytes_on_rank_0(split, CollectiveKind::kReduceScatter) * (n - 1) / n +
                       bytes_on_rank_0(split, CollectiveKind::kAllGather) * (n - 1) - logits,
                   2 * (n - 1) / n * reduced);
  EXPECT_EQ(flops_by_op(split), flops_by_op(whole));
}

}  // namespace
}  // namespace orrery
