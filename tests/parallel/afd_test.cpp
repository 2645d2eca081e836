// Attention-FFN disaggregation: what each side computes, holds and sends, and how long
// micro-batches take by the closed forms of MegaScale-Infer (arXiv 2504.02263, section 4.1). Stage
// times are set by hand, so that the forms are exact.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sim/des/simulate.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/sides.h"
#include "tests/model/small_models.h"
#include "tests/parallel/cluster.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::comm_named;
using testing::flops_by_op;
using testing::kDecode;
using testing::kPrefill;
using testing::op_named;
using testing::placed;
using testing::total_weights;

ModelConfig dense_model() { return testing::shipped_model("meta-llama--Meta-Llama-3.1-8B"); }
ModelConfig lite_model() { return testing::shipped_model("deepseek-ai--DeepSeek-V2-Lite"); }
ModelConfig routed_model() { return testing::shipped_model("mistralai--Mixtral-8x7B-v0.1"); }

TEST(Afd, PlansOfEveryMeshVerify) {
  const std::vector<Mesh> of_all{{.ffn_instances = 1},
                                 {.dp = 2, .num_micro_batches = 3, .ffn_instances = 1},
                                 {.dp = 2,
                                  .tp = 2,
                                  .num_micro_batches = 2,
                                  .ffn_instances = 2,
                                  .ffn_tp = 4,
                                  .ffn_schedule = FfnSchedule::kLock}};
  const std::vector<Mesh> of_experts{{.dp = 2, .ep = 4, .num_micro_batches = 2, .ffn_instances = 4},
                                     {.dp = 3, .ep = 2, .ffn_instances = 2, .ffn_tp = 2}};
  for (const ModelConfig& model : {dense_model(), lite_model(), routed_model()}) {
    std::vector<Mesh> meshes = of_all;
    if (model.num_experts > 0) meshes.insert(meshes.end(), of_experts.begin(), of_experts.end());
    for (const Mesh& mesh : meshes) {
      for (const Batch& batch : {kDecode, kPrefill}) {
        for (const bool is_fp8 : {false, true}) {
          LoweringOptions options;
          if (is_fp8) options.precision = testing::kFp8Precision;
          const Plan plan = placed(model, batch, mesh, options);
          EXPECT_EQ(parse_plan(to_text(plan)), plan);
        }
      }
    }
  }
}

// All ranks together compute what one does, of 2 micro-batches on 2 attention and 4 FFN ranks.
TEST(Afd, ComputesWhatOneRankDoes) {
  for (const ModelConfig& model : {dense_model(), lite_model(), routed_model()}) {
    const Mesh mesh{.dp = 2,
                    .ep = model.num_experts > 0 ? 4 : 1,
                    .num_micro_batches = 2,
                    .ffn_instances = 2,
                    .ffn_tp = 2};
    const auto whole = flops_by_op(placed(model, kDecode, {}));
    const auto apart = flops_by_op(placed(model, kDecode, mesh));
    ASSERT_EQ(whole.size(), apart.size());
    for (const auto& [op, flops] : whole) {
      // Each of the 4 FFN ranks adds what it has of the two sums.
      const double ranks = op.ends_with("shared_add") ? 4 : 1;
      EXPECT_NEAR(apart.at(op), ranks * flops, 1e-9 * flops) << model.name << ": " << op;
    }
  }
}

TEST(Afd, EachWeightAndCacheLiesOnOneSide) {
  const Mesh mesh{.tp = 2, .num_micro_batches = 2, .ffn_instances = 1, .ffn_tp = 4};
  const ModelConfig model = dense_model();
  const Plan plan = placed(model, kDecode, mesh);
  for (const Tensor& tensor : plan.tensors()) {
    const bool is_of_ffn =
        tensor.name.ends_with("gate_up_proj.weight") || tensor.name.ends_with("down_proj.weight");
    if (is_of_ffn) {
      EXPECT_EQ(plan.ranks(tensor.ranks).front(), 2) << tensor.name;
    }
    const bool is_of_attention =
        tensor.role == TensorRole::kKvCache || tensor.name.ends_with("qkv_proj.weight");
    if (is_of_attention) {
      EXPECT_EQ(plan.ranks(tensor.ranks).back(), 1) << tensor.name;
    }
  }
  EXPECT_GT(memory_of(plan, 0).kv_cache, Bytes(0));
  EXPECT_EQ(memory_of(plan, 2).kv_cache, Bytes(0));
  // 3 * 4,096 * 14,336 of each of 32 layers over 4 ranks, and none of them on attention ranks.
  EXPECT_EQ(num_weight_elements(plan, 2), 3LL * 4096 * 14336 * 32 / 4);
  const std::int64_t single = num_weight_elements(placed(model, kDecode, {}), 0);
  const std::int64_t split = num_weight_elements(placed(model, kDecode, {.tp = 2}), 0);
  EXPECT_EQ(num_weight_elements(plan, 0), split - 3LL * 4096 * 14336 * 32 / 2);
  EXPECT_LT(total_weights(plan), single * 101 / 100);  // norms on both tp ranks
}

// 64 rows of 4,096 in bf16 in 2 micro-batches from 2 attention ranks: 16 from each go to both of
// 2 instances, whose 2 ranks get half of the 32. The busier side is attention.
TEST(Afd, ATokenGoesOnceToEachInstance) {
  const Mesh mesh{.dp = 2, .num_micro_batches = 2, .ffn_instances = 2, .ffn_tp = 2};
  const Plan plan = placed(dense_model(), kDecode, mesh);
  EXPECT_EQ(comm_named(plan, "layers.0.to_ffn").bytes_per_rank, Bytes(2.0 * 16 * 4096 * 2));
  EXPECT_EQ(comm_named(plan, "layers.0.from_ffn").bytes_per_rank, Bytes(2.0 * 16 * 4096 * 2));
  EXPECT_EQ(comm_named(plan, "layers.0.to_ffn.all_gather.f0").bytes_per_rank,
            Bytes(16.0 * 4096 * 2));
  EXPECT_EQ(comm_named(plan, "layers.0.from_ffn.reduce_scatter.f1").bytes_per_rank,
            Bytes(32.0 * 4096 * 2));
  const auto sides = sides_of(plan, op_named(plan, "layers.0.to_ffn"));
  ASSERT_TRUE(sides.has_value());
  EXPECT_EQ(sides->senders.size(), 2U);
  EXPECT_EQ(sides->receivers.back(), 5);
}

// Two of 8 experts, of which 4 instances have 2 each: a token misses an instance with 6/8 * 5/7.
TEST(Afd, RoutedTokensGoToInstancesWithTheirExperts) {
  const Mesh mesh{.dp = 4, .ep = 4, .ffn_instances = 4};
  const Plan plan = placed(routed_model(), kDecode, mesh);
  const double instances = 4 * (1 - 6.0 / 8 * 5 / 7);
  EXPECT_NEAR(comm_named(plan, "layers.0.from_ffn").bytes_per_rank.value(),
              instances * 16 * 4096 * 2, 1);
}

// With FP8 activations rows are quantised before they are sent, and come back in bf16.
TEST(Afd, RowsGoInFp8AndComeBackInBf16) {
  const Plan plan =
      placed(dense_model(), kDecode, {.ffn_instances = 1}, {.precision = testing::kFp8Precision});
  EXPECT_EQ(comm_named(plan, "layers.0.to_ffn").dtype, DType::kFp8);
  EXPECT_EQ(comm_named(plan, "layers.0.from_ffn").dtype, DType::kBf16);
  EXPECT_NEAR(comm_named(plan, "layers.0.from_ffn").bytes_per_rank /
                  comm_named(plan, "layers.0.to_ffn").bytes_per_rank,
              2, 1e-9);
}

struct StageTimes {
  double attention = 0;
  double ffn = 0;
  double sent = 0;
};

// A step of `num_micro_batches` on 1A1F whose layers take these times; all else takes none.
double step_of(const StageTimes& stages, int num_micro_batches, FfnSchedule schedule) {
  const Mesh mesh{
      .num_micro_batches = num_micro_batches, .ffn_instances = 1, .ffn_schedule = schedule};
  const Plan plan = placed(dense_model(), kDecode, mesh);
  const Machine machine = testing::cluster(2);
  const CostModel cost(machine, nullptr, nullptr, {});
  PricedPlan priced = price(plan, cost);
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const Op& op = plan.ops()[i];
    double time = 0;
    if (sides_of(plan, op)) time = stages.sent;
    if (op.name.ends_with(".attn_decode")) time = stages.attention;
    if (op.name.ends_with(".down_proj")) time = stages.ffn;
    priced.times[i].time = Seconds(time);
  }
  return makespan(simulate(priced, machine, cost, {.level = StepLevel::kHeap})).value();
}

constexpr double kLayers = 32;

// T_total = (T_a + T_f + 2 T_c) + T_f (m L - 1) where m (the longer of T_a, T_f) covers the way of
// one micro-batch through a layer; else L such ways, and the others follow the first by the longest
// stage.
double pipelined_form(const StageTimes& stages, double m) {
  const double longest = std::max(stages.attention, stages.ffn);
  const double way = stages.attention + stages.ffn + 2 * stages.sent;
  if (m * longest >= way) return way + longest * (m * kLayers - 1);
  return kLayers * way + (m - 1) * std::max(longest, stages.sent);
}

TEST(AfdInTime, MicroBatchesTakeAsLongAsTheClosedForm) {
  const std::vector<StageTimes> cases{{.attention = 1e-3, .ffn = 1e-3, .sent = 0.4e-3},
                                      {.attention = 1e-3, .ffn = 1e-3, .sent = 0.9e-3},
                                      {.attention = 1e-3, .ffn = 0.5e-3, .sent = 0.2e-3},
                                      {.attention = 0.6e-3, .ffn = 1.1e-3, .sent = 0.3e-3}};
  for (const StageTimes& stages : cases) {
    for (const int m : {1, 2, 3, 4}) {
      const double expected = pipelined_form(stages, m);
      EXPECT_NEAR(step_of(stages, m, FfnSchedule::kPipelined), expected, 1e-3 * expected)
          << "m " << m << " T_a " << stages.attention << " T_f " << stages.ffn << " T_c "
          << stages.sent;
    }
  }
}

TEST(AfdInTime, LockedMicroBatchesFollowEachOther) {
  const StageTimes stages{.attention = 1e-3, .ffn = 0.7e-3, .sent = 0.3e-3};
  for (const int m : {1, 3}) {
    const double expected = kLayers * m * (1e-3 + 0.7e-3 + 2 * 0.3e-3);
    EXPECT_NEAR(step_of(stages, m, FfnSchedule::kLock), expected, 1e-3 * expected) << m;
  }
}

// T_a = T_f: no time is lost from the least m with m >= 2 (1 + T_c / T_f) on, 3 for T_c < T_f / 2
// and 4 for T_c < T_f, and some is with one micro-batch less.
TEST(AfdInTime, AsManyMicroBatchesAsTheConditionAsksForHideWhatIsSent) {
  for (const double sent : {0.1e-3, 0.49e-3, 0.51e-3, 0.99e-3}) {
    const StageTimes stages{.attention = 1e-3, .ffn = 1e-3, .sent = sent};
    const auto least = static_cast<int>(std::ceil(2 * (1 + sent / 1e-3)));
    EXPECT_EQ(least, sent < 0.5e-3 ? 3 : 4);
    const auto lost = [&](int m) {
      return step_of(stages, m, FfnSchedule::kPipelined) / (m * kLayers * 1e-3) - 1;
    };
    // Until the first micro-batch has come back, all but one stage of it.
    EXPECT_NEAR(lost(least), (1 + 2 * sent / 1e-3) / (least * kLayers), 1e-3) << sent;
    EXPECT_GT(lost(least - 1), 1.1 * lost(least)) << sent;
  }
}

std::string refusal(const ModelConfig& model, const Mesh& mesh) {
  try {
    check_mesh(model, mesh);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(CheckMesh, FfnInstancesNameTheNearestLegalChoice) {
  const auto says = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(refusal(dense_model(), {.ffn_tp = 2}), "nearest legal ffn_instances: 1");
  says(refusal(dense_model(), {.ffn_instances = 3}), "nearest legal ffn_instances: 2 or 4");
  says(refusal(routed_model(), {.ep = 3, .ffn_instances = 4}),
       "does not divide ffn_instances * ffn_tp = 4; nearest legal ep: 2 or 4");
  says(refusal(dense_model(), {.pp = 2, .ffn_instances = 1}), "expected pp 1");
  says(refusal(dense_model(), {.ffn_schedule = FfnSchedule::kLock}), "without ffn_instances");
  EXPECT_EQ(refusal(routed_model(), {.dp = 6, .ep = 8, .ffn_instances = 8}), "");
}

}  // namespace
}  // namespace orrery
