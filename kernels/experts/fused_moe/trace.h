#pragma once

// When each block of a traced launch of fused_moe did what: records as the kernel writes them, and
// spans made of them. No CUDA.
//
//   routing   logits | choice | counts | tables | rows     marks of thread 0, each the end of one
//   a task    taken: its ticket is asked for    turn: what was before it is copied
//             ready: what it needs is there     begin, end of each warpgroup
//             counted: others may know that it is done
//   sums      of some rows by a warp: taken, ready, end; of fp8 the rounding between the layers too

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::fused_moe {

enum class Mark : std::uint8_t { kLogits, kChoice, kCounts, kTables, kRows };
inline constexpr int kMarks = 5;

// Times are cycles of the SM. `first` and `last` are both clocks of it at once, at a tick of the
// GPU's, which may come once in a microsecond.
struct ClockPair {
  std::int64_t cycles;
  std::int64_t ns;
};
struct BlockRecord {
  ClockPair first;
  ClockPair last;
  std::int64_t begin;
  std::int64_t marks[kMarks];
  std::int64_t no_task;  // no ticket has a task any more
  std::int64_t end;
  std::int32_t sm;
  std::int32_t num_tasks;  // of these and the next, more than there is room for are not written
  std::int32_t num_rows;
};
struct TaskRecord {
  std::int64_t taken;
  std::int64_t turn;
  std::int64_t ready;
  std::int64_t begin[2];    // of each warpgroup: its first products can be made
  std::int64_t end[2];      // its part is written
  std::int64_t counted[2];  // and counted
  std::int32_t ticket;
  std::int32_t layer;  // 1 or 2
  std::int32_t expert;
  std::int32_t tile;    // of rows, of all experts
  std::int32_t column;  // first
  std::int32_t rows;
};
enum class RowsOf : std::int32_t { kSums, kQuantized };
struct RowsRecord {
  std::int64_t taken;
  std::int64_t ready;
  std::int64_t end;
  RowsOf what;
  std::int32_t tile;  // of a quantised row; of sums the first row
};

// Of one launch on one rank: records of each block, in order. Blocks have room for as many tasks
// and rows each.
struct TraceRecords {
  std::vector<BlockRecord> blocks;
  std::vector<TaskRecord> tasks;  // [blocks, most_tasks]
  std::vector<RowsRecord> rows;   // [blocks, most_rows]
  std::int32_t most_tasks = 0;
  std::int32_t most_rows = 0;
};

}  // namespace orrery::fused_moe

namespace orrery {

// Times in ns from the begin of the rank's first block: clocks of GPUs are not compared. -1: it has
// none.
struct FusedMoeSpan {
  int block = 0;
  int sm = 0;
  std::string_view what;  // block, logits, choice, counts, tables, rows, task, quantize, sums, tail
  int layer = -1;         // of a task 1 or 2; the next likewise
  int expert = -1;
  int tile = -1;  // of a task and of quantize
  int column = -1;
  int rows = -1;
  int ticket = -1;
  double taken = -1;  // of a task, quantize and sums; ready likewise
  double turn = -1;   // of a task
  double ready = -1;
  double begin = 0;
  double end = 0;
  double counted = -1;  // of a task
};

// By block, in each by what and time. Throws std::runtime_error where a block had more records than
// there was room for, or did not end.
std::vector<FusedMoeSpan> fused_moe_spans(const fused_moe::TraceRecords& records);

// "rank,block,sm,what,layer,expert,tile,column,rows,ticket,taken_ns,turn_ns,ready_ns,begin_ns,
// end_ns,counted_ns" lines of ranks in order; what a span does not have is empty.
std::string fused_moe_spans_csv(std::span<const std::vector<FusedMoeSpan>> ranks);

}  // namespace orrery
