#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/model/layer_runs.h"
#include "sim/model/lowering.h"
#include "tests/golden/golden.h"
#include "tests/model/config_file.h"
#include "tests/model/model_testing.h"
#include "tests/model/small_models.h"

namespace orrery {
namespace {

using testing::kernel_named;

const Batch kDecode{.prefill = {}, .num_decodes = 64, .decode_context = 64'000};
const Batch kPrefill{.prefill = {{.query = 1000}, {.query = 500, .context = 200}},
                     .num_decodes = 0,
                     .decode_context = 0};
const Batch kMixed{.prefill = {{.query = 512, .context = 512, .produces_token = false}},
                   .num_decodes = 32,
                   .decode_context = 22'400};

std::vector<std::string> shipped_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    constexpr std::string_view kEnd = ".config.json";
    if (!file.ends_with(kEnd)) continue;
    names.push_back(file.substr(0, file.size() - kEnd.size()));
  }
  return names;
}

bool has_kernel(const Plan& plan, std::string_view kernel) {
  for (const Op& op : plan.ops()) {
    if (std::get<KernelOp>(op.body).kernel == kernel) return true;
  }
  return false;
}

double total_flops(const Plan& plan, std::string_view kernel) {
  double flops = 0;
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const auto& body = std::get<KernelOp>(plan.ops()[i].body);
    if (body.kernel != kernel) continue;
    flops +=
        work_of(body).flops.value() * static_cast<double>(plan.multiplicity(static_cast<OpId>(i)));
  }
  return flops;
}

TEST(Lower, EveryShippedModelVerifiesInEveryBatchAndPrecision) {
  for (const std::string& name : shipped_models()) {
    const ModelConfig model = testing::shipped_model(name);
    for (const Batch& batch : {kDecode, kPrefill, kMixed}) {
      for (const bool is_fp8 : {false, true}) {
        for (const bool fuses : {false, true}) {
          LoweringOptions options{.fuse_residual_norm = fuses, .fuse_norm_quant = fuses};
          if (is_fp8) options.precision = testing::kFp8Precision;
          EXPECT_NO_THROW(verify(lower(model, batch, options))) << name << " fp8 " << is_fp8;
        }
      }
    }
  }
}

// y = x w costs 2 flops per weight and token. The LM head sees sampled rows only.
TEST(Lower, LinearLayersCostTwoFlopsPerWeightAndToken) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  const double layer = 8192.0 * 10240 + 8192.0 * 8192 + 3 * 8192.0 * 28672;
  const double head = 8192.0 * 128256;
  for (const Batch& batch : {kDecode, kPrefill, kMixed}) {
    const auto tokens = static_cast<double>(num_tokens(batch));
    const auto rows = static_cast<double>(num_sampled(batch));
    EXPECT_EQ(total_flops(lower(model, batch, {}), "gemm"),
              2 * (80 * layer * tokens + head * rows));
  }
}

// The delta rule does the same for a token however long its sequence is; 15 of 60 layers attend,
// and their keys are all that a longer context adds.
TEST(Lower, DecodesOfAHybridGrowWithTheLayersThatAttendAlone) {
  const ModelConfig model = testing::shipped_model("Qwen--Qwen3.5-397B-A17B");
  const auto plan = [&](std::int64_t context) {
    return lower(model, {.prefill = {}, .num_decodes = 8, .decode_context = 8 * context}, {});
  };
  const Plan near = plan(1000);
  const Plan far = plan(100'000);
  EXPECT_EQ(total_flops(near, "delta_rule_decode"), total_flops(far, "delta_rule_decode"));
  EXPECT_EQ(total_flops(near, "gemm"), total_flops(far, "gemm"));
  // 4 flops for each of 32 heads of 256 elements, 8 sequences, 15 layers.
  EXPECT_EQ(total_flops(far, "attention_decode") - total_flops(near, "attention_decode"),
            99'000.0 * 4 * 32 * 256 * 8 * 15);
  EXPECT_EQ(total_flops(far, "delta_rule_decode"), 6.0 * 64 * 128 * 128 * 8 * 45);
}

// Each token passes topk experts of 3 matrices: 2 * 3 hidden inter topk tokens layers.
TEST(Lower, RoutedExpertsCostTopkExpertsPerToken) {
  const ModelConfig model = testing::shipped_model("mistralai--Mixtral-8x7B-v0.1");
  EXPECT_EQ(total_flops(lower(model, kDecode, {}), "moe"), 2.0 * 3 * 4096 * 14336 * 2 * 64 * 32);
}

TEST(Lower, RepeatsStandForEveryLayerOnce) {
  for (const std::string& name : shipped_models()) {
    const ModelConfig model = testing::shipped_model(name);
    const Plan plan = lower(model, kDecode, {});
    const bool has_norm_before = std::ranges::any_of(
        plan.ops(), [](const Op& op) { return op.name.ends_with(".attn_norm"); });
    std::int64_t num_layers = 0;
    for (std::size_t i = 0; i < plan.ops().size(); ++i) {
      // Before attention or, as in OLMo 2, behind it alone.
      const std::string& op = plan.ops()[i].name;
      if (op.ends_with(".attn_norm") || (!has_norm_before && op.ends_with(".attn_post_norm"))) {
        num_layers += plan.multiplicity(static_cast<OpId>(i));
      }
    }
    EXPECT_EQ(num_layers, static_cast<std::int64_t>(model.layers.size())) << name;
  }
}

TEST(Lower, WeightsAreTheSameInEveryBatchAndMlaForm) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  const std::int64_t expected = count_parameters(model).total;
  for (const Batch& batch : {kDecode, kPrefill, kMixed}) {
    for (const MlaForm form :
         {MlaForm::kAuto, MlaForm::kAbsorbed, MlaForm::kExpanded, MlaForm::kModule}) {
      const Plan plan = lower(model, batch, {.mla_form = form});
      EXPECT_NO_THROW(verify(plan));
      EXPECT_EQ(num_weight_elements(plan, 0), expected) << static_cast<int>(form);
    }
  }
}

// 4 flops for each of 32 heads of 128 elements, of every query with every key of the step, in each
// of 32 layers; two calls attend to less.
TEST(Lower, PackedAttentionMultipliesEveryQueryWithEveryKey) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-8B");
  const LoweringOptions packed{.attention_form = AttentionForm::kPacked};
  for (const Batch& batch : {kDecode, kPrefill, kMixed}) {
    const Plan plan = lower(model, batch, packed);
    EXPECT_NO_THROW(verify(plan));
    EXPECT_FALSE(has_kernel(plan, "attention_prefill") || has_kernel(plan, "attention_decode"));
    const double pairs =
        static_cast<double>(num_tokens(batch)) * static_cast<double>(num_keys(batch));
    EXPECT_EQ(total_flops(plan, "attention_packed"), 4.0 * 32 * 128 * pairs * 32);
    const Plan split = lower(model, batch, {});
    EXPECT_GT(total_flops(plan, "attention_packed"),
              total_flops(split, "attention_prefill") + total_flops(split, "attention_decode"));
    EXPECT_EQ(total_flops(plan, "gemm"), total_flops(split, "gemm"));
  }
  EXPECT_THROW((void)lower(testing::small_deepseek(), kDecode, packed), std::invalid_argument);
}

TEST(Lower, MlaIsAbsorbedForDecodeAndExpandedForPrefill) {
  const ModelConfig model = testing::small_deepseek();
  const Plan decode = lower(model, kDecode, {});
  EXPECT_TRUE(has_kernel(decode, "mla_decode") && has_kernel(decode, "batched_gemm"));
  EXPECT_FALSE(has_kernel(decode, "mla_prefill"));
  const Plan prefill = lower(model, kPrefill, {});
  EXPECT_TRUE(has_kernel(prefill, "mla_prefill"));
  EXPECT_FALSE(has_kernel(prefill, "mla_decode") || has_kernel(prefill, "batched_gemm"));
}

// Latents of all that the new tokens see: 512 + 512 of the chunk beside decodes, 1500 + 200 of two
// chunks; of whole prompts alone they are at hand.
TEST(Lower, ExpandedFormGathersLatentsThatAreInTheCache) {
  const ModelConfig model = testing::small_deepseek();
  const Plan mixed = lower(model, kMixed, {});
  EXPECT_EQ(dim(kernel_named(mixed, "layers.0.mla_prefill.kv_gather").dims, "tokens"), 1024);
  EXPECT_EQ(dim(kernel_named(mixed, "layers.0.mla_prefill.k_b_proj").dims, "m"), 1024);
  const Plan chunks = lower(model, kPrefill, {});
  EXPECT_EQ(dim(kernel_named(chunks, "layers.0.mla_prefill.kv_gather").dims, "tokens"), 1700);
  const Plan whole = lower(model, {.prefill = {{.query = 300}, {.query = 7}}}, {});
  EXPECT_FALSE(has_kernel(whole, "kv_gather"));
  EXPECT_EQ(dim(kernel_named(whole, "layers.0.mla_prefill.v_b_proj").dims, "m"), 307);
}

TEST(Lower, AbsorbedFormAttendsLatents) {
  const ModelConfig model = testing::small_deepseek();
  const Plan plan = lower(model, kDecode, {});
  const KernelOp& attention = kernel_named(plan, "layers.0.mla_decode");
  EXPECT_EQ(dim(attention.dims, "kv_lora_rank"), 64);
  EXPECT_EQ(dim(attention.dims, "rope_dim"), 16);
  EXPECT_EQ(dim(attention.dims, "context"), 1000);
}

TEST(Lower, SparseAttentionReadsAtMostTopkTokens) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3.2");
  const Batch batch{.prefill = {}, .num_decodes = 2, .decode_context = 100'000};
  const Plan plan = lower(model, batch, {});
  EXPECT_EQ(dim(kernel_named(plan, "layers.0.mla_decode").dims, "context"), 2048);
  EXPECT_EQ(dim(kernel_named(plan, "layers.0.sparse_index").dims, "context"), 50'000);
}

TEST(Lower, WindowLayersCarryTheirWindow) {
  const Plan plan = lower(testing::shipped_model("openai--gpt-oss-20b"), kDecode, {});
  EXPECT_EQ(dim(kernel_named(plan, "layers.0.attn_decode").dims, "window"), 128);
  EXPECT_EQ(dim(kernel_named(plan, "layers.1.attn_decode").dims, "window"), 1 << 30);
}

TEST(Lower, AMixedBatchHasBothAttentions) {
  const Plan plan = lower(testing::small_llama(), kMixed, {});
  const KernelOp& prefill = kernel_named(plan, "layers.0.attn_prefill");
  EXPECT_EQ(dim(prefill.dims, "query"), 512);
  EXPECT_EQ(dim(prefill.dims, "context"), 512);
  const KernelOp& decode = kernel_named(plan, "layers.0.attn_decode");
  EXPECT_EQ(dim(decode.dims, "batch"), 32);
  EXPECT_EQ(dim(decode.dims, "context"), 700);
  EXPECT_EQ(dim(kernel_named(plan, "layers.0.qkv_proj").dims, "m"), 512 + 32);
}

// A chunk in the middle of a prompt samples nothing.
TEST(Lower, OnlySampledRowsReachTheLmHead) {
  EXPECT_EQ(dim(kernel_named(lower(testing::small_llama(), kMixed, {}), "lm_head").dims, "m"), 32);
  const Batch middle{.prefill = {{.query = 8, .context = 0, .produces_token = false}},
                     .num_decodes = 0,
                     .decode_context = 0};
  const Plan plan = lower(testing::small_llama(), middle, {});
  EXPECT_FALSE(has_kernel(plan, "sample"));
  EXPECT_NO_THROW(verify(plan));
}

TEST(Lower, Fp8QuantisesInNormsAndActivationsOrInOpsOfItsOwn) {
  const ModelConfig model = testing::small_llama();
  const auto num_quantize = [&](bool fuses) {
    const Plan plan =
        lower(model, kDecode, {.precision = testing::kFp8Precision, .fuse_norm_quant = fuses});
    return std::ranges::count_if(
        plan.ops(), [](const Op& op) { return std::get<KernelOp>(op.body).kernel == "quantize"; });
  };
  EXPECT_EQ(num_quantize(true), 1) << "before o_proj only: attention kernels write bf16";
  EXPECT_EQ(num_quantize(false), 4) << "before qkv_proj, o_proj, gate_up_proj and down_proj";
}

TEST(Lower, ExpertsMayHaveAFormatOfTheirOwn) {
  LoweringOptions options;
  options.precision.expert_weights = DType::kMxfp4;
  const Plan plan = lower(testing::shipped_model("openai--gpt-oss-20b"), kDecode, options);
  EXPECT_EQ(kernel_named(plan, "layers.0.experts").dtype, DType::kMxfp4);
  EXPECT_EQ(kernel_named(plan, "layers.0.qkv_proj").dtype, DType::kBf16);
}

TEST(Lower, TiedEmbeddingsAreOneTensor) {
  const ModelConfig model = testing::shipped_model("meta-llama--Llama-3.2-1B-Instruct");
  const Plan plan = lower(model, kDecode, {});
  EXPECT_EQ(num_weight_elements(plan, 0), count_parameters(model).total);
  EXPECT_EQ(plan.ops().front().reads.back(), plan.ops()[plan.ops().size() - 2].reads.back());
}

TEST(LowerErrors, BatchesThatCannotBeAreRefused) {
  const ModelConfig model = testing::small_llama();
  const auto refuse = [&](const Batch& batch) {
    EXPECT_THROW((void)lower(model, batch, {}), std::invalid_argument);
  };
  refuse({});
  refuse({.prefill = {{.query = 0}}, .num_decodes = 0, .decode_context = 0});
  refuse({.prefill = {{.query = 1, .context = -1}}, .num_decodes = 0, .decode_context = 0});
  refuse({.prefill = {}, .num_decodes = -1, .decode_context = 0});
  refuse({.prefill = {}, .num_decodes = 4, .decode_context = 3});
  refuse({.prefill = {{.query = 1}}, .num_decodes = 0, .decode_context = 1});
}

TEST(LowerErrors, Fp8ActivationsNeedFp8Weights) {
  LoweringOptions options;
  options.precision.activations = DType::kFp8;
  EXPECT_THROW((void)lower(testing::small_llama(), kDecode, options), std::invalid_argument);
  options.precision = {.weights = DType::kFp8, .activations = DType::kInt32};
  EXPECT_THROW((void)lower(testing::small_llama(), kDecode, options), std::invalid_argument);
}

TEST(LowerErrors, AModelWithoutLayersIsRefused) {
  ModelConfig model = testing::small_llama();
  model.layers.clear();
  EXPECT_THROW((void)lower(model, kDecode, {}), std::invalid_argument);
}

TEST(LowerErrors, TheModuleFormOfSparseAttentionIsRefused) {
  const ModelConfig model = testing::shipped_model("zai-org--GLM-5");
  EXPECT_THROW((void)lower(model, kDecode, {.mla_form = MlaForm::kModule}), std::invalid_argument);
}

TEST(StepShape, EqualChunksComeBackAsTheyAre) {
  const Batch batch{
      .prefill = {{300, 100}, {300, 100}, {300, 100}}, .num_decodes = 0, .decode_context = 0};
  const StepShape shape = step_shape(batch);
  EXPECT_EQ(shape.prefill_batch, 3);
  EXPECT_EQ(shape.prefill_query, 300);
  EXPECT_EQ(shape.prefill_context, 100);
  EXPECT_EQ(shape.prefill_cached, 300);
}

// Chunks (1000, 0), (500, 200), (250, 4000): sum q = 1750; W = 1000*500 + 500*450 + 250*4125
// = 1756250. The uniform batch keeps both within rounding of batch, query and context to integers:
// half a token of query per sequence, and half a token of context per new token.
TEST(StepShape, UnequalChunksKeepTokensAndCausalWork) {
  const Batch batch{
      .prefill = {{1000, 0}, {500, 200}, {250, 4000}}, .num_decodes = 0, .decode_context = 0};
  const StepShape shape = step_shape(batch);
  EXPECT_EQ(shape.prefill_tokens, 1750);
  const auto sequences = static_cast<double>(shape.prefill_batch);
  const auto query = static_cast<double>(shape.prefill_query);
  const auto context = static_cast<double>(shape.prefill_context);
  EXPECT_NEAR(sequences * query, 1750, sequences / 2);
  EXPECT_NEAR(sequences * query * (context + query / 2), 1756250, 1750 + 1000);
}

// One huge and many tiny chunks: q_eff = (8000^2 + 64) / 8064 is near 8000, so one sequence.
TEST(StepShape, LongChunksAreNotSplitByShortOnes) {
  Batch batch{.prefill = {{8000, 0}}, .num_decodes = 0, .decode_context = 0};
  for (int i = 0; i < 64; ++i) batch.prefill.push_back({1, 0});
  EXPECT_EQ(step_shape(batch).prefill_batch, 1);
}

TEST(StepShape, DecodeContextIsTheRoundedMean) {
  const Batch batch{.prefill = {}, .num_decodes = 3, .decode_context = 11};
  EXPECT_EQ(step_shape(batch).decode_context, 4);  // 11 / 3 = 3.67
}

TEST(LayerRuns, FindTheShortestPeriodThatCoversMost) {
  const LayerConfig a{};
  const LayerConfig b{.sliding_window = 128};
  using Runs = std::vector<LayerRun>;
  EXPECT_EQ(layer_runs(std::vector{a, a, a}), (Runs{{0, 1, 3}}));
  EXPECT_EQ(layer_runs(std::vector{a, b, a, b, a, b}), (Runs{{0, 2, 3}}));
  EXPECT_EQ(layer_runs(std::vector{a, a, b, a, a, b}), (Runs{{0, 3, 2}}));
  EXPECT_EQ(layer_runs(std::vector{a, b, b, b}), (Runs{{0, 1, 1}, {1, 1, 3}}));
  EXPECT_EQ(layer_runs(std::vector<LayerConfig>{}), Runs{});
}

// Every cached token of 80 layers: 2 (k and v) 8 heads 128 elements.
TEST(KvBytes, AreTwoVectorsPerKvHeadAndLayer) {
  const ModelConfig model = testing::shipped_model("meta-llama--Meta-Llama-3.1-70B");
  EXPECT_EQ(kv_bytes_per_token(model, DType::kBf16).value(), 80.0 * 2 * 8 * 128 * 2);
  EXPECT_EQ(kv_bytes(model, DType::kFp8, 1000).value(), 80.0 * 2 * 8 * 128 * 1000);
}

// DeepSeek-V3: 61 layers of a latent of 512 and a rotary key of 64; V3.2 adds 128 fp8 index
// elements and one fp32 scale.
TEST(KvBytes, OfMlaAreOneLatentPerTokenAndLayer) {
  const ModelConfig v3 = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  EXPECT_EQ(kv_bytes_per_token(v3, DType::kBf16).value(), 61.0 * 576 * 2);
  const ModelConfig v32 = testing::shipped_model("deepseek-ai--DeepSeek-V3.2");
  EXPECT_EQ(kv_bytes_per_token(v32, DType::kBf16).value(), 61.0 * (576 * 2 + 132));
}

// gpt-oss-20b: 12 of 24 layers keep at most 128 tokens.
TEST(KvBytes, OfWindowLayersStopAtTheWindow) {
  const ModelConfig model = testing::shipped_model("openai--gpt-oss-20b");
  const double per_token = 2.0 * 8 * 64 * 2;
  EXPECT_EQ(kv_bytes(model, DType::kBf16, 1000).value(), per_token * (12 * 1000 + 12 * 128));
  EXPECT_EQ(kv_bytes(model, DType::kBf16, 100).value(), per_token * 24 * 100);
}

TEST(GoldenPlan, SmallLlamaMixedFp8) {
  const Plan plan = lower(testing::small_llama(), kMixed, {.precision = testing::kFp8Precision});
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  expect_golden("model_small_llama.plan", to_text(plan));
}

TEST(GoldenPlan, SmallDeepseekDecodeBf16) {
  expect_golden("model_small_deepseek.plan",
                to_text(lower(testing::small_deepseek(), kDecode, {})));
}

}  // namespace
}  // namespace orrery
