#include "kernels/execute/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/weight_value.h"
#include "kernels/experts/index_shuffling/reference.h"
#include "sim/parallel/parallel.h"
#include "tests/execute/deployment.h"
#include "tests/model/small_models.h"

namespace orrery {
namespace {

const Batch kDecode{.prefill = {}, .num_decodes = 8, .decode_context = 800};
constexpr std::uint64_t kSeed = 7;

Plan whole_plan(const ModelConfig& model, const LoweringOptions& options = {}) {
  return lower(model, kDecode, options);
}

// 8 query heads and 2 key heads of 8.
ConfigFields tiny_fields() {
  ConfigFields fields = testing::small_llama_fields();
  fields["hidden_size"] = std::int64_t{64};
  fields["intermediate_size"] = std::int64_t{48};
  fields["vocab_size"] = std::int64_t{40};
  return fields;
}
ModelConfig tiny() { return model_config("tiny", tiny_fields()); }

ModelConfig odd_vocabulary() {
  ConfigFields fields = tiny_fields();
  fields["vocab_size"] = std::int64_t{41};
  return model_config("odd-vocabulary", fields);
}

ModelConfig tied_embeddings() {
  ConfigFields fields = tiny_fields();
  fields["tie_word_embeddings"] = true;
  return model_config("tied", fields);
}

ModelConfig with_bias() {
  ConfigFields fields = tiny_fields();
  fields["attention_bias"] = true;
  return model_config("with-bias", fields);
}

const WeightShard& shard_named(const WeightShards& shards, const std::string& name) {
  for (const WeightShard& shard : shards.shards) {
    if (shard.name == name) return shard;
  }
  throw std::invalid_argument("no weight " + name);
}

// All copies of a weight of the whole model and how often each element was found on a rank.
struct Assembled {
  std::vector<float> values;  // [copies, rows, columns]
  std::vector<int> found;
};

struct WeightKey {
  std::string name;
  std::int64_t copy = 0;
  auto operator<=>(const WeightKey&) const = default;
};

void add_rank(const WeightShards& shards, std::map<WeightKey, Assembled>& whole) {
  for (const WeightShard& shard : shards.shards) {
    for (std::int64_t copy = 0; copy < shard.num_copies; ++copy) {
      const StoredWeight stored = stored_weight(shard, copy, DType::kBf16, kSeed);
      std::vector<char> is_weight(stored.values.size());
      Assembled& target = whole.at({shard.name, shard.first_copy + copy});
      for (const AxisRange& rows : shard.row_ranges) {
        for (const AxisRange& columns : shard.column_ranges) {
          for (std::int64_t row = 0; row < rows.count; ++row) {
            for (std::int64_t column = 0; column < columns.count; ++column) {
              const auto local = static_cast<std::size_t>((rows.local + row) * shard.columns +
                                                          columns.local + column);
              const auto global = static_cast<std::size_t>(
                  (rows.global + row) * shard.whole_columns + columns.global + column);
              EXPECT_EQ(is_weight[local], 0) << shard.name;
              is_weight[local] = 1;
              ASSERT_EQ(stored.values[local], target.values.at(global)) << shard.name;
              ++target.found[global];
            }
          }
        }
      }
      for (std::size_t i = 0; i < is_weight.size(); ++i) {
        EXPECT_TRUE(is_weight[i] != 0 || stored.values[i] == 0.0F) << shard.name;
      }
    }
  }
}

// Fills `whole` with the weights of the plan of one rank, none of them found.
std::map<WeightKey, Assembled> whole_weights(const Plan& plan) {
  std::map<WeightKey, Assembled> whole;
  for (const WeightShard& shard : weight_shards(plan, 0).shards) {
    for (std::int64_t copy = 0; copy < shard.num_copies; ++copy) {
      std::vector<float> values = stored_weight(shard, copy, DType::kBf16, kSeed).values;
      const std::size_t size = values.size();
      whole[{shard.name, copy}] = {std::move(values), std::vector<int>(size)};
    }
  }
  return whole;
}

// Ranks of one data-parallel group that hold element `i` of a weight of the tiny models.
int expected_holders(const std::string& name, std::size_t i, int tp) {
  const bool is_replicated = name.find("norm") != std::string::npos;
  if (is_replicated) return tp;
  const bool is_qkv = name.find("qkv_proj") != std::string::npos;
  const std::size_t columns = name.ends_with(".bias") ? 1 : 64;
  const bool is_key_or_value = is_qkv && i / columns >= 64;  // behind 8 heads of 8
  return is_key_or_value ? std::max(1, tp / 2) : 1;
}

TEST(WeightShards, OfAllRanksPutTogetherAreTheWholeWeights) {
  const std::vector<Mesh> meshes{{},
                                 {.tp = 2},
                                 {.tp = 4},
                                 {.dp = 2},
                                 {.pp = 2},
                                 {.tp = 2, .sp = true},
                                 {.tp = 2, .pp = 2, .num_micro_batches = 2},
                                 {.dp = 2, .tp = 2, .pp = 4, .sp = true}};
  for (const ModelConfig& model : {tiny(), odd_vocabulary(), tied_embeddings(), with_bias()}) {
    for (const bool fuses : {true, false}) {
      const Plan single = whole_plan(model, {.fuse_residual_norm = fuses});
      for (const Mesh& mesh : meshes) {
        const Plan plan = parallelize(single, mesh);
        auto whole = whole_weights(single);
        for (int rank = 0; rank < plan.num_ranks(); ++rank) {
          add_rank(weight_shards(plan, rank), whole);
        }
        for (const auto& [key, weight] : whole) {
          // Tied embeddings are held by the first and by the last stage.
          const bool is_tied = model.tie_word_embeddings && key.name == "embed_tokens";
          const int stages = is_tied ? std::min(mesh.pp, 2) : 1;
          for (std::size_t i = 0; i < weight.found.size(); ++i) {
            ASSERT_EQ(weight.found[i], mesh.dp * stages * expected_holders(key.name, i, mesh.tp))
                << model.name << " " << key.name << " copy " << key.copy << " element " << i
                << " tp " << mesh.tp << " pp " << mesh.pp;
          }
        }
      }
    }
  }
}

TEST(WeightShards, LatentAttentionOverStagesIsTheWholeToo) {
  const Plan single = whole_plan(testing::small_deepseek());
  const Mesh mesh{.pp = 2};
  const Plan plan = parallelize(single, mesh);
  auto whole = whole_weights(single);
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    add_rank(weight_shards(plan, rank), whole);
  }
  for (const auto& [key, weight] : whole) {
    EXPECT_TRUE(std::ranges::all_of(weight.found, [](int found) { return found == 1; }))
        << key.name;
  }
}

TEST(WeightShards, SlotsHoldTheExpertsThatTheyAreSaidTo) {
  const ModelConfig model = testing::tiny_deepseek();
  const Batch batch{.num_decodes = 4, .decode_context = 40};
  LoweringOptions options;
  options.moe_design = MoeDesign::kShuffling;
  const Plan single = lower(model, batch, options);
  const Plan plan = parallelize(single, {.tp = 2, .ep = 2, .num_redundant_experts = 2});
  const std::vector<std::int32_t> slots{3, 5, 7, 0, 2, 1, 5, 4, 6, 2};
  const auto first_rows = [&](int rank) {
    std::vector<std::int64_t> rows;
    for (const WeightShard& shard : weight_shards(plan, rank, slots).shards) {
      if (shard.name.find("experts") == std::string::npos || !rows.empty()) continue;
      if (shard.row_ranges.size() != 5) continue;
      for (const AxisRange& range : shard.row_ranges) rows.push_back(range.global / range.count);
    }
    return rows;
  };
  EXPECT_EQ(first_rows(0), (std::vector<std::int64_t>{3, 5, 7, 0, 2}));
  EXPECT_EQ(first_rows(1), (std::vector<std::int64_t>{1, 5, 4, 6, 2}));
  EXPECT_THROW((void)weight_shards(plan, 0), std::invalid_argument);
  EXPECT_THROW((void)weight_shards(plan, 0, std::span(slots).first(9)), std::invalid_argument);
}

// Gate and up are halves of one weight, and each rank has a part of both; qkv has three parts.
TEST(WeightShards, FusedColumnsAreSplitPartByPart) {
  const Plan single = whole_plan(testing::small_llama());
  const Plan plan = parallelize(single, {.tp = 4});
  const WeightShards shards = weight_shards(plan, 3);
  using Ranges = std::vector<AxisRange>;
  EXPECT_EQ(shard_named(shards, "layers.0.gate_up_proj.weight").row_ranges,
            (Ranges{{.local = 0, .global = 384, .count = 128},
                    {.local = 128, .global = 512 + 384, .count = 128}}));
  EXPECT_EQ(shard_named(shards, "layers.0.down_proj.weight").column_ranges,
            (Ranges{{.local = 0, .global = 384, .count = 128}}));
  // Query heads 6 and 7, of 32 columns each, read key head 1 of 2.
  EXPECT_EQ(shard_named(shards, "layers.0.qkv_proj.weight").row_ranges,
            (Ranges{{.local = 0, .global = 192, .count = 64},
                    {.local = 64, .global = 256 + 32, .count = 32},
                    {.local = 96, .global = 256 + 64 + 32, .count = 32}}));
}

TEST(WeightShards, RowsBeyondTheVocabularyAreZero) {
  const Plan single = whole_plan(odd_vocabulary());
  const Plan plan = parallelize(single, {.tp = 4});
  const WeightShards shards = weight_shards(plan, 3);
  const WeightShard& shard = shard_named(shards, "lm_head.weight");
  ASSERT_EQ(shard.rows, 11);  // ceil(41 / 4): three times 11, then 8
  const StoredWeight stored = stored_weight(shard, 0, DType::kFp8, kSeed);
  constexpr std::ptrdiff_t kPadding = 192;  // three rows of 64
  EXPECT_EQ(std::count(stored.values.end() - kPadding, stored.values.end(), 0.0F), kPadding);
  EXPECT_EQ(stored.scales.size(), 11U);
}

TEST(WeightShards, MicroBatchesAndTiedHeadsShareOneWeight) {
  const Plan single = whole_plan(tied_embeddings());
  const Plan plan = parallelize(single, {.pp = 2, .num_micro_batches = 2});
  std::set<std::string> names;
  for (const WeightShard& shard : weight_shards(plan, 1).shards) {
    EXPECT_TRUE(names.insert(shard.name).second) << shard.name;
  }
  EXPECT_EQ(shard_named(weight_shards(plan, 1), "embed_tokens").first_copy, 0);
  EXPECT_EQ(shard_named(weight_shards(plan, 1), "layers.0.o_proj.weight").first_copy, 2);
}

TEST(WeightShards, EveryWeightTensorOfTheRankHasOneAndNoOther) {
  const Plan single = whole_plan(testing::small_llama());
  const Plan plan = parallelize(single, {.tp = 2, .pp = 2});
  const WeightShards shards = weight_shards(plan, 2);
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    const bool is_held = tensor.role == TensorRole::kWeight && plan.contains(tensor.ranks, 2);
    EXPECT_EQ(shards.tensor_shard[i] >= 0, is_held) << tensor.name;
  }
}

TEST(WeightShards, ASplitThatCannotBeExecutedIsAnErrorThatNamesTheWeight) {
  const Plan single = whole_plan(testing::small_deepseek());
  const Plan plan = parallelize(single, {.dp = 4, .ep = 4, .num_redundant_experts = 4});
  try {
    (void)weight_shards(plan, 0);
    FAIL() << "copies of experts were accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("layers."), std::string::npos) << error.what();
  }
}

TEST(WeightShards, ARankThatThePlanHasNotIsAnError) {
  const Plan plan = parallelize(whole_plan(testing::small_llama()), {.tp = 2});
  EXPECT_THROW((void)weight_shards(plan, 2), std::invalid_argument);
  EXPECT_THROW((void)weight_shards(plan, -1), std::invalid_argument);
}

// Halves of data-parallel ranks rotate the run of layers, so that a weight is in several tensors:
// every copy of each has the values of its own layer, in the executor of either plan.
TEST(KeptWeights, ARotatedRunFindsTheWeightsOfItsLayers) {
  const ModelConfig model = testing::small_deepseek();
  Mesh mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph};
  LoweringOptions options;
  options.moe_design = MoeDesign::kShuffling;
  const Plan whole = parallelize(lower(model, kDecode, options), mesh);
  mesh.two_batch_overlap = true;
  mesh.num_micro_batches = 2;
  const Plan halves = parallelize(lower(model, kDecode, options), mesh);
  int rotated = 0;
  for (const Plan& made_for : {whole, halves}) {
    const std::map<std::string, KeptWeight> kept = kept_weights(made_for, 1);
    for (const Plan& run : {whole, halves}) {
      const WeightShards shards = weight_shards(run, 1);
      const std::vector<std::int64_t> copies = num_copies(run);
      for (std::size_t i = 0; i < run.tensors().size(); ++i) {
        if (shards.tensor_shard[i] < 0) continue;
        const Tensor& tensor = run.tensors()[i];
        if (tensor.first_copy > 0) ++rotated;
        const KeptWeight& found = kept.at(tensor.name);
        for (const std::int64_t copy : {std::int64_t{0}, copies[i] - 1}) {
          const std::int64_t at = kept_copy(found, tensor, copies[i], copy);
          const WeightShard& own = shards.shards[static_cast<std::size_t>(shards.tensor_shard[i])];
          EXPECT_EQ(found.shard.first_copy + at, own.first_copy + copy) << tensor.name;
          EXPECT_EQ(stored_weight(found.shard, at, tensor.dtype, kSeed).values,
                    stored_weight(own, copy, tensor.dtype, kSeed).values)
              << tensor.name << " copy " << copy;
        }
      }
    }
  }
  EXPECT_GT(rotated, 0);
}

TEST(KeptWeights, APlanOfMoreLayersIsAnErrorThatNamesTheWeight) {
  const Plan plan = whole_plan(testing::small_llama());
  const KeptWeight kept = kept_weights(plan, 0).at("layers.0.o_proj.weight");
  const Tensor tensor{.name = "layers.0.o_proj.weight",
                      .dtype = kept.dtype,
                      .axes = {{.name = "rows", .size = kept.shard.rows},
                               {.name = "columns", .size = kept.shard.columns}},
                      .role = TensorRole::kWeight};
  EXPECT_EQ(kept_copy(kept, tensor, kept.shard.num_copies, 1), 1);
  try {
    (void)kept_copy(kept, tensor, kept.shard.num_copies + 1, 0);
    FAIL() << "a plan with a layer more was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.o_proj"), std::string::npos) << error.what();
  }
}

// Uniform in [-b, b]: mean 0 and variance b^2 / 3 = 1 / columns, so a linear layer keeps the
// variance of its input. Over 98,304 elements the mean is off by 1 / sqrt(98304) of a standard
// deviation, the variance by about 0.3 %.
TEST(StoredWeight, KeepsTheVarianceOfALinearLayersInput) {
  const Plan single = whole_plan(testing::small_llama());
  const WeightShards shards = weight_shards(single, 0);
  const WeightShard& shard = shard_named(shards, "layers.0.qkv_proj.weight");
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    const StoredWeight stored = stored_weight(shard, 1, dtype, kSeed);
    double sum = 0;
    double squares = 0;
    for (std::size_t i = 0; i < stored.values.size(); ++i) {
      const double scale =
          stored.scales.empty() ? 1 : stored.scales[i / static_cast<std::size_t>(shard.columns)];
      const double value = stored.values[i] * scale;
      EXPECT_LE(std::abs(value), 1.005 * shard.bound);
      sum += value;
      squares += value * value;
    }
    const auto count = static_cast<double>(stored.values.size());
    const double deviation = 1 / std::sqrt(static_cast<double>(shard.columns));
    EXPECT_LT(std::abs(sum / count), 5 * deviation / std::sqrt(count));
    EXPECT_NEAR(squares / count, deviation * deviation, 0.02 * deviation * deviation);
  }
}

TEST(StoredWeight, GainsOfNormsAreNearOne) {
  const Plan single = whole_plan(testing::small_llama());
  const WeightShards shards = weight_shards(single, 0);
  const WeightShard& shard = shard_named(shards, "layers.0.attn_norm.weight");
  ASSERT_TRUE(shard.is_gain);
  for (const float value : stored_weight(shard, 0, DType::kBf16, kSeed).values) {
    EXPECT_NEAR(value, 1, 0.1 + 0x1p-8);  // and rounded
  }
}

// 64 tokens that choose 8 of 256 experts alike leave 256 (1 - (1 - 8 / 256)^64) = 222 active ones.
TEST(StoredWeight, ACorrectionBiasLeavesChoicesEven) {
  ModelConfig model = testing::small_deepseek();
  model.has_correction_bias = true;
  const Plan whole = whole_plan(model, {.moe_design = MoeDesign::kShuffling});
  const std::vector<WeightShard> shards = weight_shards(whole, 0).shards;
  auto shard = *std::ranges::find_if(shards, [](const WeightShard& one) {
    return one.name.find("correction_bias") != std::string::npos;
  });
  shard.columns = shard.whole_columns = 256;
  shard.column_ranges = {{.local = 0, .global = 0, .count = 256}};
  const std::vector<float> stored = stored_weight(shard, 0, DType::kFp32, 1).values;
  const std::vector<double> bias(stored.begin(), stored.end());
  std::mt19937_64 random(3);
  std::vector<double> scores;
  for (int i = 0; i < 64 * 256; ++i) {  // of normal logits (Box, Muller)
    const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
    const double radius = std::sqrt(-2 * std::log(uniform()));
    scores.push_back(1 / (1 + std::exp(-radius * std::cos(2 * std::numbers::pi * uniform()))));
  }
  const IndexShufflingShape shape{.tokens = 64,
                                  .experts_total = 256,
                                  .topk = 8,
                                  .groups = 8,
                                  .topk_groups = 4,
                                  .group_score = GroupScore::kBestTwo,
                                  .experts = 256};
  const auto counts = reference::index_shuffling(scores, bias, shape).counts;
  EXPECT_NEAR(static_cast<double>(256 - std::ranges::count(counts, 0)), 222, 10);
  EXPECT_NE(counts, reference::index_shuffling(scores, {}, shape).counts);
}

TEST(StoredWeight, DiffersByCopyNameAndSeed) {
  const Plan single = whole_plan(testing::small_llama());
  const WeightShards shards = weight_shards(single, 0);
  const WeightShard& shard = shard_named(shards, "layers.0.o_proj.weight");
  WeightShard other = shard;
  other.name = "layers.0.down_proj.weight";
  const auto values = stored_weight(shard, 0, DType::kBf16, kSeed).values;
  EXPECT_NE(values, stored_weight(shard, 1, DType::kBf16, kSeed).values);
  EXPECT_NE(values, stored_weight(shard, 0, DType::kBf16, kSeed + 1).values);
  EXPECT_NE(values, stored_weight(other, 0, DType::kBf16, kSeed).values);
  EXPECT_THROW((void)stored_weight(shard, 0, DType::kInt8, kSeed), std::invalid_argument);
}

// 1 + 2^-8 lies halfway between the bf16 neighbours 1 and 1 + 2^-7, and ties go to even.
TEST(Bf16Bits, RoundToTheNearestAndTiesToEven) {
  EXPECT_EQ(bf16_bits(1.0F), 0x3F80);
  EXPECT_EQ(bf16_bits(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(bf16_bits(1.0F + 0x3p-8F), 0x3F82);
  EXPECT_EQ(bf16_bits(1.0F + 0x1.1p-8F), 0x3F81);
  EXPECT_EQ(bf16_bits(-0.0F), 0x8000);
}

}  // namespace
}  // namespace orrery
