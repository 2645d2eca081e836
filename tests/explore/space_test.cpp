#include "sim/explore/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/explore/question.h"

namespace orrery {
namespace {

using testing::space_of;

std::string error_of(const std::string& search, const std::string& rest = "") {
  try {
    (void)space_of(search, rest);
  } catch (const ScenarioError& error) {
    return error.what();
  }
  return "none";
}

TEST(Space, ReplicasFillTheMachine) {
  // tp 1: 1 to 8 replicas, tp 2: 1 to 4, tp 8: one.
  const Space space = space_of("{placement: {tp: [1, 2, 8], replicas: auto}}");
  EXPECT_EQ(space.shapes.size(), 3U);
  ASSERT_EQ(space.candidates.size(), 13U);
  EXPECT_TRUE(std::ranges::is_sorted(space.candidates, {}, &Candidate::num_gpus));
  for (const Candidate& plan : space.candidates) {
    const Scenario scenario = scenario_of(space, plan);
    EXPECT_EQ(scenario.replicas * num_ranks(scenario.mesh), plan.num_gpus);
    EXPECT_NEAR(plan.usd_per_hour, 1.6 * plan.num_gpus, 1e-12);  // the device's
  }
}

TEST(Space, GpusBoundPlans) {
  const Space space = space_of("{gpus: 4..6, placement: {tp: [1, 2], replicas: auto}}");
  for (const Candidate& plan : space.candidates) {
    EXPECT_GE(plan.num_gpus, 4);
    EXPECT_LE(plan.num_gpus, 6);
  }
  EXPECT_EQ(space.candidates.size(), 5U);  // 4, 5, 6 of tp 1; 2, 3 of tp 2
}

TEST(Space, RangesAndLists) {
  const Space space = space_of(
      "{placement: {replicas: 2}, engine: {max_num_seqs: 64..512*2, max_num_batched_tokens: "
      "[4096, 8192]}}");
  ASSERT_EQ(space.candidates.size(), 8U);
  EXPECT_EQ(
      assignments_of(space, space.candidates[0]),
      (std::vector<std::string>{"engine.max_num_seqs=64", "engine.max_num_batched_tokens=4096",
                                "placement.replicas=2"}));
}

TEST(Space, WhatIsNotSearchedIsTheScenariosOwn) {
  const Space space =
      space_of("{engine: {max_num_seqs: [64, 128]}}", "placement: {tp: 2, replicas: 3}\n");
  ASSERT_EQ(space.candidates.size(), 2U);
  EXPECT_EQ(scenario_of(space, space.candidates[0]).replicas, 3);
  EXPECT_EQ(scenario_of(space, space.candidates[0]).mesh.tp, 2);
}

TEST(Space, CountsWhatCannotBe) {
  // 32 heads: tp 3 does not divide them; tp 2 x pp 8 needs 16 of 8 GPUs.
  const Space space = space_of("{placement: {tp: [2, 3], pp: [1, 8], replicas: auto}}");
  EXPECT_EQ(space.num_combinations, 4);
  EXPECT_EQ(space.shapes.size(), 1U);
  std::int64_t count = 0;
  for (const LeftOut& left : space.left_out) {
    count += left.count;
    EXPECT_NE(left.example.find("placement.tp="), std::string::npos);
  }
  EXPECT_EQ(count, 3);
  EXPECT_EQ(space.left_out.front().count, 2) << space.left_out.front().reason;
}

TEST(Space, SidesOfADisaggregatedServiceAreAFamilyOfTheirOwn) {
  const Space space = space_of(
      "{placement: {tp: [1, 2], replicas: auto}, disaggregation: {prefill: {tp: [1, 2], replicas: "
      "auto}, decode: {tp: [1, 2], replicas: auto}}}");
  EXPECT_EQ(space.num_combinations, 2 + 4);
  // Sides of one tp: of tp 1 all pairs of sums to 8, of tp 2 to 4; of unlike ones a + 2 b <= 8.
  EXPECT_EQ(std::ranges::count_if(space.candidates,
                                  [](const Candidate& plan) { return plan.prefill_replicas > 0; }),
            28 + 6 + 2 * 12);
}

// Values that `auto` chooses are the same on both sides; named ones are each with each.
TEST(Space, AutoLeavesOutSidesThatHoldCachesUnlike) {
  const Space space = space_of(
      "{disaggregation: {prefill: {tp: auto, replicas: 1}, decode: {tp: auto, replicas: 1}}}");
  EXPECT_FALSE(space.shapes.empty());
  for (const Shape& shape : space.shapes) {
    EXPECT_EQ(shape.gpus_per_prefill, shape.gpus_per_replica);
  }
  EXPECT_TRUE(std::ranges::any_of(space.left_out, [](const LeftOut& left) {
    return left.reason.find("which auto leaves out") != std::string::npos;
  }));
  const Space named = space_of(
      "{disaggregation: {prefill: {tp: 4, replicas: 1}, decode: {tp: 1, replicas: 1..4}}}");
  EXPECT_EQ(named.shapes.size(), 1U);
  EXPECT_EQ(named.candidates.size(), 4U);
}

// 2 attention ranks of tp 2 and 4 FFN ranks are 8 GPUs, so one replica fits; 4 without FFNs apart,
// so two do.
TEST(Space, GpusOfAReplicaAreThoseOfBothSides) {
  const Space space =
      space_of("{placement: {dp: 2, tp: 2, ffn_instances: [0, 2], ffn_tp: 2, replicas: auto}}");
  ASSERT_EQ(space.candidates.size(), 1U);
  EXPECT_EQ(space.candidates[0].num_gpus, 8);
  EXPECT_EQ(num_ffn_gpus(space, space.candidates[0]), 4);
  ASSERT_EQ(space.left_out.size(), 1U);
  EXPECT_EQ(space.left_out[0].reason.find("placement: ffn_tp is N without ffn_instances"), 0U);
  const Space both = space_of(
      "{placement: {dp: 2, tp: 2, ffn_instances: [0, 4], num_micro_batches: 1, replicas: auto}}");
  std::vector<std::pair<int, int>> gpus;
  for (const Candidate& plan : both.candidates) {
    gpus.emplace_back(plan.num_gpus, num_ffn_gpus(both, plan));
  }
  EXPECT_EQ(gpus, (std::vector<std::pair<int, int>>{{4, 0}, {8, 0}, {8, 4}}));
}

// 14,336 columns divide over 1, 2, 4 and 7 GPUs of which one is left for attention; 32 heads and
// those columns over parts of a context in powers of two.
TEST(Space, AutoIsWhatModelAndMachineAllow) {
  const auto values = [](const std::string& key, const std::string& rest) {
    std::set<std::string> found;
    const Space space = space_of("{placement: {" + key + ": auto" + rest + "}}");
    EXPECT_EQ(space.num_combinations, std::ssize(space.shapes) + (space.left_out.empty() ? 0 : 1));
    for (const Shape& shape : space.shapes) found.insert(shape.assignments.front());
    return found;
  };
  const auto named = [](const std::string& key, const std::vector<std::string>& of) {
    std::set<std::string> found;
    for (const std::string& value : of)
      found.insert(std::string("placement.").append(key) + "=" + value);
    return found;
  };
  EXPECT_EQ(values("ffn_instances", ""), named("ffn_instances", {"0", "1", "2", "4", "7"}));
  EXPECT_EQ(values("dp", ", ffn_instances: 1, replicas: 1"), named("dp", {"1", "2", "4"}));
  EXPECT_EQ(values("num_micro_batches", ", ffn_instances: 1"),
            named("num_micro_batches", {"1", "2", "3", "4"}));
  EXPECT_EQ(values("ffn_schedule", ", ffn_instances: 1"),
            named("ffn_schedule", {"lock", "pipelined"}));
  EXPECT_EQ(values("ffn_tp", ", ffn_instances: 1"), named("ffn_tp", {"1", "2", "4"}));
  EXPECT_EQ(values("cp", ""), named("cp", {"1", "2", "4", "8"}));
  EXPECT_EQ(values("cp_weights", ", cp: 2"), named("cp_weights", {"replicated", "split"}));
  EXPECT_EQ(values("dp_rows", ", dp: 2"), named("dp_rows", {"balanced", "own"}));
  EXPECT_EQ(values("cp_prefill", ", cp: 2"), named("cp_prefill", {"all_gather", "ring"}));
}

// Experts lie over the FFN ranks where these are apart, else over those of attention.
TEST(Space, AllRanksOfExpertsAreThoseOfTheirSide) {
  const Space space =
      testing::space_of_model("{config: mixtral-8x7b-v0.1, weights: fp8, activations: fp8}",
                              "{placement: {dp: 2, ep: auto, ffn_instances: [0, 4], replicas: 1}}");
  std::set<std::pair<int, int>> found;  // ffn_instances, ep
  for (const Shape& shape : space.shapes) {
    found.emplace(shape.scenario->mesh.ffn_instances, shape.scenario->mesh.ep);
  }
  EXPECT_EQ(found, (std::set<std::pair<int, int>>{{0, 1}, {0, 2}, {4, 1}, {4, 4}}));
}

TEST(Space, DoesNotDependOnThreads) {
  const std::string search = "{placement: auto, engine: {max_num_seqs: [64, 128]}}";
  const Space one = space_of(search);
  const Space four = space_of(search, "", 4);
  ASSERT_EQ(one.candidates.size(), four.candidates.size());
  for (std::size_t i = 0; i < one.candidates.size(); ++i) {
    EXPECT_EQ(assignments_of(one, one.candidates[i]), assignments_of(four, four.candidates[i]));
  }
}

TEST(Space, BadSearches) {
  EXPECT_NE(error_of("{}").find("found no search"), std::string::npos);
  EXPECT_NE(error_of("{placement: {tp: []}}").find("found an empty list"), std::string::npos);
  EXPECT_NE(error_of("{placement: {tp: 8..2}}").find("goes up"), std::string::npos);
  EXPECT_NE(error_of("{placement: {tp: 1..8*1}}").find("goes up"), std::string::npos);
  EXPECT_NE(error_of("{placement: {tq: [1]}}").find("unknown key"), std::string::npos);
  EXPECT_NE(error_of("{provider: [vllm-9.9]}").find("unknown provider"), std::string::npos);
  EXPECT_NE(error_of("{engine: {max_num_seqs: auto}}").find("found auto"), std::string::npos);
  EXPECT_NE(error_of("{placement: {sp: auto}}").find("num_micro_batches and ffn_schedule"),
            std::string::npos);
  EXPECT_NE(error_of("{placement: {ffn: {machine: hgx-h100}}}").find("not searched"),
            std::string::npos);
  EXPECT_NE(error_of("{gpus: 1..16, placement: auto}").find("hgx-h200 has 8"), std::string::npos);
  EXPECT_NE(error_of("{seed: 0..999999, engine: {max_num_seqs: 1..9}}").find("combinations"),
            std::string::npos);
}

TEST(Space, ALegalPlanIsNotNeeded) {
  const Space space = space_of("{placement: {tp: 3}}");
  EXPECT_TRUE(space.candidates.empty());
  EXPECT_EQ(space.left_out.size(), 1U);
}

}  // namespace
}  // namespace orrery
