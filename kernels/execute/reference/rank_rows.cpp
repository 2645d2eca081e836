#include "kernels/execute/reference/rank_rows.h"

#include <algorithm>
#include <utility>

#include "kernels/execute/context_share.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/context_part.h"

namespace orrery::reference {
namespace {

// The longest sequence of a step, which is as long as this reference lets one be.
std::int64_t longest(const StepInput& input) {
  std::int64_t length = 1;
  for (const auto* sequences : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& sequence : *sequences) {
      length =
          std::max(length, sequence.context + static_cast<std::int64_t>(sequence.tokens.size()));
    }
  }
  return length;
}

// Rows of context-parallel ranks together, of whose prompts each rank's plan has a part.
StepRows rows_of_step(const StepPart& part, StepRows rows) {
  rows.prefill = 0;
  for (const SequenceTokens* chunk : part.prefill) rows.prefill += std::ssize(chunk->tokens);
  rows.tokens = rows.prefill + rows.decodes;
  rows.seqs = std::max(rows.seqs, std::ssize(part.sampled));  // decodes are dealt out
  return rows;
}

// Of the rank's pipeline: the ranks of its first and of its last stage.
int stage_size(const RankGrid& grid) { return grid.tp * grid.dp * grid.cp; }
int first_stage_rank(const RankGrid& grid, int rank) { return rank % stage_size(grid); }
int last_stage_rank(const RankGrid& grid, int rank) {
  return rank % stage_size(grid) + (grid.pp - 1) * stage_size(grid);
}

bool is_embedding(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr && kernel->kernel == "embedding";
}

}  // namespace

RankRows::RankRows(const ModelSetup& setup, const Plan& plan, const StepInput& input)
    : setup_(setup),
      plan_(plan),
      num_micro_batches_(num_micro_batches(plan)),
      moves_(row_moves(plan)) {
  const RankGrid& grid = setup_.grid;
  parts_ = split_step(input, grid.dp * num_micro_batches_);
  const CacheShape cache{.num_blocks = setup_.num_kv_blocks,
                         .block_size = setup_.block_size,
                         .max_model_len = longest_model_len(input)};
  for (int rank = 0; rank < grid.size(); ++rank) {
    for (int micro_batch = 0; micro_batch < num_micro_batches_; ++micro_batch) {
      StepRows mine = step_rows(plan, first_stage_rank(grid, rank), micro_batch);
      mine.seqs = step_rows(plan, last_stage_rank(grid, rank), micro_batch).seqs;
      const StepPart& own = part(rank, micro_batch);
      if (grid.cp > 1) mine = rows_of_step(own, mine);
      check_part(own, mine, cache);
      rows_.push_back(part_rows(own, mine, setup_.block_size));
      if (grid.cp == 1) continue;
      parts_of_context_.push_back(rows_of_rank(rows_.back(), plan, rank, grid.cp));
      gathered_decodes_.push_back(gathered_decodes(rows_.back(), rank, grid.cp));
    }
  }
  if (moves_.has_even) find_even_rows();
}

RankRows::RankRows(const ModelSetup& setup, const Plan& plan)
    : setup_(setup),
      plan_(plan),
      num_micro_batches_(num_micro_batches(plan)),
      rows_(static_cast<std::size_t>(setup.grid.size())),
      moves_(row_moves(plan)) {}

// Balanced rows of data-parallel ranks, as many as their embeddings look up.
void RankRows::find_even_rows() {
  const auto embedding = std::ranges::find_if(plan_.ops(), is_embedding);
  std::vector<const PartRows*> own;
  own.reserve(static_cast<std::size_t>(setup_.grid.dp));
  for (int i = 0; i < setup_.grid.dp; ++i) own.push_back(&rows_[slot(i * setup_.grid.tp, 0)]);
  even_ = EvenRows(std::move(own), dim(std::get<KernelOp>(embedding->body).dims, "tokens"));
  for (int i = 0; i < setup_.grid.dp; ++i) even_rows_.push_back(even_.part(i));
}

const PartRows& RankRows::of(const Op& op, int rank) const {
  const std::size_t at = slot(rank, micro_batch_of(op));
  if (!moves_.is_on_own[index_of(op)]) {
    return even_rows_[static_cast<std::size_t>(setup_.grid.dp_rank(rank))];
  }
  if (is_on_gathered_decodes(plan_, op)) return gathered_decodes_[at];
  return setup_.grid.cp > 1 && is_on_part(plan_, op) ? parts_of_context_[at] : rows_[at];
}

const PartRows& RankRows::of_sequences(const Op& op, int rank) const {
  return rows_[slot(rank, micro_batch_of(op))];
}

const PartRows& RankRows::of_context_part(const Op& op, int rank) const {
  return parts_of_context_[slot(rank, micro_batch_of(op))];
}

const StepPart& RankRows::part(int rank, int micro_batch) const {
  return parts_[slot(setup_.grid.dp_rank(rank), micro_batch)];
}

std::size_t RankRows::num_sampled() const {
  std::size_t rows = 0;
  for (const StepPart& each : parts_) rows += each.sampled.size();
  return rows;
}

std::optional<std::size_t> RankRows::sampled_row(int rank, int micro_batch,
                                                 std::size_t sampled) const {
  const DealtDecodes dealt = dealt_decodes(plan_, rank);
  const StepPart& own = part(rank, micro_batch);
  const std::size_t prompts = own.sampled.size() - own.decodes.size();
  if (dealt.room > 0 && sampled >= prompts) {
    const auto decode = static_cast<std::int64_t>(sampled - prompts) - dealt.first;
    if (decode < 0 || decode >= dealt.count) return std::nullopt;
    return prompts + static_cast<std::size_t>(decode);
  }
  if (!computes(rank, micro_batch, sampled)) return std::nullopt;
  return sampled;
}

bool RankRows::computes(int rank, int micro_batch, std::size_t sampled) const {
  const bool has_parts = std::ranges::any_of(
      plan_.ops(), [&](const Op& op) { return is_embedding(op) && is_on_part(plan_, op); });
  if (setup_.grid.cp == 1 || !has_parts) return true;
  const std::size_t at = slot(rank, micro_batch);
  const auto row = static_cast<std::size_t>(parts_of_context_[at].sampled[sampled]);
  return parts_of_context_[at].of_step[row] == rows_[at].sampled[sampled];
}

std::int64_t RankRows::longest_model_len(const StepInput& input) const {
  std::int64_t blocks = 0;
  for (const auto* sequences : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& sequence : *sequences) {
      blocks = std::max(blocks, std::ssize(sequence.blocks));
    }
  }
  return std::max(longest(input), blocks * setup_.block_size);
}

std::size_t RankRows::slot(int rank, int micro_batch) const {
  return static_cast<std::size_t>(rank) * static_cast<std::size_t>(num_micro_batches_) +
         static_cast<std::size_t>(micro_batch);
}

}  // namespace orrery::reference
