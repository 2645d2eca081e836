// Expert parallelism of design shuffling: what is sent, computed and allocated where.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/model/expert_load_sources.h"
#include "sim/parallel/parallel.h"
#include "tests/golden/golden.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::op_named;
using testing::tensor_named;

constexpr LoweringOptions shuffling(int streams) {
  return {.moe_design = MoeDesign::kShuffling, .moe_streams = streams};
}

// A layer of the small model: 16 experts, top-4, a shared expert; `tokens` on all ranks together.
Plan layer(std::int64_t tokens, const Mesh& mesh) {
  Plan plan = parallelize(moe_layer_plan(testing::small_deepseek(), tokens, shuffling(2)), mesh);
  verify(plan);
  return plan;
}

std::ptrdiff_t place_of(const Plan& plan, std::string_view name) {
  return &op_named(plan, name) - plan.ops().data();
}
std::vector<std::int64_t> sizes_of(const Plan& plan, std::string_view tensor) {
  std::vector<std::int64_t> sizes;
  for (const Axis& entry : tensor_named(plan, tensor).axes) sizes.push_back(entry.size);
  return sizes;
}
double sent_by(const Plan& plan, std::string_view op) {
  return std::get<CommOp>(op_named(plan, op).body).bytes_per_rank.value();
}

std::int64_t num_syncs(const Plan& plan) {
  return std::ranges::count_if(plan.ops(), [](const Op& op) {
    const auto* host = std::get_if<HostOp>(&op.body);
    return host != nullptr && host->kind == HostKind::kD2hSync;
  });
}

// Of a dim of all ops of a kernel, summed over ranks.
std::int64_t total(const Plan& plan, std::string_view kernel, std::string_view name) {
  std::int64_t sum = 0;
  for (const Op& op : plan.ops()) {
    const auto* body = std::get_if<KernelOp>(&op.body);
    if (body == nullptr || body->kernel != kernel) continue;
    sum += dim(body->dims, name) * std::ssize(plan.ranks(op.ranks));
  }
  return sum;
}

std::string error_of(const Mesh& mesh, const LoweringOptions& options = shuffling(1)) {
  try {
    (void)parallelize(moe_layer_plan(testing::small_deepseek(), 8, options), mesh);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertFlows, OfASmallLayerAreGolden) {
  const auto check = [](const std::string& name, const Mesh& mesh) {
    expect_golden("moe_layer_" + name + ".plan", to_text(layer(6, mesh)));
  };
  check("ep2_eager", {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager});
  check("ep2_graph", {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph});
  check("dp2_tp2_ep4_eager", {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kEager});
  check("dp2_tp2_dedup", {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kDedup});
  check("dp2_tp2_dedup_graph", {.dp = 2, .tp = 2, .ep = 2, .expert_comm = ExpertComm::kDedupGraph});
}

TEST(ExpertFlows, EagerWaitsForTheDeviceOncePerLayerAndGraphNever) {
  EXPECT_EQ(num_syncs(layer(64, {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager})), 1);
  EXPECT_EQ(num_syncs(layer(64, {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kGraph})), 0);
}

// Part 1 is launched before the host waits and after routing, part 2 beside the way back.
TEST(ExpertFlows, TheSharedExpertSpansTheSyncAndTheReturn) {
  const Plan plan = layer(64, {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager});
  EXPECT_LT(place_of(plan, "shared.gate_up_proj"), place_of(plan, "sync"));
  EXPECT_LT(place_of(plan, "shared.silu_mul"), place_of(plan, "sync"));
  EXPECT_GT(place_of(plan, "shared.down_proj"), place_of(plan, "split"));
  const auto shuffle = static_cast<OpId>(place_of(plan, "shuffle"));
  const auto split = static_cast<OpId>(place_of(plan, "split"));
  EXPECT_EQ(op_named(plan, "shared.gate_up_proj").after, std::vector<OpId>{shuffle});
  EXPECT_EQ(op_named(plan, "shared.down_proj").after, std::vector<OpId>{split});
}

TEST(ExpertFlows, AllRowsAreComputedOnceHoweverTheyAreSpread) {
  const Plan whole = moe_layer_plan(testing::small_deepseek(), 64, shuffling(1));
  for (const ExpertLoad& load : {ExpertLoad{}, zipf_load(16, 1.0, 7)}) {
    for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph}) {
      for (const int ep : {2, 4, 8}) {
        const Mesh mesh{.dp = ep, .ep = ep, .expert_comm = comm, .expert_load = load};
        const Plan plan = layer(64, mesh);
        // Rounded on each rank, and two grouped gemms; of even choices each rank has the rows of
        // the fullest.
        const std::int64_t lost =
            total(plan, "grouped_gemm", "rows") - total(whole, "grouped_gemm", "rows");
        if (load.shares.empty()) {
          EXPECT_GT(lost, ep);
        } else {
          EXPECT_LE(std::abs(lost), ep);
        }
        EXPECT_EQ(total(plan, "gather_mul", "rows"), 64 * 4);
        EXPECT_EQ(total(plan, "scatter_add", "rows"), 64 * 4);
      }
    }
  }
}

struct Computed {
  std::int64_t rows = 0;
  std::int64_t active = 0;
};
Computed computed_by(std::int64_t tokens, int ep) {
  const Plan plan = layer(tokens, {.dp = ep, .ep = ep, .expert_comm = ExpertComm::kGraph});
  const Dims& dims = std::get<KernelOp>(op_named(plan, "experts.gate_up").body).dims;
  return {.rows = dim(dims, "rows"), .active = dim(dims, "active")};
}

// The larger of two standard normals is 1 / sqrt(pi) on average.
//   64 tokens: rows 128 + sqrt(64 * 4 / 2 * 12 / 15) / sqrt(pi) = 133.7; all 8 experts
//    4 tokens: rows 8 + sqrt(4 * 4 / 2 * 12 / 15) / sqrt(pi) = 9.4; experts with none 0.75^4 =
//    0.316,
//              two of them (12 / 16 * 11 / 15)^4 = 0.0915: 8 * 0.684 + sqrt(8 * 0.225 / pi) = 6.2
TEST(ExpertFlows, OfEvenChoicesTheFullestOfTwoRanksIsWaitedFor) {
  EXPECT_EQ(computed_by(64, 2).rows, 134);
  EXPECT_EQ(computed_by(64, 2).active, 8);
  EXPECT_EQ(computed_by(4, 2).rows, 9);
  EXPECT_EQ(computed_by(4, 2).active, 6);
}

TEST(ExpertFlows, TheFullestRankHasWhatDrawnChoicesGiveIt) {
  constexpr int kRanks = 4;
  constexpr int kTokens = 8;
  constexpr int kDraws = 4000;
  std::mt19937_64 random(7);
  double rows = 0;
  double active = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::array<int, 16> counts{};
    for (int token = 0; token < kTokens; ++token) {
      std::set<std::uint64_t> choices;
      while (choices.size() < 4) choices.insert(random() % 16);
      for (const std::uint64_t expert : choices) ++counts[expert];
    }
    int most_rows = 0;
    std::ptrdiff_t most_active = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto own = std::span(counts).subspan(static_cast<std::size_t>(rank) * 4, 4);
      most_rows = std::max(most_rows, std::accumulate(own.begin(), own.end(), 0));
      most_active = std::max(most_active, 4 - std::ranges::count(own, 0));
    }
    rows += static_cast<double>(most_rows) / kDraws;
    active += static_cast<double>(most_active) / kDraws;
  }
  EXPECT_NEAR(static_cast<double>(computed_by(kTokens, kRanks).rows), rows, 1);
  EXPECT_NEAR(static_cast<double>(computed_by(kTokens, kRanks).active), active, 1);
}

// Counts are int32 of 16 experts, rows bf16 of 256 columns, 4 for each of a rank's 3 tokens.
TEST(ExpertFlows, WithoutASharedExpertOneGatherTakesRowsAndCountsOnTheStreamOfTheExperts) {
  ModelConfig model = testing::small_deepseek();
  model.shared_expert_intermediate_size = 0;
  const auto flows = [&](ExpertComm comm) {
    Plan plan = parallelize(moe_layer_plan(model, 6, shuffling(1)),
                            {.dp = 2, .ep = 2, .expert_comm = comm});
    verify(plan);
    return plan;
  };
  const auto uses_stream_0 = [](const Op& op) { return op.stream == 0; };
  const Plan plan = flows(ExpertComm::kGraph);
  EXPECT_TRUE(std::ranges::all_of(plan.ops(), uses_stream_0));
  EXPECT_EQ(sent_by(plan, "dispatch.all_gather"), 3 * 4 * 256 * 2 + 16 * 4);
  EXPECT_EQ(op_named(plan, "dispatch.all_gather").writes.size(), 2U);
  EXPECT_EQ(std::ranges::find(plan.ops(), "counts.all_gather", &Op::name), plan.ops().end());
  // The host waits for counts alone, while rows are gathered.
  EXPECT_FALSE(std::ranges::all_of(flows(ExpertComm::kEager).ops(), uses_stream_0));
}

TEST(ExpertFlows, PaddedRowsAreAddedUpRankByRank) {
  const auto ranks = [](ExpertComm comm) {
    const Plan plan = layer(64, {.dp = 4, .ep = 4, .expert_comm = comm});
    return dim(std::get<KernelOp>(op_named(plan, "scatter").body).dims, "ranks");
  };
  EXPECT_EQ(ranks(ExpertComm::kGraph), 4);
  EXPECT_EQ(ranks(ExpertComm::kEager), 1);
}

// Experts 0-7 get 3/4 of top-1 choices, so rank 0 of two computes three times the rows of rank 1.
TEST(ExpertFlows, EachRankComputesWhatItsExpertsAreChosenFor) {
  ModelConfig model = testing::small_deepseek();
  model.num_experts_per_tok = 1;
  ExpertLoad load{.shares = std::vector<double>(16, 0.25 / 8)};
  std::fill_n(load.shares.begin(), 8, 0.75 / 8);
  const Mesh mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager, .expert_load = load};
  const Plan plan = parallelize(moe_layer_plan(model, 64, shuffling(1)), mesh);
  verify(plan);
  const auto rows_of = [&](std::string_view op) {
    return dim(std::get<KernelOp>(op_named(plan, op).body).dims, "rows");
  };
  EXPECT_EQ(rows_of("experts.gate_up.r0"), 48);
  EXPECT_EQ(rows_of("experts.gate_up.r1"), 16);
  // Rank 1 sends 24 of its 32 rows to rank 0, the most that crosses in one direction:
  // as much as an all_to_all of two equal parts of 24 rows of 256 bf16.
  EXPECT_DOUBLE_EQ(sent_by(plan, "dispatch.all_to_all"), 2 * 24 * 256 * 2);
  EXPECT_DOUBLE_EQ(sent_by(plan, "return.all_to_all"), 2 * 24 * 256 * 2);
}

// T 16 tokens on each of 4 ranks, 4 experts on each, so that all 4 choices may fall on one rank:
// 16 min(4, 4) rows from each. With top-1 it is 16 from each: EP T in all, 1 / (16 / 4) of the
// 16 T that room for every token in every expert of all ranks takes.
TEST(ExpertFlows, BuffersHoldWhatRoutingMayDoAndNoMore) {
  const Mesh mesh{.dp = 4, .ep = 4, .expert_comm = ExpertComm::kGraph};
  const Plan top4 = layer(64, mesh);
  EXPECT_EQ(sizes_of(top4, "received"), (std::vector<std::int64_t>{4, 64, 256}));
  EXPECT_EQ(sizes_of(top4, "split"), (std::vector<std::int64_t>{4, 64, 256}));

  ModelConfig model = testing::small_deepseek();
  model.num_experts_per_tok = 1;
  const Plan top1 = parallelize(moe_layer_plan(model, 64, shuffling(1)), mesh);
  EXPECT_EQ(sizes_of(top1, "received"), (std::vector<std::int64_t>{4, 16, 256}));
  EXPECT_EQ(sizes_of(top1, "split"), (std::vector<std::int64_t>{4, 16, 256}));
  EXPECT_EQ(num_elements(tensor_named(top1, "received")) * (16 / 4), 16 * 16 * 256);

  // 2 experts on a rank take at most 2 of a token's 4 rows.
  const Plan narrow = layer(64, {.dp = 8, .ep = 8, .expert_comm = ExpertComm::kGraph});
  EXPECT_EQ(sizes_of(narrow, "split"), (std::vector<std::int64_t>{8, 16, 256}));
  EXPECT_EQ(sizes_of(narrow, "combine"), (std::vector<std::int64_t>{128, 256}));
}

// Kernels work on expected rows, whatever the bound.
TEST(ExpertFlows, PaddingCostsMemoryAndTrafficButNoWork) {
  const Plan eager = layer(64, {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager});
  const Plan graph = layer(64, {.dp = 4, .ep = 4, .expert_comm = ExpertComm::kGraph});
  for (const std::string_view kernel :
       {"combine_shuffling", "grouped_gemm", "split_shuffling", "scatter_add"}) {
    EXPECT_EQ(total(eager, kernel, "rows"), total(graph, kernel, "rows")) << kernel;
  }
  EXPECT_EQ(total(eager, "grouped_gemm", "active"), total(graph, "grouped_gemm", "active"));
  // Each rank gathers all 64 rows of 3 others, of which it is sent a quarter.
  EXPECT_DOUBLE_EQ(sent_by(graph, "dispatch.all_gather"), 16 * 4 * 256 * 2);
  EXPECT_DOUBLE_EQ(sent_by(eager, "dispatch.all_to_all"), 16 * 4 * 256 * 2);
}

TEST(ExpertFlows, RedundantExpertsAreExpertsOfTheirOwn) {
  const Mesh mesh{.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager, .num_redundant_experts = 4};
  const Plan plan = layer(64, mesh);
  EXPECT_EQ(sizes_of(plan, "experts.gate_up_proj"), (std::vector<std::int64_t>{5, 256, 256}));
  EXPECT_EQ(sizes_of(plan, "shuffle.counts"), std::vector<std::int64_t>{20});
  EXPECT_NE(
      error_of({.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager, .num_redundant_experts = 3})
          .find("expected a divisor"),
      std::string::npos);
}

TEST(ExpertFlows, SayWhatAMeshLacks) {
  const auto says = [](const std::string& text, const Mesh& mesh,
                       const LoweringOptions& options = shuffling(1)) {
    EXPECT_NE(error_of(mesh, options).find(text), std::string::npos)
        << "\"" << error_of(mesh, options) << "\" lacks \"" << text << "\"";
  };
  says("expected eager, graph", {.dp = 2, .ep = 2});
  says("expected two levels", {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kDedup});
  says("expected two levels", {.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kDedupGraph});
  says("expected a multiple of dp", {.dp = 4, .ep = 2, .expert_comm = ExpertComm::kEager});
  says("expected one for each of the 16 experts",
       {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager, .expert_load = zipf_load(8, 1, 0)});
  says("expected all_to_all, all_gather or deepep",
       {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager}, {.moe_design = MoeDesign::kFused});
  says("expected no fuse_scatter_add", {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
       {.moe_design = MoeDesign::kShuffling, .fuse_scatter_add = true});
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kTokens}) {
    says("expected no fuse_gather with dp 2", {.dp = 2, .ep = 2, .expert_comm = comm},
         {.moe_design = MoeDesign::kShuffling, .fuse_gather = true});
  }
  says("counts are read on the host", {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
       {.moe_design = MoeDesign::kSlicing});
  says("rows are padded", {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
       {.moe_design = MoeDesign::kPadding});
}

}  // namespace
}  // namespace orrery
