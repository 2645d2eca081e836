// What passes say of the parts that ranks have, and that `verify` finds passes that say it wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/parallel/parallel.h"
#include "sim/parallel/rewrite.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::kDecode;
using testing::tensor_named;

Plan lowered(const ModelConfig& model, const LoweringOptions& options = {}) {
  return lower(model, kDecode, options);
}

// Every axis of a weight or cache that passes split is as long as in the plan of one rank.
void expect_wholes(const Plan& single, const Plan& plan) {
  for (const Tensor& tensor : plan.tensors()) {
    if (tensor.role != TensorRole::kWeight && !is_cache(tensor.role)) continue;
    const Tensor& whole = tensor_named(single, tensor.name);
    for (std::size_t i = 0; i < whole.axes.size(); ++i) {
      EXPECT_EQ(plan.whole_size(tensor.axes[i]), whole.axes[i].size)
          << printed_name(tensor) << " " << whole.axes[i].name;
    }
  }
}

TEST(Shards, OfEveryMeshAreVerifiedAndOfTheWholePlan) {
  const Plan llama = lowered(testing::small_llama());
  for (const Mesh& mesh : std::vector<Mesh>{{.tp = 4},
                                            {.dp = 4},
                                            {.tp = 2, .sp = true},
                                            {.pp = 2, .num_micro_batches = 4},
                                            {.dp = 2, .tp = 2, .pp = 2, .num_micro_batches = 2}}) {
    const Plan plan = parallelize(llama, mesh);
    EXPECT_NO_THROW(verify(plan));
    expect_wholes(llama, plan);
  }
  for (const MoeDesign design : {MoeDesign::kFused, MoeDesign::kShuffling}) {
    const Plan deepseek = lowered(testing::small_deepseek(), {.moe_design = design});
    const bool is_fused = design == MoeDesign::kFused;
    const ExpertComm comm = is_fused ? ExpertComm::kAllGather : ExpertComm::kEager;
    for (const Mesh& mesh : std::vector<Mesh>{{.tp = 4},
                                              {.tp = 4, .ep = 2},
                                              {.dp = 2, .tp = 2, .ep = 2, .expert_comm = comm},
                                              {.dp = 2, .tp = 2, .ep = 4, .expert_comm = comm}}) {
      const Plan plan = parallelize(deepseek, mesh);
      EXPECT_NO_THROW(verify(plan));
      expect_wholes(deepseek, plan);
    }
  }
}

// 64 sequences over dp 2 and 4 micro-batches: 8 each, those of a rank one behind the other.
TEST(Shards, SayWhichSequencesAndCachedTokensARankHas) {
  const Plan plan =
      parallelize(lowered(testing::small_llama()), {.dp = 2, .pp = 2, .num_micro_batches = 4});
  const auto logits = std::ranges::find_if(plan.tensors(), [](const Tensor& tensor) {
    return tensor.name == "logits" && tensor.micro_batch == 3;
  });
  ASSERT_NE(logits, plan.tensors().end());
  const std::vector<AxisRange> sequences = plan.ranges_of(logits->axes[0], 3, 3);
  EXPECT_EQ(sequences, (std::vector<AxisRange>{{.local = 0, .global = 56, .count = 8}}));
  const Tensor& kv = tensor_named(plan, "layers.0.kv_new");
  EXPECT_EQ(plan.whole_size(kv.axes[0]), 64);
  EXPECT_EQ(plan.ranges_of(kv.axes[0], 1, 0),
            (std::vector<AxisRange>{{.local = 0, .global = 32, .count = 8}}));
}

// 4 layers on 2 stages: the second has the copies from 2 on.
TEST(Shards, OfAStageSayWhichLayersItHas) {
  const Plan plan = parallelize(lowered(testing::small_llama()), {.pp = 2});
  for (const Tensor& tensor : plan.tensors()) {
    if (tensor.role != TensorRole::kWeight) continue;
    const bool is_of_layers = tensor.name.starts_with("layers.");
    EXPECT_EQ(tensor.first_copy, is_of_layers && tensor.stage == 1 ? 2 : 0) << tensor.name;
  }
}

// A pass that cuts tensors as `change` does, over two ranks in place of each.
Plan cut(const Plan& source, const std::function<void(Rewrite&, Axis&)>& change) {
  Rewrite rewrite(source, 2);
  std::int64_t ways = 1;  // in which dims of kernels are cut as well
  rewrite.copy_tensors([&](Tensor& tensor) {
    for (Axis& axis : tensor.axes) {
      if (axis.name != axis::kFfn) continue;
      const std::int64_t size = axis.size;
      change(rewrite, axis);
      ways = std::max(ways, size / axis.size);
    }
  });
  for (OpId id = 0; id < static_cast<OpId>(source.ops().size()); ++id) {
    rewrite.begin(id);
    Op op = source.ops()[static_cast<std::size_t>(id)];
    if (auto* kernel = std::get_if<KernelOp>(&op.body)) {
      for (Dim& dim : kernel->dims) {
        if (dim.axis == axis::kFfn) dim.size /= ways;
      }
    }
    rewrite.copy(id, std::move(op));
  }
  return rewrite.finish();
}

void expect_found(const Plan& plan, const std::string& part) {
  try {
    verify(plan);
    FAIL() << "verified, expected an error with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Shards, OfAPassThatIsRightAreVerified) {
  EXPECT_NO_THROW(verify(cut(lowered(testing::small_llama()), [](Rewrite& rewrite, Axis& axis) {
    axis = rewrite.divided(axis, Place().add({.ways = 2, .stride = 1}));
  })));
}

TEST(Shards, OfAPassThatGivesBothRanksTheSameHalfAreFound) {
  expect_found(cut(lowered(testing::small_llama()),
                   [](Rewrite& rewrite, Axis& axis) {
                     axis = rewrite.divided(axis, Place().add({.ways = 2, .stride = 2}));
                   }),
               "no rank has");
}

TEST(Shards, OfAPassThatCutsSizesOnlyAreFound) {
  // Gate and up are known as two parts before any pass.
  expect_found(cut(lowered(testing::small_llama()), [](Rewrite&, Axis& axis) { axis.size /= 2; }),
               "on each rank, expected");
}

TEST(Shards, OfAPassThatGivesMoreThanTheWholeAreFound) {
  expect_found(cut(lowered(testing::small_llama()),
                   [](Rewrite& rewrite, Axis& axis) {
                     axis = rewrite.divided(axis, Place().add({.ways = 2, .stride = 1}));
                     axis.size *= 2;
                   }),
               "on each rank, expected");
}

// The weight of gate and up over pairs of ranks, all else over neighbours.
TEST(Shards, OfAPassThatCutsWeightsAndActivationsInTwoWaysAreFound) {
  const Plan once = cut(lowered(testing::small_llama()), [](Rewrite&, Axis&) {});
  int num_cut = 0;
  expect_found(cut(once,
                   [&](Rewrite& rewrite, Axis& axis) {
                     const std::int32_t stride = num_cut++ == 0 ? 2 : 1;
                     axis = rewrite.divided(axis, Place().add({.ways = 2, .stride = stride}));
                   }),
               "split over ranks in two ways");
}

// What a rank of tensor parallelism computes of the delta rule and keeps of states is its part of
// the value heads; the shared expert's gate acts before parts of it are summed up.
TEST(Shards, HeadsOfTheDeltaRuleAreDividedLikeHeads) {
  const ModelConfig model = testing::shipped_model("Qwen--Qwen3.5-397B-A17B");
  const Mesh mesh{.tp = 8};
  const Batch decode{.prefill = {}, .num_decodes = 64, .decode_context = 64'000};
  const Batch mixed{
      .prefill = {{.query = 512, .context = 512}}, .num_decodes = 32, .decode_context = 22'400};
  for (const Batch& batch : {decode, mixed}) {
    const Plan whole = lower(model, batch, {});
    const Plan split = parallelize(whole, mesh);
    EXPECT_NO_THROW(verify(split));
    EXPECT_EQ(memory_of(split, 3).states.value() * 8, memory_of(whole, 0).states.value());
    int num_reduced = 0;
    for (const Op& op : split.ops()) {
      num_reduced += std::holds_alternative<CommOp>(op.body) && op.name.starts_with("layers.0.");
    }
    EXPECT_EQ(num_reduced,
              2);  // behind the out projection, and of routed and shared experts at once
  }
}

// Three layers with keys and values, and one that keeps 10,000 bytes: over tp 2 half of them on
// each rank, on two stages all on the ranks of the second.
TEST(Shards, StatesCountPerSequenceAndNotPerToken) {
  ModelConfig model = testing::small_llama();
  const double kv_of_all = kv_bytes(model, DType::kBf16, 100).value();
  model.layers[2].state_bytes = 10'000;
  EXPECT_EQ(kv_bytes(model, DType::kBf16, 100).value(), kv_of_all * 3 / 4);
  EXPECT_EQ(state_bytes(model).value(), 10'000);
  EXPECT_EQ(state_bytes_per_rank(model, {}).value(), 10'000);
  EXPECT_EQ(state_bytes_per_rank(model, {.tp = 2}).value(), 5'000);
  EXPECT_EQ(state_bytes_per_rank(model, {.pp = 2}).value(), 10'000);
}

}  // namespace
}  // namespace orrery
