#include "sim/serve/capacity.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/model/small_models.h"

namespace orrery {
namespace {

using testing::small_deepseek;
using testing::small_llama;

const Device kDevice{.name = "gpu", .hbm_capacity = Bytes(1e9)};

CapacityRequest request(const ModelConfig& model, Mesh mesh = {}) {
  CapacityRequest made{.model = model, .mesh = mesh};
  made.engine.max_num_batched_tokens = 512;
  return made;
}

TEST(Capacity, ABlockHoldsKeysAndValuesOfAllLayersOfOneGpu) {
  const auto block = [](const ModelConfig& model, Mesh mesh) {
    return memory_budget(request(model, mesh), kDevice).kv_block.value();
  };
  // 16 tokens x 4 layers x 2 kv heads x 32 dims x (K and V) x 2 bytes.
  EXPECT_DOUBLE_EQ(block(small_llama(), {}), 16 * 4 * 2 * 32 * 2 * 2);
  // tp 2: one head each; tp 4: no less than one head.
  EXPECT_DOUBLE_EQ(block(small_llama(), {.tp = 2}), 16 * 512);
  EXPECT_DOUBLE_EQ(block(small_llama(), {.tp = 4}), 16 * 512);
  // pp 2: two of four layers.
  EXPECT_DOUBLE_EQ(block(small_llama(), {.pp = 2}), 16 * 512);
  // MLA: (64 + 16) latent columns on every rank.
  EXPECT_DOUBLE_EQ(block(small_deepseek(), {.tp = 4}), 16 * 4 * 80 * 2);
}

// Three of four layers attend to the newest 512 tokens: engines keep those alone, as a state of
// each sequence; our executor has blocks of all layers for all tokens.
TEST(Capacity, ShortWindowsTakeAStateOrBlocksOfAllTokensAsTheEngineKeepsThem) {
  CapacityRequest made = request(small_llama());
  for (std::size_t i = 1; i < made.model.layers.size(); ++i) {
    made.model.layers[i].sliding_window = 512;
  }
  const MemoryBudget windows = memory_budget(made, kDevice);
  made.keeps_window_kv = true;
  const MemoryBudget all = memory_budget(made, kDevice);
  EXPECT_DOUBLE_EQ(windows.kv_block.value(), all.kv_block.value() / 4);
  EXPECT_EQ(windows.state_blocks, 3 * 512 / 16);
  EXPECT_EQ(all.state_blocks, 0);
  EXPECT_LE(all.num_kv_blocks, windows.num_kv_blocks / 4 + 1);
}

TEST(Capacity, TheBudgetAddsUpToWhatIsUsable) {
  CapacityRequest made = request(small_llama());
  made.graphs = Bytes(50e6);
  const MemoryBudget budget = memory_budget(made, kDevice);
  EXPECT_DOUBLE_EQ(budget.usable.value(), 0.9e9);
  const Bytes sum =
      budget.weights + budget.activations + budget.graphs + budget.communication + budget.kv_cache;
  EXPECT_LE(sum, budget.usable);
  EXPECT_GT(sum + budget.kv_block, budget.usable);  // less than a block is left over
  EXPECT_DOUBLE_EQ(budget.kv_cache / budget.kv_block, static_cast<double>(budget.num_kv_blocks));
}

TEST(Capacity, AShareOfWhatIsFreeIsOfWhatEverythingElseLeaves) {
  CapacityRequest made = request(small_llama());
  made.graphs = Bytes(50e6);
  made.engine.memory_fraction = MemoryFraction::kFree;
  made.engine.gpu_memory_utilization = 0.8;
  const MemoryBudget budget = memory_budget(made, kDevice);
  const Bytes free = budget.hbm - budget.weights - budget.activations - budget.graphs;
  EXPECT_LE(budget.kv_cache, free * 0.8);
  EXPECT_GT(budget.kv_cache + budget.kv_block, free * 0.8);
}

TEST(Capacity, AShareOfWeightsAndCacheLeavesActivationsTheRest) {
  CapacityRequest made = request(small_llama());
  made.graphs = Bytes(50e6);
  made.engine.memory_fraction = MemoryFraction::kWeightsAndCache;
  made.engine.gpu_memory_utilization = 0.8;
  const MemoryBudget budget = memory_budget(made, kDevice);
  EXPECT_LE((budget.weights + budget.kv_cache).value(), 0.8e9);
  EXPECT_GT((budget.weights + budget.kv_cache + budget.kv_block).value(), 0.8e9);
  // No more than there is: with all of it, activations and graphs are still to fit.
  made.engine.gpu_memory_utilization = 1;
  const MemoryBudget all = memory_budget(made, kDevice);
  EXPECT_LE(all.weights + all.activations + all.graphs + all.kv_cache, all.hbm);
}

TEST(Capacity, WeightsAreTheModelsParameters) {
  // All parameters in bf16, two bytes each.
  const MemoryBudget budget = memory_budget(request(small_llama()), kDevice);
  EXPECT_DOUBLE_EQ(budget.weights.value(),
                   2.0 * static_cast<double>(count_parameters(small_llama()).total));
}

TEST(Capacity, CommunicationBuffersAreOnlyForSeveralGpus) {
  CapacityRequest made = request(small_llama());
  made.communication = Bytes(10e6);
  EXPECT_EQ(memory_budget(made, kDevice).communication, Bytes(0));
  made.mesh.tp = 2;
  EXPECT_EQ(memory_budget(made, kDevice).communication, Bytes(10e6));
}

TEST(Capacity, DataParallelRanksEachHoldTheirOwnCache) {
  const std::int64_t one = memory_budget(request(small_llama()), kDevice).num_kv_blocks;
  const MemoryBudget two = memory_budget(request(small_llama(), {.dp = 2}), kDevice);
  EXPECT_GE(two.num_kv_blocks, 2 * one);  // activations of half the batch leave a little more
}

TEST(Capacity, AModelThatDoesNotFitSaysByHowMuchAndWhatWould) {
  const double weights = 2.0 * static_cast<double>(count_parameters(small_llama()).total);
  // Usable is 0.81 of the weights: one GPU is too small, each of two has room for its half.
  const Device tight{.name = "tight", .hbm_capacity = Bytes(0.9 * weights)};
  CapacityRequest made = request(small_llama());
  made.engine.max_num_seqs = 8;
  made.engine.max_num_batched_tokens = 16;
  try {
    memory_budget(made, tight);
    FAIL() << "expected it not to fit";
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("small-llama does not fit on tight"), std::string::npos) << message;
    EXPECT_NE(message.find("more than the"), std::string::npos) << message;
    EXPECT_NE(message.find("tp 2 (2 GPUs) would fit"), std::string::npos) << message;
  }
  const Device tiny{.name = "tiny", .hbm_capacity = Bytes(1000)};
  try {
    memory_budget(made, tiny);
    FAIL() << "expected it not to fit";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("no larger tp fits"), std::string::npos)
        << error.what();
  }
}

TEST(Capacity, AUtilizationOutsideZeroToOneIsRefused) {
  for (const double utilization : {0.0, -1.0, 1.5}) {
    CapacityRequest made = request(small_llama());
    made.engine.gpu_memory_utilization = utilization;
    EXPECT_THROW(memory_budget(made, kDevice), std::invalid_argument);
  }
}

}  // namespace
}  // namespace orrery
