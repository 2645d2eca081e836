// Where weights and collectives stand: what each choice of a mesh adds to and takes from a plan.

#include <gtest/gtest.h>

#include <string>

#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::bytes_on_rank_0;
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

}  // namespace
}  // namespace orrery
