#include "tests/model/public_configs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/model/model.h"
#include "sim/model/step_shape.h"
#include "tests/model/model_testing.h"
#include "tests/model/small_models.h"

namespace orrery {
namespace {

using testing::contains;
using testing::kernel_named;

std::string error_of(const ConfigFields& fields) {
  try {
    (void)model_config("m", fields);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(PublicConfigs, LoadWithThePublishedNumberOfParameters) {
  for (const testing::PublicConfig& config : testing::public_configs()) {
    if (config.parameters == 0) continue;
    try {
      const ParameterCount count = count_parameters(model_config(config.id, config.fields));
      EXPECT_NEAR(static_cast<double>(count.total) / 1e9, config.parameters,
                  0.015 * config.parameters)
          << config.id;
      if (config.active == 0) continue;
      EXPECT_NEAR(static_cast<double>(count.active) / 1e9, config.active, 0.05 * config.active)
          << config.id;
    } catch (const std::invalid_argument& error) {
      ADD_FAILURE() << config.id << ": " << error.what();
    }
  }
}

// model.layers, whatever a config calls the number of its layers and the lists of them.
TEST(PublicConfigs, CutToTheirFirstLayersKeepThose) {
  for (const testing::PublicConfig& config : testing::public_configs()) {
    if (config.parameters == 0) continue;
    const ModelConfig whole = model_config(config.id, config.fields);
    for (const int num_layers : {1, 7}) {
      const ModelConfig cut = model_config(config.id, with_num_layers(config.fields, num_layers));
      EXPECT_EQ(cut.layers,
                std::vector<LayerConfig>(whole.layers.begin(), whole.layers.begin() + num_layers))
          << config.id;
    }
  }
}

TEST(PublicConfigs, AtLeastNineOfTenLoad) {
  const auto all = testing::public_configs();
  const auto loaded = std::ranges::count_if(
      all, [](const testing::PublicConfig& config) { return config.parameters > 0; });
  EXPECT_GE(std::ssize(all), 40);
  EXPECT_GE(10 * loaded, 9 * std::ssize(all));
}

TEST(PublicConfigs, OfOtherFamiliesSayWhichBlockIsMissing) {
  for (const testing::PublicConfig& config : testing::public_configs()) {
    if (config.parameters > 0) continue;
    EXPECT_TRUE(contains(error_of(config.fields), config.missing)) << config.id;
  }
}

TEST(PublicConfigs, AFieldOfABlockThatIsNotHereNamesIt) {
  const std::vector<std::pair<std::string, std::string>> named{
      {"num_key_value_heads_per_layer", "different numbers of key and value heads"},
      {"num_query_heads", "different numbers of heads"},
      {"layer_group_size", "lightning attention"},
      {"attention_types", "windows by attention_types"},
      {"bskcn_1", "skips from layers to later ones"},
      {"residual_moe", "a dense FFN beside routed experts"},
      {"type_vocab_size", "an encoder"},
      {"classifier_pooling", "an encoder"}};
  for (const auto& [field, block] : named) {
    EXPECT_TRUE(
        contains(error_of({{"model_type", std::string("new")}, {field, std::int64_t{2}}}), block))
        << field;
  }
}

ConfigFields fields_of(const std::string& id) {
  for (testing::PublicConfig& config : testing::public_configs()) {
    if (config.id == id) return std::move(config.fields);
  }
  throw std::invalid_argument("no public config " + id);
}

Plan decode_of(const ModelConfig& model, const LoweringOptions& options = {}) {
  return lower(model, {.prefill = {}, .num_decodes = 8, .decode_context = 8000}, options);
}

std::vector<std::string> ops_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const Op& op : plan.ops()) names.push_back(op.name);
  return names;
}

// A dense model of two layers, of one family.
ModelConfig small(const std::string& model_type) {
  ConfigFields fields = testing::small_llama_fields();
  fields["model_type"] = model_type;
  fields["num_hidden_layers"] = std::int64_t{2};
  fields["sliding_window"] = std::int64_t{64};
  return model_config("m", fields);
}

// Five local layers, then one that sees all; sizes that the file leaves out are Gemma3TextConfig's.
TEST(Families, Gemma3AttendsLocallyInFiveOfSixLayers) {
  const ModelConfig model = model_config("m", fields_of("google/gemma-3-4b-it"));
  ASSERT_EQ(model.layers.size(), 34);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(model.layers[i].sliding_window, i % 6 == 5 ? 0 : 1024) << i;
  }
  EXPECT_EQ(model.num_attention_heads, 8);
  EXPECT_EQ(model.num_key_value_heads, 4);
  EXPECT_EQ(model.head_dim, 256);
  EXPECT_TRUE(model.tie_word_embeddings);
}

TEST(Families, Gemma2AttendsLocallyInEverySecondLayerFromTheFirst) {
  const ModelConfig model = model_config("m", fields_of("google/gemma-2-9b"));
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(model.layers[i].sliding_window, i % 2 == 0 ? 4096 : 0) << i;
  }
}

// x + norm(f(norm(x))): two more norms a layer than Llama, which write what the next one adds.
TEST(Families, NormsAroundABlockAreTwoMoreOpsALayer) {
  const Plan plan = decode_of(small("glm4"));
  EXPECT_EQ(ops_of(plan), (std::vector<std::string>{
                              "embedding", "layers.0.attn_norm", "layers.0.qkv_proj",
                              "layers.0.rope", "layers.0.kv_append", "layers.0.attn_decode",
                              "layers.0.o_proj", "layers.0.attn_post_norm", "layers.0.ffn_norm",
                              "layers.0.gate_up_proj", "layers.0.silu_mul", "layers.0.down_proj",
                              "layers.0.ffn_post_norm", "final_norm", "lm_head", "sample"}));
}

// x + norm(f(x)): no norm before a block, and additions of their own whatever options say.
TEST(Families, NormsBehindABlockLeaveItsInputAsItIs) {
  const Plan plan = decode_of(small("exaone4"));
  const auto names = ops_of(plan);
  for (const char* name : {"layers.0.attn_post_norm", "layers.0.attn_residual",
                           "layers.0.ffn_post_norm", "layers.0.ffn_residual"}) {
    EXPECT_TRUE(std::ranges::find(names, name) != names.end()) << name;
  }
  for (const char* name : {"layers.0.attn_norm", "layers.0.ffn_norm"}) {
    EXPECT_TRUE(std::ranges::find(names, name) == names.end()) << name;
  }
  EXPECT_EQ(plan.tensors().size(),
            decode_of(small("exaone4"), {.fuse_residual_norm = false}).tensors().size());
}

// One norm a layer, read by attention and FFN; 2 layers and the last norm are 3 gains in place
// of 5.
TEST(Families, AParallelLayerNormsOnceAndAddsBothBlocks) {
  const Plan plan = decode_of(small("cohere"));
  const auto names = ops_of(plan);
  EXPECT_TRUE(std::ranges::find(names, "layers.0.ffn_norm") == names.end());
  EXPECT_TRUE(std::ranges::find(names, "layers.0.parallel_sum") != names.end());
  EXPECT_EQ(kernel_named(plan, "logits_scale").kernel, "pointwise");
  ModelConfig llama = small("cohere");
  llama.layer_form = LayerForm::kNormBefore;
  EXPECT_EQ(count_parameters(llama).total - count_parameters(small("cohere")).total, 2 * 256);
}

// Falcon-40B norms the input of each block for itself.
TEST(Families, FalconsNewDecoderHasANormForEachBlock) {
  const ModelConfig large = model_config("m", fields_of("tiiuae/falcon-40b"));
  EXPECT_TRUE(large.has_ffn_norm);
  EXPECT_EQ(large.num_key_value_heads, 8);
  const ModelConfig little = model_config("m", fields_of("tiiuae/falcon-7b"));
  EXPECT_FALSE(little.has_ffn_norm);
  EXPECT_EQ(little.num_key_value_heads, 1);
  EXPECT_EQ(little.layers[0].intermediate_size, 4 * 4544);
}

// Two matrices in place of three, and an activation of one operand.
TEST(Families, AnFfnWithoutAGateHasTwoMatrices) {
  const ModelConfig model = small("nemotron");
  EXPECT_EQ(kernel_named(decode_of(model), "layers.0.pointwise").kernel, "pointwise");
  ModelConfig gated = model;
  gated.has_ffn_gate = true;
  EXPECT_EQ(count_parameters(gated).total - count_parameters(model).total,
            std::int64_t{2} * 256 * model.layers[0].intermediate_size);
}

TEST(Families, AnotherActivationThanSiluIsAnotherKernel) {
  EXPECT_EQ(kernel_named(decode_of(small("gemma")), "layers.0.activation_mul").kernel,
            "activation_mul");
}

TEST(Families, SeedOssHasBiasesOnQueriesKeysAndValuesAlone) {
  const ModelConfig model = model_config("m", fields_of("ByteDance-Seed/Seed-OSS-36B-Instruct"));
  EXPECT_TRUE(model.attention_bias);
  EXPECT_FALSE(model.o_proj_bias);
}

// 24 Mamba-2 layers keep 128 heads of 64 x 128 in fp32 and 3 tokens of 8192 + 2 * 8 * 128 columns;
// 4 layers keep keys and values, 24 are FFNs alone.
TEST(Families, NemotronHHasOneMixerALayer) {
  const ModelConfig model = model_config("m", fields_of("nvidia/Nemotron-H-8B-Base-8K"));
  const std::int64_t state = 4 * 128 * 64 * 128 + 2 * 3 * (8192 + 2 * 8 * 128);
  EXPECT_EQ(state_bytes(model).value(), 24.0 * static_cast<double>(state));
  EXPECT_EQ(kv_bytes(model, DType::kBf16, 100).value(), 100.0 * 4 * 2 * 8 * 128 * 2);
  EXPECT_EQ(std::ranges::count(model.layers, FfnKind::kDense, &LayerConfig::ffn), 24);
  const auto names = ops_of(decode_of(model));
  EXPECT_EQ(std::ranges::count(names, "layers.7.attn_decode"), 1);
  EXPECT_EQ(std::ranges::count(names, "layers.7.rope"), 0);
}

// DeciLM: n_heads_in_group 4 of 8 heads is 2 key and value heads; 2 * 1.5 * 256 / 3 = 256 columns.
ConfigFields searched_fields() {
  ConfigFields fields = testing::small_llama_fields();
  fields["model_type"] = "nemotron-nas";
  fields["num_key_value_heads"] = std::monostate{};
  fields["num_hidden_layers"] = std::int64_t{3};
  for (int i = 0; i < 3; ++i) {
    const std::string at = "block_configs." + std::to_string(i);
    fields[at + ".attention.no_op"] = i == 1;
    fields[at + ".attention.replace_with_linear"] = false;
    fields[at + ".attention.n_heads_in_group"] =
        i == 1 ? ConfigValue(std::monostate{}) : ConfigValue(std::int64_t{4});
    fields[at + ".ffn.no_op"] = i == 2;
    fields[at + ".ffn.replace_with_linear"] = false;
    fields[at + ".ffn.ffn_mult"] = i == 2 ? ConfigValue(std::monostate{}) : ConfigValue(1.5 + i);
  }
  return fields;
}

TEST(Families, NemotronNasLeavesOutBlocksOfSomeLayers) {
  const ModelConfig model = model_config("m", searched_fields());
  ASSERT_EQ(model.layers.size(), 3);
  EXPECT_EQ(model.num_key_value_heads, 2);
  EXPECT_EQ(model.layers[0].intermediate_size, 256);
  EXPECT_EQ(model.layers[1].attention, AttentionKind::kNone);
  EXPECT_EQ(model.layers[1].intermediate_size, 512);  // 426.7, up to a multiple of 256
  EXPECT_EQ(model.layers[2].ffn, FfnKind::kNone);
  EXPECT_EQ(kv_bytes(model, DType::kBf16, 10).value(), 10.0 * 2 * 2 * 2 * 32 * 2);
}

// A wrapper of a known text model needs no line of its own; its result says what is left out.
TEST(Families, AnUnknownModelThatSeesIsItsTextPart) {
  const ModelConfig model = model_config("m", fields_of("llava-hf/llava-v1.6-mistral-7b-hf"));
  ModelConfig text = model_config("m", {{"model_type", std::string("mistral")},
                                        {"hidden_size", std::int64_t{4096}},
                                        {"intermediate_size", std::int64_t{14336}},
                                        {"num_hidden_layers", std::int64_t{32}},
                                        {"num_attention_heads", std::int64_t{32}},
                                        {"num_key_value_heads", std::int64_t{8}},
                                        {"vocab_size", std::int64_t{32064}}});
  EXPECT_EQ(model.layers, text.layers);
  EXPECT_EQ(count_parameters(model).total, count_parameters(text).total);
  ASSERT_EQ(model.notes.size(), 1);
  EXPECT_TRUE(contains(model.notes[0], "llava_next is simulated by its text part alone, mistral"));
}

// InternVL keeps it under llm_config, Omni models under thinker_config.text_config.
TEST(Families, TextPartsOfOtherNamesAreFound) {
  EXPECT_EQ(model_config("m", fields_of("OpenGVLab/InternVL3-38B")).hidden_size, 5120);
  const ModelConfig omni = model_config("m", fields_of("Qwen/Qwen3-Omni-30B-A3B-Instruct"));
  EXPECT_EQ(omni.hidden_size, 2048);
  EXPECT_EQ(omni.num_experts, 128);
}

// GraniteMoeHybrid with num_local_experts 0: the shared FFN is the only one.
TEST(Families, AGraniteHybridWithoutExpertsHasDenseFfns) {
  const ModelConfig model = model_config("m", fields_of("ibm-granite/granite-4.0-h-micro"));
  EXPECT_EQ(std::ranges::count(model.layers, FfnKind::kDense, &LayerConfig::ffn), 40);
  EXPECT_EQ(model.layers[0].intermediate_size, 8192);
  EXPECT_EQ(std::ranges::count(model.layers, AttentionKind::kMamba2, &LayerConfig::attention), 36);
}

// Hunyuan states a number for each layer.
TEST(Families, AListOfEqualNumbersIsThatNumber) {
  ConfigFields fields = fields_of("tencent/Hunyuan-A13B-Instruct");
  EXPECT_EQ(model_config("m", fields).num_experts_per_tok, 8);
  fields["moe_topk"] = std::vector<std::int64_t>{8, 8, 4};
  EXPECT_TRUE(contains(error_of(fields), "moe_topk is a list of numbers, expected a whole number"));
}

TEST(Families, ExpertsMayBeListedByLayer) {
  ConfigFields fields = fields_of("inclusionAI/Ling-lite-1.5");
  fields["num_hidden_layers"] = std::int64_t{3};
  fields["moe_layer_freq"] = std::vector<std::int64_t>{0, 1, 1};
  const ModelConfig model = model_config("m", fields);
  EXPECT_EQ(model.layers[0].ffn, FfnKind::kDense);
  EXPECT_EQ(model.layers[2].ffn, FfnKind::kMoe);
  fields["moe_layer_freq"] = std::vector<std::int64_t>{0, 1};
  EXPECT_TRUE(contains(error_of(fields),
                       "moe_layer_freq has 2 entries, expected one for each of "
                       "the 3 layers"));
}

TEST(FamiliesErrors, NoExpertsWhereAFamilyNeedsSome) {
  ConfigFields fields = fields_of("inclusionAI/Ling-lite-1.5");
  fields["num_experts"] = std::int64_t{0};
  EXPECT_TRUE(contains(error_of(fields), "there are 0 routed experts, of which 6 for each token"));
}

TEST(FamiliesErrors, BlocksWithoutAFormNameTheirLayer) {
  ConfigFields fields = searched_fields();
  fields["block_configs.2.attention.n_heads_in_group"] = std::int64_t{2};
  EXPECT_TRUE(contains(error_of(fields), "layer 2 has n_heads_in_group 2 and layers before it 4"));
  fields = searched_fields();
  fields["block_configs.1.ffn.replace_with_linear"] = true;
  EXPECT_TRUE(contains(error_of(fields), "layer 1 has one linear layer in place of its ffn"));
  fields = searched_fields();
  fields["num_hidden_layers"] = std::int64_t{4};
  EXPECT_TRUE(contains(error_of(fields), "missing block_configs.3.attention"));
  fields = searched_fields();
  fields["block_configs.0.ffn.ffn_mult"] = 1e9;
  EXPECT_TRUE(contains(error_of(fields), "block_configs.0.ffn has neither"));

  fields = fields_of("nvidia/Nemotron-H-8B-Base-8K");
  fields["hybrid_override_pattern"] = "M-?";
  EXPECT_TRUE(contains(error_of(fields), "hybrid_override_pattern has 3 layers"));
  fields["num_hidden_layers"] = std::int64_t{3};
  EXPECT_TRUE(contains(error_of(fields), "layer 2 is of type \"?\""));
  fields["mamba_num_heads"] = std::int64_t{12};
  EXPECT_TRUE(contains(error_of(fields), "12 Mamba heads, not a multiple of its 8 groups"));
}

TEST(FamiliesErrors, WhatAFlagAddsToAKnownFamilyIsNotPassedOver) {
  ConfigFields fields = fields_of("facebook/opt-66b");
  fields["word_embed_proj_dim"] = std::int64_t{512};
  EXPECT_TRUE(contains(error_of(fields), "word_embed_proj_dim is 512"));
  fields = fields_of("tencent/Hunyuan-7B-Instruct");
  fields["use_cla"] = true;
  EXPECT_TRUE(contains(error_of(fields), "use_cla is true"));
  fields = fields_of("openbmb/MiniCPM-V-2_6");
  fields["version"] = 9.5;
  EXPECT_TRUE(contains(error_of(fields), "version is 9.5, expected 2.5, 2.6 or 4.5"));
  const ModelConfig minicpm = model_config("m", fields_of("openbmb/MiniCPM4-8B"));
  EXPECT_TRUE(contains(minicpm.notes.front(), "sparse attention"));
}

// Llama Guard 4 has the fields of Llama 4 and no experts.
TEST(Families, Llama4WithoutExpertsIsDense) {
  const ModelConfig model = model_config("m", {{"model_type", "llama4"},
                                               {"hidden_size", std::int64_t{64}},
                                               {"vocab_size", std::int64_t{100}},
                                               {"num_hidden_layers", std::int64_t{4}},
                                               {"num_attention_heads", std::int64_t{4}},
                                               {"intermediate_size", std::int64_t{128}},
                                               {"num_local_experts", std::int64_t{0}},
                                               {"num_experts_per_tok", std::int64_t{0}},
                                               {"interleave_moe_layer_step", std::int64_t{0}}});
  EXPECT_EQ(model.num_experts, 0);
  for (const LayerConfig& layer : model.layers) EXPECT_EQ(layer.intermediate_size, 128);
}

// Layers of attn_layer_indices attend, the others scan; Mamba-2 layers of Bamba have an FFN.
TEST(Families, BambaAttendsInTheLayersThatItLists) {
  const ModelConfig model = model_config("m", fields_of("ibm-ai-platform/Bamba-9B-v2"));
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const bool attends = i == 9 || i == 18 || i == 27;
    EXPECT_EQ(model.layers[i].attention, attends ? AttentionKind::kGqa : AttentionKind::kMamba2);
    EXPECT_EQ(model.layers[i].intermediate_size, 14336);
  }
}

}  // namespace
}  // namespace orrery
