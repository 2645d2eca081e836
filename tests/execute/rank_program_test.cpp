#include "kernels/execute/rank_program.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"

namespace orrery {
namespace {

// Two dense layers of Llama's kind and one more of another width, so a run and a lone layer.
ModelConfig small_model() {
  ModelConfig model{.name = "small",
                    .model_type = "llama",
                    .hidden_size = 256,
                    .vocab_size = 1000,
                    .num_attention_heads = 8,
                    .num_key_value_heads = 2,
                    .head_dim = 32};
  const LayerConfig layer{.intermediate_size = 512};
  model.layers = {layer, layer, {.intermediate_size = 1024}};
  return model;
}

Plan step_plan(const Batch& batch, const Mesh& mesh) {
  return parallelize(lower(small_model(), batch, {}), mesh);
}
const Batch kDecodes{.num_decodes = 4, .decode_context = 40};

std::vector<std::string> names(const Plan& plan, const std::vector<Task>& tasks) {
  std::vector<std::string> result;
  for (const Task& task : tasks) result.push_back(task_name(plan, task));
  return result;
}

TEST(RankTasks, RepeatsAreWrittenOutAsUnrollDoes) {
  ModelConfig model = small_model();
  model.layers.pop_back();
  const Plan plan = lower(model, kDecodes, {});
  const Plan unrolled = unroll(plan);
  std::vector<std::string> expected;
  for (const Op& op : unrolled.ops()) expected.push_back(op.name);
  EXPECT_EQ(names(plan, rank_tasks(plan, 0)), expected);
}

// Of a layer's copies all ops of one come before those of the next; behind them the lone layer.
TEST(RankTasks, ComeInTheOrderOfThePlan) {
  const Plan plan = step_plan(kDecodes, {});
  const std::vector<Task> tasks = rank_tasks(plan, 0);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (std::size_t j = 0; j < tasks.size(); ++j) {
      EXPECT_EQ(runs_before(plan, tasks[i], tasks[j]), i < j)
          << task_name(plan, tasks[i]) << " and " << task_name(plan, tasks[j]);
    }
  }
}

TEST(RankTasks, ARankRunsTheOpsOfItsStageAlone) {
  const Plan plan = step_plan(kDecodes, {.pp = 2});
  for (const int rank : {0, 1}) {
    for (const Task& task : rank_tasks(plan, rank)) {
      EXPECT_TRUE(plan.contains(plan.ops()[static_cast<std::size_t>(task.op)].ranks, rank));
    }
  }
  EXPECT_EQ(rank_tasks(plan, 0).size() + rank_tasks(plan, 1).size(),
            rank_tasks(unroll(plan), 0).size() + rank_tasks(unroll(plan), 1).size());
}

TEST(MicroBatch, IsTheFirstWhereThePlanHasButOne) {
  EXPECT_EQ(micro_batch_of({.name = "rope", .stage = 1, .micro_batch = 3}), 3);
  EXPECT_EQ(micro_batch_of({.name = "rope", .stage = 1}), 0);
}

TEST(MicroBatch, AreCountedOverThePlan) {
  EXPECT_EQ(num_micro_batches(step_plan(kDecodes, {})), 1);
  EXPECT_EQ(num_micro_batches(step_plan(kDecodes, {.pp = 2, .num_micro_batches = 2})), 2);
}

// Layers that each task of an op touches, in order.
std::vector<std::int64_t> layers_of(const Plan& plan, int rank, std::string_view kernel) {
  const KvLayers layers = kv_layers(plan, rank);
  std::vector<std::int64_t> result;
  for (const Task& task : rank_tasks(plan, rank)) {
    const Op& op = plan.ops()[static_cast<std::size_t>(task.op)];
    const auto* body = std::get_if<KernelOp>(&op.body);
    if (body == nullptr || body->kernel != kernel) continue;
    for (const TensorId id : op.reads) {
      if (const auto layer = layers.layer(id, task.copy); layer >= 0) result.push_back(layer);
    }
    for (const TensorId id : op.writes) {
      if (const auto layer = layers.layer(id, task.copy); layer >= 0) result.push_back(layer);
    }
  }
  return result;
}

TEST(KvLayers, AreCountedAsTheyRun) {
  const Plan plan = step_plan(kDecodes, {});
  const std::vector<std::int64_t> expected = {0, 1, 2};
  EXPECT_EQ(layers_of(plan, 0, "kv_append"), expected);
  EXPECT_EQ(layers_of(plan, 0, "attention_decode"), expected);
  EXPECT_EQ(kv_layers(plan, 0).count, 3);
}

TEST(KvLayers, OfAlternatingLayersAreCountedAsTheyRun) {
  ModelConfig model = small_model();
  const LayerConfig full{.intermediate_size = 512};
  const LayerConfig windowed{.sliding_window = 128, .intermediate_size = 512};
  model.layers = {windowed, full, windowed, full};
  const Plan plan = lower(model, kDecodes, {});
  EXPECT_EQ(layers_of(plan, 0, "kv_append"), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(KvLayers, OfMicroBatchesAreTheSame) {
  const Plan plan = step_plan(kDecodes, {.pp = 2, .num_micro_batches = 2});
  // Stage 0 has two of the three layers: vLLM's order leaves the last stage the fewest.
  EXPECT_EQ(layers_of(plan, 0, "kv_append"), (std::vector<std::int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(layers_of(plan, 1, "kv_append"), (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(kv_layers(plan, 0).count + kv_layers(plan, 1).count, 3);
}

TEST(StepRows, AreThoseOfThePlan) {
  const Plan plan = step_plan({.prefill = {{.query = 30, .context = 0, .produces_token = true},
                                           {.query = 30, .context = 0, .produces_token = false}},
                               .num_decodes = 4,
                               .decode_context = 40},
                              {.tp = 2, .sp = true});
  // Sequence parallelism splits the rows of norms; the step has 60 + 4 rows on each rank.
  const StepRows expected{.tokens = 64, .prefill = 60, .decodes = 4, .seqs = 5};
  EXPECT_EQ(step_rows(plan, 0, 0), expected);
  EXPECT_EQ(step_rows(plan, 1, 0), expected);
}

TEST(StepRows, OfAStageBeforeTheLastKnowTheSampledRows) {
  const Plan plan = step_plan(kDecodes, {.pp = 2, .num_micro_batches = 2});
  const StepRows expected{.tokens = 2, .prefill = 0, .decodes = 2, .seqs = 2};
  for (const int rank : {0, 1}) {
    for (const int micro_batch : {0, 1}) EXPECT_EQ(step_rows(plan, rank, micro_batch), expected);
  }
}

TEST(TaskMemory, TransfersOfAPipelineWaitForTheStageAndItForThem) {
  const Plan plan = step_plan(kDecodes, {.pp = 2, .num_micro_batches = 2});
  for (const int rank : {0, 1}) {
    const std::vector<Task> tasks = rank_tasks(plan, rank);
    const auto memory =
        task_memory(plan, rank, tasks, plan_buffers(plan, rank), kv_layers(plan, rank));
    const auto waits = event_waits(memory);
    std::size_t num_waits = 0;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      num_waits += waits[i].size();
      const Op& op = plan.ops()[static_cast<std::size_t>(tasks[i].op)];
      // Rank 0 sends what it has computed before: each send waits for stream 0.
      if (rank == 0 && std::holds_alternative<CommOp>(op.body)) {
        EXPECT_EQ(waits[i].size(), 1U);
      }
    }
    EXPECT_GE(num_waits, 2U);
  }
}

TEST(TaskMemory, AfterAnOpOfAnotherRankIsRefused) {
  Plan plan;
  const GroupId first = plan.add_group({0});
  const GroupId second = plan.add_group({1});
  const Op op{.name = "a", .body = HostOp{}, .ranks = first};
  const OpId a = plan.add_op(op);
  plan.add_op({.name = "b", .body = HostOp{}, .ranks = second, .after = {a}});
  EXPECT_THROW(task_memory(plan, 1, rank_tasks(plan, 1), plan_buffers(plan, 1), kv_layers(plan, 1)),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery
