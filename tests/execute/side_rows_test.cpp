#include "kernels/execute/side_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/execute/hazards.h"
#include "kernels/execute/step_tables.h"
#include "kernels/execute/weights.h"
#include "sim/memory/buffers.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using Rows = std::vector<PeerRows>;

TEST(SideRows, OneRankSendsAllThatItHas) {
  const std::vector<int> low{0};
  const std::vector<int> high{1};
  for (const Sides& sides : {Sides{low, high}, Sides{high, low}}) {
    const int sender = sides.senders[0];
    const int receiver = sides.receivers[0];
    EXPECT_EQ(side_rows(sides, sender, 5, 5), (Rows{{.peer = receiver, .first = 0, .count = 5}}));
    EXPECT_EQ(side_rows(sides, receiver, 5, 5), (Rows{{.peer = sender, .first = 0, .count = 5}}));
  }
}

// Seven rows over shares of four: the last has three and one that fills it up.
TEST(SideRows, SeveralRanksHaveTheirSharesInOrder) {
  const std::vector<int> one{0};
  const std::vector<int> two{1, 2};
  EXPECT_EQ(side_rows({one, two}, 0, 7, 4),
            (Rows{{.peer = 1, .first = 0, .count = 4}, {.peer = 2, .first = 4, .count = 3}}));
  EXPECT_EQ(side_rows({one, two}, 2, 7, 4), (Rows{{.peer = 0, .first = 0, .count = 3}}));
  EXPECT_EQ(side_rows({two, one}, 0, 4, 7),
            (Rows{{.peer = 1, .first = 0, .count = 4}, {.peer = 2, .first = 4, .count = 3}}));
}

// Three ranks of two rows each and two of three.
TEST(SideRows, ARankSendsToAllThatHaveSomeOfItsRows) {
  const std::vector<int> three{0, 1, 2};
  const std::vector<int> two{3, 4};
  const Sides sides{three, two};
  EXPECT_EQ(side_rows(sides, 0, 2, 3), (Rows{{.peer = 3, .first = 0, .count = 2}}));
  EXPECT_EQ(side_rows(sides, 1, 2, 3),
            (Rows{{.peer = 3, .first = 0, .count = 1}, {.peer = 4, .first = 1, .count = 1}}));
  EXPECT_EQ(side_rows(sides, 4, 2, 3),
            (Rows{{.peer = 1, .first = 0, .count = 1}, {.peer = 2, .first = 1, .count = 2}}));
  EXPECT_EQ(first_on_peer(sides, 1, 3, 2, 3), 2);
  EXPECT_EQ(first_on_peer(sides, 4, 1, 2, 3), 1);
  EXPECT_THROW((void)first_on_peer(sides, 0, 4, 2, 3), std::invalid_argument);
}

// Row r of all is row r % share of rank r / share on either side, and goes once from the one to the
// other, whichever of them is asked.
TEST(SideRows, EachRowGoesOnceFromWhereItIsToWhereItBelongs) {
  for (const auto& [low, high] :
       {std::pair{1, 1}, {1, 4}, {4, 1}, {2, 2}, {3, 2}, {2, 3}, {4, 3}}) {
    std::vector<int> senders(static_cast<std::size_t>(low));
    std::vector<int> receivers(static_cast<std::size_t>(high));
    std::iota(senders.begin(), senders.end(), 0);
    std::iota(receivers.begin(), receivers.end(), low);
    const Sides sides{senders, receivers};
    for (std::int64_t all = 1; all < 30; ++all) {
      const std::int64_t sent = (all + low - 1) / low;
      const std::int64_t received = (all + high - 1) / high;
      std::vector<int> times(static_cast<std::size_t>(low * sent));
      for (const int sender : senders) {
        for (const PeerRows& rows : side_rows(sides, sender, sent, received)) {
          const std::int64_t first = sender * sent + rows.first;
          const std::int64_t there = first_on_peer(sides, sender, rows.peer, sent, received);
          EXPECT_EQ((rows.peer - low) * received + there, first);
          EXPECT_EQ(first_on_peer(sides, rows.peer, sender, sent, received), rows.first);
          const Rows others = side_rows(sides, rows.peer, sent, received);
          const auto other = std::ranges::find(others, sender, &PeerRows::peer);
          ASSERT_NE(other, others.end());
          EXPECT_EQ(other->count, rows.count);
          for (std::int64_t i = 0; i < rows.count; ++i) {
            ++times[static_cast<std::size_t>(first + i)];
          }
        }
      }
      for (std::int64_t row = 0; row < all; ++row) {
        EXPECT_EQ(times[static_cast<std::size_t>(row)], 1) << row << " of " << all;
      }
    }
  }
}

TEST(SideRows, RefusesRowsThatAreNotTheSame) {
  const std::vector<int> one{0};
  const std::vector<int> two{1, 2};
  EXPECT_THROW((void)side_rows({one, two}, 0, 7, 5), std::invalid_argument);
  EXPECT_THROW((void)side_rows({two, one}, 0, 3, 7), std::invalid_argument);
  const std::vector<int> others{3, 4};
  EXPECT_THROW((void)side_rows({two, others}, 1, 4, 5), std::invalid_argument);
}

// Two rows of the step on each of three ranks, the first two alone where the step has four in all;
// in micro-batches of five, three on each of two ranks.
TEST(SideRows, AStepWhoseRowsAreNotAllSentIsRefused) {
  const testing::TestSequence sequence{0, 30};
  const auto check = [&](const Mesh& mesh, std::int64_t num_rows, std::size_t num_decodes) {
    const Batch decodes{.num_decodes = num_rows, .decode_context = 60};
    const Plan plan = parallelize(lower(testing::tiny_llama(), decodes, {}), mesh);
    StepInput input;
    for (std::size_t i = 0; i < num_decodes; ++i) input.decodes.push_back(sequence.chunk(5, 6));
    check_parts_apart(plan, split_step(input, mesh.dp * mesh.num_micro_batches));
  };
  const Mesh three{.dp = 3, .ffn_instances = 1};
  EXPECT_NO_THROW(check(three, 6, 5));
  EXPECT_NO_THROW(check(three, 4, 4));
  EXPECT_THROW(check(three, 4, 3), std::invalid_argument);  // one on each rank
  const Mesh two{.dp = 2, .num_micro_batches = 2, .ffn_instances = 1};
  EXPECT_NO_THROW(check(two, 12, 9));
  EXPECT_THROW(check(two, 9, 9), std::invalid_argument);
}

Plan apart_plan(int num_micro_batches) {
  const Mesh mesh{.num_micro_batches = num_micro_batches, .ffn_instances = 1};
  const Batch decodes{.num_decodes = 6, .decode_context = 60};
  return parallelize(lower(testing::tiny_llama(), decodes, {}), mesh);
}

// On either rank what arrives is behind what was sent last, by layer and micro-batch: FFNs answer
// attention in the same layer, attention answers FFNs in the next.
TEST(SentBefore, WhatArrivesIsBehindWhatItAnswers) {
  for (const int num_micro_batches : {1, 2, 3}) {
    const Plan plan = apart_plan(num_micro_batches);
    for (const int rank : {0, 1}) {
      const std::vector<Task> tasks = rank_tasks(plan, rank);
      const std::vector<std::int32_t> before = sent_before(plan, rank, tasks);
      int num_answers = 0;
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (before[i] < 0) continue;
        ++num_answers;
        ASSERT_LT(before[i], static_cast<std::int32_t>(i));
        const Op& op = plan.ops()[static_cast<std::size_t>(tasks[i].op)];
        const Task& sent = tasks[static_cast<std::size_t>(before[i])];
        const Op& answered = plan.ops()[static_cast<std::size_t>(sent.op)];
        EXPECT_EQ(op.micro_batch, answered.micro_batch);
        EXPECT_EQ(op.name.ends_with("to_ffn"), rank == 1);
        EXPECT_EQ(answered.name.ends_with("from_ffn"), rank == 1);
      }
      // Four layers; nothing is sent before the first rows come to the FFNs.
      EXPECT_EQ(num_answers, (rank == 0 ? 4 : 3) * num_micro_batches);
      auto memory = task_memory(plan, rank, tasks, plan_buffers(plan, rank), kv_layers(plan, rank));
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (before[i] >= 0) memory[i].after.push_back(before[i]);
      }
      EXPECT_NO_THROW((void)event_waits(memory));
    }
  }
}

// Transfers of one direction come in the same order on both ranks: they wait for each other.
TEST(SentBefore, BothRanksTransferInOneOrder) {
  const Plan plan = apart_plan(3);
  const auto transfers = [&](int rank) {
    std::vector<Task> found;
    for (const Task& task : rank_tasks(plan, rank)) {
      if (sides_of(plan, plan.ops()[static_cast<std::size_t>(task.op)])) found.push_back(task);
    }
    return found;
  };
  EXPECT_EQ(transfers(0).size(), 2U * 4 * 3);
  EXPECT_EQ(transfers(0), transfers(1));
}

TEST(RanksOfFfns, HaveNoSequencesAndNoCache) {
  const RankGrid grid{.dp = 2, .ffn_instances = 1, .ffn_tp = 2};
  EXPECT_EQ(grid.size(), 4);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(grid.is_ffn(rank), rank >= 2) << rank;
  const Plan plan = apart_plan(3);
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    EXPECT_EQ(step_rows(plan, 0, micro_batch),
              (StepRows{.tokens = 2, .prefill = 0, .decodes = 2, .seqs = 2}));
    const StepRows rows = step_rows(plan, 1, micro_batch);
    EXPECT_EQ(rows.tokens, 0);
    EXPECT_EQ(rows.decodes, 0);
    // A part without sequences fits, and its tables are written where they are.
    const CacheShape cache{.num_blocks = 4, .block_size = 16, .max_model_len = 32};
    EXPECT_NO_THROW(check_part({}, rows, cache));
    const TableLayout layout = table_layout(rows, 0, cache, 0);
    std::vector<std::byte> bytes(static_cast<std::size_t>(layout.end));
    EXPECT_NO_THROW(fill_tables({}, layout, cache, 0, bytes));
  }
  EXPECT_EQ(kv_layers(plan, 0).count, 4);
  EXPECT_EQ(kv_layers(plan, 1).count, 0);
}

// Each under one name, with as many copies in every step: an executor keeps them from step to step.
TEST(RanksOfFfns, HoldTheWeightsOfFfnsAlone) {
  for (const int rank : {0, 1}) {
    const std::vector<WeightShard> of_one = weight_shards(apart_plan(1), rank).shards;
    for (const WeightShard& shard : of_one) {
      const bool is_of_ffn = shard.name.find("gate_up_proj") != std::string::npos ||
                             shard.name.find("down_proj") != std::string::npos;
      EXPECT_EQ(is_of_ffn, rank == 1) << shard.name;
    }
    for (const int num_micro_batches : {2, 3}) {
      std::vector<WeightShard> shards = weight_shards(apart_plan(num_micro_batches), rank).shards;
      ASSERT_EQ(shards.size(), of_one.size());
      for (const WeightShard& shard : shards) {
        EXPECT_EQ(std::ranges::count(of_one, shard), 1) << shard.name;
      }
    }
  }
}

}  // namespace
}  // namespace orrery
