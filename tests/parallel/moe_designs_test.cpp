// Routed experts of each design over tensor-parallel ranks: columns of experts are split, and the
// parts of the sum that ranks compute are added once.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "kernels/kernel_spec.h"
#include "sim/parallel/parallel.h"
#include "tests/golden/golden.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::scout;

constexpr std::array kDesigns{MoeDesign::kPadding, MoeDesign::kSlicing, MoeDesign::kConcatenation,
                              MoeDesign::kShuffling};

Plan layer(const ModelConfig& model, const LoweringOptions& options, const Mesh& mesh,
           std::int64_t tokens = 64) {
  check_mesh(model, mesh);
  Plan plan = parallelize(moe_layer_plan(model, tokens, options), mesh);
  verify(plan);
  return plan;
}

double total_flops(const Plan& plan) {
  double flops = 0;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !op.name.starts_with("experts.")) continue;
    flops += work_of(*kernel).flops.value() * static_cast<double>(plan.ranks(op.ranks).size());
  }
  return flops;
}

TEST(MoeDesignsOnRanks, SplitTheColumnsOfExpertsOverTensorParallelRanks) {
  for (const MoeDesign design : kDesigns) {
    const LoweringOptions options{.moe_design = design};
    const Plan whole = layer(scout(), options, {});
    const Plan split = layer(scout(), options, {.tp = 4});
    EXPECT_DOUBLE_EQ(total_flops(split), total_flops(whole)) << to_text(design);
    // All weights but the router's.
    const std::int64_t router = std::int64_t{16} * 5120;
    EXPECT_EQ(4 * (num_weight_elements(split, 0) - router), num_weight_elements(whole, 0) - router);
  }
}

TEST(MoeDesignsOnRanks, AFusedScatterAddsAPartToAPart) {
  const Plan plan =
      layer(scout(), {.moe_design = MoeDesign::kShuffling, .fuse_scatter_add = true}, {.tp = 2});
  const Op& last = plan.ops().back();
  EXPECT_EQ(last.name, "experts.down.all_reduce");
  EXPECT_EQ(std::ranges::count_if(
                plan.ops(), [](const Op& op) { return std::holds_alternative<CommOp>(op.body); }),
            1);
}

// [tokens, hidden] once: routed rows and the shared expert's result are added before.
TEST(MoeDesignsOnRanks, ReduceOncePerLayer) {
  for (const MoeDesign design : kDesigns) {
    const Plan plan = layer(scout(), {.moe_design = design, .moe_streams = 2}, {.tp = 2});
    double bytes = 0;
    for (const Op& op : plan.ops()) {
      const auto* comm = std::get_if<CommOp>(&op.body);
      if (comm == nullptr) continue;
      EXPECT_EQ(comm->kind, CollectiveKind::kAllReduce);
      EXPECT_EQ(op.name, "scatter.all_reduce");
      bytes += comm->bytes_per_rank.value();
    }
    EXPECT_EQ(bytes, 64.0 * 5120 * 2) << to_text(design);
  }
}

TEST(MoeDesignsOnRanks, ReduceScatterWithSequenceParallelism) {
  const Batch batch{.prefill = {}, .num_decodes = 64, .decode_context = 6400};
  const Plan plan = parallelize(lower(scout(), batch, {.moe_design = MoeDesign::kShuffling}),
                                {.tp = 4, .sp = true});
  verify(plan);
  EXPECT_TRUE(std::ranges::any_of(plan.ops(), [](const Op& op) {
    return op.name.find(".scatter.reduce_scatter") != std::string::npos;
  }));
  EXPECT_FALSE(std::ranges::any_of(
      plan.ops(), [](const Op& op) { return op.name.find(".all_reduce") != std::string::npos; }));
}

TEST(MoeDesignsOnRanks, AMicroBatchHasItsShareOfRowsAndItsOwnActiveExperts) {
  const Batch batch{.prefill = {}, .num_decodes = 64, .decode_context = 6400};
  const ModelConfig model = scout();
  const LoweringOptions options{.moe_design = MoeDesign::kShuffling};
  const Plan split = parallelize(lower(model, batch, options), {.pp = 2, .num_micro_batches = 8});
  verify(split);
  const Batch eighth{.prefill = {}, .num_decodes = 8, .decode_context = 800};
  const auto dims = [](const Plan& plan) {
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel != nullptr && kernel->kernel == "grouped_gemm") return kernel->dims;
    }
    return Dims();
  };
  EXPECT_EQ(dims(split), dims(lower(model, eighth, options)));
}

TEST(MoeDesignsOnRanks, ASmallModelsLayerOnTwoRanksIsGolden) {
  for (const MoeDesign design : kDesigns) {
    const Plan plan = layer(testing::small_deepseek(), {.moe_design = design}, {.tp = 2}, 6);
    expect_golden("moe_layer_" + std::string(to_text(design)) + "_tp2.plan", to_text(plan));
  }
}

}  // namespace
}  // namespace orrery
