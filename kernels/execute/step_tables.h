#pragma once

// The inputs of a step as one block of bytes that is uploaded in one copy: which sequences each
// data-parallel rank and micro-batch takes, and the tables of their rows. No CUDA.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/rank_program.h"

namespace orrery {

// What one data-parallel rank computes of a step, or one micro-batch of it.
struct StepPart {
  std::vector<const SequenceTokens*> prefill;
  std::vector<const SequenceTokens*> decodes;
  // By sampled row of the part: its place among the sampled rows of the whole step, where the
  // chunks that produce a token come first, then the decodes.
  std::vector<std::int64_t> sampled;
};
// Sequences are dealt out whole and in order, ceil(count / ways) to each part, prefill and decodes
// apart; those that name their ranks go to the parts of these (rank_batches.h). The parts point
// into `input`. Throws std::invalid_argument for an input without sequences, a sequence without
// tokens or a decode with several.
std::vector<StepPart> split_step(const StepInput& input, int ways);

// Of one rank. Over context-parallel ranks a sequence's block holds block_size of its tokens on
// each of them: token p is on rank p mod cp, there number p / cp.
struct CacheShape {
  std::int64_t num_blocks = 0;
  std::int32_t block_size = 64;
  std::int64_t max_model_len = 0;
  int cp = 1;
  int cp_rank = 0;
  // Tokens of a sequence that a block number stands for.
  [[nodiscard]] std::int64_t block_tokens() const { return std::int64_t{block_size} * cp; }
  [[nodiscard]] std::int64_t blocks_per_sequence() const {
    return (max_model_len + block_tokens() - 1) / block_tokens();
  }
  // Of the first `tokens` tokens of a sequence, those on this rank.
  [[nodiscard]] std::int64_t stored(std::int64_t tokens) const {
    return (tokens + cp - 1 - cp_rank) / cp;
  }
  // Where a sequence with these blocks has the token at `position`; -1: on another rank.
  [[nodiscard]] std::int64_t slot(std::int64_t position,
                                  std::span<const std::int32_t> blocks) const;
};

// Byte offsets of the tables of one part (StepTables in bind_context.h has their types).
struct TableLayout {
  StepRows rows;
  std::int64_t num_prefill = 0;  // sequences
  std::int64_t token_ids = 0;
  std::int64_t positions = 0;
  std::int64_t slots = 0;
  std::int64_t sampled_rows = 0;
  std::int64_t decode_lengths = 0;
  std::int64_t decode_blocks = 0;
  std::int64_t prefill_blocks = 0;
  std::int64_t prefill_key_starts = 0;
  std::int64_t end = 0;
};
// A table in the block of bytes.
template <typename T>
std::span<T> table_in(std::span<std::byte> bytes, std::int64_t offset, std::int64_t size) {
  return {reinterpret_cast<T*>(bytes.data() + offset), static_cast<std::size_t>(size)};
}

// Tables of a part from byte `begin` on, each 256-byte aligned.
TableLayout table_layout(const StepRows& rows, std::int64_t num_prefill, const CacheShape& cache,
                         std::int64_t begin);

// Whether row i of the logits is row i of the step, for every i.
bool samples_all_rows(const StepRows& rows);

// Throws std::invalid_argument where a part has more rows than the plan or its blocks do not fit
// the cache: a block table must cover context and new tokens, with blocks of the cache.
void check_part(const StepPart& part, const StepRows& rows, const CacheShape& cache);

// Writes the tables of a checked part into `bytes` (as long as the layout's end). Decodes begin
// behind the plan's rows of prefill, however many of them the part has. Rows without a token: token
// 0, position 0, slot -1; without a sequence: length 0. Token ids are less `first_vocab_row`.
void fill_tables(const StepPart& part, const TableLayout& layout, const CacheShape& cache,
                 std::int32_t first_vocab_row, std::span<std::byte> bytes);

}  // namespace orrery
