// Steps of a replica whose experts' load drifts and that are placed anew, on rooflines.

#include "sim/serve/expert_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/model/expert_load_sources.h"
#include "sim/parallel/expert_moves.h"
#include "sim/serve/expert_links.h"
#include "sim/serve/fast_forward.h"
#include "tests/serve/simulated_steps_testing.h"

namespace orrery {
namespace {

constexpr std::int64_t kExperts = 16;
constexpr std::int64_t kBlocks = 4;
const std::vector<std::int64_t> kOneNode(kBlocks, 0);

// Wide enough for experts to be most of a step; no graphs, so that all steps are as they come.
class ExpertStepsTest : public testing::SimulatedStepsTest {
 protected:
  static ModelConfig model() {
    ConfigFields fields = testing::small_deepseek_fields();
    fields["moe_intermediate_size"] = std::int64_t{2048};
    fields["n_group"] = std::int64_t{1};
    return model_config("wide-experts", fields);
  }
  static Mesh mesh(std::int64_t redundant = 0) {
    return {.dp = 4,
            .ep = 4,
            .expert_comm = ExpertComm::kTokens,
            .num_redundant_experts = static_cast<int>(redundant)};
  }
  SimulatedStepsConfig steps(const Mesh& of) {
    SimulatedStepsConfig made = config(model(), of);
    made.graph_batch_sizes.clear();
    made.lowering.moe_design = MoeDesign::kShuffling;
    return made;
  }
  // Steps under one load and placement.
  std::unique_ptr<StepTimes> fixed(const ExpertLoad& load, const ExpertPlacement& placement) {
    const std::int64_t redundant = std::ssize(placement.expert_of_slot) - kExperts;
    SimulatedStepsConfig made = steps(mesh(redundant));
    made.lowering.expert_load = load;
    made.mesh.expert_load = placed_load(placement, load, kExperts, model().num_experts_per_tok);
    return std::make_unique<StepTimes>(std::move(made));
  }
  std::vector<double> choices(const ExpertLoad& load) const {
    return choice_probabilities(load, kExperts, model().num_experts_per_tok);
  }
  ExpertChanges changes(ExpertDrift drift, std::optional<EplbConfig> eplb,
                        std::int64_t redundant = 0) {
    ExpertChanges made{.drift = std::move(drift),
                       .first = placement_in_order(kExperts, redundant, kBlocks),
                       .eplb = eplb,
                       .place =
                           [redundant](std::span<const double> seen) {
                             return balance_experts(seen, redundant, kBlocks);
                           },
                       .expert = expert_bytes(model(), steps(mesh()).lowering),
                       .num_layers = num_routed_layers(model()),
                       .stage_layers = most_routed_layers(model(), 1)};
    made.moves = [this, expert = made.expert](const ExpertPlacement& before,
                                              const ExpertPlacement& after) {
      const auto moves = expert_moves(before, after, kOneNode);
      return ExpertChanges::Moves{
          .num_slots = std::ssize(moves),
          .time = moving_time(machine_, ranks_of_blocks(model(), mesh()), moves, expert)};
    };
    return made;
  }

  // A replica in virtual time.
  struct Clock {
    Clock(SimulatedStepsConfig config, ExpertChanges changes)
        : plain(config),
          times(std::move(config), std::move(changes)),
          steps(times, std::make_unique<SimulatedSteps>(plain)) {}
    // The duration of one step with a prompt.
    Seconds run(const Batch& batch) {
      steps.starts(now);
      const Seconds duration = steps.run(std::span(&batch, 1)).duration;
      steps.ends(1);
      now += duration;
      return duration;
    }
    FastForward decode(const Batch& batch, std::int64_t most) {
      steps.starts(now);
      FastForward fast = steps.fast_forward(std::span(&batch, 1), most);
      steps.ends(fast.num_steps);
      now += fast_forward_duration(fast, fast.num_steps);
      return fast;
    }
    StepTimes plain;
    ExpertStepTimes times;
    ExpertSteps steps;
    Seconds now;
  };

  const ExpertLoad zipf_ = zipf_load(kExperts, 1.0, 0);
  const Batch prompt_{.prefill = {{.query = 4096, .context = 0}}};
};

TEST_F(ExpertStepsTest, WithoutDriftARebalanceLeavesWhatAStaticPlacementCosts) {
  for (const std::int64_t redundant : {0, 4}) {
    const ExpertPlacement balanced = balance_experts(choices(zipf_), redundant, kBlocks);
    Clock clock(steps(mesh(redundant)),
                changes({.loads = {zipf_}}, EplbConfig{.step_interval = 2}, redundant));
    const Seconds before = clock.run(prompt_);
    const Seconds held_up = clock.run(prompt_);
    const Seconds after = clock.run(prompt_);
    const Seconds in_order =
        fixed(zipf_, placement_in_order(kExperts, redundant, kBlocks))->step(prompt_).duration;
    EXPECT_NEAR(before.value(), in_order.value(), 1e-12);
    EXPECT_NEAR(after.value(), fixed(zipf_, balanced)->step(prompt_).duration.value(), 1e-12);
    EXPECT_LT(after, before);
    ASSERT_EQ(clock.steps.experts()->rebalances.size(), 1U);
    const Rebalance& rebalance = clock.steps.experts()->rebalances[0];
    EXPECT_EQ(rebalance.step, 2);
    EXPECT_NEAR(rebalance.held_up.value(), (held_up - before).value(), 1e-15);
    EXPECT_NEAR(rebalance.balance_after, 1 / imbalance(balanced, choices(zipf_)), 1e-12);
    EXPECT_LT(rebalance.balance_before, rebalance.balance_after);
  }
}

// 3 layers of three matrices of 256 x 2048 in bf16, on links of 450 GB/s.
TEST_F(ExpertStepsTest, MovedBytesAreThoseOfSlotsThatDiffer) {
  Clock clock(steps(mesh()), changes({.loads = {zipf_}}, EplbConfig{.step_interval = 1}));
  clock.run(prompt_);
  const Rebalance& rebalance = clock.steps.experts()->rebalances.at(0);
  const ExpertPlacement before = placement_in_order(kExperts, 0, kBlocks);
  const ExpertPlacement after = keeping_slots(before, balance_experts(choices(zipf_), 0, kBlocks));
  std::int64_t num_different = 0;
  std::vector<double> received(kBlocks);
  for (std::size_t slot = 0; slot < kExperts; ++slot) {
    if (before.expert_of_slot[slot] == after.expert_of_slot[slot]) continue;
    ++num_different;
    received[slot / 4] += 1;
  }
  const double expert = 3.0 * 256 * 2048 * 2;
  EXPECT_GT(num_different, 0);
  EXPECT_EQ(rebalance.num_slots, num_different);
  EXPECT_EQ(rebalance.moved, Bytes(static_cast<double>(num_different) * 3 * expert));
  // Without copies a rank sends as many as it receives, so all ports carry what the most receives.
  const Route route = machine_.route(0, 1);
  const Seconds layer =
      Bytes(std::ranges::max(received) * expert) / BytesPerSecond(450e9) + route.latency;
  EXPECT_NEAR(rebalance.held_up.value(), 3 * layer.value(), 1e-15);
}

TEST_F(ExpertStepsTest, LayersThatMoveOverStepsHoldThemUpAsLongInAll) {
  const auto held_up = [&](std::int64_t layers, std::int64_t num_steps) {
    Clock clock(steps(mesh()),
                changes({.loads = {zipf_}}, EplbConfig{.step_interval = 2,
                                                       .layers_per_step = layers,
                                                       .layer_overhead = Seconds(1e-3)}));
    for (std::int64_t i = 0; i < num_steps; ++i) {
      EXPECT_TRUE(clock.steps.experts() == nullptr || clock.steps.experts()->rebalances.empty());
      clock.run(prompt_);
    }
    EXPECT_EQ(clock.steps.experts()->rebalances.size(), 1U);
    return clock.steps.experts()->rebalances.at(0).held_up.value();
  };
  // Three layers: at the end of step 2, or of steps 2, 3 and 4, or 2 and 3.
  const double at_once = held_up(0, 2);
  EXPECT_GT(at_once, 3e-3);
  EXPECT_NEAR(held_up(1, 4), at_once, 1e-12);
  EXPECT_NEAR(held_up(2, 3), at_once, 1e-12);
  EXPECT_NEAR(held_up(7, 2), at_once, 1e-12);
}

TEST_F(ExpertStepsTest, DriftWithoutRebalancesEndsWhereNoPlacementHelps) {
  ExpertChanges made =
      changes({.loads = {zipf_}, .interval = Seconds(10), .share = 1, .seed = 7}, {});
  made.first = balance_experts(choices(zipf_), 0, kBlocks);
  Clock clock(steps(mesh()), made);
  double balance_of_placed = 0;
  double balance_in_order = 0;
  constexpr int kIntervals = 200;
  for (int i = 0; i < kIntervals; ++i) {
    clock.now = Seconds(10.0 * (i + 1));
    clock.steps.starts(clock.now);
    balance_of_placed += clock.steps.experts()->balances.back().balance;
    const ExpertLoad load = made.drift.load(i + 1);
    balance_in_order += 1 / imbalance(placement_in_order(kExperts, 0, kBlocks), choices(load));
  }
  EXPECT_NEAR(clock.steps.experts()->balances.front().balance,
              1 / imbalance(made.first, choices(made.drift.load(1))), 1e-12);
  // Means of 200 draws each, whose standard deviation is about 0.1.
  EXPECT_NEAR(balance_of_placed / kIntervals, balance_in_order / kIntervals, 0.03);
  EXPECT_LT(balance_of_placed / kIntervals, 0.9 / imbalance(made.first, choices(zipf_)));
}

TEST_F(ExpertStepsTest, FastForwardsEndWhereTheLoadChangesAndWhereExpertsMove) {
  const Batch decodes{.num_decodes = 64, .decode_context = 65'536};
  const Seconds one =
      fixed(zipf_, placement_in_order(kExperts, 0, kBlocks))->fast_forward(decodes, 1).first;
  // A load stays for five and a half steps: the sixth begins under it.
  Clock drifting(steps(mesh()),
                 changes({.loads = {zipf_}, .interval = one * 5.5, .share = 0.5, .seed = 7}, {}));
  EXPECT_EQ(drifting.decode(decodes, 100).num_steps, 6);
  EXPECT_EQ(drifting.times.changes().drift.index_at(drifting.now), 1);
  // Experts move at the end of the fourth step, which stands by itself.
  Clock moving(steps(mesh()), changes({.loads = {zipf_}}, EplbConfig{.step_interval = 4}));
  EXPECT_EQ(moving.decode(decodes, 100).num_steps, 3);
  const FastForward held_up = moving.decode(decodes, 100);
  EXPECT_EQ(held_up.num_steps, 1);
  EXPECT_GT(held_up.first, one);
  EXPECT_EQ(moving.decode(decodes, 100).num_steps, 3);
}

// What was to be twenty steps was cut to two, so the third is the one with moves.
TEST_F(ExpertStepsTest, StepsThatWereNotTakenAreNotCounted) {
  const Batch decodes{.num_decodes = 64, .decode_context = 65'536};
  Clock clock(steps(mesh()), changes({.loads = {zipf_}}, EplbConfig{.step_interval = 4}));
  clock.steps.starts(Seconds(0));
  EXPECT_EQ(clock.steps.fast_forward(std::span(&decodes, 1), 20).num_steps, 3);
  clock.steps.ends(2);
  clock.steps.starts(Seconds(1));
  EXPECT_EQ(clock.steps.fast_forward(std::span(&decodes, 1), 20).num_steps, 1);
  clock.steps.ends(1);
  EXPECT_TRUE(clock.steps.experts()->rebalances.empty());
  clock.steps.starts(Seconds(2));
  clock.steps.fast_forward(std::span(&decodes, 1), 20);
  clock.steps.ends(1);
  EXPECT_EQ(clock.steps.experts()->rebalances.size(), 1U);
}

TEST_F(ExpertStepsTest, AWindowForgetsTheLoadBeforeIt) {
  const ExpertLoad later = zipf_load(kExperts, 1.0, 5);
  const ExpertDrift drift{.loads = {zipf_, later}, .interval = Seconds(1)};
  const auto balance_after = [&](std::int64_t window) {
    Clock clock(steps(mesh()),
                changes(drift, EplbConfig{.step_interval = 4, .window_size = window}));
    clock.run(prompt_);
    clock.run(prompt_);
    clock.now = Seconds(2);
    clock.run(prompt_);
    clock.run(prompt_);
    return clock.steps.experts()->rebalances.at(0).balance_after;
  };
  const double best = 1 / imbalance(balance_experts(choices(later), 0, kBlocks), choices(later));
  EXPECT_NEAR(balance_after(2), best, 1e-12);
  EXPECT_LT(balance_after(1000), best);
}

TEST_F(ExpertStepsTest, TimesOfALoadAndAPlacementAreMadeOnce) {
  ExpertStepTimes times(steps(mesh()), changes({.loads = {zipf_}}, {}));
  const ExpertPlacement first = placement_in_order(kExperts, 0, kBlocks);
  const auto known = times.find(0, first);
  EXPECT_EQ(times.find(0, first), known);
  EXPECT_NE(times.find(0, balance_experts(choices(zipf_), 0, kBlocks)), known);
}

}  // namespace
}  // namespace orrery
