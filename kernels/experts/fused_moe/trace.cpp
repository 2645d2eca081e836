#include "kernels/experts/fused_moe/trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <stdexcept>

namespace orrery {
namespace {

using fused_moe::BlockRecord;
using fused_moe::RowsRecord;
using fused_moe::TaskRecord;
using fused_moe::TraceRecords;

constexpr std::array<std::string_view, fused_moe::kMarks> kPhases = {"logits", "choice", "counts",
                                                                     "tables", "rows"};

void require_whole(const TraceRecords& records, std::size_t block) {
  const BlockRecord& of = records.blocks[block];
  const auto named = "fused_moe: the trace of block " + std::to_string(block);
  if (of.last.cycles <= of.first.cycles || of.last.ns <= of.first.ns) {
    throw std::runtime_error(named + " has no end: its launch waited in vain, or was not traced");
  }
  const auto require_room = [&](std::int32_t count, std::int32_t most, const char* what) {
    if (count <= most) return;
    throw std::runtime_error(named + " has " + std::to_string(count) + " " + what +
                             ", expected at most " + std::to_string(most) + ": fewer tokens");
  };
  require_room(of.num_tasks, records.most_tasks, "tasks");
  require_room(of.num_rows, records.most_rows, "records of rows");
}

// Cycles of a block's SM as ns of the GPU, less `zero`.
class Clock {
 public:
  Clock(const BlockRecord& of, double zero)
      : first_(of.first),
        ns_of_cycle_(static_cast<double>(of.last.ns - of.first.ns) /
                     static_cast<double>(of.last.cycles - of.first.cycles)),
        zero_(zero) {}
  [[nodiscard]] double ns(std::int64_t cycles) const {
    return static_cast<double>(first_.ns) - zero_ +
           static_cast<double>(cycles - first_.cycles) * ns_of_cycle_;
  }

 private:
  fused_moe::ClockPair first_;
  double ns_of_cycle_;
  double zero_;
};

// The spans of one block.
class BlockSpans {
 public:
  BlockSpans(const TraceRecords& records, std::size_t block, double zero,
             std::vector<FusedMoeSpan>& to)
      : records_(records),
        block_(block),
        of_(records.blocks[block]),
        clock_(of_, zero),
        spans_(to) {}

  void add() {
    add_phases();
    const auto tasks = std::span(records_.tasks)
                           .subspan(block_ * static_cast<std::size_t>(records_.most_tasks),
                                    static_cast<std::size_t>(of_.num_tasks));
    for (const TaskRecord& task : tasks) add_task(task);
    const auto rows = std::span(records_.rows)
                          .subspan(block_ * static_cast<std::size_t>(records_.most_rows),
                                   static_cast<std::size_t>(of_.num_rows));
    for (const RowsRecord& some : rows) add_rows(some);
    add_span("tail", of_.no_task, of_.end);
  }

 private:
  FusedMoeSpan& add_span(std::string_view what, std::int64_t begin, std::int64_t end) {
    spans_.push_back({.block = static_cast<int>(block_),
                      .sm = of_.sm,
                      .what = what,
                      .begin = clock_.ns(begin),
                      .end = clock_.ns(end)});
    return spans_.back();
  }
  void add_phases() {
    add_span("block", of_.begin, of_.end);
    std::int64_t begin = of_.begin;
    for (std::size_t i = 0; i < kPhases.size(); ++i) {
      add_span(kPhases[i], begin, of_.marks[i]);
      begin = of_.marks[i];
    }
  }
  void add_task(const TaskRecord& task) {
    FusedMoeSpan& span = add_span("task", std::min(task.begin[0], task.begin[1]),
                                  std::max(task.end[0], task.end[1]));
    span.layer = task.layer;
    span.expert = task.expert;
    span.tile = task.tile;
    span.column = task.column;
    span.rows = task.rows;
    span.ticket = task.ticket;
    span.taken = clock_.ns(task.taken);
    span.turn = clock_.ns(task.turn);
    span.ready = clock_.ns(task.ready);
    span.counted = clock_.ns(std::max(task.counted[0], task.counted[1]));
  }
  void add_rows(const RowsRecord& some) {
    const bool is_quantized = some.what == fused_moe::RowsOf::kQuantized;
    FusedMoeSpan& span = add_span(is_quantized ? "quantize" : "sums", some.ready, some.end);
    if (is_quantized) span.tile = some.tile;
    span.taken = clock_.ns(some.taken);
    span.ready = clock_.ns(some.ready);
  }

  const TraceRecords& records_;
  std::size_t block_;
  const BlockRecord& of_;
  Clock clock_;
  std::vector<FusedMoeSpan>& spans_;
};

template <typename Number>
void append_known(std::string& line, Number value, const char* format) {
  line += ',';
  if (value < 0) return;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  line += text.data();
}

}  // namespace

std::vector<FusedMoeSpan> fused_moe_spans(const TraceRecords& records) {
  double zero = std::numeric_limits<double>::infinity();
  for (std::size_t block = 0; block < records.blocks.size(); ++block) {
    require_whole(records, block);
    const BlockRecord& of = records.blocks[block];
    zero = std::min(zero, Clock(of, 0).ns(of.begin));
  }
  std::vector<FusedMoeSpan> spans;
  for (std::size_t block = 0; block < records.blocks.size(); ++block) {
    BlockSpans(records, block, zero, spans).add();
  }
  return spans;
}

std::string fused_moe_spans_csv(std::span<const std::vector<FusedMoeSpan>> ranks) {
  std::string text =
      "rank,block,sm,what,layer,expert,tile,column,rows,ticket,taken_ns,turn_ns,ready_ns,begin_ns,"
      "end_ns,"
      "counted_ns\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const FusedMoeSpan& span : ranks[rank]) {
      text += std::to_string(rank) + "," + std::to_string(span.block) + "," +
              std::to_string(span.sm) + "," + std::string(span.what);
      for (const int value :
           {span.layer, span.expert, span.tile, span.column, span.rows, span.ticket}) {
        append_known(text, value, "%d");
      }
      for (const double time :
           {span.taken, span.turn, span.ready, span.begin, span.end, span.counted}) {
        append_known(text, time, "%.1f");
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace orrery
