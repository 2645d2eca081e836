#include "sim/memory/footprint.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// A weight of `weight_mib` in `copies` layers, on `num_ranks` ranks that sum the result.
Plan plan_of(std::int64_t weight_mib, std::int64_t copies, int num_ranks = 1) {
  Plan plan;
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  const GroupId all = plan.add_group(ranks);
  constexpr std::int64_t kTokens = 512;
  const auto tensor = [&](const char* name, TensorRole role, std::int64_t rows,
                          std::int64_t columns) {
    return plan.add_tensor({.name = name,
                            .dtype = DType::kBf16,
                            .axes = {{"tokens", rows}, {"hidden", columns}},
                            .role = role,
                            .ranks = all});
  };
  const TensorId weight =
      tensor("w", TensorRole::kWeight, weight_mib * 1024, 512);  // 1 MiB per 1024
  const TensorId x = tensor("x", TensorRole::kInput, kTokens, 512);
  const TensorId y = tensor("y", TensorRole::kOutput, kTokens, 512);
  const OpId gemm = plan.add_op({.name = "gemm",
                                 .body = KernelOp{.kernel = "gemm"},
                                 .ranks = all,
                                 .reads = {x, weight},
                                 .writes = {y}});
  if (num_ranks > 1) {
    plan.add_op({.name = "sum",
                 .body = CommOp{.kind = CollectiveKind::kAllReduce,
                                .dtype = DType::kBf16,
                                .bytes_per_rank = Bytes(kTokens * 512 * 2)},
                 .ranks = all,
                 .reads = {y},
                 .writes = {y}});
  }
  plan.add_repeat({.first = gemm, .last = gemm + 1, .count = copies});
  return plan;
}

RankMemory footprint_of(const Plan& plan, FootprintRequest request = {}) {
  const std::array<const Plan*, 1> steps{&plan};
  request.steps = steps;
  return footprint(request, 0);
}

TEST(Footprint, CountsWeightsOnceForEachLayerInWholeAllocations) {
  EXPECT_EQ(footprint_of(plan_of(4, 3)).weights.value(), 12 * kMiB);
  EXPECT_EQ(footprint_of(plan_of(1, 3)).weights.value(), 4 * kMiB);  // 3 MiB in pieces of 2
}

// A step of 2 sequences shows states of 1 MiB each in 5 layers; the rank keeps those of 8.
TEST(Footprint, KeepsTheStatesOfAsManySequencesAsRun) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  const TensorId state = plan.add_tensor({.name = "state",
                                          .dtype = DType::kInt8,
                                          .axes = {{"seqs", 2}, {"state", std::int64_t{1} << 20}},
                                          .role = TensorRole::kState,
                                          .ranks = group});
  const OpId op =
      plan.add_op({.name = "scan", .body = HostOp{}, .ranks = group, .writes = {state}});
  plan.add_repeat({.first = op, .last = op + 1, .count = 5});
  const RankMemory found = footprint_of(plan, {.max_sequences = 8});
  EXPECT_EQ(found.states.value(), 5 * 8 * kMiB);
  EXPECT_EQ(found.activations.value(), 0);
}

TEST(Footprint, IsTheSumOfItsTerms) {
  const RankMemory found = footprint_of(
      plan_of(4, 1), {.kv_cache = Bytes(100 * kMiB),
                      .fixed = {.context = Bytes(500 * kMiB), .workspace = Bytes(kMiB)}});
  // Weights 4, cache 100, context 500, workspace 1; x and y of 512 KiB each: 1 MiB in a piece of 2.
  EXPECT_EQ(found.total().value(), (4 + 100 + 500 + 1 + 2) * kMiB);
}

TEST(Footprint, GrowsWithTheNodesOfGraphs) {
  const Plan small = plan_of(1, 100);
  const Plan large = plan_of(1, 3000);
  const auto graphs = [](const Plan& plan) {
    const std::array<const Plan*, 1> steps{&plan};
    return footprint({.steps = steps, .captured = steps}, 0).graphs.value();
  };
  EXPECT_EQ(graphs(small), 2 * kMiB);
  EXPECT_EQ(graphs(large), 8 * kMiB);  // as measured
}

TEST(Footprint, OfSeveralRanksHasNcclAndAReceiveArea) {
  // Messages of 4096 rows of 1 KiB are 4 MiB. One-shot takes 3 MiB from each of 2 ranks, two-shot
  // 2 x 4 MiB: two halves of 8 MiB. NCCL: a communicator and its code, nothing that it would sum.
  const RankMemory found = footprint_of(plan_of(4, 1, 2), {.max_tokens = 4096});
  EXPECT_EQ(found.communication.value(), (16 + 206 + 180) * kMiB);
  EXPECT_EQ(footprint_of(plan_of(4, 1)).communication.value(), 0);
}

// 16 heads: 132 units with two results of 16 x 513 fp32 each, 8.27 MiB; 128 heads: 66 pairs of
// blocks, 33.06 MiB; and 8 KiB for sequences.
TEST(Footprint, PartialResultsOfLatentAttentionAreWorkspace) {
  const auto plan_with = [](std::int64_t heads) {
    Plan plan = plan_of(1, 1);
    plan.add_op({.name = "mla_decode",
                 .body = KernelOp{.kernel = "mla_decode",
                                  .dims = {{"heads", heads}, {"kv_lora_rank", 512}}},
                 .ranks = 0});
    return plan;
  };
  const auto workspace = [&](std::int64_t heads) {
    const Plan plan = plan_with(heads);
    return footprint_of(plan,
                        {.fixed = {.workspace = Bytes(kMiB)}, .scratch = workspace_of(plan, 0)})
        .workspace.value();
  };
  EXPECT_EQ(workspace(16), 11 * kMiB);
  EXPECT_EQ(workspace(128), 35 * kMiB);
}

TEST(Footprint, WithoutAStepIsAnError) {
  EXPECT_THROW(static_cast<void>(footprint({}, 0)), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
