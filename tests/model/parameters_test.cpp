// Parameter counts of every shipped model against models/SOURCES.md, which computed them from the
// same files by formulas of its own.

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/model/model.h"
#include "tests/model/config_file.h"

namespace orrery {
namespace {

struct Published {
  std::string name;
  double total = 0;  // in 10^9, to one decimal
  double active = 0;
  bool without_indexer = false;
};

const std::vector<Published>& published() {
  static const std::vector<Published> table{
      {"MiniMaxAI--MiniMax-M2.5", 228.7, 11.0},
      {"Qwen--Qwen2.5-7B-Instruct", 7.6, 7.6},
      {"Qwen--Qwen3-235B-A22B", 235.1, 22.2},
      {"Qwen--Qwen3-30B-A3B", 30.5, 3.4},
      {"Qwen--Qwen3-32B-FP8", 32.8, 32.8},
      {"Qwen--Qwen3-32B", 32.8, 32.8},
      {"Qwen--Qwen3-8B", 8.2, 8.2},
      {"Qwen--Qwen3.5-397B-A17B", 396.3, 17.3},  // without its vision tower
      {"allenai--OLMo-2-1124-13B", 13.7, 13.7},
      {"allenai--OLMoE-1B-7B-0924", 6.9, 1.3},
      {"allenai--Olmo-3-1025-7B", 7.3, 7.3},
      {"baidu--ERNIE-4.5-21B-A3B-PT", 21.8, 3.4},
      {"deepseek-ai--DeepSeek-R1", 671.0, 37.6},
      {"deepseek-ai--DeepSeek-V2-Lite", 15.7, 2.7},
      {"deepseek-ai--DeepSeek-V3.2", 671.0, 37.6, true},
      {"deepseek-ai--DeepSeek-V3", 671.0, 37.6},
      {"meta-llama--Llama-2-7b", 6.7, 6.7},
      {"meta-llama--Llama-2-70b", 69.0, 69.0},
      {"meta-llama--Llama-3.2-1B-Instruct", 1.2, 1.2},
      {"meta-llama--Llama-4-Maverick-17B-128E-Instruct", 400.7, 17.2},
      {"meta-llama--Llama-4-Scout-17B-16E-Instruct", 107.8, 17.2},
      {"meta-llama--Meta-Llama-3.1-405B", 405.8, 405.8},
      {"meta-llama--Meta-Llama-3.1-70B", 70.6, 70.6},
      {"meta-llama--Meta-Llama-3.1-8B", 8.0, 8.0},
      {"microsoft--phi-4", 14.7, 14.7},
      {"mistralai--Mistral-7B-v0.2", 7.2, 7.2},
      {"mistralai--Mixtral-8x22B-v0.1", 140.6, 39.2},
      {"mistralai--Mixtral-8x7B-v0.1", 46.7, 12.9},
      {"moonshotai--Kimi-K2-Instruct", 1026.4, 32.9},
      {"moonshotai--Kimi-K2.5", 1026.4, 32.9},
      {"openai--gpt-oss-120b", 116.8, 5.7},
      {"openai--gpt-oss-20b", 20.9, 4.2},
      {"stepfun-ai--Step-3.7-Flash", 195.8, 10.9},
      {"stepfun-ai--Step3", 316.3, 38.8},
      {"zai-org--GLM-4.5", 352.8, 33.6},
      {"zai-org--GLM-4.5-Air", 106.9, 13.4},
      {"zai-org--GLM-5", 743.2, 41.1, true},
  };
  return table;
}

// Lightning indexer of a layer: q_lora_rank x heads head_dim, hidden x head_dim, hidden x heads.
std::int64_t indexer_parameters(const ModelConfig& model) {
  return static_cast<std::int64_t>(model.layers.size()) *
         (model.q_lora_rank * model.index_n_heads * model.index_head_dim +
          model.hidden_size * model.index_head_dim + model.hidden_size * model.index_n_heads);
}

// The table counts projections, FFN and embeddings; two norms per layer and the last one are left
// out.
std::int64_t norm_parameters(const ModelConfig& model) {
  return (2 * static_cast<std::int64_t>(model.layers.size()) + 1) * model.hidden_size;
}

TEST(Parameters, CountsAgreeWithTheTableOfSources) {
  for (const Published& row : published()) {
    const ModelConfig model = testing::shipped_model(row.name);
    const ParameterCount count = count_parameters(model);
    const std::int64_t left_out =
        norm_parameters(model) + (row.without_indexer ? indexer_parameters(model) : 0);
    const double total = static_cast<double>(count.total - left_out) / 1e9;
    const double active = static_cast<double>(count.active - left_out) / 1e9;
    // One decimal was printed, so the count is within half of it.
    EXPECT_NEAR(total, row.total, 0.05 + 1e-9) << row.name;
    EXPECT_NEAR(active, row.active, 0.05 + 1e-9) << row.name;
  }
}

TEST(Parameters, TheTableCoversEveryShippedModelThatHasALowering) {
  std::set<std::string> listed;
  for (const Published& row : published()) listed.insert(row.name + ".config.json");
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    if (listed.contains(file)) continue;
    EXPECT_THROW((void)model_config(file, testing::config_fields(file)), std::invalid_argument)
        << file << " loads but has no line in the table";
  }
}

// Llama-3.1-8B: per layer qkv 4096 (32+2*8) 128, o 32*128*4096, ffn 3*4096*14336, norms 2*4096;
// 32 of them, embedding and head 128256*4096 each, final norm 4096.
TEST(Parameters, OfLlama8bAreTheSumOfItsMatrices) {
  const std::int64_t h = 4096;
  const std::int64_t layer = h * 48 * 128 + h * h + 3 * h * 14336 + 2 * h;
  const ParameterCount count =
      count_parameters(testing::shipped_model("meta-llama--Meta-Llama-3.1-8B"));
  EXPECT_EQ(count.total, 32 * layer + 2 * (128256 * h) + h);
  EXPECT_EQ(count.active, count.total);
}

TEST(Parameters, TiedEmbeddingsAreCountedOnce) {
  ModelConfig model = testing::shipped_model("meta-llama--Llama-3.2-1B-Instruct");
  const std::int64_t tied = count_parameters(model).total;
  model.tie_word_embeddings = false;
  EXPECT_EQ(count_parameters(model).total - tied, model.vocab_size * model.hidden_size);
}

// Mixtral: all but the experts is active, and 2 of 8 experts.
TEST(Parameters, ActiveCountsTopkOfTheRoutedExperts) {
  const ModelConfig model = testing::shipped_model("mistralai--Mixtral-8x7B-v0.1");
  const ParameterCount count = count_parameters(model);
  const std::int64_t experts = 32 * std::int64_t{8} * 3 * 4096 * 14336;
  EXPECT_EQ(count.active, count.total - experts + experts / 8 * 2);
}

}  // namespace
}  // namespace orrery
