// Rows that pad data-parallel ranks, and captured graphs: every other kernel computes them, experts
// take none.

#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/kernel_spec.h"
#include "sim/model/expert_load_sources.h"
#include "sim/parallel/halves.h"
#include "sim/parallel/rank_rows.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::op_named;

constexpr LoweringOptions kOwnOps{.moe_design = MoeDesign::kShuffling};
constexpr std::int64_t kFullest = 1500;
constexpr std::int64_t kTokensOfAll = 1500 + 200 + 700 + 90;

Batch prompts(std::int64_t b, std::int64_t c, std::int64_t d) {
  return {.prefill = {{kFullest, 0}, {b, 0}, {c, 0}, {d, 0}}};
}
Plan plan_of(const Batch& batch, ExpertComm comm) {
  Plan plan = executed_plan(testing::small_deepseek(), batch, kOwnOps,
                            {.dp = 4, .ep = 4, .expert_comm = comm});
  verify(plan);
  return plan;
}
// Of the experts on rank 0, layers repeated.
double experts_flops(const Plan& plan) {
  double flops = 0;
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const auto* kernel = std::get_if<KernelOp>(&plan.ops()[i].body);
    if (kernel == nullptr || kernel->kernel != "grouped_gemm") continue;
    if (!plan.contains(plan.ops()[i].ranks, 0)) continue;
    flops += work_of(*kernel).flops.value() *
             static_cast<double>(plan.multiplicity(static_cast<OpId>(i)));
  }
  return flops;
}

TEST(Padding, OfUnlikeRanksGoesToNoExpert) {
  for (const ExpertComm comm : {ExpertComm::kGraph, ExpertComm::kEager, ExpertComm::kTokens}) {
    const Plan full = plan_of(prompts(kFullest, kFullest, kFullest), comm);
    const Plan unlike = plan_of(prompts(200, 700, 90), comm);
    // The fullest of the ranks that hold experts has more of few rows than of many.
    EXPECT_NEAR(experts_flops(unlike) / experts_flops(full),
                static_cast<double>(kTokensOfAll) / (4 * kFullest), 0.03);
    const auto& router = std::get<KernelOp>(op_named(unlike, "layers.1.router").body);
    EXPECT_EQ(dim(router.dims, "tokens"), kFullest);
  }
}

TEST(Padding, TravelsWhereRowsAreGatheredAndNotWhereTheyAreSent) {
  const auto sent = [](const Plan& plan, CollectiveKind kind) {
    return testing::bytes_on_rank_0(plan, kind);
  };
  const Batch full = prompts(kFullest, kFullest, kFullest);
  const Batch unlike = prompts(200, 700, 90);
  EXPECT_EQ(sent(plan_of(unlike, ExpertComm::kTokens), CollectiveKind::kAllGather),
            sent(plan_of(full, ExpertComm::kTokens), CollectiveKind::kAllGather));
  const double ratio = sent(plan_of(unlike, ExpertComm::kEager), CollectiveKind::kAllToAll) /
                       sent(plan_of(full, ExpertComm::kEager), CollectiveKind::kAllToAll);
  EXPECT_NEAR(ratio, static_cast<double>(kTokensOfAll) / (4 * kFullest), 0.01);
}

TEST(Padding, OfRanksThatAreAlikeIsNone) {
  const Plan plan =
      plan_of({.prefill = {{600, 0}, {600, 0}, {600, 0}, {600, 0}}}, ExpertComm::kGraph);
  const auto& rows = std::get<KernelOp>(op_named(plan, "layers.1.gather").body);
  const auto topk = testing::small_deepseek().num_experts_per_tok;
  EXPECT_EQ(dim(rows.dims, "rows"), 600 * topk);
}

// Ranks of as many tokens, one of which has them in a long prompt: the others wait for it.
TEST(Padding, AttentionIsThatOfTheRankThatTakesLongest) {
  const auto attention = [](const std::vector<PrefillChunk>& chunks) {
    const Plan plan = executed_plan(testing::small_llama(), {.prefill = chunks}, {}, {.dp = 2});
    verify(plan);
    return std::get<KernelOp>(op_named(plan, "layers.0.attn_prefill").body).dims;
  };
  const std::vector<PrefillChunk> long_one = {{4000, 0}, {32, 0}, {32, 0}, {32, 0}};
  const std::vector<PrefillChunk> even = {{1024, 0}, {1024, 0}, {1024, 0}, {1024, 0}};
  const auto both = [](std::vector<PrefillChunk> first, const std::vector<PrefillChunk>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const Dims slowest = attention(both(long_one, long_one));
  for (const auto& chunks : {both(long_one, even), both(even, long_one)}) {
    const Dims found = attention(chunks);
    EXPECT_EQ(dim(found, "batch"), 1);
    EXPECT_EQ(dim(found, "query"), 4096);
    EXPECT_EQ(dim(found, "context"), dim(slowest, "context"));
  }
  EXPECT_EQ(dim(attention(both(even, even)), "batch"), 4);
}

// Executors know what pads of the rows of a rank alone.
TEST(Padding, IsRoutedWhereRoutersSeeOtherRows) {
  const auto padding = [](const Mesh& mesh) {
    StepShape shape = dealt_shape({.num_decodes = 64, .decode_context = 64'000}, mesh);
    set_padding(shape, mesh, 16);
    return shape.padding;
  };
  EXPECT_EQ(padding({.dp = 4, .ep = 4}), 48);
  EXPECT_EQ(padding({.dp = 4, .ep = 4, .dp_rows = DpRows::kBalanced}), 0);
  EXPECT_EQ(padding({.cp = 2}), 0);
  EXPECT_EQ(padding({.dp = 2, .ffn_instances = 1}), 0);
  EXPECT_EQ(padding({.tp = 2, .sp = true, .moe_gather = MoeGather::kRouted}), 0);
}

// One token of a thousand rows on four ranks whose experts are chosen unevenly: ops of ranks that
// none of it reaches are of a row all the same.
TEST(Padding, LeavesARowToEachOpOfExperts) {
  Mesh mesh{.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager};
  mesh.expert_load = zipf_load(16, 2, 1);
  LoweringOptions options = kOwnOps;
  options.expert_load = mesh.expert_load;
  StepShape shape = dealt_shape({.num_decodes = 1000, .decode_context = 1'000'000}, mesh);
  set_padding(shape, mesh, 1);
  EXPECT_EQ(shape.padding, 999);
  const Plan plan = step_plan(testing::small_deepseek(), shape, options, mesh);
  verify(plan);
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    for (const Dim& entry : kernel->dims) {
      if (entry.name != "rows" && entry.name != "active") continue;
      EXPECT_GE(entry.size, 1) << op.name;
    }
  }
}

// The step of 9 decodes beside 7 rows that pad its graph chooses as the one of 9 does.
TEST(Padding, OfACapturedGraphChoosesNoExpert) {
  const ModelConfig model = testing::small_deepseek();
  const Batch nine{.num_decodes = 9, .decode_context = 9000};
  StepShape shape = dealt_shape(nine, {});
  EXPECT_EQ(shape.padding, 0);
  shape.tokens = shape.seqs = shape.decode_rows = 16;
  set_padding(shape, {}, 9);
  EXPECT_EQ(shape.padding, 7);
  const auto experts = [](const Plan& plan) {
    return std::get<KernelOp>(op_named(plan, "layers.1.experts.down").body).dims;
  };
  const Plan padded = lower(model, shape, kOwnOps);
  const Plan exact = lower(model, nine, kOwnOps);
  EXPECT_EQ(dim(experts(padded), "rows"), dim(experts(exact), "rows"));
  EXPECT_EQ(dim(experts(padded), "active"), dim(experts(exact), "active"));
  const auto& router = std::get<KernelOp>(op_named(padded, "layers.1.router").body);
  EXPECT_EQ(dim(router.dims, "tokens"), 16);
}

}  // namespace
}  // namespace orrery
