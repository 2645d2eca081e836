// What is enqueued for a step that moves blocks, and what waits for what.

#include "kernels/serve/move_schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orrery {
namespace {

// Every call as a word: "out copies 1+1", "compute waits in 0".
class Written : public MoveLanes {
 public:
  void copy(MoveLane lane, std::span<const UnitMove> units, std::int64_t layer,
            std::int64_t num_layers) override {
    EXPECT_FALSE(units.empty());
    lines.push_back(name(lane) + " copies " + std::to_string(layer) + "+" +
                    std::to_string(num_layers));
  }
  void record(MoveLane lane, const MoveMark& mark) override {
    lines.push_back(name(lane) + " marks " + name(mark));
  }
  void wait(MoveLane lane, const MoveMark& mark) override {
    lines.push_back(name(lane) + " waits " + name(mark));
  }
  std::vector<std::string> lines;

 private:
  static std::string name(MoveLane lane) {
    return lane == MoveLane::kCompute ? "compute" : lane == MoveLane::kOut ? "out" : "in";
  }
  static std::string name(const MoveMark& mark) {
    constexpr const char* kNames[] = {"out ", "in ", "end ", "batch "};
    return kNames[static_cast<std::size_t>(mark.kind)] + std::to_string(mark.number);
  }
};

std::vector<std::string> lines_of(const KvMoves& moves, TierOverlap overlap, bool by_layers) {
  Written lanes;
  MoveSchedule schedule(lanes, 2, overlap);
  schedule.set(moves);
  schedule.begin_step(by_layers);
  for (std::int64_t layer = 0; by_layers && layer < 2; ++layer) {
    lanes.lines.push_back("layer " + std::to_string(layer));
    schedule.begin_layer(layer);
  }
  lanes.lines.emplace_back("end");
  schedule.end_step();
  return lanes.lines;
}

const UnitMove kUnit{.blocks = {0, 1}, .slot = 0};

TEST(MoveSchedule, EachLayerWaitsForItsOwnBlocks) {
  const KvMoves moves{.writes = {kUnit}, .loads = {kUnit}, .batch = 3, .overwrites = 3};
  EXPECT_EQ(
      lines_of(moves, TierOverlap::kLayers, true),
      (std::vector<std::string>{
          "layer 0", "out copies 0+1", "out marks out 0", "in waits out 0", "in copies 0+1",
          "in marks in 0", "compute waits out 0", "compute waits in 0", "layer 1", "out copies 1+1",
          "out marks out 1", "in waits out 1", "in copies 1+1", "in marks in 1",
          "compute waits out 1", "compute waits in 1", "end", "out marks batch 3"}));
}

TEST(MoveSchedule, WithoutOverlapAStepBeginsWhenAllIsThere) {
  const KvMoves moves{.loads = {kUnit}, .loads_after = 2};
  EXPECT_EQ(lines_of(moves, TierOverlap::kNone, true),
            (std::vector<std::string>{"in waits batch 2", "in copies 0+2", "in marks in 0",
                                      "compute waits in 0", "layer 0", "layer 1", "end"}));
}

TEST(MoveSchedule, ACapturedStepHasNoLayersToWaitIn) {
  const KvMoves moves{.writes = {kUnit}, .batch = 1, .overwrites = 1};
  EXPECT_EQ(lines_of(moves, TierOverlap::kLayers, false),
            (std::vector<std::string>{"out copies 0+2", "out marks out 0", "compute waits out 0",
                                      "end", "out marks batch 1"}));
}

TEST(MoveSchedule, WhatNobodyOverwritesLeavesInTheBackground) {
  const KvMoves moves{.writes = {kUnit}, .batch = 2, .overwrites = 1};
  EXPECT_EQ(lines_of(moves, TierOverlap::kLayers, false),
            (std::vector<std::string>{"out copies 0+2", "out marks out 0", "compute waits batch 1",
                                      "end", "out marks batch 2"}));
}

TEST(MoveSchedule, WhatIsComputedLeavesWhenTheStepHasEnded) {
  const KvMoves moves{.computed = {kUnit}, .batch = 1};
  EXPECT_EQ(lines_of(moves, TierOverlap::kLayers, true),
            (std::vector<std::string>{"layer 0", "layer 1", "end", "compute marks end 0",
                                      "out waits end 0", "out copies 0+2", "out marks batch 1"}));
}

TEST(MoveSchedule, AStepWithoutMovesEnqueuesNothing) {
  EXPECT_EQ(lines_of({}, TierOverlap::kLayers, true),
            (std::vector<std::string>{"layer 0", "layer 1", "end"}));
}

}  // namespace
}  // namespace orrery
