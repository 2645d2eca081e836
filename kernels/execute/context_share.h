#pragma once

// Which of a step's prompts a context-parallel rank has, and how what the ranks give makes the
// whole:
//
//   prompt     | 0 | 1 | 1 | 0 |               rows of ranks 0 and 1
//   a rank     [ its new rows | padding | tokens of the prompts that it has cached ]   keys, then
//              values; of MLA rows of latents and rotated keys alone
//   keys       0 1 2 3 ...                     of one prompt after the other, cached ones first
//
// In a ring a rank attends to the keys of one rank after the other:
//
//   keys       of rank 0: 0 2 .. 7 8 ..   of rank 1: 1 3 .. 9 10 ..    each in the order of the
//   tokens
//
// Token p of a sequence is stored on rank p mod cp, whichever rank has computed it. No CUDA.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/plan.h"

namespace orrery {

// Rows of prompts on `rank`, and how many there is room for.
struct PromptRows {
  std::vector<AxisRange> ranges;
  std::int64_t room = 0;
  std::int64_t of_step = 0;  // on all ranks together
};
PromptRows prompt_rows(const Plan& plan, int rank, int micro_batch = 0);
// Rows of decodes that a rank has where they are dealt out (CpDecodes); room 0: it has all.
struct DealtDecodes {
  std::int64_t first = 0;  // among the decodes of the step
  std::int64_t count = 0;
  std::int64_t room = 0;
};
DealtDecodes dealt_decodes(const Plan& plan, int rank);
// Whether an op works on what all ranks have of such decodes: queries, keys and values.
bool is_on_gathered_decodes(const Plan& plan, const Op& op);
// Whether a rank has some of its rows alone.
bool has_part_of_tokens(const Plan& plan, const Tensor& tensor);

struct ContextShare {
  DealtDecodes decodes;
  std::vector<PromptRows> ranks;  // those that share contexts; none: the step has no prompts
  int rank = 0;                   // of these
  // The whole model works on a rank's rows, not attention alone (cp_weights replicated).
  bool is_of_model = false;
  bool is_latent = false;  // latents are what ranks give each other
  bool is_ring = false;

  [[nodiscard]] bool has_prompts() const { return !ranks.empty(); }
  [[nodiscard]] const PromptRows& own() const { return ranks[static_cast<std::size_t>(rank)]; }
  // Where the rank has row `row` of the step's prompts; -1: it has not.
  [[nodiscard]] std::int64_t own_row(std::int64_t row) const;
};
// Of a micro-batch on one rank of `grid`.
ContextShare context_share(const Plan& plan, const RankGrid& grid, int rank, int micro_batch);

// The stretches of the rank's rows, each of one sequence.
std::vector<PrefillPiece> prefill_pieces(const ContextShare& share,
                                         std::span<const PrefillChunk> chunks);

// What a rank of a ring has of the keys, and the rank's rows that see some of them.
struct RankKeys {
  std::int64_t first = 0;  // among the keys of all ranks, which follow each other
  std::int64_t count = 0;
  std::vector<PrefillPiece> pieces;
};
// By rank. `share` of a ring.
std::vector<RankKeys> keys_of_ranks(const ContextShare& share,
                                    std::span<const PrefillChunk> chunks);
// The rank among those that share contexts whose keys `op`, attention to prompts in a ring, attends
// to.
int rank_of_keys(const Plan& plan, const RankGrid& grid, int rank, const Op& op);

// Byte offsets and sizes of ContextTables (bind_context.h).
struct ContextLayout {
  std::int64_t cached_rows = 0;
  std::int64_t num_keys = 0;
  std::int64_t key_sources = 0;
  std::int64_t key_slots = 0;
  std::int64_t cached_slots = 0;
  std::int64_t row_sources = 0;
  std::int64_t own_rows = 0;
  std::int64_t end = 0;
};
// Of the prompts of a part, from byte `begin` on.
ContextLayout context_layout(const ContextShare& share, std::span<const PrefillChunk> chunks,
                             std::int64_t num_decodes, std::int64_t begin);
// Behind fill_tables(), which has written those of the whole step: deals out its rows to the rank
// (slots of prompts then say where among what the rank gives they lie) and writes the tables of
// keys. `cache` of the rank.
void fill_context_tables(const StepPart& part, const ContextShare& share, const TableLayout& tables,
                         const ContextLayout& layout, const CacheShape& cache,
                         std::span<std::byte> bytes);

// The same of a step of decodes that are dealt out.
void deal_decodes(const StepPart& part, const ContextShare& share, const TableLayout& tables,
                  std::span<std::byte> bytes);

// By sampled row of the part, which of the rank's sampled rows it is; -1: another rank computes it.
std::vector<std::int64_t> sampled_rows(const StepPart& part, const ContextShare& share);

}  // namespace orrery
