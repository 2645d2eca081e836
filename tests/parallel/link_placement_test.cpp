// Experts placed by the links between ranks: small cases by hand, laws on random loads.

#include "sim/parallel/link_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim/model/expert_load_sources.h"

namespace orrery {
namespace {

// All pairs alike: 2 us, 360 GB/s, as two H200s store into each other's memory.
BlockLinks equal_links(std::size_t blocks) {
  return {.latency = {blocks, std::vector<Seconds>(blocks, Seconds(2e-6))},
          .rate = {blocks, std::vector<BytesPerSecond>(blocks, BytesPerSecond(360e9))}};
}
// Those of one block to and from all others so many times as slow.
BlockLinks with_slow_block(BlockLinks links, std::size_t slow, double times) {
  for (std::size_t other = 0; other < links.rate.size(); ++other) {
    for (const auto& [a, b] : {std::pair(slow, other), std::pair(other, slow)}) {
      links.rate[a][b] = BytesPerSecond(360e9 / times);
    }
  }
  return links;
}

// Rows of Qwen3-30B-A3B, bf16: 4,096 bytes, 9.4 MFLOP at 800 TFLOP/s, weights of 9.4 MB.
constexpr ExpertWork kWork{.tokens = 8192,
                           .sent_row = Bytes(4096),
                           .returned_row = Bytes(4096),
                           .row = Seconds(9.437e6 / 800e12),
                           .expert = Seconds(9.437e6 / 4.8e12),
                           .overlaps = true};
constexpr std::int64_t kExperts = 128;
constexpr std::int64_t kTopk = 8;

std::vector<double> zipf_choices(double exponent, std::uint64_t seed) {
  return choice_probabilities(zipf_load(kExperts, exponent, seed), kExperts, kTopk);
}

Seconds slowest(const ExpertPlacement& placed, std::span<const double> choices,
                const BlockLinks& links, const ExpertWork& work = kWork) {
  return std::ranges::max(block_times(placed, choices, links, work));
}

// Two blocks of one expert, 1.5 and 0.5 choices of each of 1,000 tokens, rows of 1,000 bytes and
// results of 2,000; from the first to the second 3 us and 500 MB/s, back 2 us and 1 GB/s. Products
// of 2,000 * 1.5 rows at 1 us.
TEST(LinkPlacement, TheTimeOfABlockIsThatOfItsRows) {
  BlockLinks links{.latency = {2, std::vector<Seconds>(2, Seconds(2e-6))},
                   .rate = {2, std::vector<BytesPerSecond>(2, BytesPerSecond(1e9))}};
  links.latency[0][1] = Seconds(3e-6);
  links.rate[0][1] = BytesPerSecond(5e8);
  ExpertWork work{.tokens = 1000,
                  .sent_row = Bytes(1000),
                  .returned_row = Bytes(2000),
                  .row = Seconds(1e-6),
                  .expert = Seconds(1e-3)};
  const std::vector<double> choices{1.5, 0.5};
  const ExpertPlacement placed = placement_in_order(2, 0, 2);
  const auto times = [&] { return block_times(placed, choices, links, work); };
  // Of the first x out is 500 rows at 2 us and in 1,500 at 1; y out 1,500 at 4 and in 500 at 2.
  EXPECT_NEAR(times()[0].value(), 5e-6 + 1500e-6 + 6000e-6 + 3000e-6, 1e-12);
  EXPECT_NEAR(times()[1].value(), 5e-6 + 1500e-6 + 6000e-6 + 1000e-6, 1e-12);
  work.overlaps = true;
  EXPECT_NEAR(times()[0].value(), 5e-6 + (1000e-6 + 6000e-6) + 3000e-6, 1e-12);
  work.expert = Seconds(0.01);  // both have rows, and reading their weights takes longer
  EXPECT_NEAR(times()[1].value(), 5e-6 + (1000e-6 + 6000e-6) + 0.01, 1e-12);
}

TEST(LinkPlacement, OnEqualLinksItIsNoWorseThanBalanced) {
  for (const std::int64_t blocks : {2, 4, 8, 16}) {
    for (const std::int64_t copies : {0, 16}) {
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const std::vector<double> choices =
            zipf_choices(0.6 + 0.2 * static_cast<double>(seed), seed);
        const BlockLinks links = equal_links(static_cast<std::size_t>(blocks));
        const ExpertPlacement balanced = balance_experts(choices, copies, blocks);
        const ExpertPlacement placed = place_by_links(balanced, choices, links, kWork);
        EXPECT_LE(imbalance(placed, choices), imbalance(balanced, choices) * (1 + 1e-9));
        EXPECT_LE(slowest(placed, choices, links), slowest(balanced, choices, links));
        EXPECT_EQ(place_by_links(balanced, choices, links, kWork), placed);
      }
    }
  }
}

TEST(LinkPlacement, EveryExpertIsStillThere) {
  const std::vector<double> choices = zipf_choices(1, 2);
  const BlockLinks links = with_slow_block(equal_links(8), 5, 10);
  for (const std::int64_t copies : {0, 8}) {
    const ExpertPlacement start = balance_experts(choices, copies, 8);
    ExpertPlacement placed = place_by_links(start, choices, links, kWork);
    const std::size_t room = placed.expert_of_slot.size() / 8;
    for (std::size_t block = 0; block < 8; ++block) {
      const auto first = placed.expert_of_slot.begin() + static_cast<std::ptrdiff_t>(block * room);
      EXPECT_EQ(std::set<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(room)).size(),
                room);  // no two copies together
    }
    std::vector<std::int64_t> before = start.expert_of_slot;
    std::ranges::sort(before);
    std::ranges::sort(placed.expert_of_slot);
    EXPECT_EQ(placed.expert_of_slot, before);
  }
}

// The slower its links, the fewer rows come to it, down to those of the experts chosen least, and
// the layer waits for it less long than with as many rows as the others.
TEST(LinkPlacement, ABlockBehindASlowLinkGetsFewerRows) {
  for (const std::size_t slow : {0U, 3U}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const std::vector<double> choices = zipf_choices(1, seed);
      const ExpertPlacement balanced = balance_experts(choices, 0, 4);
      double before = block_choices(balanced, choices)[slow];
      for (const double times : {2.0, 5.0, 20.0}) {
        const BlockLinks links = with_slow_block(equal_links(4), slow, times);
        const ExpertPlacement placed = place_by_links(balanced, choices, links, kWork);
        const std::vector<double> rows = block_choices(placed, choices);
        for (std::size_t other = 0; other < 4; ++other) {
          if (other == slow) continue;
          EXPECT_LT(rows[slow], rows[other]) << times << " seed " << seed;
        }
        EXPECT_LE(rows[slow], before) << times;
        before = rows[slow];
        EXPECT_LT(slowest(placed, choices, links), slowest(balanced, choices, links) * 0.95);
      }
    }
  }
}

// Nodes that some of a token's groups lie on, were all of it alike: of groups that are whole on a
// node as many as there are of the chosen ones; exchanges within a node leave them there.
TEST(LinkPlacement, GroupsStayOnTheirNodes) {
  constexpr std::int64_t kGroups = 8;
  constexpr std::int64_t kNodes = 2;
  const std::vector<double> choices = zipf_choices(1, 7);
  // The network between two hosts of four, and a GPU of each with a slower card.
  BlockLinks links = equal_links(8);
  for (std::size_t from = 0; from < 8; ++from) {
    for (std::size_t to = 0; to < 8; ++to) {
      if (from / 4 == to / 4) continue;
      const bool is_slow = from % 4 == 3 || to % 4 == 3;
      links.latency[from][to] = Seconds(5.7e-6);
      links.rate[from][to] = BytesPerSecond(is_slow ? 25e9 : 50e9);
    }
  }
  const ExpertPlacement on_nodes = balance_experts_on_nodes(choices, 0, 8, kNodes, kGroups);
  const ExpertPlacement placed = place_by_links(on_nodes, choices, links, kWork, kNodes);
  const auto nodes_of_groups = [&](const ExpertPlacement& placement) {
    std::set<std::pair<std::int64_t, std::size_t>> found;
    for (std::size_t slot = 0; slot < placement.expert_of_slot.size(); ++slot) {
      found.emplace(placement.expert_of_slot[slot] / (kExperts / kGroups),
                    slot / (placement.expert_of_slot.size() / kNodes));
    }
    return found;
  };
  // A token's rows cross to no more hosts than its groups lie on: a group is on one.
  EXPECT_EQ(nodes_of_groups(placed), nodes_of_groups(on_nodes));
  EXPECT_EQ(nodes_of_groups(placed).size(), 8U);
  EXPECT_LT(slowest(placed, choices, links), slowest(on_nodes, choices, links) * 0.9);
  const std::vector<double> rows = block_choices(placed, choices);
  EXPECT_LT(rows[3], rows[0]);
  EXPECT_LT(rows[7], rows[4]);
}

// Of exchanges that wait for each other rows of x go out while none go back: what a slow rank sends
// is what it would get, and giving it fewer rows makes it send more.
TEST(LinkPlacement, BetweenTwoExchangesASlowBlockKeepsItsRows) {
  const std::vector<double> choices = zipf_choices(1, 1);
  ExpertWork work = kWork;
  work.overlaps = false;
  const BlockLinks links = with_slow_block(equal_links(4), 1, 20);
  const ExpertPlacement placed =
      place_by_links(balance_experts(choices, 0, 4), choices, links, work);
  EXPECT_NEAR(block_choices(placed, choices)[1], 2, 0.05);  // of 8 on four
}

TEST(LinkPlacement, LinksThatCannotBeAreRefused) {
  const std::vector<double> choices = zipf_choices(1, 1);
  const ExpertPlacement start = balance_experts(choices, 0, 4);
  EXPECT_THROW(static_cast<void>(block_times(start, choices, equal_links(3), kWork)),
               std::invalid_argument);
  BlockLinks links = equal_links(4);
  links.rate[1][2] = BytesPerSecond(0);
  EXPECT_THROW(static_cast<void>(place_by_links(start, choices, links, kWork)),
               std::invalid_argument);
  links = equal_links(4);
  links.latency[1][2] = Seconds(-1e-6);
  EXPECT_THROW(static_cast<void>(place_by_links(start, choices, links, kWork)),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(place_by_links(start, choices, equal_links(4), kWork, 3)),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery
