// Tokens of routed experts in chunks: what is sent and computed stays, what is launched grows, and
// what it wins and costs in simulated time.

#include "sim/parallel/token_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/des/simulate.h"
#include "sim/model/expert_load_sources.h"
#include "tests/model/small_models.h"
#include "tests/parallel/cluster.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::cluster;
using testing::op_named;
using testing::tensor_named;

constexpr LoweringOptions kChunked{.moe_design = MoeDesign::kShuffling};

Mesh mesh_of(int chunks, ExpertComm comm = ExpertComm::kEager, int ranks = 2) {
  return {.dp = ranks, .ep = ranks, .expert_comm = comm, .moe_chunks = chunks};
}

// A layer of 16 experts, top-4; `tokens` on all ranks together.
Plan chunked_layer(const Mesh& mesh, std::int64_t tokens, std::int64_t shared = 0) {
  ModelConfig model = testing::small_deepseek();
  model.shared_expert_intermediate_size = shared;
  Plan plan = parallelize(moe_layer_plan(model, tokens, kChunked), mesh);
  verify(plan);
  return plan;
}

// Sums over ranks.
double kernel_flops(const Plan& plan, std::string_view kernel) {
  double flops = 0;
  for (const Op& op : plan.ops()) {
    const auto* body = std::get_if<KernelOp>(&op.body);
    if (body == nullptr || body->kernel != kernel) continue;
    flops += work_of(*body).flops.value() * static_cast<double>(plan.ranks(op.ranks).size());
  }
  return flops;
}
double bytes_sent(const Plan& plan) {
  double bytes = 0;
  for (const Op& op : plan.ops()) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || op.name.starts_with("counts")) continue;
    bytes += comm->bytes_per_rank.value() * static_cast<double>(plan.ranks(op.ranks).size());
  }
  return bytes;
}
std::int64_t num_ops_of(const Plan& plan, std::string_view kernel) {
  return std::ranges::count_if(plan.ops(), [&](const Op& op) {
    const auto* body = std::get_if<KernelOp>(&op.body);
    return body != nullptr && body->kernel == kernel;
  });
}
std::int64_t num_host_ops(const Plan& plan) {
  return std::ranges::count_if(
      plan.ops(), [](const Op& op) { return std::holds_alternative<HostOp>(op.body); });
}

// A given load: of even choices each chunk waits for its own fullest rank, which is more in all.
TEST(TokenChunks, SendAndComputeWhatOneChunkDoes) {
  constexpr std::int64_t kAll = 1200;
  const auto of = [](int chunks) {
    Mesh mesh = mesh_of(chunks);
    mesh.expert_load = zipf_load(16, 1.0, 7);
    return chunked_layer(mesh, kAll, 64);
  };
  const Plan whole = of(1);
  for (const int chunks : {2, 3, 5}) {
    const Plan plan = of(chunks);
    EXPECT_NEAR(bytes_sent(plan), bytes_sent(whole), 1e-9 * bytes_sent(whole)) << chunks;
    EXPECT_EQ(kernel_flops(plan, "gemm"), kernel_flops(whole, "gemm")) << chunks;
    // Rows of a chunk are rounded to whole ones: half a row on each rank of 4 * 1200 in all.
    EXPECT_NEAR(kernel_flops(plan, "grouped_gemm"), kernel_flops(whole, "grouped_gemm"),
                kernel_flops(whole, "grouped_gemm") * chunks / (4.0 * kAll))
        << chunks;
  }
}

TEST(TokenChunks, LaunchEachKernelOfTheRoutedRowsAgain) {
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph}) {
    const Plan whole = chunked_layer(mesh_of(1, comm), 64);
    const Plan plan = chunked_layer(mesh_of(3, comm), 64);
    for (const char* kernel : {"index_shuffling", "grouped_gemm", "scatter_add"}) {
      EXPECT_EQ(num_ops_of(plan, kernel), 3 * num_ops_of(whole, kernel)) << kernel;
    }
    EXPECT_EQ(num_ops_of(plan, "routing_scores"), num_ops_of(whole, "routing_scores"));
    EXPECT_EQ(num_host_ops(plan), num_host_ops(whole));
  }
}

// 7 tokens of a rank in three chunks: 2, 2 and 3.
TEST(TokenChunks, AreAsEvenAsCanBeAndCoverAllTokens) {
  const Plan plan = chunked_layer(mesh_of(3), 14);
  const std::array<std::pair<int, int>, 3> expected{{{0, 2}, {2, 2}, {4, 3}}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto [first, count] = expected[i];
    const Op& sort = op_named(plan, "shuffle.chunk" + std::to_string(i));
    const Op& scatter = op_named(plan, "scatter.chunk" + std::to_string(i));
    for (const TensorView& view : {sort.reads.front(), scatter.writes.front()}) {
      EXPECT_EQ(view, TensorView::of_rows(view.tensor, first, count)) << i;
    }
    EXPECT_EQ(dim(std::get<KernelOp>(sort.body).dims, "tokens"), count);
  }
}

// A rank with two tokens has two chunks, one with one token a whole layer.
TEST(TokenChunks, AreNoMoreThanTokens) {
  EXPECT_EQ(chunked_layer(mesh_of(8), 4), chunked_layer(mesh_of(2), 4));
  EXPECT_EQ(to_text(chunked_layer(mesh_of(8), 2)), to_text(chunked_layer(mesh_of(1), 2)));
}

TEST(TokenChunks, OfOneAreTheLayerAsItWas) {
  Mesh mesh = mesh_of(1);
  const Plan whole = chunked_layer(mesh, 64, 64);
  mesh.moe_chunks = 1;
  EXPECT_EQ(chunked_layer(mesh, 64, 64), whole);
  EXPECT_EQ(to_text(whole).find(",:]"), std::string::npos);
}

TEST(TokenChunks, AreReadFromTextAsTheyWereWritten) {
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph}) {
    const Plan plan = chunked_layer(mesh_of(3, comm), 14, 64);
    EXPECT_EQ(parse_plan(to_text(plan)), plan);
    EXPECT_NE(to_text(plan).find("[2:4,:]"), std::string::npos);
  }
}

// On the stream of the collectives: each chunk is dispatched before the last one is combined.
TEST(TokenChunks, AreDispatchedAheadOfWhatIsCombined) {
  const Plan plan = chunked_layer(mesh_of(3), 64);
  std::vector<std::string> order;
  for (const Op& op : plan.ops()) {
    if (op.stream == 2 && std::holds_alternative<CommOp>(op.body)) order.push_back(op.name);
  }
  EXPECT_EQ(order,
            (std::vector<std::string>{"counts.all_to_all", "dispatch.all_to_all.chunk0",
                                      "dispatch.all_to_all.chunk1", "return.all_to_all.chunk0",
                                      "dispatch.all_to_all.chunk2", "return.all_to_all.chunk1",
                                      "return.all_to_all.chunk2"}));
}

TEST(TokenChunks, ArePartsOfEachLayerOfAModel) {
  ModelConfig model = testing::small_deepseek();
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph}) {
    for (Mesh mesh :
         {mesh_of(3, comm), Mesh{.dp = 2, .tp = 2, .ep = 4, .expert_comm = comm},
          Mesh{.dp = 2, .tp = 2, .ep = 2, .pp = 2, .num_micro_batches = 2, .expert_comm = comm}}) {
      mesh.moe_chunks = 3;
      const Plan plan = testing::placed(model, testing::kDecode, mesh, kChunked);
      EXPECT_EQ(num_ops_of(plan, "index_shuffling") % 3, 0);
      EXPECT_GT(num_ops_of(plan, "index_shuffling"), 0);
      EXPECT_EQ(parse_plan(to_text(plan)), plan);
    }
  }
}

std::string error_of_chunks(const Mesh& mesh, MoeDesign design = MoeDesign::kShuffling) {
  try {
    check_moe_chunks(mesh, design);
    static_cast<void>(
        parallelize(moe_layer_plan(testing::small_deepseek(), 64, {.moe_design = design}), mesh));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(TokenChunks, SayWhatTheyNeed) {
  const auto expect_error = [](const Mesh& mesh, const std::string& what,
                               MoeDesign design = MoeDesign::kShuffling) {
    EXPECT_NE(error_of_chunks(mesh, design).find(what), std::string::npos)
        << error_of_chunks(mesh, design);
  };
  EXPECT_EQ(error_of_chunks(mesh_of(2)), "");
  expect_error(mesh_of(0), "moe chunks is 0, expected 1 to 64");
  expect_error(mesh_of(-1), "moe chunks is -1, expected 1 to 64");
  expect_error(mesh_of(65), "moe chunks is 65, expected 1 to 64");
  expect_error({.tp = 2, .ep = 2, .moe_chunks = 2}, "with dp 1");
  expect_error({.moe_chunks = 2}, "with dp 1");
  for (const ExpertComm comm : {ExpertComm::kTokens, ExpertComm::kDedup, ExpertComm::kDedupGraph}) {
    expect_error(mesh_of(2, comm), "expected expert_comm eager, graph or copies, or chunks 1");
  }
  for (const MoeDesign design : {MoeDesign::kFused, MoeDesign::kPersistent, MoeDesign::kPadding}) {
    expect_error(mesh_of(2, ExpertComm::kAllToAll), "expected design shuffling", design);
  }
  Mesh mesh = mesh_of(2);
  mesh.two_batch_overlap = true;
  expect_error(mesh, "two_batch_overlap false");
  mesh = mesh_of(2);
  mesh.ffn_instances = 1;
  expect_error(mesh, "ffn_instances");
  mesh = mesh_of(2);
  mesh.sp = true;
  expect_error(mesh, "sp false");
}

// On roofline times, so that the law holds without tables.
Timeline simulated_chunks(const Plan& plan, int ranks) {
  CostOptions options;
  options.launch_mode = LaunchMode::kGraph;
  const Machine machine = cluster(ranks);
  const CostModel cost(machine, nullptr, nullptr, options);
  return simulate(plan, machine, cost, {.level = StepLevel::kHeap});
}
Plan qwen_layer(int chunks, std::int64_t tokens_of_rank) {
  static const ModelConfig model = testing::shipped_model("Qwen--Qwen3-30B-A3B");
  return parallelize(moe_layer_plan(model, 4 * tokens_of_rank, kChunked),
                     mesh_of(chunks, ExpertComm::kEager, 4));
}

TEST(TokenChunksInTime, HideCollectivesOfManyTokensAndCostWithFew) {
  const auto seconds = [](int chunks, std::int64_t tokens) {
    return makespan(simulated_chunks(qwen_layer(chunks, tokens), 4)).value();
  };
  EXPECT_LT(seconds(2, 16384), 0.95 * seconds(1, 16384));
  EXPECT_GT(seconds(2, 16), 1.1 * seconds(1, 16));
}

TEST(TokenChunksInTime, TheNextDispatchRunsBesideTheExperts) {
  const Plan plan = qwen_layer(2, 16384);
  const Timeline timeline = simulated_chunks(plan, 4);
  const auto span_of = [&](std::string_view name) {
    return *std::ranges::find_if(timeline.spans, [&](const Span& span) {
      return span.rank == 0 && plan.ops()[static_cast<std::size_t>(span.op)].name == name;
    });
  };
  const Span experts = span_of("experts.gate_up.chunk0");
  const Span dispatch = span_of("dispatch.all_to_all.chunk1");
  EXPECT_LT(dispatch.start, experts.end);
  EXPECT_GT(dispatch.end, experts.start);
  const Span combine = span_of("return.all_to_all.chunk0");
  EXPECT_LT(combine.start, span_of("experts.down.chunk1").end);
}

}  // namespace
}  // namespace orrery
