// Two-batch overlap: what halving a step conserves, what it reads twice, where turns change, and
// what it wins and loses in time. Roofline times, so that laws hold without tables.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/des/simulate.h"
#include "sim/parallel/expert_flows.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/cluster.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::bytes_on_rank_0;
using testing::cluster;
using testing::flops_by_op;
using testing::kDecode;
using testing::kPrefill;
using testing::total_weights;

ModelConfig whole_deepseek_v3() { return testing::shipped_model("deepseek-ai--DeepSeek-V3"); }
ModelConfig llama_70b() { return testing::shipped_model("meta-llama--Meta-Llama-3.1-70B"); }

Mesh halved(Mesh mesh) {
  mesh.two_batch_overlap = true;
  return mesh;
}

Plan planned(const ModelConfig& model, const Batch& batch, const Mesh& mesh,
             const LoweringOptions& options = {}) {
  check_mesh(model, mesh);
  Plan plan = step_plan(model, batch, options, mesh);
  verify(plan);
  return plan;
}

struct Case {
  ModelConfig model;
  Batch batch;
  Mesh mesh;
};
// Batches whose halves are whole sequences on every rank.
std::vector<Case> cases() {
  return {{llama_70b(), kDecode, {.tp = 4}},
          {llama_70b(), kPrefill, {.tp = 8, .sp = true}},
          {whole_deepseek_v3(), kDecode, {.tp = 8, .ep = 8}},
          {whole_deepseek_v3(), kDecode, {.dp = 8, .ep = 8}},
          {whole_deepseek_v3(), kPrefill, {.dp = 2, .tp = 4, .ep = 8}},
          {whole_deepseek_v3(), kPrefill, {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kDeepEp}}};
}

// A run of layers that turns rotate gives up ops of its first and its last layer, with names of
// their own.
std::map<std::string, double> over_layers(const std::map<std::string, double>& by_op) {
  constexpr std::string_view kLayer = "layers.";
  std::map<std::string, double> sums;
  for (const auto& [op, amount] : by_op) {
    std::string name = op;
    if (const auto at = name.find(kLayer); at != std::string::npos) {
      const auto number = at + kLayer.size();
      name.erase(number, name.find_first_not_of("0123456789", number) - number);
    }
    sums[name] += amount;
  }
  return sums;
}

TEST(TwoBatchOverlap, ComputesWhatTheWholeStepDoes) {
  for (const Case& each : cases()) {
    const auto whole = over_layers(flops_by_op(planned(each.model, each.batch, each.mesh)));
    const auto halves =
        over_layers(flops_by_op(planned(each.model, each.batch, halved(each.mesh))));
    ASSERT_EQ(whole.size(), halves.size());
    for (const auto& [op, flops] : whole) {
      EXPECT_NEAR(halves.at(op), flops, 1e-9 * flops) << each.model.name << ": " << op;
    }
  }
}

// Times are told by the name of an op and its copy.
TEST(TwoBatchOverlap, GivesEachOpAndCopyANameOfItsOwn) {
  for (const Case& each : cases()) {
    const Plan plan = planned(each.model, each.batch, halved(each.mesh));
    std::set<std::pair<std::string, std::int64_t>> names;
    for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
      const Op& op = plan.ops()[static_cast<std::size_t>(id)];
      for (std::int64_t copy = 0; copy < plan.multiplicity(id); ++copy) {
        EXPECT_TRUE(names.emplace(printed_name(op), copy).second)
            << each.model.name << ": " << printed_name(op) << " " << copy;
      }
    }
  }
}

TEST(TwoBatchOverlap, SendsAsManyBytes) {
  for (const Case& each : cases()) {
    const Plan whole = planned(each.model, each.batch, each.mesh);
    const Plan halves = planned(each.model, each.batch, halved(each.mesh));
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                      CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
      const double bytes = bytes_on_rank_0(whole, kind);
      EXPECT_NEAR(bytes_on_rank_0(halves, kind), bytes, 1e-9 * bytes)
          << each.model.name << ": " << to_text(kind);
    }
  }
}

// Sums over a rank, repeats multiplied.
std::map<std::string, double> on_rank_0(const Plan& plan,
                                        const std::function<double(const Op&)>& amount) {
  std::map<std::string, double> sums;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    if (!plan.contains(op.ranks, 0)) continue;
    sums[op.name] += amount(op) * static_cast<double>(plan.multiplicity(id));
  }
  return over_layers(sums);
}

// A GEMM of half the rows reads all n k elements of its weights, of 2 bytes, and half of the rows.
TEST(TwoBatchOverlap, ReadsTheWeightsOfEveryGemmTwice) {
  const auto bytes_read = [](const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    return kernel == nullptr ? 0 : work_of(*kernel).bytes_read.value();
  };
  const auto weights = [](const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || kernel->kernel != "gemm") return 0.0;
    return 2.0 * static_cast<double>(dim(kernel->dims, "n") * dim(kernel->dims, "k"));
  };
  const Plan whole = planned(llama_70b(), kDecode, {.tp = 4});
  const auto once = on_rank_0(whole, bytes_read);
  const auto twice = on_rank_0(planned(llama_70b(), kDecode, halved({.tp = 4})), bytes_read);
  int num_gemms = 0;
  for (const auto& [op, bytes] : on_rank_0(whole, weights)) {
    if (bytes == 0) continue;
    ++num_gemms;
    EXPECT_NEAR(twice.at(op) - once.at(op), bytes, 1e-9 * bytes) << op;
  }
  EXPECT_EQ(num_gemms, 5);  // qkv, o, gate and up, down, LM head
}

TEST(TwoBatchOverlap, SharesWeightsAndDealsOutAllTokens) {
  for (const Case& each : cases()) {
    const Plan whole = planned(each.model, each.batch, each.mesh);
    const Plan halves = planned(each.model, each.batch, halved(each.mesh));
    EXPECT_EQ(total_weights(halves), total_weights(whole)) << each.model.name;
    const auto tokens = [](const Op& op) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      const bool embeds = kernel != nullptr && kernel->kernel == "embedding";
      return embeds ? static_cast<double>(dim(kernel->dims, "tokens")) : 0;
    };
    EXPECT_EQ(on_rank_0(halves, tokens).at("embedding"), on_rank_0(whole, tokens).at("embedding"));
  }
}

// One half waits with what a turn leaves while the other has what it works on, each of half the
// rows.
TEST(TwoBatchOverlap, NeedsNoMoreMemoryThanTheWholeStep) {
  for (const Case& each : cases()) {
    const MemoryUse whole = memory_of(planned(each.model, each.batch, each.mesh), 0);
    const MemoryUse halves = memory_of(planned(each.model, each.batch, halved(each.mesh)), 0);
    EXPECT_EQ(halves.weights, whole.weights) << each.model.name;
    EXPECT_EQ(halves.kv_cache, whole.kv_cache) << each.model.name;
    EXPECT_LE(halves.activations, whole.activations * 1.05) << each.model.name;
    EXPECT_GE(halves.activations, whole.activations * 0.5) << each.model.name;
  }
}

TEST(TwoBatchOverlap, RunsWhatCannotBeHalvedAsItWas) {
  const Batch one{.num_decodes = 1, .decode_context = 100};
  EXPECT_EQ(planned(llama_70b(), one, halved({.tp = 4})), planned(llama_70b(), one, {.tp = 4}));
  const Batch one_each{.num_decodes = 8, .decode_context = 800};
  const Mesh mesh{.dp = 8, .ep = 8};
  EXPECT_EQ(planned(whole_deepseek_v3(), one_each, halved(mesh)),
            planned(whole_deepseek_v3(), one_each, mesh));
}

// 4,096 tokens in halves: the first has none before it, the second 2,048, so both have 1,024 on
// average; causal work is T^2 / 2 either way.
TEST(TwoBatchOverlap, CutsAPromptThatIsAlone) {
  const Batch prompt{.prefill = {{.query = 4096}}};
  const Plan plan = planned(llama_70b(), prompt, halved({.tp = 4}));
  int num_attentions = 0;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || kernel->kernel != "attention_prefill") continue;
    ++num_attentions;
    EXPECT_EQ(dim(kernel->dims, "query"), 2048);
    EXPECT_EQ(dim(kernel->dims, "context"), 1024);
  }
  EXPECT_EQ(num_attentions, 2);
}

// So that the second half of a prompt finds the keys and values of the first.
TEST(TwoBatchOverlap, TheFirstHalfGoesFirstInEachTurn) {
  for (const Case& each : cases()) {
    std::map<std::string, std::vector<int>> order;
    const Plan plan = planned(each.model, each.batch, halved(each.mesh));
    for (const Op& op : plan.ops()) {
      if (op.name.ends_with("kv_append")) order[op.name].push_back(op.micro_batch);
    }
    ASSERT_FALSE(order.empty());
    for (const auto& [op, batches] : order) {
      for (std::size_t i = 0; i < batches.size(); ++i) {
        EXPECT_EQ(batches[i], static_cast<int>(i % 2)) << each.model.name << ": " << op;
      }
    }
  }
}

// An op of one half that waits for a collective of that half has a turn of the other half between
// them, but in the LM head, behind which nothing follows.
TEST(TwoBatchOverlap, OneHalfComputesWhileTheOtherSends) {
  const Plan plan =
      planned(whole_deepseek_v3(), kPrefill, halved({.dp = 2, .ep = 2}), {.precision = {}});
  std::map<TensorId, OpId> sent;
  int num_waits = 0;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    const bool is_collective = std::holds_alternative<CommOp>(op.body);
    EXPECT_EQ(op.stream, is_collective ? kCollectiveStream : 0) << op.name;
    for (const TensorId read : op.reads) {
      if (is_collective || !sent.contains(read)) continue;
      ++num_waits;
      const auto first = plan.ops().begin() + sent.at(read);
      EXPECT_TRUE(std::any_of(first, plan.ops().begin() + id, [&](const Op& between) {
        return between.micro_batch != op.micro_batch && between.stream == 0;
      })) << op.name;
    }
    for (const TensorId written : op.writes) {
      if (is_collective) sent[written] = id;
      if (!is_collective) sent.erase(written);
    }
  }
  EXPECT_GE(num_waits, 4);  // dispatch and combine of both halves
}

// DeepSeek-V3 adds the shared expert's result behind the combine, and goes on into the next layer.
// So its 58 layers are rotated: 57 copies, each from there to the combine of the next, and the
// weights of the first layer are tensors of their own.
TEST(TwoBatchOverlap, ATurnGoesOnIntoTheNextLayer) {
  const Plan plan = planned(whole_deepseek_v3(), kDecode, halved({.dp = 8, .ep = 8}));
  ASSERT_EQ(plan.repeats().size(), 2U);
  EXPECT_EQ(plan.repeats()[0].count, 3);  // dense layers send nothing
  EXPECT_EQ(plan.repeats()[1].count, 57);
  const Op& first = plan.ops()[static_cast<std::size_t>(plan.repeats()[1].first)];
  EXPECT_EQ(first.name, "layers.3.shared_add");
  std::vector<std::pair<std::int32_t, std::int64_t>> copies;
  const std::vector<std::int64_t> counts = num_copies(plan);
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.name == "layers.3.o_proj.weight") copies.emplace_back(tensor.first_copy, counts[i]);
  }
  EXPECT_EQ(copies, (std::vector<std::pair<std::int32_t, std::int64_t>>{{0, 1}, {1, 57}}));
}

// Where a layer ends with an all_reduce the other half's turn is next, and nothing is rotated.
TEST(TwoBatchOverlap, LayersThatEndWithACollectiveStayAsTheyAre) {
  const Plan plan = planned(llama_70b(), kDecode, halved({.tp = 4}));
  ASSERT_EQ(plan.repeats().size(), 1U);
  EXPECT_EQ(plan.repeats().front().count, 80);
}

// What is gathered of weights is the same for both halves.
TEST(TwoBatchOverlap, WeightsThatAreGatheredAreGatheredOnce) {
  const Mesh mesh{.dp = 4, .tp = 2, .ep = 8, .o_proj = OProjection::kSharded};
  const Plan plan = planned(whole_deepseek_v3(), kDecode, halved(mesh));
  const auto gathers = [](const Plan& of) {
    return std::ranges::count_if(of.ops(), [](const Op& op) {
      return op.name.find("o_proj.weight.all_gather") != std::string::npos;
    });
  };
  const Plan whole = planned(whole_deepseek_v3(), kDecode, mesh);
  const auto bytes = [](const Plan& of) {
    double sum = 0;
    for (OpId id = 0; id < static_cast<OpId>(of.ops().size()); ++id) {
      const Op& op = of.ops()[static_cast<std::size_t>(id)];
      if (op.name.find("o_proj.weight.all_gather") == std::string::npos) continue;
      sum += std::get<CommOp>(op.body).bytes_per_rank.value() *
             static_cast<double>(of.multiplicity(id));
    }
    return sum;
  };
  EXPECT_GT(gathers(whole), 0);
  EXPECT_EQ(bytes(plan), bytes(whole));
}

TEST(TwoBatchOverlap, EveryShippedModelVerifiesInHalves) {
  for (const auto& entry : std::filesystem::directory_iterator(testing::models_directory())) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".config.json")) continue;
    const ModelConfig model = model_config(file, testing::config_fields(file));
    std::vector<Mesh> meshes{{.tp = 4}, {.dp = 2, .tp = 2, .sp = true}};
    if (model.num_experts > 0) {
      meshes.push_back({.dp = 4, .ep = 4});
      meshes.push_back({.dp = 2, .tp = 2, .ep = 4, .expert_comm = ExpertComm::kAllGather});
    }
    for (const Mesh& mesh : meshes) {
      if (!testing::divides_heads(model, mesh.tp)) continue;
      for (const Batch& batch : {kDecode, kPrefill}) {
        try {
          (void)planned(model, batch, halved(mesh), {.precision = testing::kFp8Precision});
        } catch (const std::invalid_argument& error) {
          ADD_FAILURE() << file << " dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep
                        << ": " << error.what();
        }
      }
    }
  }
}

std::string mesh_error(const ModelConfig& model, const Mesh& mesh) {
  try {
    check_mesh(model, mesh);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(CheckMesh, TwoBatchOverlapNeedsCollectivesToHide) {
  EXPECT_NE(mesh_error(llama_70b(), halved({})).find("nearest legal tp: 2"), std::string::npos);
  EXPECT_EQ(mesh_error(llama_70b(), halved({})).find("ep: 2"), std::string::npos);
  EXPECT_NE(mesh_error(whole_deepseek_v3(), halved({.dp = 2})).find("tp: 2 or ep: 2"),
            std::string::npos);
  EXPECT_NE(mesh_error(llama_70b(), halved({.tp = 2, .pp = 2})).find("expected pp 1"),
            std::string::npos);
  EXPECT_NO_THROW(check_mesh(llama_70b(), halved({.tp = 2})));
}

#ifndef ORRERY_NO_SIMGRID

struct Timed {
  double step = 0;
  double compute = 0;  // of one rank, each op alone
  double sent = 0;
};

Timed timed(const Machine& machine, const ModelConfig& model, const Batch& batch,
            const Mesh& mesh) {
  const Plan plan = planned(model, batch, mesh);
  CostOptions options;
  options.host.graph_node = Seconds(1e-6);
  options.host.graph_hop = Seconds(1e-6);
  const CostModel cost(machine, nullptr, nullptr, options);
  const PricedPlan priced = price(plan, cost);
  Timed result;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const auto i = static_cast<std::size_t>(id);
    if (!plan.contains(plan.ops()[i].ranks, 0)) continue;
    const double time = priced.times[i].time.value() * static_cast<double>(plan.multiplicity(id));
    (std::holds_alternative<CommOp>(plan.ops()[i].body) ? result.sent : result.compute) += time;
  }
  result.step =
      makespan(simulate(priced, machine, cost, {.level = StepLevel::kRepresentative})).value();
  return result;
}

// A prompt of 8,192 tokens on each of 16 ranks, whose rows cross nodes: most of what is sent is
// hidden, and no more than there is can be. As compute gives SMs to collectives, and each half
// waits for the last of the other, the bound is not reached.
TEST(TwoBatchOverlapInTime, APromptHidesWhatItSendsBetweenNodes) {
  const Machine machine = cluster(16);
  const Batch prompts{.prefill = std::vector<PrefillChunk>(16, {.query = 8192})};
  const Mesh mesh{.dp = 16, .ep = 16};
  const Timed whole = timed(machine, whole_deepseek_v3(), prompts, mesh);
  const Timed halves = timed(machine, whole_deepseek_v3(), prompts, halved(mesh));
  EXPECT_NEAR(whole.step, whole.compute + whole.sent, 0.01 * whole.step);
  EXPECT_LT(halves.step, whole.step);
  EXPECT_GE(halves.step, std::max(halves.compute, halves.sent));
  // More than half of the lesser of the two is hidden.
  EXPECT_LT(halves.step,
            halves.compute + halves.sent - 0.5 * std::min(halves.compute, halves.sent));
}

// Both halves read all weights and launch all kernels, and collectives of few bytes are as long.
TEST(TwoBatchOverlapInTime, TwoDecodesLose) {
  const Machine machine = cluster(8);
  const Batch two{.num_decodes = 2, .decode_context = 2000};
  const double whole = timed(machine, llama_70b(), two, {.tp = 8}).step;
  const double halves = timed(machine, llama_70b(), two, halved({.tp = 8})).step;
  EXPECT_GT(halves, 1.5 * whole);
  EXPECT_LT(halves, 2.1 * whole);
}

#endif

}  // namespace
}  // namespace orrery
