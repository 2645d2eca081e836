#include "sim/explore/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/explore/for_each_index.h"
#include "sim/explore/search.h"
#include "sim/scenario/run.h"
#include "tests/explore/question.h"

namespace orrery {
namespace {

using testing::space_of;

const Space& space() {
  static const Space kSpace =
      space_of("{placement: {tp: [1, 2], replicas: auto}, engine: {max_num_seqs: [16, 256]}}");
  return kSpace;
}

Scenario one_of(int tp, int replicas, std::int64_t seqs) {
  for (const Candidate& plan : space().candidates) {
    const Scenario scenario = scenario_of(space(), plan);
    if (scenario.mesh.tp == tp && scenario.replicas == replicas &&
        scenario.engine.max_num_seqs == seqs) {
      return scenario;
    }
  }
  throw std::logic_error("no such plan");
}

// A service out of shared parts is the one that `orrery run` simulates.
TEST(Evaluate, IsTheRunOfTheScenario) {
  Evaluator evaluator;
  for (const Candidate& plan : space().candidates) {
    const Scenario scenario = scenario_of(space(), plan);
    const Outcome outcome = evaluator.serve(scenario, Fidelity::kFull);
    if (outcome.num_requests > 400) continue;  // made longer, since 400 did not settle
    const ServingMetrics whole = run_scenario(scenario).service.metrics;
    EXPECT_EQ(outcome.metrics.ttft_s.p99, whole.ttft_s.p99);
    EXPECT_EQ(outcome.metrics.tpot_s.mean, whole.tpot_s.mean);
    EXPECT_EQ(outcome.metrics.output_tokens_per_s, whole.output_tokens_per_s);
  }
}

// Waiting boards take 8 GPUs * waiting * duration; the rest is work, which does not depend on how
// many replicas do it but for their smaller batches, and no board takes more than its limit.
TEST(Evaluate, EnergyIsThatOfWaitingBoardsAndOfTheWork) {
  Evaluator evaluator;
  double before = 0;
  for (const int replicas : {2, 4, 8}) {
    const Scenario scenario = one_of(1, replicas, 256);
    const Device& device = scenario.machine_spec.device;
    const Outcome outcome = evaluator.serve(scenario, Fidelity::kFull);
    const ServingMetrics& metrics = outcome.metrics;
    ASSERT_TRUE(outcome.energy.has_value());
    const Joules waiting = device.power->waiting * metrics.duration * replicas;
    EXPECT_NEAR((outcome.energy->all - waiting) / metrics.work_energy, 1, 1e-9);
    EXPECT_LT(outcome.energy->per_gpu, device.tdp);
    EXPECT_GT(outcome.energy->per_gpu, device.power->waiting);
    EXPECT_GT(outcome.energy->per_output_token.value(), before);  // weights are read more often
    before = outcome.energy->per_output_token.value();
    const SteadyState state = evaluator.estimate(scenario);
    EXPECT_NEAR(state.per_output_token / outcome.energy->per_output_token, 1, 0.15) << replicas;
  }
}

// A closed loop of a batch serves what the closed form of that batch says. Its requests come in
// waves where lengths are equal, so that TTFT has what the closed form puts between tokens.
TEST(Evaluate, OperatingPointsAreServedInClosedLoops) {
  Evaluator evaluator;
  const Scenario scenario = one_of(1, 1, 256);
  for (const OperatingPoint& point : evaluator.curve(scenario)) {
    if (point.batch > 64) continue;
    const Outcome outcome =
        evaluator.serve_closed(scenario, static_cast<std::int64_t>(point.batch));
    ASSERT_EQ(outcome.error, "");
    EXPECT_NEAR(outcome.metrics.output_tokens_per_s / point.output_tokens_per_s_per_gpu, 1, 0.2)
        << point.batch;
  }
}

// 16 seats are enough for what a replica had at once, so that 256 change nothing.
TEST(Evaluate, PlansThatDifferInLimitsOutOfReachDoTheSame) {
  Evaluator evaluator;
  int num_equal = 0;
  for (const int tp : {1, 2}) {
    for (const int replicas : {1, 2, 4}) {
      const Scenario wide = one_of(tp, replicas, 256);
      const Scenario narrow = one_of(tp, replicas, 16);
      EXPECT_EQ(text_without_limits(wide), text_without_limits(narrow));
      const Outcome outcome = evaluator.serve(wide, Fidelity::kFull);
      if (!outcome.peak_use || !is_out_of_reach(narrow, *outcome.peak_use)) continue;
      ++num_equal;
      const ServingMetrics& with_less = evaluator.serve(narrow, Fidelity::kFull).metrics;
      EXPECT_EQ(outcome.metrics.ttft_s.p99, with_less.ttft_s.p99);
      EXPECT_EQ(outcome.metrics.tpot_s.mean, with_less.tpot_s.mean);
      EXPECT_EQ(outcome.metrics.itl_s.max, with_less.itl_s.max);
      EXPECT_EQ(outcome.metrics.duration, with_less.duration);
    }
  }
  EXPECT_GT(num_equal, 0);
  EXPECT_LT(num_equal, 6);  // one replica needs more than 16 seats
}

TEST(Evaluate, WhatALimitHeldUpHasNoEquals) {
  Evaluator evaluator;
  const Outcome outcome = evaluator.serve(one_of(1, 1, 16), Fidelity::kFull);
  EXPECT_GT(outcome.metrics.load.held_up[static_cast<std::size_t>(AdmissionLimit::kSeats)], 0);
  EXPECT_FALSE(outcome.peak_use.has_value());
}

TEST(Evaluate, EstimatesAreNearServices) {
  Evaluator evaluator;
  for (const int replicas : {2, 4, 8}) {
    const Scenario scenario = one_of(1, replicas, 256);
    const SteadyState state = evaluator.estimate(scenario);
    const Outcome outcome = evaluator.serve(scenario, Fidelity::kFull);
    EXPECT_NEAR(state.tpot.value() / outcome.metrics.tpot_s.mean, 1, 0.15) << replicas;
    EXPECT_LT(state.utilisation, 1);
    EXPECT_TRUE(state.impossible.empty());
  }
}

// The highest load of closed form and of services agree on what a shape can do.
TEST(Evaluate, CapacityBoundsWhatSettles) {
  Evaluator evaluator;
  Scenario scenario = one_of(1, 1, 256);
  scenario.slo = {};
  const double highest = 20 * evaluator.saturate(scenario).load;
  const double capacity = evaluator.estimate(scenario).capacity_requests_per_s;
  EXPECT_NEAR(highest / capacity, 1, 0.25);
}

TEST(Evaluate, SaturationMeetsAndItsNeighbourDoesNot) {
  Evaluator evaluator;
  const Scenario scenario = one_of(1, 2, 256);
  const Saturation found = evaluator.saturate(scenario, 3);
  EXPECT_GT(found.load, 1);
  EXPECT_LE(found.low, found.load);
  EXPECT_LE(found.load, found.high);
  EXPECT_EQ(found.num_seeds, 3);
  EXPECT_TRUE(found.at_most.meets());
  EXPECT_FALSE(found.above.meets());
  EXPECT_LE(found.above.load / found.at_most.load, 1.011);
}

TEST(Evaluate, FewSeatsAreWhatLimits) {
  Evaluator evaluator;
  Scenario scenario = one_of(2, 1, 16);
  scenario.slo.limits = {{.metric = LatencyMetric::kTtft, .percentile = 99, .limit = Seconds(0.5)}};
  const double own = evaluator.saturate(scenario).load;
  double seats = 0;
  double memory = 0;
  for (const Change& change : changes()) {
    const double load = evaluator.saturate(changed(scenario, change)).load;
    if (change.name == "max_num_seqs") seats = load;
    if (change.name == "hbm_capacity") memory = load;
  }
  EXPECT_GT(seats, 1.1 * own);
  EXPECT_NEAR(memory, own, 0.02 * own);
}

// Of two machines a quarter more is a quarter more on each.
TEST(Evaluate, AChangeReachesAllMachinesOfAService) {
  const auto read = [](const std::string& place) {
    return read_scenario(
        parse_yaml("model: llama-3.1-8b\nprovider: vllm-0.24.0\n" + place +
                       "workload: {closed_loop: {concurrency: 1, num_requests: 4, prompt_tokens: "
                       "10, output_tokens: 5}}\n",
                   "two.yaml"),
        "two.yaml", testing::kProject);
  };
  const Scenario apart = read(
      "disaggregation: {prefill: {machine: hgx-h100}, decode: {machine: hgx-h200}, transfer: "
      "{rate: 50 GB/s}}\n");
  const Scenario with_ffn = read(
      "machine: hgx-h200\nplacement: {ffn_instances: 1, ffn: {machine: hgx-h100, transfer: {rate: "
      "50 GB/s}}}\n");
  const auto bandwidth = [](const MachineSetting& setting) {
    return setting.machine_spec.device.hbm_bandwidth;
  };
  const Change& change = changes().front();
  ASSERT_EQ(change.name, "hbm_bandwidth");
  const Scenario faster = changed(apart, change);
  EXPECT_DOUBLE_EQ(bandwidth(faster) / bandwidth(apart), 1.25);
  EXPECT_DOUBLE_EQ(bandwidth(prefill_setting(faster)) / bandwidth(prefill_setting(apart)), 1.25);
  const Scenario faster_ffn = changed(with_ffn, change);
  EXPECT_DOUBLE_EQ(bandwidth(faster_ffn) / bandwidth(with_ffn), 1.25);
  EXPECT_DOUBLE_EQ(bandwidth(ffn_setting(faster_ffn)) / bandwidth(ffn_setting(with_ffn)), 1.25);
  // The loads of both are found.
  Evaluator evaluator;
  EXPECT_GT(evaluator.serve(apart, Fidelity::kFull).metrics.output_tokens_per_s, 0);
  EXPECT_GT(evaluator.serve(with_ffn, Fidelity::kFull).metrics.output_tokens_per_s, 0);
}

TEST(Evaluate, TheImpossibleIsSaid) {
  Evaluator evaluator;
  Scenario scenario = one_of(1, 8, 256);
  scenario.slo.limits = {
      {.metric = LatencyMetric::kTpot, .percentile = 50, .limit = Seconds(1e-3)}};
  EXPECT_NE(evaluator.estimate(scenario).impossible.find("TPOT"), std::string::npos);
  EXPECT_FALSE(evaluator.serve(scenario, Fidelity::kFull).meets());
  scenario.slo.limits = {
      {.metric = LatencyMetric::kTtft, .percentile = 50, .limit = Seconds(1e-3)}};
  EXPECT_NE(evaluator.estimate(scenario).impossible.find("TTFT"), std::string::npos);
}

// A prompt of 8,000 tokens alone is with attention, on the way, or with the FFNs; beside decodes it
// is cut into micro-batches of which one computes while another is elsewhere. So it may come
// earlier than a step of its own ends, on stages of a pipeline too.
TEST(Evaluate, WhatMicroBatchesOverlapIsNotImpossible) {
  for (const std::string place : {"{ffn_instances: 1, num_micro_batches: 4, replicas: 1}",
                                  "{pp: 4, num_micro_batches: 4, replicas: 1}"}) {
    const Space space = space_of("{placement: " + place + "}",
                                 "engine: {max_num_batched_tokens: 8192, max_num_seqs: 64}\n");
    ASSERT_EQ(space.candidates.size(), 1U) << place;
    Scenario scenario = scenario_of(space, space.candidates.front());
    auto& arrivals = std::get<ArrivalWorkload>(scenario.workload.source);
    arrivals.requests_per_s = 2;
    arrivals.num_requests = 100;
    arrivals.prompt_tokens = {.mean = 8000, .min = 8000, .max = 8000};
    scenario.slo = {};
    Evaluator evaluator;
    const Outcome outcome = evaluator.serve(scenario, Fidelity::kFull);
    const Seconds best(outcome.metrics.ttft_s.p50);
    scenario.slo.limits = {
        {.metric = LatencyMetric::kTtft, .percentile = 50, .limit = best * 1.001}};
    const ServiceModel model(scenario, false);
    const Seconds alone = model.steps().times().step({.prefill = {{.query = 8000}}}).duration;
    EXPECT_GT(alone * kBoundSlack, scenario.slo.limits.front().limit) << place;
    EXPECT_TRUE(evaluator.serve(scenario, Fidelity::kFull).meets()) << place;
    EXPECT_EQ(evaluator.estimate(scenario).impossible, "") << place;
  }
}

// A block holds tokens of all ranks that share a context: as many sequences as cp times fit.
TEST(Evaluate, ContextRanksHoldTheCacheTogether) {
  const Space space = space_of("{placement: {cp: [1, 2], replicas: 1}}",
                               "engine: {max_num_seqs: 100000, max_num_batched_tokens: 100000}\n");
  ASSERT_EQ(space.candidates.size(), 2U);
  Evaluator evaluator;
  std::vector<double> most;
  for (const Candidate& plan : space.candidates) {
    const Scenario scenario = scenario_of(space, plan);
    most.push_back(evaluator.curve(scenario).back().batch);
    const MemoryBudget memory = memory_budget(scenario);
    const std::int64_t tokens =
        memory.num_kv_blocks * tokens_of_block(scenario.engine, scenario.mesh);
    EXPECT_EQ(most.back(), std::floor(static_cast<double>(tokens) / (1000 + 100 / 2.0)));
  }
  EXPECT_GT(most[1], 1.8 * most[0]);
}

// Nothing that a service met was called impossible, and the search finds the same cost as
// simulating all.
TEST(Evaluate, TheSearchFindsWhatSimulatingAllFinds) {
  for (const double rate : {10.0, 40.0, 80.0}) {
    for (const double tpot_ms : {8.0, 12.0, 30.0}) {
      Evaluator evaluator;
      std::vector<Scenario> scenarios;
      for (const Candidate& plan : space().candidates) {
        Scenario scenario = scenario_of(space(), plan);
        std::get<ArrivalWorkload>(scenario.workload.source).requests_per_s = rate;
        scenario.slo.limits[1].limit = Seconds(tpot_ms * 1e-3);
        scenarios.push_back(std::move(scenario));
      }
      double least = 1e300;
      std::vector<Prospect> prospects;
      for (std::size_t i = 0; i < scenarios.size(); ++i) {
        const SteadyState state = evaluator.estimate(scenarios[i]);
        const bool meets = evaluator.serve(scenarios[i], Fidelity::kFull).meets();
        EXPECT_FALSE(meets && !state.impossible.empty());
        if (meets) least = std::min(least, space().candidates[i].usd_per_hour);
        prospects.push_back({.is_impossible = !state.impossible.empty(),
                             .utilisation = state.utilisation,
                             .output_tokens_per_s = state.output_tokens_per_s});
      }
      Search search(space(), prospects, true);
      for (auto jobs = search.next(); !jobs.empty(); jobs = search.next()) {
        for (const Job& job : jobs) {
          const Outcome outcome = evaluator.serve(scenarios[job.candidate], job.fidelity);
          search.take(job, {.meets = outcome.meets(),
                            .is_overloaded = outcome.metrics.load.is_overloaded,
                            .headroom = outcome.headroom(),
                            .output_tokens_per_s = outcome.metrics.output_tokens_per_s,
                            .is_lost = outcome.is_lost,
                            .use = outcome.peak_use});
        }
      }
      const auto best = search.ranking();
      EXPECT_EQ(best.empty(), least == 1e300) << rate << " " << tpot_ms;
      if (!best.empty()) {
        EXPECT_EQ(space().candidates[best.front()].usd_per_hour, least) << rate << " " << tpot_ms;
      }
    }
  }
}

}  // namespace
}  // namespace orrery
