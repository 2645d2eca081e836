// Step times from parts against the plan of the exact batch.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "sim/parallel/rank_rows.h"
#include "sim/serve/random.h"
#include "tests/model/small_models.h"
#include "tests/serve/simulated_steps_testing.h"

namespace orrery {
namespace {

using testing::SimulatedStepsTest;
using testing::small_deepseek;
using testing::small_llama;

TEST_F(SimulatedStepsTest, ADecodeStepOnTheGridIsTheClosedFormOfItsPlanPlusHostTime) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.tp = 2}}) {
    StepTimes times(config(small_llama(), mesh));
    // 8 sequences of 1024 tokens: a captured size, and 8 * 2^(56/8) is a grid point.
    const Batch batch{.num_decodes = 8, .decode_context = 8192};
    const Seconds exact = step_time(setup(small_llama(), mesh, graph_cost_), batch).duration;
    EXPECT_NEAR(times.step(batch).duration.value(), (exact + Seconds(5e-4)).value(), 1e-12);
  }
}

TEST_F(SimulatedStepsTest, APartialGraphBatchCostsWhatThePaddedOneComputes) {
  StepTimes times(config(small_llama(), {}));
  // 5 sequences run the token-wise ops of 8; attention is that of 5.
  const Seconds five = times.step({.num_decodes = 5, .decode_context = 5120}).duration;
  const Seconds eight = times.step({.num_decodes = 8, .decode_context = 8192}).duration;
  const Seconds four = times.step({.num_decodes = 4, .decode_context = 4096}).duration;
  EXPECT_LE(five, eight);
  EXPECT_GE(five, four);
}

TEST_F(SimulatedStepsTest, MixedStepsAreWithinHalfAPercentOfTheirExactPlan) {
  for (const Mesh& mesh : {Mesh{}, Mesh{.tp = 4}}) {
    StepTimes times(config(small_llama(), mesh));
    const StepSetup exact = setup(small_llama(), mesh, eager_cost_);
    for (const Batch& batch :
         {Batch{.prefill = {{.query = 1234, .context = 0}},
                .num_decodes = 37,
                .decode_context = 33337},
          Batch{.prefill = {{.query = 4011, .context = 2000}},
                .num_decodes = 190,
                .decode_context = 633270},
          Batch{.prefill = {{.query = 700, .context = 0}, {.query = 700, .context = 0}}},
          Batch{.prefill = {{.query = 17, .context = 5000}},
                .num_decodes = 3,
                .decode_context = 999}}) {
      const double whole = (step_time(exact, batch).duration + Seconds(5e-4)).value();
      EXPECT_NEAR(times.step(batch).duration.value(), whole, 0.005 * whole) << batch.num_decodes;
    }
  }
}

TEST_F(SimulatedStepsTest, StepsOfFewTokensReplayPiecesAndLargerOnesAreEager) {
  HostCosts host = host_;
  host.eager_launch = Seconds(0);
  const CostModel pieces{
      machine_, nullptr, nullptr, {.launch_mode = LaunchMode::kGraph, .host = host}};
  SimulatedStepsConfig chosen = config(small_llama(), {});
  chosen.graph_batch_sizes = {};
  chosen.max_piece_tokens = 512;
  chosen.mixed_piece_cost = &pieces;
  chosen.decode_piece_cost = &pieces;
  StepTimes times(chosen);
  const auto expect_near = [&](const Batch& batch, const CostModel& cost) {
    const double whole =
        (step_time(setup(small_llama(), {}, cost), batch).duration + Seconds(5e-4)).value();
    EXPECT_NEAR(times.step(batch).duration.value(), whole, 0.005 * whole);
  };
  expect_near({.num_decodes = 8, .decode_context = 8192}, pieces);
  expect_near({.num_decodes = 600, .decode_context = 60000}, eager_cost_);
  const Batch prompt{.prefill = {{.query = 500}}, .num_decodes = 12, .decode_context = 1200};
  expect_near(prompt, pieces);  // 512 tokens
  Batch longer = prompt;
  longer.num_decodes = 13;
  longer.decode_context = 1300;
  expect_near(longer, eager_cost_);
}

TEST_F(SimulatedStepsTest, AStepInPiecesTakesAsLongAsItsHostAtLeast) {
  HostCosts host = host_;
  host.eager_launch = Seconds(1);  // of a layer; the model has four
  const CostModel pieces{
      machine_, nullptr, nullptr, {.launch_mode = LaunchMode::kGraph, .host = host}};
  SimulatedStepsConfig chosen = config(small_llama(), {});
  chosen.graph_batch_sizes = {};
  chosen.max_piece_tokens = 512;
  chosen.mixed_piece_cost = &pieces;
  chosen.decode_piece_cost = &pieces;
  StepTimes times(chosen);
  const Batch decodes{.num_decodes = 8, .decode_context = 8192};
  EXPECT_NEAR(times.step(decodes).duration.value(), 4 + 5e-4, 1e-9);
  const Batch prompt{.prefill = {{.query = 100}}};
  EXPECT_NEAR(times.step(prompt).duration.value(), 4 + 5e-4, 1e-9);
}

TEST_F(SimulatedStepsTest, DecodeStepsBetweenGridPointsAreWithinHalfAPercent) {
  StepTimes times(config(small_llama(), {}));
  const StepSetup exact = setup(small_llama(), {}, graph_cost_);
  for (const std::int64_t context : {11, 100, 777, 1500, 30001}) {
    const Batch batch{.num_decodes = 16, .decode_context = 16 * context};
    const double whole = (step_time(exact, batch).duration + Seconds(5e-4)).value();
    EXPECT_NEAR(times.step(batch).duration.value(), whole, 0.005 * whole) << context;
  }
}

// A template once took the longer of its own sum and the closed form at context 1024, and the two
// differ by rounding.
TEST_F(SimulatedStepsTest, ShortContextsAreNotTakenForLongOnes) {
  for (const std::int64_t sequences : {4, 8, 16, 32, 64}) {
    StepTimes times(config(small_llama(), {}));
    const Batch batch{.num_decodes = sequences, .decode_context = sequences * 32};
    const Seconds exact = step_time(setup(small_llama(), {}, graph_cost_), batch).duration;
    EXPECT_NEAR(times.step(batch).duration.value(), (exact + Seconds(5e-4)).value(), 1e-12);
  }
}

TEST_F(SimulatedStepsTest, RandomMixedStepsAreWithinHalfAPercentOfTheirExactPlan) {
  constexpr std::uint64_t kSeed = 7;
  Random random(kSeed);
  for (const Mesh& mesh : {Mesh{}, Mesh{.tp = 4}}) {
    StepTimes times(config(small_llama(), mesh));
    const StepSetup exact = setup(small_llama(), mesh, eager_cost_);
    const auto up_to = [&](double most) {  // from 1, evenly in the logarithm
      return static_cast<std::int64_t>(std::exp(random.uniform() * std::log(most)));
    };
    for (int i = 0; i < 200; ++i) {
      Batch batch;
      for (std::int64_t chunk = random.uniform_integer(1, 3); chunk > 0; --chunk) {
        batch.prefill.push_back({.query = up_to(6000), .context = up_to(6000) - 1});
      }
      batch.num_decodes = random.uniform_integer(0, 200);
      batch.decode_context = batch.num_decodes * up_to(8000);
      const double whole = (step_time(exact, batch).duration + Seconds(5e-4)).value();
      ASSERT_NEAR(times.step(batch).duration.value(), whole, 0.005 * whole)
          << "seed " << kSeed << " batch " << i << " query " << batch.prefill[0].query;
    }
  }
}

TEST_F(SimulatedStepsTest, AFastForwardContinuesWhereTheStepBeforeEnded) {
  StepTimes times(config(small_llama(), {}));
  Batch batch{.num_decodes = 16, .decode_context = 16000};
  const FastForward fast = times.fast_forward(batch, 1000000);
  EXPECT_GT(fast.num_steps, 10);  // to the next grid point, 1 / 8 octave
  EXPECT_LT(fast.num_steps, 200);
  for (const std::int64_t steps : {std::int64_t{1}, fast.num_steps - 1}) {
    Batch later = batch;
    later.decode_context += 16 * steps;
    const double expected = (fast.first + fast.slope * static_cast<double>(steps)).value();
    EXPECT_NEAR(times.fast_forward(later, 1).first.value(), expected, 1e-12);
  }
}

TEST_F(SimulatedStepsTest, TheBasisOfAFastForwardIsTheSumOverItsSteps) {
  StepTimes times(config(small_llama(), {}));
  Batch batch{.num_decodes = 16, .decode_context = 16000};
  const FastForward fast = times.fast_forward(batch, 20);
  ASSERT_EQ(fast.num_steps, 20);
  Seconds sum;
  for (int i = 0; i < 20; ++i) {
    sum += times.fast_forward(batch, 1).basis.roofline;
    batch.decode_context += 16;
  }
  EXPECT_NEAR(fast.basis.roofline.value(), sum.value(), 1e-12);
}

TEST_F(SimulatedStepsTest, TheFirstQuestionDoesNotChangeLaterAnswers) {
  StepTimes a(config(small_llama(), {}));
  StepTimes b(config(small_llama(), {}));
  const Batch one{
      .prefill = {{.query = 1001, .context = 3}}, .num_decodes = 9, .decode_context = 900};
  const Batch two{
      .prefill = {{.query = 1002, .context = 3}}, .num_decodes = 9, .decode_context = 901};
  const Seconds first = a.step(one).duration;
  b.step(two);
  EXPECT_EQ(b.step(one).duration, first);
}

TEST_F(SimulatedStepsTest, AsyncSchedulingHidesHostTimeBehindTheDevice) {
  SimulatedStepsConfig async = config(small_llama(), {});
  async.async_scheduling = true;
  StepTimes hidden(async);
  const Batch small{.num_decodes = 1, .decode_context = 10};
  EXPECT_DOUBLE_EQ(hidden.step(small).duration.value(), 5e-4);  // the host is the slower one
  const Batch large{.prefill = {{.query = 60000, .context = 0}}};
  StepTimes plain(config(small_llama(), {}));
  EXPECT_NEAR((plain.step(large).duration - hidden.step(large).duration).value(), 5e-4, 1e-12);
}

TEST_F(SimulatedStepsTest, HostTimeGrowsWithTheSequencesOfAStep) {
  SimulatedStepsConfig costly = config(small_llama(), {});
  costly.scheduler_per_sequence = Seconds(1e-4);
  StepTimes with(costly);
  StepTimes without(config(small_llama(), {}));
  const Batch decodes{.num_decodes = 16, .decode_context = 16000};
  const FastForward a = with.fast_forward(decodes, 100);
  const FastForward b = without.fast_forward(decodes, 100);
  EXPECT_NEAR((a.first - b.first).value(), 16e-4, 1e-12);
  EXPECT_EQ(a.slope, b.slope);
  Batch mixed = decodes;
  mixed.prefill = {{.query = 100, .context = 0}, {.query = 50, .context = 0}};
  EXPECT_NEAR((with.step(mixed).duration - without.step(mixed).duration).value(), 18e-4, 1e-12);
}

TEST_F(SimulatedStepsTest, StepsOfNewNumbersOfRowsArePreparedOnceAndForgottenLast) {
  SimulatedStepsConfig preparing = config(small_llama(), {});
  preparing.prefill_base = Seconds(1e-4);
  preparing.new_rows = Seconds(2e-3);
  StepTimes times(preparing);
  StepTimes plain(config(small_llama(), {}));
  SimulatedSteps steps(times);
  const auto more = [&](std::int64_t query) {
    const Batch batch{.prefill = {{.query = query, .context = 0}}};
    return (steps.run(std::span(&batch, 1)).duration - plain.step(batch).duration).value();
  };
  EXPECT_NEAR(more(100), 21e-4, 1e-12);
  EXPECT_NEAR(more(100), 1e-4, 1e-12);
  EXPECT_NEAR(more(101), 21e-4, 1e-12);
  // As many others as are kept push it out.
  for (std::size_t i = 0; i < kMostPrepared; ++i) more(200 + static_cast<std::int64_t>(i));
  EXPECT_NEAR(more(100), 21e-4, 1e-12);
}

// Of prompts and decodes alike, whatever they are made of; each replica keeps its own.
TEST_F(SimulatedStepsTest, AttentionOfANewShapeIsPlannedOnce) {
  SimulatedStepsConfig planning = config(small_llama(), {});
  planning.new_attention = Seconds(4e-2);
  StepTimes times(planning);
  StepTimes plain(config(small_llama(), {}));
  SimulatedSteps steps(times);
  const auto more = [&](SimulatedSteps& replica, const Batch& batch) {
    return (replica.run(std::span(&batch, 1)).duration - plain.step(batch).duration).value();
  };
  const Batch prompt{.prefill = {{.query = 100, .context = 28}}};
  EXPECT_NEAR(more(steps, prompt), 4e-2, 1e-12);
  EXPECT_NEAR(more(steps, prompt), 0, 1e-12);
  // 100 queries and 128 keys again.
  EXPECT_NEAR(
      more(steps,
           {.prefill = {{.query = 99, .context = 9}}, .num_decodes = 1, .decode_context = 20}),
      0, 1e-12);
  SimulatedSteps other(times);
  EXPECT_NEAR(more(other, prompt), 4e-2, 1e-12);
  // Decodes have more keys in each step, so none is taken in one with the next.
  const Batch decodes{.num_decodes = 4, .decode_context = 4000};
  const FastForward first = steps.fast_forward(std::span(&decodes, 1), 100);
  EXPECT_EQ(first.num_steps, 1);
  EXPECT_NEAR((first.first - plain.fast_forward(decodes, 1).first).value(), 4e-2, 1e-12);
  const FastForward again = steps.fast_forward(std::span(&decodes, 1), 100);
  EXPECT_NEAR((again.first - plain.fast_forward(decodes, 1).first).value(), 0, 1e-12);
}

TEST_F(SimulatedStepsTest, AttentionShapesAreRoundedUpToMultiples) {
  SimulatedStepsConfig planning = config(small_llama(), {});
  planning.new_attention = Seconds(4e-2);
  planning.attention_shape = {.queries = 64, .keys = 256};
  StepTimes times(planning);
  SimulatedSteps steps(times);
  const auto is_new = [&](std::int64_t query, std::int64_t context) {
    const Batch batch{.prefill = {{.query = query, .context = context}}};
    const Seconds seen = times.step(batch).duration;
    return (steps.run(std::span(&batch, 1)).duration - seen).value() > 1e-2;
  };
  EXPECT_TRUE(is_new(100, 100));
  EXPECT_FALSE(is_new(128, 128));
  EXPECT_TRUE(is_new(129, 127));
  EXPECT_TRUE(is_new(128, 129));
}

// small_llama has 2 kv heads: 25 sequences give as many rows as half of the 100 SMs.
TEST_F(SimulatedStepsTest, AttentionOfDifferentContextsMergesRowsInEachLayer) {
  SimulatedStepsConfig uneven = config(small_llama(), {});
  uneven.uneven_attention = {.more = Seconds(7e-6), .of_few = Seconds(4e-6)};
  StepTimes with(uneven);
  StepTimes without(config(small_llama(), {}));
  const auto layers = static_cast<double>(small_llama().layers.size());
  ASSERT_EQ(small_llama().num_key_value_heads, 2);
  const auto more = [&](const Batch& batch) {
    return (with.step(batch).duration - without.step(batch).duration).value();
  };
  const auto decodes = [](std::int64_t count) {
    return Batch{.num_decodes = count, .decode_context = count * 1024};
  };
  EXPECT_EQ(more(decodes(1)), 0);
  EXPECT_NEAR(more(decodes(8)), 4e-6 * layers, 1e-12);
  EXPECT_NEAR(more(decodes(64)), 7e-6 * layers, 1e-12);
  Batch mixed = decodes(64);
  mixed.prefill = {{.query = 100, .context = 0}};
  EXPECT_NEAR(more(mixed), 7e-6 * layers, 1e-12);
}

// Prompts that follow each other reach the power limit; after a pause they have the full clock.
TEST_F(SimulatedStepsTest, PromptsInARowReachThePowerLimitAndPausesLeaveIt) {
  CostOptions options{.launch_mode = LaunchMode::kEager, .host = host_};
  options.power = {.gemm = 1.5, .attention = 1.5, .share = 0.1, .boost = Seconds(1e-3)};
  const CostModel cost(machine_, nullptr, nullptr, options);
  SimulatedStepsConfig powered = config(small_llama(), {});
  powered.eager_cost = &cost;
  powered.scheduler_base = Seconds(0);
  StepTimes times(powered);
  const Batch batch{.prefill = {{.query = 60000, .context = 0}}};
  const DeviceTime alone = step_time(setup(small_llama(), {}, cost), batch);
  const double at_full = alone.duration.value();
  const double at_limit = alone.limited.value();
  ASSERT_GT(at_full, 1e-3);  // the boost ends within the first
  SimulatedSteps steps(times);
  Seconds now;
  const auto run = [&](Seconds pause) {
    now += pause;
    steps.starts(now);
    const Seconds taken = steps.run(std::span(&batch, 1)).duration;
    now += taken;
    return taken.value();
  };
  const double first = run(Seconds(0));
  EXPECT_GT(first, at_full);
  EXPECT_LT(first, at_limit);
  EXPECT_NEAR(run(Seconds(0)), at_limit, 0.005 * at_limit);
  EXPECT_NEAR(run(Seconds(10)), first, 1e-12);
}

// With a share of a half the clock rises as fast as it falls, here within the boost of 1 s.
TEST_F(SimulatedStepsTest, DecodesAfterPromptsTakeLongerUntilTheClockIsFullAgain) {
  CostOptions options{.launch_mode = LaunchMode::kEager, .host = host_};
  options.power = {
      .gemm = 1.5, .attention = 1.5, .decodes = 1.2, .share = 0.5, .boost = Seconds(1)};
  const CostModel cost(machine_, nullptr, nullptr, options);
  SimulatedStepsConfig powered = config(small_llama(), {});
  powered.eager_cost = &cost;
  powered.scheduler_base = Seconds(0);
  StepTimes times(powered);
  const Batch batch{.num_decodes = 8, .decode_context = 8 * 1024};
  const FastForward full = times.fast_forward(batch, 1000);
  const PowerBudget half(options.power, Seconds(0.5));
  const FastForward throttled = times.fast_forward(batch, 1000, &half);
  EXPECT_NEAR(throttled.first / full.first, 1 + 0.2 / 2, 1e-12);
  EXPECT_NEAR(throttled.basis.roofline / full.basis.roofline * static_cast<double>(full.num_steps) /
                  static_cast<double>(throttled.num_steps),
              1.1, 0.01);
  // A boost that is left of one and a half steps lasts as many: of the second, a third is
  // throttled.
  const Seconds step = full.first;
  const PowerBudget short_one(options.power, Seconds(1) - step * 1.5);
  const FastForward end = times.fast_forward(batch, 1000, &short_one);
  EXPECT_EQ(end.num_steps, 2);
  EXPECT_NEAR((end.slope - full.slope) / (end.first - step), -1 / 1.5, 1e-3);
  const PowerBudget rested(options.power);
  EXPECT_EQ(times.fast_forward(batch, 1000, &rested).first, full.first);
}

// Decodes that compute as much as the limit allows without end give nothing of the clock back. So
// many over so long a context that some of their work model is arithmetic.
TEST_F(SimulatedStepsTest, DecodesThatComputeKeepTheClockThrottled) {
  const Batch decodes{.num_decodes = 8192, .decode_context = 8192 * 2048};
  const auto cost_of = [&](LaunchMode mode, double share) {
    CostOptions options{.launch_mode = mode};
    options.power = {
        .gemm = 1.5, .attention = 1.5, .decodes = 1.2, .share = share, .boost = Seconds(1e-2)};
    return CostModel(machine_, nullptr, nullptr, options);
  };
  const auto config_of = [&](const CostModel& graph, const CostModel& eager) {
    SimulatedStepsConfig powered = config(small_llama(), {});
    powered.graph_cost = &graph;
    powered.eager_cost = &eager;
    powered.scheduler_base = Seconds(0);
    return powered;
  };
  // How much longer than at the full clock two decodes take, one after the other, after a prompt.
  const auto longer = [&](double share) {
    const CostModel graph = cost_of(LaunchMode::kGraph, share);
    const CostModel eager = cost_of(LaunchMode::kEager, share);
    StepTimes times(config_of(graph, eager));
    SimulatedSteps steps(times);
    const Batch prompt{.prefill = {{.query = 60000, .context = 0}}};
    Seconds now = steps.run(std::span(&prompt, 1)).duration;
    std::array<double, 2> ratios{};
    for (double& ratio : ratios) {
      steps.starts(now);
      const Seconds taken = steps.fast_forward(std::span(&decodes, 1), 1).first;
      ratio = taken / times.fast_forward(decodes, 1).first;
      now += taken;
    }
    return ratios;
  };
  const CostModel graph = cost_of(LaunchMode::kGraph, 0.5);
  const CostModel eager = cost_of(LaunchMode::kEager, 0.5);
  const double share = StepTimes(config_of(graph, eager)).arithmetic_share(std::span(&decodes, 1));
  ASSERT_GT(share, 0);
  ASSERT_LT(share, 0.5);
  const auto kept = longer(share);
  EXPECT_GT(kept[0], 1);
  EXPECT_NEAR(kept[1], kept[0], 1e-9);
  const auto given_back = longer(0.5);
  EXPECT_GT(given_back[0], 1);
  EXPECT_LT(given_back[1], given_back[0]);
}

TEST_F(SimulatedStepsTest, EagerLaunchesBoundSmallPrefillsAndNotLargeOnes) {
  const Seconds launch(30e-6);
  const CostModel slow(machine_, nullptr, nullptr,
                       {.launch_mode = LaunchMode::kEager, .host = {.eager_launch = launch}});
  const CostModel instant(machine_, nullptr, nullptr, {.launch_mode = LaunchMode::kEager});
  const auto time_of = [&](const CostModel& cost, std::int64_t query) {
    SimulatedStepsConfig eager = config(small_llama(), {});
    eager.eager_cost = &cost;
    eager.scheduler_base = Seconds(0);
    return StepTimes(eager).step({.prefill = {{.query = query, .context = 0}}}).duration;
  };
  const Plan plan =
      step_plan(small_llama(), Batch{.prefill = {{.query = 16, .context = 0}}}, {}, {});
  double num_ops = 0;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    num_ops += static_cast<double>(plan.multiplicity(id));
  }
  // Each kernel of 16 tokens is shorter than a launch, so only the last is seen after it is issued.
  EXPECT_GE(time_of(slow, 16), launch * num_ops);
  EXPECT_LT(time_of(slow, 16), launch * (num_ops + 1));
  // 600000 tokens: each kernel is longer than a launch, so only the first waits for its own.
  EXPECT_NEAR((time_of(slow, 600000) - time_of(instant, 600000)).value(), launch.value(), 1e-9);
}

TEST_F(SimulatedStepsTest, ExpertParallelModelsRunAtEveryLevel) {
  for (const StepLevel level : {StepLevel::kClosedForm, StepLevel::kHeap}) {
    SimulatedStepsConfig expert = config(small_deepseek(), {.dp = 4, .ep = 4});
    expert.level = level;
    StepTimes times(expert);
    const Seconds small = times.step({.num_decodes = 4, .decode_context = 4000}).duration;
    const Seconds large = times.step({.num_decodes = 64, .decode_context = 640000}).duration;
    EXPECT_GT(small, Seconds(5e-4));
    EXPECT_GT(large, small);
  }
}

// A template once held all prompt tokens of a step on one data-parallel rank.
TEST_F(SimulatedStepsTest, DataParallelRanksShareTheChunksOfAStep) {
  const Mesh mesh{.dp = 4, .ep = 4};
  StepTimes times(config(small_deepseek(), mesh));
  const StepSetup exact = setup(small_deepseek(), mesh, eager_cost_);
  const PrefillChunk chunk{.query = 40000, .context = 0};
  for (const std::size_t chunks : {1, 2, 4, 6, 8}) {
    const Batch batch{
        .prefill = std::vector(chunks, chunk), .num_decodes = 128, .decode_context = 128 * 1024};
    const double whole = (step_time(exact, batch).duration + Seconds(5e-4)).value();
    EXPECT_NEAR(times.step(batch).duration.value(), whole, 0.01 * whole) << chunks;
  }
}

TEST_F(SimulatedStepsTest, DataParallelRanksPadToTheGraphOfTheFullest) {
  // 4 ranks: 17 sequences leave 5 on the fullest, which pads to 8, as 32 sequences need.
  StepTimes times(config(small_deepseek(), {.dp = 4, .ep = 4}));
  const auto time_of = [&](std::int64_t sequences) {
    return times.step({.num_decodes = sequences, .decode_context = sequences * 1024}).duration;
  };
  EXPECT_GT(time_of(17), time_of(16));
  EXPECT_LE(time_of(17), time_of(32));
  // 260 sequences are 65 a rank, beyond the largest graph of 64: eager.
  EXPECT_GT(time_of(260), time_of(256));
}

TEST_F(SimulatedStepsTest, PipelinesAreNoChainAndStillRun) {
  StepTimes times(config(small_llama(), {.tp = 2, .pp = 2}));
  EXPECT_GT(times.step({.prefill = {{.query = 512, .context = 0}}}).duration, Seconds(5e-4));
  const FastForward fast = times.fast_forward({.num_decodes = 8, .decode_context = 8000}, 50);
  EXPECT_GE(fast.num_steps, 1);
  EXPECT_GT(fast.first, Seconds(5e-4));
}

TEST_F(SimulatedStepsTest, BasisSharesAreOfTheDeviceTime) {
  StepTimes times(config(small_llama(), {}));
  const StepTime step = times.step({.num_decodes = 8, .decode_context = 8192});
  EXPECT_EQ(step.basis.measured, Seconds(0));  // no tables here
  EXPECT_GT(step.basis.roofline, Seconds(0));
  EXPECT_LE(step.basis.roofline, step.duration);
}

TEST(RoundBits, KeepsSmallValuesAndRoundsLargeOnesToTheNearest) {
  EXPECT_EQ(round_bits(255, 8), 255);
  EXPECT_EQ(round_bits(257, 8), 258);    // step 2, halves up
  EXPECT_EQ(round_bits(1021, 8), 1020);  // step 4
  EXPECT_EQ(round_bits(0, 8), 0);
}

TEST(TokenCell, HoldsItsCountAndNeverReachesOverATileEdge) {
  for (std::int64_t tokens = 1; tokens < 40000; ++tokens) {
    const TokenCell cell = token_cell(tokens);
    ASSERT_LE(cell.first, tokens);
    ASSERT_GE(cell.last, tokens);
    ASSERT_EQ((cell.first - 1) / 128, (cell.last - 1) / 128) << tokens;
    ASSERT_LE(cell.last - cell.first, tokens / 64) << tokens;
    ASSERT_EQ(token_cell(cell.first).last, cell.last);
  }
}

}  // namespace
}  // namespace orrery
