#include "kernels/execute/context_share.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/execute/rank_program.h"

namespace orrery {
namespace {

// Of all ranks' rows of prompts, where row `row` of the step is.
std::int64_t source_of(const ContextShare& share, std::int64_t row, std::int64_t stride) {
  for (std::size_t rank = 0; rank < share.ranks.size(); ++rank) {
    for (const AxisRange& range : share.ranks[rank].ranges) {
      if (row < range.global || row >= range.global + range.count) continue;
      return static_cast<std::int64_t>(rank) * stride + range.local + row - range.global;
    }
  }
  throw std::invalid_argument("row " + std::to_string(row) +
                              " of a step's prompts is on no context-parallel rank");
}

bool works_on_part(const Plan& plan, const Op& op) {
  const auto is_part = [&](const TensorView& view) {
    return has_part_of_tokens(plan, plan.tensors()[static_cast<std::size_t>(view.tensor)]);
  };
  return std::ranges::any_of(op.reads, is_part) || std::ranges::any_of(op.writes, is_part);
}

bool swaps_cache(const Plan& plan, const Op& op) {
  const auto* comm = std::get_if<CommOp>(&op.body);
  return comm != nullptr && comm->kind == CollectiveKind::kSendRecv &&
         plan.tensors()[static_cast<std::size_t>(op.reads.front().tensor)].role ==
             TensorRole::kKvCache;
}

bool deals_decodes(const Plan& plan) {
  return std::ranges::any_of(plan.tensors(), [](const Tensor& tensor) {
    return !tensor.axes.empty() && tensor.axes.front().name == axis::kDecodes;
  });
}

// Of a prompt's cached tokens those that each rank gives: as many as the one with most has.
std::int64_t cached_rows(std::int64_t context, std::int64_t cp) { return (context + cp - 1) / cp; }

}  // namespace

PromptRows prompt_rows(const Plan& plan, int rank, int micro_batch) {
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !plan.contains(op.ranks, rank)) continue;
    if (kernel->kernel != "attention_prefill" && kernel->kernel != "mla_prefill") continue;
    if (micro_batch_of(op) != micro_batch) continue;
    const Tensor& out = plan.tensors()[static_cast<std::size_t>(op.writes.front().tensor)];
    const Axis& rows = out.axes.front();
    return {
        .ranges = plan.ranges_of(rows, rank), .room = rows.size, .of_step = plan.whole_size(rows)};
  }
  return {};
}

DealtDecodes dealt_decodes(const Plan& plan, int rank) {
  if (!deals_decodes(plan)) return {};
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || kernel->kernel != "embedding") continue;
    const Axis& rows =
        plan.tensors()[static_cast<std::size_t>(op.writes.front().tensor)].axes.front();
    const SplitPart& decodes = plan.split_of(rows)->parts.back();
    const std::int64_t prompts = plan.whole_size(rows) - decodes.size;
    DealtDecodes own{.first = decodes.size, .room = decodes.block};
    for (const AxisRange& range : plan.ranges_of(rows, rank)) {
      if (range.global < prompts) continue;
      own.first = range.global - prompts;
      own.count = range.count;
    }
    return own;
  }
  throw std::invalid_argument("a plan deals out decodes without an embedding of their tokens");
}

bool is_on_gathered_decodes(const Plan& plan, const Op& op) {
  return std::ranges::any_of(op.reads, [&](const TensorView& view) {
    return plan.tensors()[static_cast<std::size_t>(view.tensor)].axes.front().name ==
           axis::kDecodes;
  });
}

bool has_part_of_tokens(const Plan& plan, const Tensor& tensor) {
  return std::ranges::any_of(tensor.axes, [&](const Axis& axis) {
    if (axis.name != axis::kTokens) return false;
    if (axis.split == kUnknownSplit) return true;
    const Split* const split = plan.split_of(axis);
    if (split == nullptr) return false;
    return split->parts.front().is_zigzag ||
           (split->parts.back().place.num_places() > 1 && deals_decodes(plan));
  });
}

std::int64_t ContextShare::own_row(std::int64_t row) const {
  for (const AxisRange& range : own().ranges) {
    if (row >= range.global && row < range.global + range.count) {
      return range.local + row - range.global;
    }
  }
  return -1;
}

ContextShare context_share(const Plan& plan, const RankGrid& grid, int rank, int micro_batch) {
  if (grid.cp == 1) return {};
  ContextShare share{.decodes = dealt_decodes(plan, rank), .ranks = {}, .rank = grid.cp_rank(rank)};
  if (prompt_rows(plan, rank, micro_batch).room == 0) return share;
  const int first = rank - share.rank;
  for (int i = 0; i < grid.cp; ++i) {
    share.ranks.push_back(prompt_rows(plan, first + i, micro_batch));
  }
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    if (kernel->kernel == "attention_prefill" && op.writes.size() > 1) share.is_ring = true;
    if (kernel->kernel == "mla_prefill") share.is_latent = true;
    if (kernel->kernel == "embedding" && works_on_part(plan, op)) share.is_of_model = true;
  }
  return share;
}

std::vector<PrefillPiece> prefill_pieces(const ContextShare& share,
                                         std::span<const PrefillChunk> chunks) {
  std::vector<PrefillPiece> pieces;
  std::int64_t row = 0;
  std::int64_t key_row = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (const AxisRange& range : share.own().ranges) {
      const std::int64_t first = std::max(row, range.global);
      const std::int64_t last = std::min(row + chunks[i].query, range.global + range.count);
      if (first >= last) continue;
      pieces.push_back({.query_row = range.local + first - range.global,
                        .query = last - first,
                        .position = chunks[i].context + first - row,
                        .key_row = key_row,
                        .sequence = static_cast<std::int64_t>(i)});
    }
    row += chunks[i].query;
    key_row += chunks[i].context + chunks[i].query;
  }
  return pieces;
}

namespace {

// Tokens of a sequence that one rank has: cached ones in turn, then stretches of new ones.
struct TokensOfRank {
  std::int64_t cached = 0;
  std::vector<AxisRange> fresh;  // global: row of the step's prompts; local: row in the sequence
  [[nodiscard]] std::int64_t before(std::int64_t row) const {
    std::int64_t count = cached;
    for (const AxisRange& range : fresh) {
      count += std::clamp<std::int64_t>(row - range.global, 0, range.count);
    }
    return count;
  }
  [[nodiscard]] std::int64_t all() const {
    return before(std::numeric_limits<std::int64_t>::max());
  }
};

TokensOfRank tokens_of_rank(const ContextShare& share, std::size_t rank, const PrefillChunk& chunk,
                            std::int64_t first_row) {
  const std::int64_t cp = std::ssize(share.ranks);
  TokensOfRank tokens{.cached = (chunk.context + cp - 1 - static_cast<std::int64_t>(rank)) / cp,
                      .fresh = {}};
  for (const AxisRange& range : share.ranks[rank].ranges) {
    const std::int64_t first = std::max(first_row, range.global);
    const std::int64_t last = std::min(first_row + chunk.query, range.global + range.count);
    if (first < last) {
      tokens.fresh.push_back({.local = first - first_row, .global = first, .count = last - first});
    }
  }
  std::ranges::sort(tokens.fresh, {}, &AxisRange::global);
  return tokens;
}

}  // namespace

std::vector<RankKeys> keys_of_ranks(const ContextShare& share,
                                    std::span<const PrefillChunk> chunks) {
  std::vector<RankKeys> ranks(share.ranks.size());
  std::int64_t first = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RankKeys& keys = ranks[rank];
    const bool is_own = rank == static_cast<std::size_t>(share.rank);
    keys.first = first;
    std::int64_t row = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const TokensOfRank tokens = tokens_of_rank(share, rank, chunks[i], row);
      for (const AxisRange& own : share.own().ranges) {
        const std::int64_t begin = std::max(row, own.global);
        const std::int64_t end = std::min(row + chunks[i].query, own.global + own.count);
        const std::int64_t seen = begin < end ? tokens.before(begin) : 0;
        if (begin >= end || (seen == 0 && !is_own)) continue;
        // Of another rank's keys all rows of a stretch see the same.
        PrefillPiece piece{.query_row = own.local + begin - own.global,
                           .query = end - begin,
                           .position = is_own ? seen : seen - 1,
                           .key_row = keys.count,
                           .sequence = static_cast<std::int64_t>(i)};
        if (!is_own) piece.keys = seen;
        keys.pieces.push_back(piece);
      }
      keys.count += tokens.all();
      row += chunks[i].query;
    }
    first += keys.count;
  }
  return ranks;
}

int rank_of_keys(const Plan& plan, const RankGrid& grid, int rank, const Op& op) {
  const int own = grid.cp_rank(rank);
  for (const Op& swap : plan.ops()) {
    if (!swaps_cache(plan, swap) || !plan.contains(swap.ranks, rank)) continue;
    const bool is_read = std::ranges::find(op.reads, swap.writes.front().tensor,
                                           &TensorView::tensor) != op.reads.end();
    if (!is_read) continue;
    const auto pair = plan.ranks(swap.ranks);
    return own + (pair[0] == rank ? pair[1] : pair[0]) - rank;
  }
  return own;
}

ContextLayout context_layout(const ContextShare& share, std::span<const PrefillChunk> chunks,
                             std::int64_t num_decodes, std::int64_t begin) {
  constexpr std::int64_t kAlignment = 256;
  ContextLayout layout;
  for (const PrefillChunk& chunk : chunks) {
    layout.cached_rows += cached_rows(chunk.context, std::ssize(share.ranks));
    layout.num_keys += chunk.context + chunk.query;
  }
  std::int64_t end = begin;
  const auto place = [&](std::int64_t count, std::size_t element) {
    end = (end + kAlignment - 1) / kAlignment * kAlignment;
    const std::int64_t offset = end;
    end += count * static_cast<std::int64_t>(element);
    return offset;
  };
  layout.key_sources = place(layout.num_keys, sizeof(std::int32_t));
  layout.key_slots = place(layout.num_keys, sizeof(std::int64_t));
  layout.cached_slots = place(layout.cached_rows, sizeof(std::int32_t));
  layout.row_sources = place(share.own().of_step, sizeof(std::int32_t));
  layout.own_rows = place(share.own().room + num_decodes, sizeof(std::int32_t));
  layout.end = end;
  return layout;
}

namespace {

// The tables of keys, written sequence by sequence.
class KeyTables {
 public:
  KeyTables(const ContextShare& share, const ContextLayout& layout, const CacheShape& cache,
            std::span<std::byte> bytes)
      : share_(share),
        cache_(cache),
        given_rows_(share.own().room + layout.cached_rows),
        sources_(table_in<std::int32_t>(bytes, layout.key_sources, layout.num_keys)),
        slots_(table_in<std::int64_t>(bytes, layout.key_slots, layout.num_keys)),
        cached_(table_in<std::int32_t>(bytes, layout.cached_slots, layout.cached_rows)) {}

  // In a ring: what one rank has of each sequence.
  void add_of_rank(std::span<const SequenceTokens* const> sequences, std::size_t rank) {
    const std::int64_t cp = cache_.cp;
    const std::int64_t stride = 2 * given_rows_;
    std::int64_t row = 0;
    std::int64_t cached = 0;
    for (const SequenceTokens* sequence : sequences) {
      const TokensOfRank tokens = tokens_of_rank(share_, rank, chunk_of(*sequence), row);
      for (std::int64_t i = 0; i < tokens.cached; ++i) {
        put(static_cast<std::int64_t>(rank) * stride + share_.own().room + cached + i, -1);
      }
      for (const AxisRange& fresh : tokens.fresh) {
        for (std::int64_t i = 0; i < fresh.count; ++i) {
          put(source_of(share_, fresh.global + i, stride),
              cache_.slot(sequence->context + fresh.local + i, sequence->blocks));
        }
      }
      row += std::ssize(sequence->tokens);
      cached += cached_rows(sequence->context, cp);
    }
  }
  void add_cached(const SequenceTokens& sequence) {
    const std::int64_t cp = cache_.cp;
    const std::int64_t stored = cache_.stored(sequence.context);
    for (std::int64_t i = 0; i < cached_rows(sequence.context, cp); ++i) {
      // One that has one less gives any row in its place.
      const std::int64_t position = i < stored ? i * cp + cache_.cp_rank : -1;
      cached_[static_cast<std::size_t>(cached_at_++)] =
          position < 0 ? 0 : static_cast<std::int32_t>(cache_.slot(position, sequence.blocks));
    }
  }
  void add(const SequenceTokens& sequence) {
    const std::int64_t cp = cache_.cp;
    // Each rank gives keys, then as many values: its keys are 2 * given_rows_ behind the last's.
    const std::int64_t stride = share_.is_latent ? given_rows_ : 2 * given_rows_;
    for (std::int64_t position = 0; position < sequence.context; ++position) {
      put(position % cp * stride + share_.own().room + cached_at_ + position / cp, -1);
    }
    for (std::int64_t i = 0; i < std::ssize(sequence.tokens); ++i) {
      const std::int64_t position = sequence.context + i;
      put(source_of(share_, row_++, stride), cache_.slot(position, sequence.blocks));
    }
    add_cached(sequence);
  }

 private:
  void put(std::int64_t source, std::int64_t slot) {
    sources_[at_] = static_cast<std::int32_t>(source);
    slots_[at_++] = slot;
  }

  const ContextShare& share_;
  const CacheShape& cache_;
  std::int64_t given_rows_;
  std::int64_t row_ = 0;  // of the step's prompts
  std::int64_t cached_at_ = 0;
  std::size_t at_ = 0;
  std::span<std::int32_t> sources_;
  std::span<std::int64_t> slots_;
  std::span<std::int32_t> cached_;
};

// Those of the rank's rows in place of those of the step.
template <typename T>
void deal(std::span<T> of_step, std::span<const std::int32_t> own_rows) {
  const std::vector<T> whole(of_step.begin(), of_step.end());
  for (std::size_t i = 0; i < own_rows.size(); ++i) {
    of_step[i] = whole[static_cast<std::size_t>(own_rows[i])];
  }
}

// Row of the step by own row; padding computes the first row again.
void fill_own_rows(const PromptRows& own, std::span<std::int32_t> rows) {
  std::ranges::fill(rows, 0);
  for (const AxisRange& range : own.ranges) {
    const auto first = rows.begin() + range.local;
    std::iota(first, first + range.count, static_cast<std::int32_t>(range.global));
  }
  std::iota(rows.begin() + own.room, rows.end(), static_cast<std::int32_t>(own.of_step));
}

// Where the rank has the sampled rows of the step, those that it has not: row 0. Decodes are the
// last of the step's.
void deal_sampled(const StepPart& part, const ContextShare& share,
                  std::span<std::int32_t> sampled) {
  const PromptRows own = share.has_prompts() ? share.own() : PromptRows{};
  const auto prompts = part.sampled.size() - part.decodes.size();
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    const bool is_decode = sampled[i] >= own.of_step;
    std::int64_t row = is_decode ? own.room + sampled[i] - own.of_step : share.own_row(sampled[i]);
    if (share.decodes.room > 0 && i >= prompts) {
      const auto decode = static_cast<std::int64_t>(i - prompts);
      row = decode < share.decodes.count ? own.room + decode : 0;
    }
    sampled[i] = static_cast<std::int32_t>(std::max<std::int64_t>(row, 0));
  }
}

// Positions of the rank's rows, and of a whole model on them token ids and sampled rows. `rows`:
// those of its prompts and, where all are here, of decodes.
void deal_rows(const StepPart& part, const ContextShare& share, const TableLayout& tables,
               std::span<std::int32_t> rows, std::span<std::byte> bytes) {
  const std::int64_t room = share.has_prompts() ? share.own().room : 0;
  const std::int64_t of_prompts = share.has_prompts() ? share.own().of_step : 0;
  const DealtDecodes& decodes = share.decodes;
  for (std::int64_t i = 0; i < decodes.room; ++i) {
    rows[static_cast<std::size_t>(room + i)] =
        static_cast<std::int32_t>(of_prompts + (i < decodes.count ? decodes.first + i : 0));
  }
  const std::int64_t tokens = tables.rows.tokens;
  deal(table_in<std::int32_t>(bytes, tables.positions, tokens),
       std::span<const std::int32_t>(rows));
  if (!share.is_of_model && decodes.room == 0) return;
  deal(table_in<std::int32_t>(bytes, tables.token_ids, tokens),
       std::span<const std::int32_t>(rows));
  deal_sampled(part, share, table_in<std::int32_t>(bytes, tables.sampled_rows, tables.rows.seqs));
}

void deal_slots(const PromptRows& own, std::span<const std::int32_t> own_rows,
                std::span<std::int64_t> slots) {
  deal(slots, own_rows);
  const auto of_prompts = slots.first(static_cast<std::size_t>(own.room));
  std::ranges::fill(of_prompts, -1);
  for (const AxisRange& range : own.ranges) {
    const auto first = of_prompts.begin() + range.local;
    std::iota(first, first + range.count, range.local);
  }
}

}  // namespace

void fill_context_tables(const StepPart& part, const ContextShare& share, const TableLayout& tables,
                         const ContextLayout& layout, const CacheShape& cache,
                         std::span<std::byte> bytes) {
  KeyTables keys(share, layout, cache, bytes);
  if (share.is_ring) {
    for (std::size_t rank = 0; rank < share.ranks.size(); ++rank) {
      keys.add_of_rank(part.prefill, rank);
    }
    for (const SequenceTokens* chunk : part.prefill) keys.add_cached(*chunk);
  } else {
    for (const SequenceTokens* chunk : part.prefill) keys.add(*chunk);
  }
  const PromptRows& own = share.own();
  const auto sources = table_in<std::int32_t>(bytes, layout.row_sources, own.of_step);
  for (std::int64_t row = 0; row < own.of_step; ++row) {
    sources[static_cast<std::size_t>(row)] =
        static_cast<std::int32_t>(source_of(share, row, own.room));
  }
  const auto rows = table_in<std::int32_t>(bytes, layout.own_rows, own.room + tables.rows.decodes);
  fill_own_rows(own, rows);
  const std::int64_t tokens = tables.rows.tokens;
  deal_slots(own, rows, table_in<std::int64_t>(bytes, tables.slots, tokens));
  deal_rows(part, share, tables, rows, bytes);
}

void deal_decodes(const StepPart& part, const ContextShare& share, const TableLayout& tables,
                  std::span<std::byte> bytes) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(share.decodes.room));
  deal_rows(part, share, tables, rows, bytes);
}

std::vector<std::int64_t> sampled_rows(const StepPart& part, const ContextShare& share) {
  std::vector<std::int64_t> rows(part.sampled.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::int64_t row = 0;
  std::size_t at = 0;
  for (const SequenceTokens* chunk : part.prefill) {
    row += std::ssize(chunk->tokens);
    if (!chunk->produces_token) continue;
    if (share.is_of_model && share.own_row(row - 1) < 0) rows[at] = -1;
    ++at;
  }
  if (share.decodes.room == 0) return rows;
  for (std::int64_t i = 0; at + static_cast<std::size_t>(i) < rows.size(); ++i) {
    const std::int64_t own = i - share.decodes.first;
    const bool is_here = own >= 0 && own < share.decodes.count;
    rows[at + static_cast<std::size_t>(i)] = is_here ? static_cast<std::int64_t>(at) + own : -1;
  }
  return rows;
}

}  // namespace orrery
