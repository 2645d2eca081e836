#include "sim/explore/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/serve/random.h"
#include "tests/explore/question.h"

namespace orrery {
namespace {

// A made-up truth about each candidate: whether it meets the SLO, and by how much.
struct Truth {
  std::vector<double> headroom;  // by candidate; meets from 1 on
};

// More replicas have more room; shapes differ at random.
Truth random_truth(const Space& space, Random& random) {
  std::vector<double> per_gpu;
  for (std::size_t i = 0; i < space.shapes.size(); ++i)
    per_gpu.push_back(0.05 + 0.3 * random.uniform());
  Truth truth;
  for (const Candidate& plan : space.candidates) {
    truth.headroom.push_back(per_gpu[plan.shape] * plan.num_gpus);
  }
  return truth;
}

// Runs the search against the truth; short runs see it through up to 20 % of error.
struct Searched {
  std::vector<std::size_t> ranking;
  std::set<std::size_t> full;
};
Searched searched(const Space& space, const Truth& truth, Random& random) {
  std::vector<Prospect> prospects;
  for (const double headroom : truth.headroom) prospects.push_back({.utilisation = 1 / headroom});
  Search search(space, prospects, true);
  Searched result;
  for (auto jobs = search.next(); !jobs.empty(); jobs = search.next()) {
    for (const Job& job : jobs) {
      const bool is_full = job.fidelity == Fidelity::kFull;
      const double error = is_full ? 1 : 0.8 + 0.4 * random.uniform();
      const double headroom = truth.headroom[job.candidate] * error;
      if (is_full) {
        EXPECT_TRUE(result.full.insert(job.candidate).second) << "simulated twice";
      }
      search.take(job, {.meets = headroom >= 1, .headroom = headroom});
    }
  }
  result.ranking = search.ranking();
  return result;
}

const Space& small_space() {
  static const Space kSpace = testing::space_of(
      "{placement: {tp: [1, 2, 4], pp: [1, 2], replicas: auto}, engine: {max_num_seqs: [64, "
      "128]}}");
  return kSpace;
}

TEST(Search, FindsTheCheapestThatMeetsAndSimulatesFew) {
  const Space& space = small_space();
  Random random(7);
  std::size_t num_full = 0;
  for (int round = 0; round < 200; ++round) {
    const Truth truth = random_truth(space, random);
    double least = 1e300;
    for (std::size_t i = 0; i < truth.headroom.size(); ++i) {
      if (truth.headroom[i] >= 1) least = std::min(least, space.candidates[i].usd_per_hour);
    }
    const Searched found = searched(space, truth, random);
    num_full += found.full.size();
    if (least == 1e300) {
      EXPECT_TRUE(found.ranking.empty());
      continue;
    }
    ASSERT_FALSE(found.ranking.empty()) << round;
    EXPECT_EQ(space.candidates[found.ranking.front()].usd_per_hour, least) << round;
  }
  // At least five times fewer than exhaustive.
  EXPECT_LE(5 * num_full, 200 * space.candidates.size());
}

TEST(Search, UnlikelyOnesAreTriedBeforeItGivesUp) {
  const Space& space = small_space();
  std::vector<Prospect> prospects(space.candidates.size(), {.utilisation = 9});
  Search search(space, prospects, true);
  std::set<std::size_t> tried;
  for (auto jobs = search.next(); !jobs.empty(); jobs = search.next()) {
    for (const Job& job : jobs) {
      tried.insert(job.candidate);
      search.take(job, {.meets = false, .headroom = 0.1});
    }
  }
  EXPECT_EQ(tried.size(), space.candidates.size());
  EXPECT_TRUE(search.ranking().empty());
  EXPECT_EQ(search.nearest_misses().size(), space.candidates.size());
}

// Each shape comes with 64 and 128 seats, and 2 sequences at once need neither.
TEST(Search, WhatEqualsASimulatedPlanIsNotSimulated) {
  const Space& space = small_space();
  std::vector<Prospect> prospects(space.candidates.size(), {.utilisation = 0.5});
  Search search(space, prospects, true);
  std::set<std::size_t> tried;
  const PeakUse use{.sequences = 2, .prompt_tokens = 1000, .longest = 1100};
  for (auto jobs = search.next(); !jobs.empty(); jobs = search.next()) {
    for (const Job& job : jobs) {
      tried.insert(job.candidate);
      search.take(job, {.meets = false, .headroom = 0.9, .use = use});
    }
  }
  EXPECT_EQ(2 * tried.size(), space.candidates.size());
  const auto seats = [&](std::size_t i) {
    return space.shapes[space.candidates[i].shape].scenario->engine.max_num_seqs;
  };
  EXPECT_EQ(search.equals().size(), tried.size());
  for (const auto& [candidate, simulated] : search.equals()) {
    EXPECT_TRUE(tried.contains(simulated));
    EXPECT_EQ(seats(candidate), 64);
    EXPECT_EQ(seats(simulated), 128);
  }
}

TEST(Search, TheImpossibleIsNeverSimulated) {
  const Space& space = small_space();
  std::vector<Prospect> prospects(space.candidates.size(), {.is_impossible = true});
  Search search(space, prospects, true);
  EXPECT_TRUE(search.next().empty());
}

TEST(Search, AClosedLoopIsRankedByTokensForTheCost) {
  const Space& space = small_space();
  std::vector<Prospect> prospects;
  for (std::size_t i = 0; i < space.candidates.size(); ++i) {
    prospects.push_back({.utilisation = 1, .output_tokens_per_s = 1000.0 + static_cast<double>(i)});
  }
  Search search(space, prospects, false);
  // One GPU makes as many tokens as eight: the cheapest is best, the first by tokens among equals.
  std::set<std::size_t> full;
  for (auto jobs = search.next(); !jobs.empty(); jobs = search.next()) {
    for (const Job& job : jobs) {
      if (job.fidelity == Fidelity::kFull) full.insert(job.candidate);
      search.take(job, {.meets = true,
                        .headroom = 1,
                        .output_tokens_per_s = 1000.0 + static_cast<double>(job.candidate)});
    }
  }
  ASSERT_FALSE(search.ranking().empty());
  const Candidate& best = space.candidates[search.ranking().front()];
  EXPECT_EQ(best.num_gpus, 1);
  EXPECT_LT(full.size(), space.candidates.size() / 2);
}

}  // namespace
}  // namespace orrery
