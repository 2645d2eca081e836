#include "kernels/execute/hazards.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace orrery {
namespace {

using Waits = std::vector<std::vector<std::int32_t>>;

MemoryRange bytes(std::int64_t begin, std::int64_t end) {
  return {.space = 0, .begin = begin, .end = end};
}

TEST(EventWaits, OneStreamNeedsNone) {
  const std::vector<TaskMemory> tasks = {
      {.stream = 0, .reads = {}, .writes = {bytes(0, 8)}, .after = {}},
      {.stream = 0, .reads = {bytes(0, 8)}, .writes = {bytes(0, 8)}, .after = {0}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {}}));
}

TEST(EventWaits, AReaderWaitsForTheWriterOnAnotherStream) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .writes = {bytes(0, 8)}},
                                         {.stream = 1, .reads = {bytes(4, 6)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {0}}));
}

TEST(EventWaits, MemoryThatOnlyTouchesIsNotShared) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .writes = {bytes(0, 8)}},
                                         {.stream = 1, .reads = {bytes(8, 16)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {}}));
}

TEST(EventWaits, AddressSpacesAreApart) {
  const std::vector<TaskMemory> tasks = {
      {.stream = 0, .writes = {{.space = 0, .begin = 0, .end = 8}}},
      {.stream = 1, .reads = {{.space = 1, .begin = 0, .end = 8}}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {}}));
}

TEST(EventWaits, AWriterWaitsForReadersOfTheMemoryThatItTakes) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .writes = {bytes(0, 8)}},
                                         {.stream = 1, .reads = {bytes(0, 8)}},
                                         {.stream = 0, .writes = {bytes(2, 4)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {0}, {1}}));
}

TEST(EventWaits, AWriterWaitsForTheWriterBefore) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .writes = {bytes(0, 8)}},
                                         {.stream = 1, .writes = {bytes(0, 8)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {0}}));
}

TEST(EventWaits, ReadersDoNotWaitForEachOther) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .reads = {bytes(0, 8)}},
                                         {.stream = 1, .reads = {bytes(0, 8)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {}}));
}

TEST(EventWaits, TheLatestTaskOfAStreamStandsForThoseBefore) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .writes = {bytes(0, 8)}},
                                         {.stream = 0, .writes = {bytes(8, 16)}},
                                         {.stream = 1, .reads = {bytes(0, 16)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {}, {1}}));
}

TEST(EventWaits, WhatWasWaitedForIsNotWaitedForAgain) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .writes = {bytes(0, 8)}},
                                         {.stream = 1, .reads = {bytes(0, 8)}},
                                         {.stream = 1, .reads = {bytes(0, 8)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {0}, {}}));
}

TEST(EventWaits, WaitingForATaskIsWaitingForWhatItWaitedFor) {
  // 0 on stream 0, 1 on stream 1 after it, 2 on stream 2 needs both: 1 is enough.
  const std::vector<TaskMemory> tasks = {
      {.stream = 0, .writes = {bytes(0, 8)}},
      {.stream = 1, .reads = {bytes(0, 8)}, .writes = {bytes(8, 16)}},
      {.stream = 2, .reads = {bytes(0, 16)}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {0}, {1}}));
}

TEST(EventWaits, AfterIsADependencyToo) {
  const std::vector<TaskMemory> tasks = {{.stream = 0}, {.stream = 1, .after = {0}}};
  EXPECT_EQ(event_waits(tasks), Waits({{}, {0}}));
}

TEST(EventWaits, AfterSomethingLaterIsRefused) {
  const std::vector<TaskMemory> tasks = {{.stream = 0, .after = {0}}};
  EXPECT_THROW(event_waits(tasks), std::invalid_argument);
}

TEST(EventWaits, ANegativeStreamIsRefused) {
  const std::vector<TaskMemory> tasks = {{.stream = -1}};
  EXPECT_THROW(event_waits(tasks), std::invalid_argument);
}

bool overlap(const std::vector<MemoryRange>& a, const std::vector<MemoryRange>& b) {
  for (const MemoryRange& x : a) {
    for (const MemoryRange& y : b) {
      if (x.space == y.space && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

// reachable[i][j]: j has ended before i begins, by stream order and waits alone.
std::vector<std::vector<bool>> order_of(const std::vector<TaskMemory>& tasks, const Waits& waits) {
  std::vector<std::vector<bool>> before(tasks.size(), std::vector<bool>(tasks.size()));
  const auto add = [&](std::size_t task, std::size_t earlier) {
    before[task][earlier] = true;
    for (std::size_t k = 0; k < earlier; ++k) {
      if (before[earlier][k]) before[task][k] = true;
    }
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (tasks[j].stream == tasks[i].stream) add(i, j);
    }
    for (const std::int32_t j : waits[i]) add(i, static_cast<std::size_t>(j));
  }
  return before;
}

// Any two tasks that touch the same memory, one of them writing, are ordered; and no wait can be
// left out without losing such an order.
TEST(EventWaits, RandomTasksAreOrderedAndNoWaitIsIdle) {
  constexpr unsigned kSeed = 20251121;
  std::mt19937 random(kSeed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<TaskMemory> tasks(12);
    for (TaskMemory& task : tasks) {
      task.stream = draw(3);
      for (auto* ranges : {&task.reads, &task.writes}) {
        const int begin = draw(12);
        if (draw(3) > 0) ranges->push_back(bytes(begin, begin + 1 + draw(4)));
      }
    }
    Waits waits = event_waits(tasks);
    const auto is_right = [&] {
      const auto before = order_of(tasks, waits);
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          const bool conflicts = overlap(tasks[j].writes, tasks[i].reads) ||
                                 overlap(tasks[j].writes, tasks[i].writes) ||
                                 overlap(tasks[j].reads, tasks[i].writes);
          if (conflicts && !before[i][j]) return false;
        }
      }
      return true;
    };
    ASSERT_TRUE(is_right()) << "seed " << kSeed << ", round " << round;
    for (auto& own : waits) {
      for (std::size_t k = 0; k < own.size(); ++k) {
        const std::int32_t left_out = own[k];
        own.erase(own.begin() + static_cast<std::ptrdiff_t>(k));
        EXPECT_FALSE(is_right()) << "seed " << kSeed << ", round " << round << ": idle wait for "
                                 << left_out;
        own.insert(own.begin() + static_cast<std::ptrdiff_t>(k), left_out);
      }
    }
  }
}

}  // namespace
}  // namespace orrery
