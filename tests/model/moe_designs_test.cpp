// The designs of routed experts: the same rows and weights, different ops around them.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "kernels/kernel_spec.h"
#include "sim/model/model.h"
#include "tests/golden/golden.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"

namespace orrery {
namespace {

constexpr std::array kOwnDesigns{MoeDesign::kPadding, MoeDesign::kSlicing,
                                 MoeDesign::kConcatenation, MoeDesign::kShuffling};

const Op& op_named(const Plan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.ops(), name, &Op::name);
  if (found == plan.ops().end()) throw std::invalid_argument("no op " + std::string(name));
  return *found;
}

std::int64_t dim_of(const Plan& plan, std::string_view op, std::string_view name) {
  return dim(std::get<KernelOp>(op_named(plan, op).body).dims, name);
}

std::int64_t num_kernels(const Plan& plan, std::string_view kernel) {
  return std::ranges::count_if(plan.ops(), [&](const Op& op) {
    const auto* body = std::get_if<KernelOp>(&op.body);
    return body != nullptr && body->kernel == kernel;
  });
}

std::int64_t num_syncs(const Plan& plan) {
  return std::ranges::count_if(plan.ops(), [](const Op& op) {
    const auto* host = std::get_if<HostOp>(&op.body);
    return host != nullptr && host->kind == HostKind::kD2hSync;
  });
}

double flops_of(const Plan& plan, std::string_view kernel) {
  double flops = 0;
  for (const Op& op : plan.ops()) {
    const auto* body = std::get_if<KernelOp>(&op.body);
    if (body != nullptr && body->kernel == kernel) flops += work_of(*body).flops.value();
  }
  return flops;
}

ModelConfig scout() { return testing::shipped_model("meta-llama--Llama-4-Scout-17B-16E-Instruct"); }

TEST(MoeDesigns, OfSmallModelsAreGolden) {
  for (const MoeDesign design : kOwnDesigns) {
    const Plan plan = moe_layer_plan(testing::small_deepseek(), 6, {.moe_design = design});
    verify(plan);
    expect_golden("moe_layer_" + std::string(to_text(design)) + ".plan", to_text(plan));
  }
}

TEST(MoeDesigns, VerifyForEveryShippedMixtureWithoutBiasesAndGates) {
  const Batch batch{.prefill = {{100, 20}}, .num_decodes = 3, .decode_context = 30};
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    const ModelConfig model = model_config(file, testing::config_fields(file));
    if (model.num_experts == 0 || model.moe_bias || model.has_shared_expert_gate) continue;
    for (const MoeDesign design : kOwnDesigns) {
      for (const bool is_fp8 : {false, true}) {
        LoweringOptions options{.moe_design = design, .moe_streams = 2};
        if (is_fp8) options.precision = testing::kFp8Precision;
        const Plan plan = lower(model, batch, options);
        EXPECT_NO_THROW(verify(plan)) << file << " " << to_text(design);
        EXPECT_EQ(num_weight_elements(plan, 0), num_weight_elements(lower(model, batch, {}), 0))
            << file << " " << to_text(design);
      }
    }
  }
}

TEST(PersistentMoe, IsOneKernelOfTheSameWeightsAndFlops) {
  const ModelConfig model = testing::shipped_model("Qwen--Qwen3-30B-A3B");
  const Batch batch{.prefill = {{100, 20}}, .num_decodes = 3, .decode_context = 30};
  const Plan plan = lower(model, batch, {.moe_design = MoeDesign::kPersistent});
  const Plan shuffling = lower(model, batch, {.moe_design = MoeDesign::kShuffling});
  EXPECT_NO_THROW(verify(plan));
  EXPECT_EQ(num_weight_elements(plan, 0), num_weight_elements(shuffling, 0));
  const double flops = flops_of(shuffling, "routing_scores") + flops_of(shuffling, "grouped_gemm");
  EXPECT_NEAR(flops_of(plan, "fused_moe"), flops, 1e-4 * flops);  // softmax is not counted
  EXPECT_EQ(std::ssize(moe_layer_plan(model, 64, {.moe_design = MoeDesign::kPersistent}).ops()), 1);
}

TEST(PersistentMoe, AddsASharedExpertBehindIt) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V2-Lite");
  const Plan plan = moe_layer_plan(model, 64, {.moe_design = MoeDesign::kPersistent});
  EXPECT_NO_THROW(verify(plan));
  EXPECT_EQ(num_kernels(plan, "fused_moe"), 1);
  EXPECT_EQ(num_kernels(plan, "residual_add"), 1);
}

// DeepSeek-V3's experts are chosen by groups and with a correction bias, which is an operand.
TEST(PersistentMoe, ChoosesByGroupsWithACorrectionBias) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V3");
  const Plan plan = moe_layer_plan(model, 64, {.moe_design = MoeDesign::kPersistent});
  EXPECT_NO_THROW(verify(plan));
  const auto layer = std::ranges::find_if(plan.ops(), [](const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel != nullptr && kernel->kernel == "fused_moe";
  });
  ASSERT_NE(layer, plan.ops().end());
  const Tensor& bias = plan.tensors()[static_cast<std::size_t>(layer->reads.back().tensor)];
  EXPECT_EQ(bias.dtype, DType::kFp32);
  EXPECT_EQ(num_elements(bias), 256);
}

// Of fp8 the shared expert reads rows that are quantised, the kernel those that are not.
TEST(PersistentMoe, QuantisesForASharedExpertAlone) {
  const ModelConfig model = testing::shipped_model("deepseek-ai--DeepSeek-V2-Lite");
  const Plan plan = moe_layer_plan(
      model, 64, {.precision = testing::kFp8Precision, .moe_design = MoeDesign::kPersistent});
  EXPECT_NO_THROW(verify(plan));
  for (const Op& op : plan.ops()) {
    const DType x = plan.tensors()[static_cast<std::size_t>(op.reads.front().tensor)].dtype;
    if (op.name == "shared.gate_up_proj") {
      EXPECT_EQ(x, DType::kFp8);
    } else if (op.name == "experts") {
      EXPECT_EQ(x, DType::kBf16);
    }
  }
}

TEST(PersistentMoe, MultipliesFp8) {
  const ModelConfig model = testing::shipped_model("Qwen--Qwen3-30B-A3B");
  const Plan plan = moe_layer_plan(
      model, 64, {.precision = testing::kFp8Precision, .moe_design = MoeDesign::kPersistent});
  EXPECT_NO_THROW(verify(plan));
  EXPECT_EQ(num_kernels(plan, "fused_moe"), 1);
}

TEST(PersistentMoe, RefusesWhatItsKernelDoesNotTakeAndSaysWhatWould) {
  const auto says = [](const ModelConfig& model, LoweringOptions options, std::string_view words) {
    options.moe_design = MoeDesign::kPersistent;
    try {
      check_moe_design(model, options);
      ADD_FAILURE() << "nothing thrown, expected " << words;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
    }
  };
  const ModelConfig qwen = testing::shipped_model("Qwen--Qwen3-30B-A3B");
  LoweringOptions blocks{.precision = testing::kFp8Precision};
  blocks.precision.expert_weights = DType::kFp8Block;
  says(qwen, blocks, "expected bf16 or fp8 (scales by row)");
  says(qwen, {.precision = {.weights = DType::kFp8}}, "activations bf16, expected fp8");
  says(qwen, {.moe_streams = 2}, "expected streams 1");
  says(scout(), {}, "weigh what they read");
  ModelConfig biased = qwen;
  biased.router_bias = true;
  says(biased, {}, "has a bias");
}

// Llama-4 Maverick as published: FP8 in its routed experts, whose inputs their own kernels
// quantise.
TEST(MoeDesigns, ExpertsOfFp8BesideBf16QuantiseTheirRowsAndNoOthers) {
  using enum MoeDesign;
  for (const MoeDesign design : {kFused, kShuffling, kPadding, kSlicing, kConcatenation}) {
    LoweringOptions options{.moe_design = design};
    options.precision.expert_weights = DType::kFp8;
    const Plan plan = moe_layer_plan(scout(), 64, options);
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr) continue;
      const std::string name = printed_name(op);
      const bool multiplies = name.starts_with("experts") || name.starts_with("gather");
      EXPECT_EQ(kernel->dtype == DType::kFp8, multiplies) << to_text(design) << " " << name;
    }
  }
  const auto num_bytes = [](std::optional<DType> experts) {
    LoweringOptions options{.moe_design = kPersistent};
    options.precision.expert_weights = experts;
    const Plan plan = moe_layer_plan(testing::shipped_model("Qwen--Qwen3-30B-A3B"), 64, options);
    double bytes = 0;
    for (const Tensor& tensor : plan.tensors()) {
      if (tensor.role == TensorRole::kWeight) bytes += bytes_of(tensor).value();
    }
    return bytes;
  };
  const double router = 128.0 * 2048 * 2;
  EXPECT_NEAR(num_bytes(DType::kFp8) - router, (num_bytes({}) - router) / 2, 0.01 * num_bytes({}));
}

// Each expert has room for all 64 tokens, where top-1 gives them 64 rows together.
TEST(MoeDesigns, ComputeTheSameFlopsButForPadding) {
  const auto flops = [](MoeDesign design, std::string_view kernel) {
    return flops_of(moe_layer_plan(scout(), 64, {.moe_design = design}), kernel);
  };
  const double needed = 2.0 * 3 * 64 * 5120 * 8192;
  EXPECT_EQ(flops(MoeDesign::kShuffling, "grouped_gemm"), needed);
  EXPECT_EQ(flops(MoeDesign::kConcatenation, "grouped_gemm"), needed);
  EXPECT_EQ(flops(MoeDesign::kSlicing, "expert_gemm"), needed);
  EXPECT_EQ(flops(MoeDesign::kPadding, "batched_gemm"), 16 * needed);
}

TEST(MoeDesigns, DifferInLaunchesAndSyncs) {
  struct Expected {
    MoeDesign design;
    std::int64_t launches;  // 3 of the shared expert, router, shuffle; then as below
    std::int64_t syncs;
  };
  for (const Expected& expected :
       {Expected{MoeDesign::kShuffling, 5 + 5, 0}, Expected{MoeDesign::kPadding, 5 + 5, 0},
        Expected{MoeDesign::kSlicing, 5 + 3 + 2 * 16, 1},
        Expected{MoeDesign::kConcatenation, 5 + 4 + 16, 1}}) {
    const Plan plan = moe_layer_plan(scout(), 64, {.moe_design = expected.design});
    EXPECT_EQ(num_syncs(plan), expected.syncs) << to_text(expected.design);
    EXPECT_EQ(std::ssize(plan.ops()) - expected.syncs, expected.launches)
        << to_text(expected.design);
  }
}

// The host must have read the counts before it launches an expert. Beside a second stream the
// shared expert is launched first and runs meanwhile; on one stream the sync would wait for it.
TEST(MoeDesigns, SyncBeforeTheFirstSliceAndNotAfterTheSharedExpertOfItsStream) {
  for (const int streams : {1, 2}) {
    const Plan plan = moe_layer_plan(
        scout(), 64, {.moe_design = MoeDesign::kConcatenation, .moe_streams = streams});
    const auto position = [&](std::string_view name) {
      return &op_named(plan, name) - &plan.ops()[0];
    };
    EXPECT_LT(position("sync"), position("gather.0"));
    EXPECT_EQ(position("shared.gate_up_proj") < position("sync"), streams == 2);
  }
}

TEST(MoeDesigns, OneTokenReadsItsExpertsAlone) {
  const ModelConfig model = testing::shipped_model("Qwen--Qwen3-30B-A3B");
  const Plan plan = moe_layer_plan(model, 1, {.moe_design = MoeDesign::kShuffling});
  EXPECT_EQ(dim_of(plan, "experts.gate_up", "rows"), 8);
  EXPECT_EQ(dim_of(plan, "experts.gate_up", "active"), 8);
  // 16 (1 - (15/16)^8) = 6.45
  EXPECT_EQ(dim_of(moe_layer_plan(scout(), 8, {.moe_design = MoeDesign::kShuffling}),
                   "experts.down", "active"),
            6);
}

TEST(MoeDesigns, SlicesHoldAllRowsOfTheActiveExperts) {
  for (const std::int64_t tokens : {1, 7, 64, 1000}) {
    const Plan plan = moe_layer_plan(scout(), tokens, {.moe_design = MoeDesign::kSlicing});
    std::int64_t rows = 0;
    std::int64_t active = 0;
    for (int e = 0; e < 16; ++e) {
      const std::int64_t m = dim_of(plan, "experts.down." + std::to_string(e), "m");
      rows += m;
      active += m > 0 ? 1 : 0;
    }
    EXPECT_EQ(rows, tokens);
    const Plan grouped = moe_layer_plan(scout(), tokens, {.moe_design = MoeDesign::kShuffling});
    EXPECT_EQ(active, dim_of(grouped, "experts.down", "active"));
  }
}

TEST(MoeDesigns, WeightsMultiplyWhatLlama4ReadsAndWhatOthersWrite) {
  const auto reads = [](const ModelConfig& model, std::string_view op) {
    const Plan plan = moe_layer_plan(model, 4, {.moe_design = MoeDesign::kShuffling});
    return std::ranges::any_of(op_named(plan, op).reads, [&](TensorId id) {
      return plan.tensors()[static_cast<std::size_t>(id)].name == "shuffle.row_weight";
    });
  };
  EXPECT_TRUE(reads(scout(), "gather"));
  EXPECT_FALSE(reads(scout(), "scatter"));
  EXPECT_FALSE(reads(testing::small_deepseek(), "gather"));
  EXPECT_TRUE(reads(testing::small_deepseek(), "scatter"));
}

TEST(MoeDesigns, TheSharedExpertRunsOnTheSecondStream) {
  const Plan plan =
      moe_layer_plan(scout(), 64, {.moe_design = MoeDesign::kShuffling, .moe_streams = 2});
  for (const Op& op : plan.ops()) EXPECT_EQ(op.stream, op.name.starts_with("shared.") ? 1 : 0);
}

TEST(MoeDesigns, AFusedScatterAddsToTheSharedExpertsResultInPlace) {
  const Plan plan =
      moe_layer_plan(scout(), 64, {.moe_design = MoeDesign::kShuffling, .fuse_scatter_add = true});
  verify(plan);
  EXPECT_EQ(num_kernels(plan, "scatter_add"), 0);
  const Op& down = op_named(plan, "experts.down");
  EXPECT_EQ(down.writes, op_named(plan, "shared.down_proj").writes);
  EXPECT_EQ(down.reads.back(), down.writes.front());
}

// K T rows of hidden columns are neither written nor room held for them; the op has all that the
// two had, in which order and beside whatever else there is.
TEST(MoeDesigns, AFusedGatherReadsTokensRowsAndWritesNone) {
  for (const ModelConfig& model : {scout(), testing::small_deepseek()}) {
    const LoweringOptions apart{.moe_design = MoeDesign::kShuffling};
    LoweringOptions fused = apart;
    fused.fuse_gather = true;
    const Plan plan = moe_layer_plan(model, 64, fused);
    verify(plan);
    EXPECT_EQ(num_kernels(plan, "gather_mul"), 0);
    const Op& gate_up = op_named(plan, "experts.gate_up");
    const auto& kernel = std::get<KernelOp>(gate_up.body);
    EXPECT_EQ(kernel.kernel, "grouped_gemm_gather");
    EXPECT_EQ(dim(kernel.dims, "tokens"), 64);
    const Plan other = moe_layer_plan(model, 64, apart);
    const Op& gather = op_named(other, "gather");
    EXPECT_EQ(gate_up.reads.front(), gather.reads.front());
    EXPECT_EQ(gate_up.reads.size(), gather.reads.size() + 1);  // w more; one of two counts
    EXPECT_EQ(work_of(kernel).flops,
              work_of(std::get<KernelOp>(op_named(other, "experts.gate_up").body)).flops);
    EXPECT_EQ(plan.tensors().size() + 1, other.tensors().size());
  }
}

// The scatter adds to what the shared expert has written; the gather waits for nothing of it.
TEST(MoeDesigns, BothFusionsTogetherLeaveTheSharedExpertBesideTheGather) {
  const Plan plan = moe_layer_plan(scout(), 64,
                                   {.moe_design = MoeDesign::kShuffling,
                                    .moe_streams = 2,
                                    .fuse_scatter_add = true,
                                    .fuse_gather = true});
  verify(plan);
  const TensorId shared = op_named(plan, "shared.down_proj").writes.front().tensor;
  const auto reads = [&](std::string_view name) {
    const TensorViews& all = op_named(plan, name).reads;
    return std::ranges::find(all, shared, &TensorView::tensor) != all.end();
  };
  EXPECT_FALSE(reads("experts.gate_up"));
  EXPECT_TRUE(reads("experts.down"));
}

TEST(MoeDesigns, Fp8RowsAreQuantisedWhereTheyAreGatheredAndMultiplied) {
  const Plan plan = moe_layer_plan(
      scout(), 64, {.precision = testing::kFp8Precision, .moe_design = MoeDesign::kShuffling});
  EXPECT_EQ(num_kernels(plan, "quantize"), 1);  // of the shared expert
  for (const std::string_view name : {"gather", "experts.gate_up", "experts.act", "experts.down"}) {
    EXPECT_EQ(std::get<KernelOp>(op_named(plan, name).body).dtype, DType::kFp8) << name;
  }
}

TEST(MoeDesigns, ImposedScoresAreReadInPlaceOfTheRouters) {
  const Plan plan =
      moe_layer_plan(scout(), 64, {.moe_design = MoeDesign::kShuffling}, /*imposes_scores=*/true);
  const Op& shuffle = op_named(plan, "shuffle");
  const Tensor& scores = plan.tensors()[static_cast<std::size_t>(shuffle.reads.front())];
  EXPECT_EQ(scores.name, "imposed_scores");
  EXPECT_EQ(scores.role, TensorRole::kInput);
  EXPECT_EQ(num_kernels(plan, "routing_scores"), 1);
}

void expect_refused(const ModelConfig& model, const LoweringOptions& options,
                    std::string_view part) {
  try {
    (void)moe_layer_plan(model, 4, options);
    ADD_FAILURE() << "accepted, expected an error with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

TEST(MoeDesigns, ContradictoryOptionsAreErrorsThatSayWhatWorks) {
  const MoeDesign shuffling = MoeDesign::kShuffling;
  expect_refused(scout(), {.moe_design = shuffling, .moe_streams = 3}, "expected 1 or 2");
  expect_refused(scout(), {.moe_streams = 2}, "or another design");
  expect_refused(scout(), {.moe_design = MoeDesign::kPadding, .fuse_scatter_add = true},
                 "expected design shuffling or concatenation");
  expect_refused(testing::shipped_model("Qwen--Qwen3-30B-A3B"),
                 {.moe_design = shuffling, .fuse_scatter_add = true}, "shared expert");
  for (const MoeDesign design :
       {MoeDesign::kPadding, MoeDesign::kSlicing, MoeDesign::kConcatenation}) {
    expect_refused(scout(), {.moe_design = design, .fuse_gather = true},
                   "expected design shuffling, or no fuse_gather");
  }
  for (const MoeDesign design : {MoeDesign::kFused, MoeDesign::kPersistent}) {
    expect_refused(scout(), {.moe_design = design, .fuse_gather = true}, "no fuse_gather, or");
  }
  expect_refused(
      scout(), {.precision = testing::kFp8Precision, .moe_design = shuffling, .fuse_gather = true},
      "expected expert weights bf16, or no fuse_gather");
  expect_refused(testing::shipped_model("openai--gpt-oss-20b"), {.moe_design = shuffling},
                 "have biases");
  expect_refused(testing::small_llama(), {.moe_design = shuffling}, "no routed experts");
  Precision block = testing::kFp8Precision;
  block.weights = block.activations = DType::kFp8Block;
  expect_refused(scout(), {.precision = block, .moe_design = shuffling}, "fp8_block");
  expect_refused(scout(), {.precision = {.weights = DType::kFp8}, .moe_design = shuffling},
                 "activations bf16, expected fp8");
  EXPECT_THROW((void)moe_layer_plan(scout(), 0, {.moe_design = shuffling}), std::invalid_argument);
  EXPECT_THROW((void)moe_layer_plan(scout(), 4, {}, true), std::invalid_argument);
  EXPECT_THROW((void)parse_moe_design("shufling"), std::invalid_argument);
}

TEST(MoeDesigns, ComeBackFromTheirNames) {
  for (const MoeDesign design : kOwnDesigns) EXPECT_EQ(parse_moe_design(to_text(design)), design);
}

}  // namespace
}  // namespace orrery
