// Meshes that cannot hold a model, and what the error says.

#include <gtest/gtest.h>

#include <string>

#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"

namespace orrery {
namespace {

std::string mesh_error(const ModelConfig& model, const Mesh& mesh) {
  try {
    check_mesh(model, mesh);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

TEST(CheckMesh, LegalMeshesPass) {
  const ModelConfig llama = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  EXPECT_NO_THROW(check_mesh(llama, {.tp = 8}));
  EXPECT_NO_THROW(check_mesh(llama, {.tp = 16}));  // 8 KV heads twice
  EXPECT_NO_THROW(check_mesh(llama, {.dp = 3, .tp = 4, .pp = 7, .num_micro_batches = 5}));
  const ModelConfig v3 = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  EXPECT_NO_THROW(check_mesh(v3, {.dp = 256, .ep = 256}));
  EXPECT_NO_THROW(check_mesh(v3, {.dp = 4, .tp = 2, .ep = 2}));
}

TEST(CheckMesh, TpMustDivideTheHeads) {
  const ModelConfig llama = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  EXPECT_TRUE(contains(mesh_error(llama, {.tp = 3}),
                       "tp 3 does not divide num_attention_heads 64; nearest legal tp: 2 or 4"));
  EXPECT_TRUE(contains(mesh_error(llama, {.tp = 128}), "nearest legal tp: 64"));
}

// Step-3.7: 64 heads but 8 KV heads; with 12 heads of 4, tp 3 divides 12 heads and not 4.
TEST(CheckMesh, TpMustDivideTheKvHeadsOrBeAMultiple) {
  ConfigFields fields = testing::small_llama_fields();
  fields["num_attention_heads"] = std::int64_t{12};
  fields["num_key_value_heads"] = std::int64_t{4};
  fields["head_dim"] = std::int64_t{32};
  fields["intermediate_size"] = std::int64_t{768};
  EXPECT_TRUE(contains(mesh_error(model_config("m", fields), {.tp = 3}),
                       "tp 3 neither divides num_key_value_heads 4 nor is a multiple of it; "
                       "nearest legal tp: 2 or 4"));
}

TEST(CheckMesh, TpMustDivideTheFfnColumns) {
  ConfigFields fields = testing::small_llama_fields();
  fields["intermediate_size"] = std::int64_t{510};
  EXPECT_TRUE(contains(mesh_error(model_config("m", fields), {.tp = 4}),
                       "tp 4 does not divide the 510 columns of intermediate_size"));
}

TEST(CheckMesh, EpMustDivideTheRanksAndTheExperts) {
  const ModelConfig model = testing::small_deepseek();  // 16 experts of 128 columns, 8 heads
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 2, .tp = 2, .ep = 3}),
                       "ep 3 does not divide dp * tp = 4; nearest legal ep: 2 or 4"));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 6, .tp = 1, .ep = 6}),
                       "ep 6 does not divide the 16 routed and 0 redundant experts"));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 6, .tp = 1, .ep = 6}), "num_redundant_experts: 2"));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 3, .tp = 1, .ep = 1}),
                       "dp * tp / ep = 3 does not divide moe_intermediate_size 128; nearest legal "
                       "dp * tp: 2 or 4"));
}

TEST(CheckMesh, RedundantExpertsNeedExpertParallelism) {
  const ModelConfig v3 = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  EXPECT_NO_THROW(check_mesh(v3, {.dp = 320, .ep = 320, .num_redundant_experts = 64}));
  EXPECT_TRUE(contains(mesh_error(v3, {.dp = 2, .ep = 1, .num_redundant_experts = 64}),
                       "num_redundant_experts is 64 with ep 1"));
  EXPECT_TRUE(contains(mesh_error(v3, {.dp = 2, .ep = 2, .num_redundant_experts = -2}),
                       "num_redundant_experts is -2"));
}

TEST(CheckMesh, EpNeedsRoutedExperts) {
  EXPECT_TRUE(contains(mesh_error(testing::small_llama(), {.tp = 2, .ep = 2}),
                       "ep is 2, but the model has no routed experts"));
}

TEST(CheckMesh, PpIsAtMostTheLayers) {
  EXPECT_TRUE(contains(mesh_error(testing::small_llama(), {.pp = 5}),
                       "pp 5 is more than the 4 layers; nearest legal pp: 4"));
  const ModelConfig alternating = testing::shipped_model("openai--gpt-oss-20b");  // 12 pairs
  EXPECT_TRUE(contains(mesh_error(alternating, {.pp = 13}), "nearest legal pp: 12"));
}

TEST(CheckMesh, SizesAreAtLeastOne) {
  const ModelConfig model = testing::small_llama();
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 0}), "dp is 0, expected 1 to"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = -2}), "tp is -2"));
  EXPECT_TRUE(contains(mesh_error(model, {.num_micro_batches = 0}), "num_micro_batches is 0"));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 1 << 15, .pp = 1 << 15}), "ranks"));
}

TEST(CheckMesh, OptionsNeedWhatTheySplit) {
  const ModelConfig model = testing::small_llama();
  EXPECT_TRUE(contains(mesh_error(model, {.sp = true}), "sp is on with tp 1"));
  EXPECT_TRUE(
      contains(mesh_error(model, {.num_micro_batches = 2}), "num_micro_batches is 2 with pp 1"));
}

TEST(CheckMesh, AReplicatedSharedExpertNeedsRanksToBeOn) {
  const SharedExpert whole = SharedExpert::kReplicated;
  EXPECT_TRUE(contains(mesh_error(testing::small_llama(), {.tp = 2, .shared_expert = whole}),
                       "shared_expert is replicated, but the model has no shared expert; expected "
                       "split"));
  const ModelConfig model = testing::small_deepseek();
  EXPECT_NO_THROW(check_mesh(model, {.tp = 2, .shared_expert = whole}));
  EXPECT_TRUE(contains(mesh_error(model, {.shared_expert = whole}), "tp is 1"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .sp = true, .shared_expert = whole}),
                       "with sp, whose ranks add results of 1 / tp of the tokens; expected split"));
}

TEST(CheckMesh, GathersFurtherBackNeedSequenceParallelismAndWhatTheyMove) {
  const auto projected = AttentionGather::kProjected;
  const auto routed = MoeGather::kRouted;
  const ModelConfig model = testing::small_deepseek();
  const ModelConfig llama = testing::small_llama();
  EXPECT_NO_THROW(check_mesh(
      model, {.tp = 2, .sp = true, .attention_gather = projected, .moe_gather = routed}));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .attention_gather = projected}),
                       "without sp, expected norm, or sp: true"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .moe_gather = routed}), "without sp"));
  EXPECT_TRUE(contains(mesh_error(llama, {.tp = 2, .sp = true, .attention_gather = projected}),
                       "q_lora_rank"));
  EXPECT_TRUE(contains(mesh_error(llama, {.tp = 2, .sp = true, .moe_gather = routed}),
                       "no routed experts; expected norm"));
  EXPECT_TRUE(contains(mesh_error(testing::shipped_model("deepseek-ai--DeepSeek-V3.2"),
                                  {.tp = 2, .sp = true, .attention_gather = projected}),
                       "sparse attention"));
}

TEST(CheckMesh, EvenRowsNeedDataParallelRanksThatDivideNothingElse) {
  const auto balanced = DpRows::kBalanced;
  const auto projected = AttentionGather::kProjected;
  const ModelConfig model = testing::small_deepseek();
  const ModelConfig llama = testing::small_llama();
  EXPECT_NO_THROW(check_mesh(llama, {.dp = 2, .tp = 2, .pp = 2, .dp_rows = balanced}));
  EXPECT_NO_THROW(
      check_mesh(model, {.dp = 4, .ep = 4, .dp_rows = balanced, .attention_gather = projected}));
  const auto expect = [&](const Mesh& mesh, const std::string& part) {
    EXPECT_TRUE(contains(mesh_error(llama, mesh), part));
  };
  expect({.dp_rows = balanced}, "with dp 1, expected own, or nearest legal dp: 2");
  expect({.dp = 2, .cp = 2, .dp_rows = balanced}, "expected cp 1, or dp_rows own");
  expect({.dp = 2, .tp = 2, .sp = true, .dp_rows = balanced}, "expected sp false, or dp_rows own");
  expect({.dp = 2, .pp = 2, .dp_rows = balanced, .num_micro_batches = 2},
         "expected num_micro_batches 1, or dp_rows own");
  expect({.dp = 2, .dp_rows = balanced, .ffn_instances = 1},
         "expected ffn_instances 0, or dp_rows own");
  expect({.dp = 2, .tp = 2, .dp_rows = balanced, .o_proj = OProjection::kReplicated},
         "expected o_proj split or sharded, or dp_rows own");
  expect({.dp = 2, .tp = 2, .dp_rows = balanced, .two_batch_overlap = true},
         "expected two_batch_overlap false, or dp_rows own");
  expect({.dp = 2, .dp_rows = balanced, .attention_gather = projected}, "q_lora_rank");
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 2, .attention_gather = projected}),
                       "or dp_rows: balanced with dp >= 2"));
  EXPECT_TRUE(contains(mesh_error(testing::shipped_model("deepseek-ai--DeepSeek-V3.2"),
                                  {.dp = 2, .dp_rows = balanced}),
                       "sparse attention"));
  EXPECT_TRUE(contains(
      mesh_error(testing::shipped_model("Qwen--Qwen3.5-397B-A17B"), {.dp = 2, .dp_rows = balanced}),
      "keep states"));
}

TEST(CheckMesh, OutputProjectionsNeedRanksToBeOn) {
  const ModelConfig model = testing::small_llama();  // hidden 256
  EXPECT_NO_THROW(check_mesh(model, {.dp = 2, .tp = 2, .o_proj = OProjection::kReplicated}));
  EXPECT_NO_THROW(
      check_mesh(model, {.dp = 2, .tp = 2, .sp = true, .o_proj = OProjection::kSharded}));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 2, .o_proj = OProjection::kReplicated}),
                       "o_proj is replicated, but tp is 1"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .sp = true, .o_proj = OProjection::kReplicated}),
                       "expected split or sharded"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .o_proj = OProjection::kSharded}),
                       "o_proj is sharded, but dp is 1"));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 3, .o_proj = OProjection::kSharded}),
                       "does not divide hidden_size 256; nearest legal dp: 2 or 4"));
}

TEST(CheckMesh, LmHeadsNeedRanksToBeOnAndWeightsOfTheirOwn) {
  const ModelConfig model = testing::small_llama();
  EXPECT_NO_THROW(check_mesh(model, {.tp = 2, .lm_head = LmHead::kReplicated}));
  EXPECT_NO_THROW(check_mesh(model, {.dp = 2, .lm_head = LmHead::kJoined}));
  EXPECT_TRUE(contains(mesh_error(model, {.dp = 2, .lm_head = LmHead::kReplicated}),
                       "lm_head is replicated, but tp is 1"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .lm_head = LmHead::kJoined}),
                       "lm_head is joined, but dp is 1"));
  const ModelConfig tied = testing::shipped_model("meta-llama--Llama-3.2-1B-Instruct");
  EXPECT_TRUE(
      contains(mesh_error(tied, {.dp = 2, .lm_head = LmHead::kJoined}), "tie_word_embeddings"));
}

TEST(CheckMesh, ASplitAllReduceNeedsOneThatIsWhole) {
  const ModelConfig model = testing::small_llama();
  EXPECT_NO_THROW(check_mesh(model, {.tp = 2, .split_all_reduce = true}));
  EXPECT_TRUE(contains(mesh_error(model, {.split_all_reduce = true}), "with tp 1"));
  EXPECT_TRUE(contains(mesh_error(model, {.tp = 2, .sp = true, .split_all_reduce = true}),
                       "with sp, which splits each all_reduce already; expected false"));
}

TEST(Parallelize, AxesThatDoNotDivideAreNamed) {
  const Batch batch{.prefill = {}, .num_decodes = 1, .decode_context = 1};
  const Plan plan = lower(testing::small_llama(), batch, {});
  try {
    (void)parallelize(plan, {.tp = 3});
    FAIL() << "8 heads were split 3 ways";
  } catch (const std::invalid_argument& error) {
    EXPECT_TRUE(contains(error.what(), "cannot be split 3 ways"));
  }
  EXPECT_THROW((void)parallelize(plan, {.pp = 5}), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
