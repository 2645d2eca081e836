// Even parts of all data-parallel ranks' rows (dp_rows balanced): what is computed, what moves.

#include "sim/parallel/balanced_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::bytes_on_rank_0;
using testing::flops_by_op;
using testing::op_named;
using testing::tensor_named;
using testing::total_weights;

constexpr auto kBalanced = DpRows::kBalanced;
constexpr auto kProjected = AttentionGather::kProjected;

ModelConfig shipped_v3() { return testing::shipped_model("deepseek-ai--DeepSeek-V3"); }

// Of 4 ranks the first has 4,096 of 5,632 tokens; an even part is 1,408.
constexpr double kStepTokens = 5632;
constexpr double kFullest = 4096;
Batch skewed() { return {.prefill = {{4096}, {512}, {512}, {512}}}; }

Plan planned(const ModelConfig& model, const Batch& batch, const Mesh& mesh,
             const LoweringOptions& options = {}) {
  check_mesh(model, mesh);
  Plan plan = step_plan(model, batch, options, mesh);
  verify(plan);
  return plan;
}

// Whether it looks at sequences, or is behind the gather of what does.
bool is_of_sequences(const std::string& op, bool is_projected) {
  for (const char* name : {"mla_prefill", "q_b_proj", "rope", "kv_append", "k_b_proj", "v_b_proj",
                           "attn_prefill", "qkv_proj", "lm_head", "sample"}) {
    if (op.find(name) != std::string::npos) return true;
  }
  const bool is_latent =
      op.ends_with("qkv_a_proj") || op.ends_with("q_a_norm") || op.ends_with("kv_a_norm");
  return is_latent && !is_projected;
}

void expect_even_flops(const ModelConfig& model, Mesh mesh, double tolerance = 1e-12) {
  const auto own = flops_by_op(planned(model, skewed(), mesh));
  mesh.dp_rows = kBalanced;
  for (const AttentionGather gather : {AttentionGather::kNorm, kProjected}) {
    if (gather == kProjected && model.q_lora_rank == 0) continue;
    mesh.attention_gather = gather;
    const auto even = flops_by_op(planned(model, skewed(), mesh));
    ASSERT_EQ(own.size(), even.size());
    for (const auto& [op, flops] : own) {
      // Routed experts take in the tokens of all ranks either way.
      if (op.ends_with(".experts")) {
        EXPECT_EQ(even.at(op), flops);
        continue;
      }
      const double share =
          is_of_sequences(op, gather == kProjected) ? 1 : kStepTokens / 4 / kFullest;
      EXPECT_NEAR(even.at(op), flops * share, tolerance * flops) << op;
    }
  }
}

TEST(BalancedRows, ComputeAnEvenPartOfAllButAttention) {
  expect_even_flops(testing::small_llama(), {.dp = 4});
  expect_even_flops(testing::small_llama(), {.dp = 4, .tp = 2});
  expect_even_flops(shipped_v3(), {.dp = 4, .ep = 4});
  expect_even_flops(shipped_v3(), {.dp = 4, .tp = 2, .ep = 8});
}

// A row of latents is 1536 + 512 + 64 bf16 numbers, one of results 128 heads of 128 over tp. Of a
// step in all: of rows that are gathered each rank gives its even part; the fullest rank sends the
// results of all its own. Behind the last layer four sampled rows, one of each rank, go back.
TEST(BalancedRows, GatherLatentsAndSendResultsBack) {
  const ModelConfig model = shipped_v3();
  for (const int tp : {1, 2}) {
    Mesh mesh{.dp = 4, .tp = tp, .ep = 4 * tp, .expert_comm = ExpertComm::kAllGather};
    const Plan own = planned(model, skewed(), mesh);
    mesh.dp_rows = kBalanced;
    mesh.attention_gather = kProjected;
    const Plan even = planned(model, skewed(), mesh);
    double gathered = 0;
    double exchanged = 0;
    for (const Op& op : even.ops()) {
      const auto* comm = std::get_if<CommOp>(&op.body);
      if (comm == nullptr || !even.contains(op.ranks, 0)) continue;
      const bool is_of_logits = op.name.starts_with("logits");
      if (is_of_logits || op.name.find(".experts.") != std::string::npos) continue;
      const OpId id = static_cast<OpId>(&op - even.ops().data());
      const double bytes =
          comm->bytes_per_rank.value() * static_cast<double>(even.multiplicity(id));
      if (comm->kind == CollectiveKind::kAllGather) gathered += bytes;
      if (comm->kind == CollectiveKind::kAllToAll) exchanged += bytes;
    }
    const double layers = 61;
    EXPECT_EQ(gathered * 4, layers * kStepTokens * (1536 + 512 + 64) * 2);
    EXPECT_EQ(exchanged, layers * kFullest * 128 * 128 / tp * 2 + 7168 * 2);
    EXPECT_EQ(bytes_on_rank_0(own, CollectiveKind::kAllToAll), 0);
    EXPECT_EQ(total_weights(even), total_weights(own));
  }
}

// Hidden rows where queries come from those: h 256 in bf16 of each token in each of four layers.
TEST(BalancedRows, GatherHiddenRowsWhereQueriesComeFromThose) {
  const Plan plan = planned(testing::small_llama(), skewed(), {.dp = 4, .dp_rows = kBalanced});
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllGather) * 4, 4 * kStepTokens * 256 * 2);
}

// Prompts after cached tokens beside decodes, decodes alone and several tokens of each decode, as
// each shipped model has them. All but sparse attention and layers with states can be balanced.
TEST(BalancedRows, AreLegalPlansOfEveryModel) {
  const std::vector<Batch> batches{
      {.prefill = {{700, 300}, {40, 0}, {90, 11}}, .num_decodes = 13, .decode_context = 13'000},
      {.num_decodes = 30, .decode_context = 60'000},
      {.num_decodes = 8, .decode_context = 16'000, .decode_query = 3}};
  int num_models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    const ModelConfig model = model_config(file, testing::config_fields(file));
    const auto has_states = [](const LayerConfig& layer) { return layer.state_bytes > 0; };
    if (model.index_topk > 0 || std::ranges::any_of(model.layers, has_states)) continue;
    ++num_models;
    for (const Precision& precision : {Precision{}, testing::kFp8Precision}) {
      for (const Batch& batch : batches) {
        Mesh mesh{.dp = 4, .dp_rows = kBalanced};
        if (model.num_experts > 0) mesh.ep = 4;
        SCOPED_TRACE(file);
        EXPECT_NO_THROW((void)planned(model, batch, mesh, {.precision = precision}));
        if (model.q_lora_rank == 0) continue;
        mesh.attention_gather = kProjected;
        EXPECT_NO_THROW((void)planned(model, batch, mesh, {.precision = precision}));
      }
    }
  }
  EXPECT_GT(num_models, 25);
}

TEST(BalancedRows, GoWithStagesAndOtherPlacesOfWeights) {
  const std::vector<Mesh> meshes{
      {.dp = 2, .tp = 2, .pp = 2, .dp_rows = kBalanced},
      {.dp = 4, .dp_rows = kBalanced, .o_proj = OProjection::kSharded},
      {.dp = 4, .dp_rows = kBalanced, .lm_head = LmHead::kJoined},
      {.dp = 2, .tp = 4, .dp_rows = kBalanced, .lm_head = LmHead::kReplicated},
      {.dp = 2, .tp = 2, .dp_rows = kBalanced, .split_all_reduce = true}};
  for (const Mesh& mesh : meshes) {
    for (const ModelConfig& model : {testing::small_llama(), testing::small_deepseek()}) {
      EXPECT_NO_THROW((void)planned(model, skewed(), mesh)) << model.name;
    }
    const LoweringOptions packed{.attention_form = AttentionForm::kPacked};
    EXPECT_NO_THROW((void)planned(testing::small_llama(), skewed(), mesh, packed));
  }
}

// As services price ranks: one with few rows, or with an idle one, has an even part all the same.
TEST(BalancedRows, OfARankWithFewRowsAreAsManyAsOfOthers) {
  const Mesh mesh{.dp = 4, .ep = 4, .dp_rows = kBalanced, .attention_gather = kProjected};
  for (const Batch& own : {Batch{}, Batch{.prefill = {{9}}}, Batch{.prefill = {{3000}}}}) {
    const StepShape shape = rank_shape(own, 4000, 0, 1, mesh);
    const Plan plan = step_plan(testing::small_deepseek(), shape, {}, mesh);
    EXPECT_EQ(dim(std::get<KernelOp>(op_named(plan, "embedding").body).dims, "tokens"), 1000);
    EXPECT_EQ(dim(std::get<KernelOp>(op_named(plan, "layers.0.q_b_proj").body).dims, "m"),
              std::max<std::int64_t>(num_tokens(own), 1));
  }
}

// What arrives of all ranks takes memory until the rank's own rows are taken out of it.
TEST(BalancedRows, HoldTheRowsOfAllRanksWhileTheyArrive) {
  const Plan plan = planned(testing::small_llama(), skewed(), {.dp = 4, .dp_rows = kBalanced});
  EXPECT_EQ(tensor_named(plan, "layers.0.attn_norm.all").axes[0].size, kStepTokens);
  EXPECT_EQ(tensor_named(plan, "layers.0.attn_norm.own").axes[0].size, kFullest);
}

TEST(BalancedRows, AreRefusedOfAModuleInOneOp) {
  LoweringOptions options;
  options.mla_form = MlaForm::kModule;
  const Plan whole = lower(testing::small_deepseek(), skewed(), options);
  EXPECT_THROW((void)parallelize(whole, {.dp = 4, .dp_rows = kBalanced}), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
