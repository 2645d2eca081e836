#include <gtest/gtest.h>

#include <string>

#include "sim/model/model.h"
#include "tests/model/config_file.h"
#include "tests/model/model_testing.h"
#include "tests/model/small_models.h"

namespace orrery {
namespace {

using testing::contains;

// The message of model_config for the small Llama with one field changed.
std::string error_with(const std::string& field, ConfigValue value,
                       ConfigFields fields = testing::small_llama_fields()) {
  fields[field] = std::move(value);
  try {
    (void)model_config("m", fields);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

std::string deepseek_error_with(const std::string& field, ConfigValue value) {
  return error_with(field, std::move(value), testing::small_deepseek_fields());
}

TEST(ModelConfig, HeadDimIsHiddenOverHeadsWhenAbsent) {
  const ModelConfig model = testing::small_llama();
  EXPECT_EQ(model.head_dim, 256 / 8);
  EXPECT_EQ(model.num_key_value_heads, 2);
}

TEST(ModelConfig, KvHeadsAreAllHeadsWhenAbsent) {
  ConfigFields fields = testing::small_llama_fields();
  fields.erase("num_key_value_heads");
  EXPECT_EQ(model_config("m", fields).num_key_value_heads, 8);
}

TEST(ModelConfig, NullIsAbsent) {
  ConfigFields fields = testing::small_deepseek_fields();
  fields["q_lora_rank"] = std::monostate{};
  EXPECT_EQ(model_config("m", fields).q_lora_rank, 0);
}

TEST(ModelConfig, FieldsUnderTextConfigAreRead) {
  ConfigFields fields{{"model_type", "llama4"}};
  for (const auto& [key, value] : testing::small_llama_fields()) {
    if (key != "model_type") fields["text_config." + key] = value;
  }
  fields["text_config.num_local_experts"] = std::int64_t{4};
  fields["text_config.num_experts_per_tok"] = std::int64_t{1};
  const ModelConfig model = model_config("m", fields);
  EXPECT_EQ(model.hidden_size, 256);
  EXPECT_EQ(model.num_experts, 4);
  EXPECT_EQ(model.shared_expert_intermediate_size, 512) << "Llama 4 has one shared expert";
}

TEST(ModelConfig, FirstDenseLayersComeBeforeMoe) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  ASSERT_EQ(model.layers.size(), 61U);
  for (std::size_t i = 0; i < 61; ++i) {
    EXPECT_EQ(model.layers[i].ffn, i < 3 ? FfnKind::kDense : FfnKind::kMoe) << i;
    EXPECT_EQ(model.layers[i].intermediate_size, i < 3 ? 18432 : 0) << i;
  }
  EXPECT_EQ(model.n_group, 8);
  EXPECT_EQ(model.topk_group, 4);
}

// interleave_moe_layer_step 2: layers 1, 3, 5, ... are MoE, the others are intermediate_size_mlp
// wide.
TEST(ModelConfig, Llama4MaverickAlternatesDenseAndMoe) {
  const ModelConfig model =
      testing::shipped_model("meta-llama--Llama-4-Maverick-17B-128E-Instruct");
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(model.layers[i].ffn, i % 2 == 1 ? FfnKind::kMoe : FfnKind::kDense) << i;
    EXPECT_EQ(model.layers[i].intermediate_size, i % 2 == 1 ? 0 : 16384) << i;
    EXPECT_EQ(model.layers[i].sliding_window, i % 4 == 3 ? 0 : 8192) << i;
  }
}

TEST(ModelConfig, GptOssAlternatesWindowAndFullAttention) {
  const ModelConfig model = testing::shipped_model("openai--gpt-oss-120b");
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(model.layers[i].sliding_window, i % 2 == 0 ? 128 : 0) << i;
  }
  EXPECT_TRUE(model.attention_bias && model.o_proj_bias && model.moe_bias && model.router_bias);
}

TEST(ModelConfig, Step3HasMoeInAllLayersButTheFirstFourAndTheLast) {
  const ModelConfig model = testing::shipped_model("stepfun-ai--Step3");
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const bool is_moe = i >= 4 && i + 1 < model.layers.size();
    EXPECT_EQ(model.layers[i].ffn, is_moe ? FfnKind::kMoe : FfnKind::kDense) << i;
    EXPECT_EQ(model.layers[i].attention, AttentionKind::kMfa) << i;
  }
  EXPECT_EQ(model.share_q_dim, 2048);
}

TEST(ModelConfig, MoeLayersEnumMayBeJoinedByCommas) {
  ConfigFields fields = testing::small_deepseek_fields();
  fields["moe_layers_enum"] = "0,2";
  const ModelConfig model = model_config("m", fields);
  EXPECT_EQ(model.layers[0].ffn, FfnKind::kMoe);
  EXPECT_EQ(model.layers[1].ffn, FfnKind::kDense);
  EXPECT_EQ(model.layers[2].ffn, FfnKind::kMoe);
  EXPECT_EQ(model.layers[3].ffn, FfnKind::kDense);
}

TEST(ModelConfig, UnusedSlidingWindowIsFullAttention) {
  ConfigFields fields = testing::small_llama_fields();
  fields["sliding_window"] = std::int64_t{128};
  EXPECT_EQ(model_config("m", fields).layers[0].sliding_window, 128);
  fields["use_sliding_window"] = false;
  EXPECT_EQ(model_config("m", fields).layers[0].sliding_window, 0);
}

TEST(ModelConfigErrors, MissingFieldsAreAllNamed) {
  ConfigFields fields = testing::small_llama_fields();
  fields.erase("hidden_size");
  fields.erase("vocab_size");
  EXPECT_TRUE(
      contains(error_with("model_type", "llama", fields), "missing hidden_size, vocab_size"));
}

TEST(ModelConfigErrors, AMixtureWithoutExpertCountsNamesThem) {
  ConfigFields fields = testing::config_fields("zai-org--GLM-4.5-Air.config.json");
  fields.erase("n_routed_experts");
  fields.erase("num_experts_per_tok");
  EXPECT_TRUE(contains(error_with("model_type", "glm4_moe", fields),
                       "missing n_routed_experts, num_experts_per_tok"));
}

// 64 value heads of 128 x 128 fp32; a convolution of 4 taps over 2 x 16 x 128 + 64 x 128 columns
// keeps 3 tokens of them in bf16.
constexpr std::int64_t kQwen35State = 64 * 128 * 128 * 4 + (2 * 16 * 128 + 64 * 128) * 3 * 2;

TEST(ModelConfig, EveryFourthLayerOfAHybridAttendsAndTheOthersKeepAState) {
  auto fields = testing::config_fields("Qwen--Qwen3.5-397B-A17B.config.json");
  for (const bool has_list : {true, false}) {
    if (!has_list) fields.erase("text_config.layer_types");
    const ModelConfig model = model_config("Qwen3.5", fields);
    ASSERT_EQ(model.layers.size(), 60);
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const bool attends = i % 4 == 3;
      EXPECT_EQ(model.layers[i].attention,
                attends ? AttentionKind::kGqa : AttentionKind::kDeltaNet);
      EXPECT_EQ(model.layers[i].state_bytes, attends ? 0 : kQwen35State);
    }
  }
}

// 15 of 60 layers have keys and values: 2 heads of 256 elements each, in bf16.
TEST(ModelConfig, MemoryOfAHybridSequenceIsItsStatesAndTheTokensOfLayersThatAttend) {
  const ModelConfig model = testing::shipped_model("Qwen--Qwen3.5-397B-A17B");
  EXPECT_EQ(state_bytes(model).value(), 45.0 * static_cast<double>(kQwen35State));
  EXPECT_EQ(kv_bytes(model, DType::kBf16, 1000).value(), 1000.0 * 15 * 2 * 2 * 256 * 2);
}

// huggingface.co/Qwen/Qwen3.5-397B-A17B: 397 billion parameters, vision tower included, 17 billion
// for a token.
TEST(ModelConfig, AHybridHasThePublishedNumberOfParameters) {
  const ParameterCount count = count_parameters(testing::shipped_model("Qwen--Qwen3.5-397B-A17B"));
  EXPECT_NEAR(static_cast<double>(count.total), 397e9, 0.005 * 397e9);
  EXPECT_NEAR(static_cast<double>(count.active), 17e9, 0.03 * 17e9);
}

TEST(ModelConfigErrors, AHybridNeedsItsHeadsAndTheFormatOfItsStates) {
  auto fields = testing::config_fields("Qwen--Qwen3.5-397B-A17B.config.json");
  const auto message = [](const ConfigFields& wrong) -> std::string {
    try {
      (void)model_config("Qwen3.5", wrong);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  ConfigFields without = fields;
  without.erase("text_config.linear_num_key_heads");
  EXPECT_TRUE(contains(message(without), "missing linear_num_key_heads"));
  fields["text_config.mamba_ssm_dtype"] = "fp4";
  EXPECT_TRUE(
      contains(message(fields), "mamba_ssm_dtype is \"fp4\", expected float32 or bfloat16"));
}

TEST(ModelConfigErrors, AnUnknownLayerTypeIsNamedWithItsLayer) {
  const std::vector<std::string> types{"full_attention", "full_attention", "mamba",
                                       "full_attention"};
  EXPECT_TRUE(contains(error_with("layer_types", types), "layer 2 is of type \"mamba\""));
}

TEST(ModelConfigErrors, LayerTypesMustCoverEveryLayer) {
  EXPECT_TRUE(contains(error_with("layer_types", std::vector<std::string>{"full_attention"}),
                       "layer_types has 1 entries, expected one for each of the 4 layers"));
}

TEST(ModelConfigErrors, AnUnknownModelTypeNamesItsBlockOrTheKnownFamilies) {
  EXPECT_TRUE(contains(error_with("model_type", "lama"),
                       "model_type \"lama\" is not known, and no field of it names a block"));
  EXPECT_TRUE(contains(error_with("model_type", "lama"), "one of llama, mistral, qwen2"));
  EXPECT_TRUE(contains(error_with("model_type", std::monostate{}), "missing model_type"));
  ConfigFields fields = testing::small_llama_fields();
  fields["conv_L_cache"] = std::int64_t{3};
  EXPECT_TRUE(contains(error_with("model_type", "lfm2", fields),
                       "has a block that is not here: short convolutions in place of attention "
                       "(field conv_L_cache); model.as in a scenario"));
  fields = testing::small_llama_fields();
  fields["is_encoder_decoder"] = false;
  EXPECT_TRUE(contains(error_with("model_type", "lama", fields), "is not known"));
}

TEST(ModelConfigErrors, ZeroAndNegativeSizesNameTheField) {
  EXPECT_TRUE(contains(error_with("hidden_size", std::int64_t{0}), "field hidden_size is 0"));
  EXPECT_TRUE(contains(error_with("vocab_size", std::int64_t{-5}), "field vocab_size is -5"));
  EXPECT_TRUE(contains(error_with("num_hidden_layers", std::int64_t{0}), "num_hidden_layers is 0"));
  EXPECT_TRUE(
      contains(error_with("intermediate_size", std::int64_t{1} << 60), "intermediate_size"));
}

TEST(ModelConfigErrors, WrongTypesNameTheFieldAndWhatWasFound) {
  EXPECT_TRUE(contains(error_with("hidden_size", "8192"),
                       "field hidden_size is the text \"8192\", expected a whole number"));
  EXPECT_TRUE(contains(error_with("hidden_size", 8192.5), "field hidden_size is 8192.5"));
  EXPECT_TRUE(contains(error_with("num_attention_heads", true), "num_attention_heads is true"));
  EXPECT_TRUE(contains(error_with("tie_word_embeddings", std::int64_t{1}),
                       "field tie_word_embeddings is 1, expected true or false"));
  EXPECT_TRUE(contains(error_with("model_type", std::int64_t{3}), "expected text"));
  EXPECT_TRUE(contains(error_with("layer_types", "full_attention"), "expected a list of texts"));
  EXPECT_TRUE(contains(deepseek_error_with("moe_layers_enum", "4;5"), "a list of whole numbers"));
}

TEST(ModelConfigErrors, ContradictionsNameBothSides) {
  EXPECT_TRUE(contains(error_with("num_key_value_heads", std::int64_t{3}),
                       "num_attention_heads is 8, not a multiple of num_key_value_heads, 3"));
  EXPECT_TRUE(contains(error_with("hidden_size", std::int64_t{257}),
                       "hidden_size, 257, is not a multiple of num_attention_heads, 8"));
  EXPECT_TRUE(contains(error_with("num_attention_groups", std::int64_t{4}),
                       "num_attention_groups is 4 but num_key_value_heads is 2"));
  EXPECT_TRUE(contains(deepseek_error_with("num_experts_per_tok", std::int64_t{17}),
                       "num_experts_per_tok is 17, more than the 16 experts"));
  EXPECT_TRUE(contains(deepseek_error_with("n_group", std::int64_t{3}), "n_group is 3"));
  EXPECT_TRUE(contains(deepseek_error_with("first_k_dense_replace", std::int64_t{5}),
                       "first_k_dense_replace is 5, more than the 4 layers"));
  EXPECT_TRUE(contains(deepseek_error_with("moe_layers_enum", std::vector<std::int64_t>{4}),
                       "names layer 4, expected layers from 0 to 3"));
}

TEST(ModelConfigErrors, MlaNeedsAllOfItsDimensions) {
  ConfigFields fields = testing::small_deepseek_fields();
  fields.erase("kv_lora_rank");
  fields.erase("v_head_dim");
  EXPECT_TRUE(contains(error_with("model_type", "deepseek_v3", fields),
                       "missing kv_lora_rank, v_head_dim"));
}

// Cut to n layers, the config has n under every name of their number, and lists as long.
TEST(ModelConfigLayers, OfTheFirstOnesKeepTheirKinds) {
  ConfigFields fields = testing::small_llama_fields();
  fields["text_config.n_layers"] = std::int64_t{4};
  fields["text_config.layer_types"] = std::vector<std::string>{
      "sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  fields["num_hidden_layers"] = std::monostate{};
  fields["sliding_window"] = std::int64_t{64};
  const ModelConfig whole = model_config("m", fields);
  const ModelConfig cut = model_config("m", with_num_layers(fields, 3));
  ASSERT_EQ(whole.layers.size(), 4);
  EXPECT_EQ(cut.layers, std::vector<LayerConfig>(whole.layers.begin(), whole.layers.begin() + 3));
}

}  // namespace
}  // namespace orrery
