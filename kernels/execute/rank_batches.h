#pragma once

// Steps whose sequences say which data-parallel rank computes them (SequenceTokens::dp_rank), each
// rank a batch of its own. Ranks run one plan, so all have the rows of whoever has most, of prompts
// and of decodes apart, and what a rank has less of is padding:
//
//   rows of a rank   [ chunks | padding | decodes | padding ]
//   of the plan      [ prefill_rows ... | decodes ......... ]
//
// No CUDA.

#include <cstdint>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/batch.h"

namespace orrery {

// Whether the sequences say their ranks.
bool names_ranks(const StepInput& input);

// The part of each of `num_ranks`; sampled rows are counted as split_step does. The parts point
// into `input`. Throws std::invalid_argument where a sequence names no rank of these, and as
// split_step for sequences.
std::vector<StepPart> split_by_rank(const StepInput& input, int num_ranks);

// The same step in two halves on each of `dp` ranks (sim/plan/halves.h): chunks that are cut are
// two sequences with the same blocks, and all name their parts. Sequences that name a rank stay
// there. Throws std::invalid_argument where some name none of `dp`.
StepInput in_halves(const StepInput& input, int dp);

// Whether a step has two halves: a prompt to cut, or two sequences on a rank.
bool has_two_halves(const StepInput& input, int dp);

// Of the new tokens of the ranks, mean over most; 1 where all have as many.
double balance(const StepInput& input, int num_ranks);

// The batch that all ranks of the plan have: the most new tokens of prompts that any rank has, as
// chunks of which as many end their prompts as any has, behind so many cached ones that no rank's
// prompts have more keys, and the most decodes, `least_decodes` at least. alike_shape()
// (sim/parallel/rank_rows.h) makes the step of it.
Batch fullest_batch(const StepInput& input, int num_ranks, std::int64_t least_decodes = 0);

// A step as the parts that a plan computes apart have it: data-parallel ranks, or halves of these
// where they overlap and the step has two. `input` outlives it.
class DealtInput {
 public:
  DealtInput(const StepInput& input, int dp, bool overlaps_halves);

  [[nodiscard]] const StepInput& whole() const { return whole_; }
  [[nodiscard]] bool is_halved() const { return is_halved_; }
  // Whose sequences name their parts, where there are several.
  [[nodiscard]] const StepInput& input() const { return is_halved_ ? halves_ : whole_; }
  // The batch that all parts have.
  [[nodiscard]] Batch fullest() const;

 private:
  const StepInput& whole_;
  int dp_;
  bool is_halved_;
  StepInput halves_;
};

}  // namespace orrery
