#include "kernels/execute/even_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

// Behind the last run, or as one with it.
void append(std::vector<RowRun>& runs, const RowRun& run) {
  if (!runs.empty()) {
    RowRun& last = runs.back();
    const bool follows = last.from == run.from && last.to == run.to &&
                         last.from_row + last.count == run.from_row &&
                         last.to_row + last.count == run.to_row;
    if (follows) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

}  // namespace

std::int64_t rows_of_even_part(const Plan& plan) {
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel != nullptr && kernel->kernel == "embedding") return dim(kernel->dims, "tokens");
  }
  throw std::invalid_argument("a plan has even parts of rows without an embedding of their tokens");
}

EvenLayout even_layout(const StepRows& own, std::int64_t rows, std::int64_t begin) {
  constexpr std::int64_t kAlignment = 256;
  EvenLayout layout{.own = own, .rows = rows};
  std::int64_t end = begin;
  const auto place = [&](std::int64_t count) {
    end = (end + kAlignment - 1) / kAlignment * kAlignment;
    const std::int64_t offset = end;
    end += count * std::int64_t{sizeof(std::int32_t)};
    return offset;
  };
  layout.token_ids = place(rows);
  layout.positions = place(rows);
  layout.own_sources = place(own.tokens);
  layout.even_sources = place(rows);
  layout.sampled_sources = place(own.seqs);
  layout.end = end;
  return layout;
}

EvenParts::EvenParts(std::span<const StepPart> parts, const StepRows& own, std::int64_t rows)
    : own_(own), rows_(rows) {
  std::int64_t num_placed = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto rank = static_cast<int>(i);
    std::int64_t num_sampled = 0;
    std::int64_t row = 0;
    const auto add = [&](const SequenceTokens* sequence, bool is_sampled) {
      placed_.push_back({.rank = rank, .row = row, .place = num_placed, .sequence = sequence});
      row += placed_.back().count();
      num_placed += placed_.back().count();
      if (!is_sampled) return;
      sampled_.push_back({.rank = rank, .row = num_sampled++, .place = num_placed - 1});
    };
    for (const SequenceTokens* chunk : parts[i].prefill) add(chunk, chunk->produces_token);
    row = own.prefill;
    for (const SequenceTokens* decode : parts[i].decodes) add(decode, true);
  }
  if (num_placed <= rows * std::ssize(parts)) return;
  throw std::invalid_argument("a step has " + std::to_string(num_placed) +
                              " tokens on all data-parallel ranks, the plan an even part of " +
                              std::to_string(rows) + " on each of " + std::to_string(parts.size()));
}

std::vector<RowRun> EvenParts::runs(RowMove move) const {
  std::vector<RowRun> runs;
  if (move == RowMove::kToSampled) {
    for (const Sampled& sampled : sampled_) {
      append(runs, {.from = static_cast<int>(sampled.place / rows_),
                    .from_row = sampled.place % rows_,
                    .to = sampled.rank,
                    .to_row = sampled.row,
                    .count = 1});
    }
    return runs;
  }
  for (const Placed& placed : placed_) {
    for (std::int64_t done = 0; done < placed.count();) {
      const std::int64_t place = placed.place + done;
      const std::int64_t count = std::min(placed.count() - done, rows_ - place % rows_);
      const RowRun run{.from = placed.rank,
                       .from_row = placed.row + done,
                       .to = static_cast<int>(place / rows_),
                       .to_row = place % rows_,
                       .count = count};
      run.from_row == own_.prefill ? runs.push_back(run) : append(runs, run);
      done += count;
    }
  }
  return runs;
}

void EvenParts::fill(int dp_rank, const EvenLayout& layout, std::int32_t first_vocab_row,
                     std::span<std::byte> bytes) const {
  const auto table = [&](std::int64_t offset, std::int64_t size, std::int32_t padding) {
    const auto values = table_in<std::int32_t>(bytes, offset, size);
    std::ranges::fill(values, padding);
    return values;
  };
  const auto token_ids = table(layout.token_ids, rows_, -first_vocab_row);
  const auto positions = table(layout.positions, rows_, 0);
  const auto own_sources = table(layout.own_sources, own_.tokens, -1);
  const auto even_sources = table(layout.even_sources, rows_, -1);
  const auto sampled_sources = table(layout.sampled_sources, own_.seqs, -1);
  const std::int64_t first = dp_rank * rows_;
  for (const Placed& placed : placed_) {
    for (std::int64_t i = 0; i < placed.count(); ++i) {
      const std::int64_t place = placed.place + i;
      if (placed.rank == dp_rank) {
        own_sources[static_cast<std::size_t>(placed.row + i)] = static_cast<std::int32_t>(place);
      }
      if (place < first || place >= first + rows_) continue;
      const auto row = static_cast<std::size_t>(place - first);
      token_ids[row] = placed.sequence->tokens[static_cast<std::size_t>(i)] - first_vocab_row;
      positions[row] = static_cast<std::int32_t>(placed.sequence->context + i);
      even_sources[row] = static_cast<std::int32_t>(placed.rank * own_.tokens + placed.row + i);
    }
  }
  for (const Sampled& sampled : sampled_) {
    if (sampled.rank != dp_rank) continue;
    sampled_sources[static_cast<std::size_t>(sampled.row)] =
        static_cast<std::int32_t>(sampled.place);
  }
}

}  // namespace orrery
