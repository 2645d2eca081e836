// Layers of experts as one kernel over data-parallel ranks: nothing is sent by other ops.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/kernel_spec.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"

namespace orrery {
namespace {

const LoweringOptions kPersistent{.moe_design = MoeDesign::kPersistent};

ModelConfig qwen() { return testing::shipped_model("Qwen--Qwen3-30B-A3B"); }

Plan placed(const Mesh& mesh) {
  const Batch batch{.prefill = {{512, 0}, {300, 20}}, .num_decodes = 8, .decode_context = 30};
  return parallelize(lower(qwen(), batch, kPersistent), mesh);
}

const KernelOp& layer_of(const Plan& plan) {
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel != nullptr && kernel->kernel == "fused_moe") return *kernel;
  }
  throw std::invalid_argument("no fused_moe");
}

TEST(PersistentMoe, HasTokensAndAPartOfTheExpertsOnEachRank) {
  const Plan alone = placed({});
  for (const int ways : {2, 4, 8}) {
    const Plan plan = placed({.dp = ways, .ep = ways});
    EXPECT_NO_THROW(verify(plan));
    const Dims& dims = layer_of(plan).dims;
    EXPECT_EQ(dim(dims, "experts_total"), 128);
    EXPECT_EQ(dim(dims, "experts"), 128 / ways);
    EXPECT_LT(dim(dims, "tokens"), dim(layer_of(alone).dims, "tokens"));
    EXPECT_TRUE(std::ranges::none_of(
        plan.ops(), [](const Op& op) { return std::holds_alternative<CommOp>(op.body); }));
    const auto experts = [](const Plan& of) {
      double bytes = 0;
      for (const Tensor& tensor : of.tensors()) {
        const bool is_of_experts = tensor.name.find("experts.") != std::string::npos;
        if (tensor.role == TensorRole::kWeight && is_of_experts) bytes += bytes_of(tensor).value();
      }
      return bytes;
    };
    EXPECT_DOUBLE_EQ(experts(plan), experts(alone) / ways);
  }
}

TEST(PersistentMoe, ComputesOnEachRankWhatItsTokensChoose) {
  const Plan plan = placed({.dp = 2, .ep = 2});
  KernelOp own = layer_of(plan);
  const double flops = work_of(own).flops.value();
  for (Dim& entry : own.dims) {
    if (entry.name == "experts") entry.size = 128;  // the same tokens on one rank
  }
  EXPECT_EQ(flops, work_of(own).flops.value());
}

// 2 bytes of rows of x, of what is between the layers and of results: as executed on two H200s,
// where 32,768 tokens of Qwen3-30B-A3B took 4.03 GB.
TEST(PersistentMoe, CountsTheRowsThatItWorksOn) {
  KernelOp layer = layer_of(placed({.dp = 2, .ep = 2}));
  for (Dim& entry : layer.dims) {
    if (entry.name == "tokens") entry.size = 32768;
  }
  const double rows = 2.0 * 32768 * 8;
  const double expected = 2 * (rows * (2048 + 768) + rows / 2 * 2048);
  EXPECT_DOUBLE_EQ(kernel_spec("fused_moe").workspace(DType::kBf16, layer.dims).value(), expected);
  EXPECT_NEAR(expected, 4.03e9, 0.01e9);
}

ModelConfig deepseek() { return testing::shipped_model("deepseek-ai--DeepSeek-V3"); }

// The shared expert in the same kernel: as much work and as many weights as beside it, on each rank
// all of it, and no op of its own.
TEST(PersistentMoe, TakesTheSharedExpertInside) {
  const Batch batch{.prefill = {{512, 0}, {300, 20}}, .num_decodes = 8, .decode_context = 30};
  const auto plan_of = [&](bool is_inside, const Mesh& mesh) {
    LoweringOptions options = kPersistent;
    options.shared_inside = is_inside;
    return parallelize(lower(deepseek(), batch, options), mesh);
  };
  const auto total = [](const Plan& plan) {
    double flops = 0;
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      const bool is_of_experts =
          kernel != nullptr &&
          (kernel->kernel == "fused_moe" || op.name.find("shared.") != std::string::npos);
      if (is_of_experts) flops += work_of(*kernel).flops.value();
    }
    return flops;
  };
  const auto weights = [](const Plan& plan) {
    double bytes = 0;
    for (const Tensor& tensor : plan.tensors()) {
      const bool is_shared = tensor.name.find("shared.") != std::string::npos;
      if (tensor.role == TensorRole::kWeight && is_shared) bytes += bytes_of(tensor).value();
    }
    return bytes;
  };
  for (const int ways : {1, 2, 8}) {
    const Mesh mesh{.dp = ways, .ep = ways};
    const Plan inside = plan_of(true, mesh);
    const Plan beside = plan_of(false, mesh);
    EXPECT_NO_THROW(verify(inside));
    EXPECT_EQ(dim(layer_of(inside).dims, "shared"), 1);
    EXPECT_EQ(dim(layer_of(beside).dims, "shared"), 0);
    EXPECT_DOUBLE_EQ(weights(inside), weights(beside));
    EXPECT_LT(inside.ops().size(), beside.ops().size());
    EXPECT_NEAR(total(inside) / total(beside), 1, 1e-3);  // activations aside
  }
}

TEST(PersistentMoe, SaysWhichSharedExpertsItTakes) {
  const auto says = [](const ModelConfig& model, LoweringOptions options,
                       const std::string& words) {
    try {
      options.shared_inside = true;
      static_cast<void>(lower(model, Batch{.num_decodes = 8, .decode_context = 30}, options));
      ADD_FAILURE() << "nothing thrown, expected " << words;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  says(qwen(), kPersistent, "has no shared expert");
  says(deepseek(), {.moe_design = MoeDesign::kShuffling}, "expected design persistent");
  ModelConfig model = deepseek();
  model.shared_expert_intermediate_size = 5 * model.moe_intermediate_size;
  says(model, kPersistent, "which is not 1 to 4 of them");
  model.shared_expert_intermediate_size = model.moe_intermediate_size / 2;
  says(model, kPersistent, "which is not 1 to 4 of them");
  model = deepseek();
  model.has_shared_expert_gate = true;
  says(model, kPersistent, "has a gate");
}

// A factor of a rank's own tokens, so the same on each rank, however tokens are split. Rows that
// are computed and room for them fall with it; 128 experts of even choices of 8 take all at 16.
TEST(PersistentMoe, HasACapacityOfEachRanksTokens) {
  const auto layer = [](std::int64_t percent, const Mesh& mesh) {
    LoweringOptions options = kPersistent;
    options.capacity_percent = percent;
    const Batch batch{.prefill = {{512, 0}, {300, 20}}, .num_decodes = 8, .decode_context = 30};
    const Plan plan = parallelize(lower(qwen(), batch, options), mesh);
    EXPECT_NO_THROW(verify(plan));
    return layer_of(plan);
  };
  const auto room = [](const KernelOp& op) {
    return kernel_spec("fused_moe").workspace(op.dtype, op.dims);
  };
  for (const int ways : {1, 2, 8}) {
    const Mesh mesh{.dp = ways, .ep = ways};
    const KernelOp whole = layer(0, mesh);
    EXPECT_EQ(whole.dims.back().name, "shared");
    const KernelOp wide = layer(1600, mesh);
    EXPECT_EQ(dim(wide.dims, "capacity_percent"), 1600);
    EXPECT_EQ(work_of(wide).flops, work_of(whole).flops);
    EXPECT_EQ(work_of(wide).bytes_read, work_of(whole).bytes_read);
    EXPECT_EQ(room(wide), room(whole));
    KernelOp before = wide;
    for (const std::int64_t percent : {200, 100, 50, 25}) {
      const KernelOp less = layer(percent, mesh);
      EXPECT_LT(work_of(less).flops, work_of(before).flops) << ways << " " << percent;
      EXPECT_LE(room(less), room(before)) << ways << " " << percent;
      before = less;
    }
    EXPECT_LT(work_of(before).flops, 0.3 * work_of(whole).flops);
    EXPECT_LT(room(before), 0.6 * room(whole));
  }
}

TEST(PersistentMoe, OtherDesignsDropNothing) {
  for (const MoeDesign design : {MoeDesign::kFused, MoeDesign::kPadding, MoeDesign::kSlicing,
                                 MoeDesign::kConcatenation, MoeDesign::kShuffling}) {
    try {
      check_moe_design(qwen(), {.moe_design = design, .capacity_percent = 100});
      ADD_FAILURE() << "nothing thrown of " << to_text(design);
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("expected design persistent"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(
      check_moe_design(qwen(), {.moe_design = MoeDesign::kPersistent, .capacity_percent = -1}),
      std::invalid_argument);
}

TEST(PersistentMoe, SaysOnWhichMeshesItLies) {
  const auto says = [](const Mesh& mesh, const std::string& words) {
    try {
      static_cast<void>(placed(mesh));
      ADD_FAILURE() << "nothing thrown, expected " << words;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  says({.tp = 2}, "expected 1: each rank has tokens of its own");
  says({.dp = 2, .tp = 2, .ep = 4}, "expected 1: each rank has tokens of its own");
  says({.dp = 4, .ep = 2}, "expected as much");
  says({.dp = 16, .ep = 16}, "expected at most 8");
  says({.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph}, "expected all_to_all");
  says({.dp = 2, .ep = 2, .num_redundant_experts = 2}, "expected 0");
}

}  // namespace
}  // namespace orrery
