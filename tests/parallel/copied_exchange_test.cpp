// Rows of experts by copy engines (expert_comm: copies): the plan is that of eager but for who
// moves rows, no SM is taken for them, and where it applies.

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/des/sharing.h"
#include "sim/des/simulate.h"
#include "sim/memory/footprint.h"
#include "sim/plan/sides.h"
#include "tests/model/small_models.h"
#include "tests/parallel/cluster.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::cluster;
using testing::op_named;

#ifdef ORRERY_NO_SIMGRID
constexpr bool kSharesGpus = false;
#else
constexpr bool kSharesGpus = true;
#endif

constexpr LoweringOptions kExchanged{.moe_design = MoeDesign::kShuffling};

Mesh exchange_mesh(ExpertComm comm, int chunks = 1, int ranks = 2) {
  return {.dp = ranks, .ep = ranks, .expert_comm = comm, .moe_chunks = chunks};
}

Plan exchange_layer(const Mesh& mesh, std::int64_t tokens, std::int64_t shared = 64) {
  ModelConfig model = testing::small_deepseek();
  model.shared_expert_intermediate_size = shared;
  Plan plan = parallelize(moe_layer_plan(model, tokens, kExchanged), mesh);
  verify(plan);
  return plan;
}

bool is_copied(const Op& op) {
  const auto* comm = std::get_if<CommOp>(&op.body);
  return comm != nullptr && comm->is_copied;
}

// As text, each copied op as one that is not.
std::string without_copies(const Plan& plan) {
  std::string text = to_text(plan);
  constexpr std::string_view kCopied = " copied";
  for (auto at = text.find(kCopied); at != std::string::npos; at = text.find(kCopied)) {
    text.erase(at, kCopied.size());
  }
  return text;
}

TEST(CopiedExchange, IsThePlanOfEagerButForWhoMovesRows) {
  for (const int chunks : {1, 2, 3}) {
    for (Mesh mesh : {Mesh{.dp = 2, .ep = 2}, Mesh{.dp = 4, .ep = 4},
                      Mesh{.dp = 2, .tp = 2, .ep = 4}, Mesh{.dp = 2, .tp = 2, .ep = 2}}) {
      mesh.moe_chunks = chunks;
      mesh.expert_comm = ExpertComm::kEager;
      const Plan eager = exchange_layer(mesh, 64);
      mesh.expert_comm = ExpertComm::kCopies;
      const Plan copies = exchange_layer(mesh, 64);
      EXPECT_EQ(without_copies(copies), to_text(eager)) << chunks;
      EXPECT_TRUE(std::ranges::none_of(eager.ops(), is_copied));
      // Rows and results, once for each tp rank's data-parallel group.
      EXPECT_EQ(std::ranges::count_if(copies.ops(), is_copied), 2 * chunks * mesh.tp);
    }
  }
}

TEST(CopiedExchange, IsReadFromTextAsItWasWritten) {
  const Plan plan = exchange_layer(exchange_mesh(ExpertComm::kCopies, 2), 14);
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  EXPECT_TRUE(is_copied(op_named(plan, "dispatch.all_to_all.chunk1")));
  EXPECT_FALSE(is_copied(op_named(plan, "counts.all_to_all")));
}

TEST(CopiedExchange, ARankOfAPipelineOrOfTensorParallelismHasItToo) {
  const ModelConfig model = testing::small_deepseek();
  for (Mesh mesh : {Mesh{.dp = 2, .ep = 2}, Mesh{.dp = 2, .tp = 2, .ep = 4},
                    Mesh{.dp = 2, .tp = 2, .ep = 2, .pp = 2, .num_micro_batches = 2}}) {
    mesh.expert_comm = ExpertComm::kCopies;
    const Plan plan = testing::placed(model, testing::kDecode, mesh, kExchanged);
    EXPECT_GT(std::ranges::count_if(plan.ops(), is_copied), 0);
    EXPECT_EQ(parse_plan(to_text(plan)), plan);
  }
}

TEST(CopiedExchange, TakesNoSms) {
  const Plan plan = exchange_layer(exchange_mesh(ExpertComm::kCopies), 64);
  for (const Op& op : plan.ops()) {
    if (!std::holds_alternative<CommOp>(op.body)) continue;
    EXPECT_EQ(moves_by_copies(plan, op), is_copied(op)) << op.name;
    EXPECT_EQ(des::engine_of(plan, op) == des::CollectiveEngine::kCopies, is_copied(op)) << op.name;
  }
}

// NCCL has no code for what it does not send, and copies need no buffers of their own.
TEST(CopiedExchange, NeedsNoMoreMemoryThanEager) {
  const Plan eager = exchange_layer(exchange_mesh(ExpertComm::kEager), 64);
  const Plan copies = exchange_layer(exchange_mesh(ExpertComm::kCopies), 64);
  EXPECT_EQ(memory_of(copies, 0).activations, memory_of(eager, 0).activations);
}

TEST(CopiedExchange, OfAnythingButAnAllToAllIsNoPlan) {
  const std::string text =
      "plan 2\ngroup g0 0-1\ntensor t0 a input bf16 [tokens=8] g0\n"
      "tensor t1 b output bf16 [tokens=8] g0\n"
      "op o0 x comm all_reduce bf16 16B copied g0 s0 reads t0 writes t1\n";
  try {
    verify(parse_plan(text));
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("expected copies of an all_to_all alone"),
              std::string::npos)
        << error.what();
  }
}

std::string error_of_copies(const Mesh& mesh, const LoweringOptions& options = kExchanged) {
  try {
    check_expert_comm(mesh, options.moe_design == MoeDesign::kFused);
    static_cast<void>(parallelize(moe_layer_plan(testing::small_deepseek(), 64, options), mesh));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(CopiedExchange, SaysWhatItNeeds) {
  const auto says = [](Mesh mesh, const std::string& what,
                       const LoweringOptions& options = kExchanged) {
    mesh.expert_comm = ExpertComm::kCopies;
    EXPECT_NE(error_of_copies(mesh, options).find(what), std::string::npos)
        << error_of_copies(mesh, options);
  };
  EXPECT_EQ(error_of_copies(exchange_mesh(ExpertComm::kCopies)), "");
  says({}, "with dp 1, where no rows travel; expected dp of at least 2, or expert_comm eager");
  says({.tp = 2, .ep = 2}, "with dp 1");
  says({.dp = 2, .ep = 2, .two_batch_overlap = true}, "expected two_batch_overlap false");
  says({.dp = 2, .ep = 2, .ffn_instances = 1}, "expected no ffn_instances");
  says({.dp = 2, .tp = 2, .ep = 4, .sp = true}, "expected sp false");
  says({.dp = 2, .ep = 2, .dp_rows = DpRows::kBalanced}, "dp_rows own");
  says({.dp = 2, .cp = 2, .ep = 2}, "cp 1");
  says({.dp = 4, .ep = 2}, "expected a multiple of dp");
  says({.dp = 2, .ep = 2}, "expected all_to_all, all_gather or deepep",
       {.moe_design = MoeDesign::kFused});
  says({.dp = 2, .ep = 2}, "expected no fuse_scatter_add",
       {.moe_design = MoeDesign::kShuffling, .fuse_scatter_add = true});
}

// On roofline times, so that laws hold without tables.
struct CopiedStep {
  Plan plan;
  Timeline timeline;
  [[nodiscard]] double seconds() const { return makespan(timeline).value(); }
  [[nodiscard]] double span(std::string_view name) const {
    const auto found = std::ranges::find_if(timeline.spans, [&](const Span& one) {
      return one.rank == 0 && plan.ops()[static_cast<std::size_t>(one.op)].name == name;
    });
    return (found->end - found->start).value();
  }
};
CopiedStep simulated_exchange(ExpertComm comm, int chunks, StepLevel level) {
  static const ModelConfig model = testing::shipped_model("Qwen--Qwen3-30B-A3B");
  CopiedStep result{.plan = parallelize(moe_layer_plan(model, std::int64_t{4} * 16384, kExchanged),
                                        exchange_mesh(comm, chunks, 4)),
                    .timeline = {}};
  const Machine machine = cluster(4);
  const CostModel cost(machine, nullptr, nullptr, {});
  result.timeline = simulate(result.plan, machine, cost, {.level = level});
  return result;
}

// Where nothing shares a GPU, by the same formula, it is all one who moves the rows.
TEST(CopiedExchange, TakesAsLongAsEagerWhereNothingIsShared) {
  for (const int chunks : {1, 2}) {
    EXPECT_DOUBLE_EQ(simulated_exchange(ExpertComm::kCopies, chunks, StepLevel::kHeap).seconds(),
                     simulated_exchange(ExpertComm::kEager, chunks, StepLevel::kHeap).seconds());
  }
}

// Of two chunks: the experts of the first beside the dispatch of the second.
TEST(CopiedExchange, LeavesExpertsBesideItTheirSms) {
  if (!kSharesGpus) GTEST_SKIP() << "built without SimGrid, which models sharing";
  const StepLevel shared = StepLevel::kRepresentative;
  const CopiedStep alone = simulated_exchange(ExpertComm::kCopies, 2, StepLevel::kHeap);
  const CopiedStep copies = simulated_exchange(ExpertComm::kCopies, 2, shared);
  const CopiedStep eager = simulated_exchange(ExpertComm::kEager, 2, shared);
  for (const char* op : {"experts.gate_up.chunk0", "experts.down.chunk1"}) {
    EXPECT_NEAR(copies.span(op), alone.span(op), 1e-9 * alone.span(op)) << op;
  }
  EXPECT_GT(eager.span("experts.gate_up.chunk0"), 1.05 * copies.span("experts.gate_up.chunk0"));
  EXPECT_LT(copies.seconds(), eager.seconds());
}

// 16 GPUs are two hosts of eight.
TEST(CopiedExchange, BetweenHostsHasNoPrice) {
  const ModelConfig model = testing::small_deepseek();
  const Plan plan =
      parallelize(moe_layer_plan(model, 64, kExchanged), exchange_mesh(ExpertComm::kCopies, 1, 16));
  const Machine machine = cluster(16);
  const CostModel cost(machine, nullptr, nullptr, {});
  try {
    static_cast<void>(price(plan, cost));
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("several NVLink domains"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace orrery
