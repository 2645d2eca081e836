#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "sim/parallel/rewrite.h"
#include "tests/golden/golden.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::kDecode;

Plan pipelined(const Mesh& mesh) {
  Plan plan = parallelize(lower(testing::small_llama(), kDecode, {}), mesh);
  verify(plan);
  return plan;
}

TEST(StageShares, SpareTheLastStageThatHasTheLmHead) {
  EXPECT_EQ(stage_shares(8, 4), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(stage_shares(10, 4), (std::vector<std::int64_t>{2, 3, 3, 2}));
  EXPECT_EQ(stage_shares(11, 4), (std::vector<std::int64_t>{3, 3, 3, 2}));
  EXPECT_EQ(stage_shares(5, 1), (std::vector<std::int64_t>{5}));
}

TEST(Pipeline, EveryStageRunsItsLayersOnItsRanksOnly) {
  const Plan plan = pipelined({.tp = 2, .pp = 2});
  for (const Op& op : plan.ops()) {
    if (op.name.starts_with("recv.")) continue;
    const int first = op.stage == 0 ? 0 : 2;
    for (const int rank : plan.ranks(op.ranks)) {
      EXPECT_TRUE(rank == first || rank == first + 1) << op.name;
    }
  }
  // 4 layers, two in each stage.
  ASSERT_EQ(plan.repeats().size(), 2U);
  EXPECT_EQ(plan.repeats()[0].count, 2);
  EXPECT_EQ(plan.repeats()[1].count, 2);
}

// hidden and residual cross a boundary: 2 * 64 tokens * 256 * bf16, from each rank to its peer.
TEST(Pipeline, StagesSendHiddenAndResidual) {
  const Plan plan = pipelined({.tp = 2, .pp = 3});
  std::vector<std::vector<int>> pairs;
  for (const Op& op : plan.ops()) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || comm->kind != CollectiveKind::kSendRecv) continue;
    EXPECT_EQ(comm->bytes_per_rank.value(), 2.0 * 64 * 256 * 2);
    const auto ranks = plan.ranks(op.ranks);
    pairs.emplace_back(ranks.begin(), ranks.end());
  }
  EXPECT_EQ(pairs, (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {2, 4}, {3, 5}}));
}

// The (p - 1) / (m + p - 1) bubble: with equal times of one per stage and micro-batch and free
// transfers, m micro-batches on p stages take m + p - 1.
TEST(Pipeline, MicroBatchesFillTheStages) {
  constexpr int kStages = 4;
  constexpr int kMicroBatches = 6;
  const Plan plan = pipelined({.pp = kStages, .num_micro_batches = kMicroBatches});
  std::map<int, double> rank_free;          // stream 0 of each rank
  std::map<TensorId, double> tensor_ready;  // each tensor lives on one rank here
  for (const Op& op : plan.ops()) {
    double start = 0;
    for (const TensorId read : op.reads) start = std::max(start, tensor_ready[read]);
    const bool is_transfer = op.stream != 0;
    const int rank = plan.ranks(op.ranks).front();
    if (!is_transfer) start = std::max(start, rank_free[rank]);
    // One op of each layer counts; every stage has one layer.
    const double end = start + (op.name.ends_with(".qkv_proj") ? 1 : 0);
    for (const TensorId written : op.writes) tensor_ready[written] = end;
    if (!is_transfer) rank_free[rank] = end;
  }
  double makespan = 0;
  for (const auto& [rank, free] : rank_free) makespan = std::max(makespan, free);
  EXPECT_EQ(makespan, kMicroBatches + kStages - 1);
}

TEST(Pipeline, MicroBatchesShareRowsAndWeights) {
  const Plan plan = pipelined({.pp = 2, .num_micro_batches = 4});
  std::int64_t num_embeddings = 0;
  std::map<TensorId, int> weights;
  for (const Op& op : plan.ops()) {
    if (op.name != "embedding") continue;
    ++num_embeddings;
    EXPECT_EQ(dim(std::get<KernelOp>(op.body).dims, "tokens"), 64 / 4);
    ++weights[op.reads[1]];
  }
  EXPECT_EQ(num_embeddings, 4);
  EXPECT_EQ(weights.size(), 1U) << "each micro-batch must read the same weights";
}

// Sequences are whole: a fourth micro-batch of three sequences, or a second of one, would be empty.
TEST(Pipeline, ThereAreNoMoreMicroBatchesThanSequences) {
  const auto micro_batches = [](const Batch& batch, const Mesh& mesh) {
    const Plan plan = step_plan(testing::small_llama(), batch, {}, mesh);
    return std::ranges::count_if(plan.ops(), [](const Op& op) { return op.name == "embedding"; });
  };
  const Batch one{.prefill = {}, .num_decodes = 1, .decode_context = 1000};
  EXPECT_EQ(micro_batches(one, {.pp = 2, .num_micro_batches = 2}), 1);
  const Batch three{
      .prefill = {{.query = 100, .context = 0}}, .num_decodes = 2, .decode_context = 2000};
  EXPECT_EQ(micro_batches(three, {.pp = 2, .num_micro_batches = 4}), 3);
  EXPECT_EQ(micro_batches(kDecode, {.pp = 2, .num_micro_batches = 4}), 4);
  // Each of four data-parallel ranks has one or two of six.
  const Batch six{.prefill = {}, .num_decodes = 6, .decode_context = 6000};
  EXPECT_EQ(micro_batches(six, {.dp = 4, .pp = 2, .num_micro_batches = 4}), 2);
}

TEST(GoldenPlan, SmallLlamaTp2SpPp2) {
  const Plan plan = pipelined({.tp = 2, .pp = 2, .sp = true});
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  expect_golden("model_small_llama_tp2_sp_pp2.plan", to_text(plan));
}

TEST(GoldenPlan, SmallDeepseekDp2Tp2Ep4) {
  const Plan plan =
      parallelize(lower(testing::small_deepseek(), kDecode, {.precision = testing::kFp8Precision}),
                  {.dp = 2, .tp = 2, .ep = 4});
  verify(plan);
  expect_golden("model_small_deepseek_dp2_tp2_ep4.plan", to_text(plan));
}

}  // namespace
}  // namespace orrery
