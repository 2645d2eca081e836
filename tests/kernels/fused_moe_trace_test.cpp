// Spans of a traced launch of fused_moe: cycles of unlike SMs on one clock, and what is refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/experts/fused_moe/trace.h"

namespace orrery {
namespace {

using fused_moe::RowsOf;
using fused_moe::TraceRecords;

// Of two blocks. The first's SM has a cycle each ns from 1,000,000 on, which is 500 ns of the GPU;
// that of the second two a ns, from 7,000 at 600 ns. A task each, and a sum of the first.
TraceRecords two_blocks() {
  TraceRecords records{.most_tasks = 2, .most_rows = 1};
  records.blocks = {{.first = {.cycles = 1'000'000, .ns = 500},
                     .last = {.cycles = 1'010'000, .ns = 10'500},
                     .begin = 1'000'100,
                     .marks = {1'000'200, 1'000'300, 1'000'400, 1'000'500, 1'000'600},
                     .no_task = 1'000'900,
                     .end = 1'001'000,
                     .sm = 17,
                     .num_tasks = 1,
                     .num_rows = 1},
                    {.first = {.cycles = 7'000, .ns = 600},
                     .last = {.cycles = 27'000, .ns = 10'600},
                     .begin = 7'200,
                     .marks = {7'400, 7'600, 7'800, 8'000, 8'200},
                     .no_task = 8'800,
                     .end = 9'000,
                     .sm = 3,
                     .num_tasks = 1}};
  records.tasks.resize(4);
  records.tasks[0] = {.taken = 1'000'610,
                      .turn = 1'000'615,
                      .ready = 1'000'620,
                      .begin = {1'000'640, 1'000'630},
                      .end = {1'000'700, 1'000'710},
                      .counted = {1'000'720, 1'000'730},
                      .ticket = 1,
                      .layer = 2,
                      .expert = 5,
                      .tile = 9,
                      .column = 256,
                      .rows = 130};
  records.tasks[2] = {.taken = 8'200,
                      .turn = 8'200,
                      .ready = 8'200,
                      .begin = {8'300, 8'400},
                      .end = {8'500, 8'500},
                      .counted = {8'600, 8'600},
                      .layer = 1};
  records.rows = {{.taken = 1'000'700, .ready = 1'000'750, .end = 1'000'800}, {}};
  return records;
}

FusedMoeSpan only(const std::vector<FusedMoeSpan>& spans, int block, std::string_view what) {
  std::vector<FusedMoeSpan> found;
  std::ranges::copy_if(spans, std::back_inserter(found), [&](const FusedMoeSpan& span) {
    return span.block == block && span.what == what;
  });
  EXPECT_EQ(found.size(), 1U) << what;
  return found.empty() ? FusedMoeSpan{} : found.front();
}

// The first block begins at 600 ns of the GPU, the second at 700.
TEST(FusedMoeTrace, CyclesOfEachSmAreNsOfTheGpuFromTheFirstBegin) {
  const auto spans = fused_moe_spans(two_blocks());
  EXPECT_DOUBLE_EQ(only(spans, 0, "block").begin, 0);
  EXPECT_DOUBLE_EQ(only(spans, 0, "block").end, 900);
  EXPECT_DOUBLE_EQ(only(spans, 1, "block").begin, 100);
  EXPECT_DOUBLE_EQ(only(spans, 1, "block").end, 1000);
  EXPECT_EQ(only(spans, 1, "block").sm, 3);
  EXPECT_DOUBLE_EQ(only(spans, 1, "rows").begin, 500);
  EXPECT_DOUBLE_EQ(only(spans, 1, "rows").end, 600);
}

TEST(FusedMoeTrace, ATaskLastsFromItsFirstWarpgroupToItsLast) {
  const FusedMoeSpan task = only(fused_moe_spans(two_blocks()), 0, "task");
  EXPECT_DOUBLE_EQ(task.taken, 510);
  EXPECT_DOUBLE_EQ(task.ready, 520);
  EXPECT_DOUBLE_EQ(task.begin, 530);
  EXPECT_DOUBLE_EQ(task.end, 610);
  EXPECT_DOUBLE_EQ(task.counted, 630);
  EXPECT_EQ(task.layer, 2);
  EXPECT_EQ(task.tile, 9);
}

TEST(FusedMoeTrace, RowsLeaveEmptyWhatASpanDoesNotHave) {
  const auto spans = fused_moe_spans(two_blocks());
  const std::vector ranks(1, spans);
  const std::string text = fused_moe_spans_csv(ranks);
  EXPECT_EQ(std::ranges::count(text, '\n'), 1 + 2 * (1 + 5 + 1 + 1) + 1);
  EXPECT_NE(text.find("\n0,0,17,logits,,,,,,,,,,0.0,100.0,\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n0,0,17,task,2,5,9,256,130,1,510.0,515.0,520.0,530.0,610.0,630.0\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\n0,0,17,sums,,,,,,,600.0,,650.0,650.0,700.0,\n"), std::string::npos)
      << text;
}

TEST(FusedMoeTrace, ATileOfRowsThatBecomeFp8IsTold) {
  TraceRecords records = two_blocks();
  records.rows[0].what = RowsOf::kQuantized;
  records.rows[0].tile = 4;
  EXPECT_EQ(only(fused_moe_spans(records), 0, "quantize").tile, 4);
}

TEST(FusedMoeTrace, MoreThanThereIsRoomForAndABlockWithoutEndAreErrors) {
  TraceRecords records = two_blocks();
  records.blocks[1].num_tasks = 3;
  EXPECT_THROW(fused_moe_spans(records), std::runtime_error);
  records = two_blocks();
  records.blocks[0].num_rows = 2;
  EXPECT_THROW(fused_moe_spans(records), std::runtime_error);
  records = two_blocks();
  records.blocks[1].last = {};
  EXPECT_THROW(fused_moe_spans(records), std::runtime_error);
}

}  // namespace
}  // namespace orrery
