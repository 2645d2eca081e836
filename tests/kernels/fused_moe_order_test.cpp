// The order in which fused_moe computes tiles: all of them once, and an expert's second layer so
// far behind its first that nobody waits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/experts/fused_moe/task_order.h"

namespace orrery::fused_moe {
namespace {

struct Columns {
  int first;
  int second;
};

// Tasks of a rank whose experts have so many tiles, `before` tiles being those of other ranks.
std::vector<TaskPlace> tasks_of(const std::vector<int>& tiles, const Columns& columns, int least,
                                int before) {
  std::vector<std::uint16_t> starts{static_cast<std::uint16_t>(before)};
  for (const int count : tiles) starts.push_back(static_cast<std::uint16_t>(starts.back() + count));
  const auto experts = static_cast<int>(tiles.size());
  std::vector<std::uint8_t> waiting;
  waiting.reserve(tiles.size());
  for (int expert = 0; expert < experts; ++expert) {
    waiting.push_back(static_cast<std::uint8_t>(experts_waiting(starts.data(), expert, least)));
  }
  const TaskOrder order(starts.data(), waiting.data(), experts, columns.first, columns.second);
  std::vector<TaskPlace> tasks;
  for (TaskPlace place; order.find(static_cast<int>(tasks.size()), place);) tasks.push_back(place);
  return tasks;
}

std::vector<int> random_tiles(std::mt19937& random, int experts) {
  std::vector<int> tiles;
  for (int i = 0; i < experts; ++i) {
    const auto kind = random() % 6;
    tiles.push_back(kind < 2   ? 0
                    : kind < 5 ? static_cast<int>(kind) - 1
                               : static_cast<int>(random() % 40));
  }
  return tiles;
}

TEST(FusedMoeOrder, HasEachTileOnceAndTheSecondLayerFarEnoughBehind) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int experts = std::vector{1, 2, 5, 16, 64, 256}[random() % 6];
    const std::vector<int> tiles = random_tiles(random, experts);
    const Columns columns{.first = 1 + static_cast<int>(random() % 16),
                          .second = 1 + static_cast<int>(random() % 16)};
    const int least = 1 + static_cast<int>(random() % 60);
    const std::vector<TaskPlace> tasks =
        tasks_of(tiles, columns, least, static_cast<int>(random() % 1000));
    std::set<std::tuple<bool, int, int, int>> seen;
    std::map<int, int> first_tasks;  // of each expert, so far
    std::map<int, int> all_at_end;   // of all, when the expert's first layer was done
    int firsts = 0;
    const int all_firsts = columns.first * std::accumulate(tiles.begin(), tiles.end(), 0);
    for (const TaskPlace& task : tasks) {
      EXPECT_TRUE(seen.emplace(task.is_second, task.expert, task.tile, task.column).second);
      const int count = tiles[static_cast<std::size_t>(task.expert)];
      ASSERT_LT(task.tile, count);
      ASSERT_LT(task.column, task.is_second ? columns.second : columns.first);
      if (!task.is_second) {
        ++firsts;
        if (++first_tasks[task.expert] == count * columns.first) all_at_end[task.expert] = firsts;
        continue;
      }
      ASSERT_EQ(first_tasks[task.expert], count * columns.first);
      // 255 experts at most lie between.
      if (firsts < all_firsts && experts <= 255) {
        EXPECT_GE(firsts - all_at_end[task.expert], least * columns.first);
      }
    }
    EXPECT_EQ(std::ssize(tasks),
              (columns.first + columns.second) * std::accumulate(tiles.begin(), tiles.end(), 0));
  }
}

// As many tiles as hold one and a half rounds of 132 blocks of 16 tiles of columns: 12.4, so 13.
TEST(FusedMoeOrder, CountsRoundsInTiles) {
  EXPECT_EQ(least_tiles_between(3, 132, 16), 13);
  EXPECT_EQ(least_tiles_between(8, 132, 16), 33);
  EXPECT_EQ(least_tiles_between(3, 132, 500), 1);
}

// The first expert's second layer comes when the third's first is begun: two tiles lie between.
TEST(FusedMoeOrder, OfExpertsOfOneTile) {
  std::vector<int> experts;
  std::vector<bool> is_second;
  for (const TaskPlace& task : tasks_of({1, 1, 1}, {.first = 1, .second = 1}, 2, 0)) {
    experts.push_back(task.expert);
    is_second.push_back(task.is_second);
  }
  EXPECT_EQ(experts, (std::vector{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(is_second, (std::vector{false, false, false, true, true, true}));
}

}  // namespace
}  // namespace orrery::fused_moe
