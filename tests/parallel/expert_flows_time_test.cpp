// Expert parallelism in simulated time: what the shared expert hides, what dedup spares the slow
// links, and which rank the others wait for. Roofline times, so that laws hold without tables.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/des/simulate.h"
#include "sim/model/expert_load_sources.h"
#include "sim/parallel/expert_placement.h"
#include "sim/parallel/parallel.h"
#include "tests/model/config_file.h"
#include "tests/model/small_models.h"
#include "tests/parallel/cluster.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::cluster;
using testing::scout;

#ifdef ORRERY_NO_SIMGRID
constexpr bool kHasSimgrid = false;
#else
constexpr bool kHasSimgrid = true;
#endif

struct Simulated {
  Plan plan;
  Timeline timeline;
  [[nodiscard]] double seconds() const { return makespan(timeline).value(); }
};

Simulated simulated(const Machine& machine, const ModelConfig& model, std::int64_t tokens,
                    const Mesh& mesh, LaunchMode mode = LaunchMode::kEager,
                    StepLevel level = StepLevel::kHeap) {
  const LoweringOptions lowering{.moe_design = MoeDesign::kShuffling, .moe_streams = 2};
  CostOptions options;
  options.launch_mode = mode;
  options.host.eager_launch = Seconds(3e-6);
  options.host.d2h_sync = Seconds(20e-6);
  const CostModel cost(machine, nullptr, nullptr, options);
  Simulated result{.plan = parallelize(moe_layer_plan(model, tokens, lowering), mesh),
                   .timeline = {}};
  result.timeline = simulate(result.plan, machine, cost, {.level = level});
  return result;
}

const Span& span_of(const Simulated& step, std::string_view name, int rank) {
  const auto found = std::ranges::find_if(step.timeline.spans, [&](const Span& span) {
    return span.rank == rank && step.plan.ops()[static_cast<std::size_t>(span.op)].name == name;
  });
  if (found == step.timeline.spans.end())
    throw std::invalid_argument("no span " + std::string(name));
  return *found;
}

// Bytes of ops whose names start so, on links of NICs.
double bytes_on_nics(const Simulated& step, std::string_view prefix) {
  double bytes = 0;
  for (const LinkSpan& span : step.timeline.link_spans) {
    const std::string& link = step.timeline.links[static_cast<std::size_t>(span.link)];
    const std::string& op = step.plan.ops()[static_cast<std::size_t>(span.op)].name;
    if (link.find("nic.up") != std::string::npos && op.starts_with(prefix)) {
      bytes += span.bytes.value();
    }
  }
  return bytes;
}

TEST(ExpertFlowsInTime, PartOneOfTheSharedExpertRunsWhileTheHostWaits) {
  const Mesh mesh{.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager};
  const Simulated step = simulated(cluster(4), scout(), 4 * 512, mesh);
  const Span& sync = span_of(step, "sync", 0);
  const Span& part_1 = span_of(step, "shared.gate_up_proj", 0);
  EXPECT_LT(part_1.start, sync.end);
  EXPECT_GT(part_1.end, sync.start);
  const Span& part_2 = span_of(step, "shared.down_proj", 0);
  const Span& back = span_of(step, "return.all_to_all", 0);
  EXPECT_LT(part_2.start, back.end);
  EXPECT_GT(part_2.end, back.start);
}

// Kernels that fill the GPU take as long together as one after the other, so only what runs while
// the GPU would wait is won: part 1 in the sync, part 2 in the return. GEMMs of few tokens leave
// SMs free, so that a whole shared expert may run beside the routed ones too.
TEST(ExpertFlowsInTime, SplittingTheSharedExpertHidesTheReturn) {
  if (!kHasSimgrid) GTEST_SKIP() << "built without SimGrid, which models sharing";
  const Machine machine = cluster(4);
  for (const std::int64_t tokens : {16, 128, 512, 4096}) {
    Mesh mesh{.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager};
    const auto run = [&] {
      return simulated(machine, scout(), 4 * tokens, mesh, LaunchMode::kEager,
                       StepLevel::kRepresentative);
    };
    const Simulated split = run();
    mesh.split_shared_expert = false;
    const Simulated whole = run();
    EXPECT_LT(split.seconds(), (tokens < 512 ? 1.06 : 1.0) * whole.seconds()) << tokens;
    EXPECT_LT(exposed_communication(split.timeline, 0), exposed_communication(whole.timeline, 0))
        << tokens;
  }
}

// dp 2 nodes x tp 8: without dedup each of 8 ranks sends whole rows, with it an eighth of each.
TEST(ExpertFlowsInTime, DedupSendsEachRowBetweenNodesOnce) {
  const Machine machine = cluster(16);
  const struct {
    ExpertComm plain;
    ExpertComm dedup;
    LaunchMode mode;
  } flows[] = {{ExpertComm::kEager, ExpertComm::kDedup, LaunchMode::kEager},
               {ExpertComm::kGraph, ExpertComm::kDedupGraph, LaunchMode::kGraph}};
  for (const auto& flow : flows) {
    Mesh mesh{.dp = 2, .tp = 8, .ep = 2, .expert_comm = flow.plain};
    const Simulated plain = simulated(machine, scout(), 2 * 2048, mesh, flow.mode);
    mesh.expert_comm = flow.dedup;
    const Simulated dedup = simulated(machine, scout(), 2 * 2048, mesh, flow.mode);
    for (const std::string_view op : {"dispatch", "return"}) {
      EXPECT_GT(bytes_on_nics(plain, op), 0) << op;
      EXPECT_NEAR(bytes_on_nics(plain, op) / bytes_on_nics(dedup, op), 8, 1e-9) << op;
    }
    EXPECT_LT(dedup.seconds(), plain.seconds());
  }
}

// Zipf 1.0 over 16 experts on 4 ranks: the others wait for the rank with the most chosen experts;
// placing experts anew, and copies, bring the time down towards that of even routing.
TEST(ExpertFlowsInTime, ASkewedLoadCostsTheSlowestRankAndPlacementHelps) {
  const Machine machine = cluster(4);
  const ModelConfig model = scout();
  const ExpertLoad load = zipf_load(16, 1.0, 0);
  const auto seconds = [&](const ExpertPlacement& placement) {
    const Mesh mesh{.dp = 4,
                    .ep = 4,
                    .expert_comm = ExpertComm::kEager,
                    .num_redundant_experts = static_cast<int>(placement.expert_of_slot.size()) - 16,
                    .expert_load = placed_load(placement, load, 16, 1)};
    return simulated(machine, model, 4 * 4096, mesh).seconds();
  };
  const Mesh even{.dp = 4, .ep = 4, .expert_comm = ExpertComm::kEager};
  const double uniform = simulated(machine, model, 4 * 4096, even).seconds();
  const double before = seconds(placement_in_order(16, 0, 4));
  const double placed = seconds(balance_experts(load.shares, 0, 4));
  const double copied = seconds(balance_experts(load.shares, 4, 4));
  EXPECT_GT(before, 1.5 * uniform);
  EXPECT_LT(placed, before);
  EXPECT_LT(copied, placed);
  EXPECT_LT(copied, 1.1 * uniform);
}

}  // namespace
}  // namespace orrery
