// Links between the ranks that hold experts, as moe.experts by_links takes them.

#include "sim/scenario/expert_site.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

class ExpertSiteTest : public testing::ScenarioDirectory {
 protected:
  Scenario loaded(const std::string& machine, const std::string& placement,
                  const std::string& moe) const {
    const std::string text =
        "model: {config: qwen3-30b-a3b, expert_load: {zipf: 1.0}}\nmachine: " + machine +
        "\nprovider: orrery\nengine: {profile: orrery, max_num_batched_tokens: 8192}\nplacement: "
        "{" +
        placement + "}\nmoe: {" + moe +
        "}\nworkload: {offline: {num_requests: 1, prompt_tokens: 10, output_tokens: 1}}\n";
    return load_scenario(write("site.yaml", text), testing::kPaths);
  }
  static ExpertSite site_of(const Scenario& scenario) {
    return expert_site(scenario, scenario, scenario.mesh, scenario.precision);
  }
  std::filesystem::path table(const std::string& rows) const {
    return write("nvlink.csv", "probe,method,traffic,from,to,bytes,time_us,gbytes_per_s\n" + rows);
  }
};

// GPUs 0 to 3 of the shipped host are measured, and 4 to 7 are not.
TEST_F(ExpertSiteTest, LinksAreTheMeasuredOnesWhereAllPairsAre) {
  const std::string persistent = "design: persistent, experts: by_links";
  const ExpertSite four = site_of(loaded("hgx-h200", "dp: 4, ep: 4", persistent));
  EXPECT_NEAR(four.links.latency[0][1].value(), 1.199e-6, 1e-12);  // the first lines of the table
  EXPECT_EQ(four.links.latency[1][0], four.links.latency[0][1]);
  EXPECT_NEAR(four.links.rate[0][1].value(), 363.4e9, 1);
  EXPECT_TRUE(four.work.overlaps);
  EXPECT_EQ(four.work.tokens, 8192);
  EXPECT_EQ(four.work.sent_row, Bytes(4096));
  const ExpertSite eight = site_of(loaded("hgx-h200", "dp: 8, ep: 8", persistent));
  for (std::size_t from = 0; from < 8; ++from) {
    for (std::size_t to = 0; to < 8; ++to) {
      if (from == to) continue;
      EXPECT_EQ(eight.links.rate[from][to], eight.links.rate[7][0]);
    }
  }
  EXPECT_GT(eight.links.rate[7][0].value(), 364e9);  // of the data sheet
  EXPECT_TRUE(site_of(loaded("hgx-h200", "dp: 4, ep: 4", "design: persistent")).links.rate.empty());
}

TEST_F(ExpertSiteTest, BetweenHostsTheyAreTheNetworks) {
  const ExpertSite site = site_of(loaded("h200-cluster", "dp: 16, ep: 16, expert_comm: eager",
                                         "design: shuffling, experts: by_links"));
  EXPECT_FALSE(site.work.overlaps);
  EXPECT_EQ(site.links.rate[0][8], BytesPerSecond(50e9));
  EXPECT_GT(site.links.rate[0][7], site.links.rate[0][8] * 5.0);
  EXPECT_GT(site.links.latency[0][8], site.links.latency[0][7]);
}

// Equal links and no groups: as balanced, or better by the measured differences of pairs.
TEST_F(ExpertSiteTest, ByLinksIsNoWorseThanBalancedOnOneHost) {
  const auto mesh_of = [&](const std::string& order) {
    return loaded("hgx-h200", "dp: 8, ep: 8", "design: persistent, experts: " + order).mesh;
  };
  const auto busiest = [](const Mesh& mesh) {
    const std::vector<double> chosen = choice_probabilities(mesh.expert_load, 128, 8);
    double most = 0;
    for (auto first = chosen.begin(); first != chosen.end(); first += 16) {
      most = std::max(most, std::accumulate(first, first + 16, 0.0));
    }
    return most;
  };
  EXPECT_LE(busiest(mesh_of("by_links")), busiest(mesh_of("balanced")) * (1 + 1e-9));
  EXPECT_LT(busiest(mesh_of("by_links")), busiest(mesh_of("in_order")) * 0.9);
  const Scenario scenario =
      loaded("hgx-h200", "dp: 8, ep: 8", "design: persistent, experts: by_links");
  EXPECT_NE(to_yaml(scenario.moe).find("experts: by_links"), std::string::npos);
}

TEST_F(ExpertSiteTest, ATableWithoutOneOfBothIsRefused) {
  const std::string latency = "latency_store,sm_store,one_way,0,1,0,1.2,0\n";
  const std::string there = "bandwidth,sm_store,one_way,0,1,1024,3,340\n";
  const std::string back = "bandwidth,sm_store,one_way,1,0,1024,3,120\n";
  const std::string others =
      "bandwidth,copy_engine,one_way,0,1,1024,3,390\nbandwidth,sm_store,both_ways,0,1,1024,3,300\n"
      "bandwidth,sm_store,all_to_all,-1,-1,1024,3,300\n";
  const auto links = read_pair_links(table(latency + there + back + others));
  ASSERT_EQ(links.size(), 2U);
  EXPECT_NEAR(links.at({0, 1}).rate.value(), 340e9, 1);
  EXPECT_NEAR(links.at({1, 0}).rate.value(), 120e9, 1);
  EXPECT_NEAR(links.at({1, 0}).latency.value(), 1.2e-6, 1e-12);
  try {
    static_cast<void>(read_pair_links(table(latency + there)));
    FAIL() << "a pair without a rate";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("found GPUs 1 and 0 without"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("orrery-gpu time links"), std::string::npos);
  }
}

TEST_F(ExpertSiteTest, ExpertsOnRanksOfTheirOwnAreRefused) {
  try {
    static_cast<void>(loaded("hgx-h200", "dp: 1, ep: 2, ffn_instances: 1, ffn_tp: 2",
                             "design: shuffling, experts: by_links"));
    FAIL() << "placed by links beside ffn_instances";
  } catch (const ScenarioError& error) {
    EXPECT_NE(std::string(error.what()).find("expected experts balanced"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace orrery
