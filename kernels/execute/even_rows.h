#pragma once

// Which rows data-parallel ranks give each other where each has an even part of the rows of all
// (DpRows): those of all ranks' sequences one behind the other, without padding, then cut.
//
//   own rows    of rank 0 [ chunks | padding | decodes | padding ]   of rank 1 [ ... ]
//   even parts  of rank 0 [ 0 1 2 3 4 ]   of rank 1 [ 5 6 7 | padding ]
//
// The first rows of an even part are tokens, the others padding. No CUDA.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/row_moves.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/plan.h"

namespace orrery {

// Rows of an even part: as many as embeddings look up. Throws std::invalid_argument for a plan
// without these.
std::int64_t rows_of_even_part(const Plan& plan);

// Rows of data-parallel rank `from` that become rows of `to`, perhaps the same.
struct RowRun {
  int from = 0;
  std::int64_t from_row = 0;
  int to = 0;
  std::int64_t to_row = 0;
  std::int64_t count = 0;
  bool operator==(const RowRun&) const = default;
};

// Byte offsets of the tables of one rank, int32 each.
struct EvenLayout {
  StepRows own;                      // of each rank
  std::int64_t rows = 0;             // of an even part
  std::int64_t token_ids = 0;        // [rows]
  std::int64_t positions = 0;        // [rows]
  std::int64_t own_sources = 0;      // [own tokens]: row of all even parts
  std::int64_t even_sources = 0;     // [rows]: row of all ranks' own rows
  std::int64_t sampled_sources = 0;  // [own seqs]: row of all even parts
  std::int64_t end = 0;
};
// From byte `begin` on.
EvenLayout even_layout(const StepRows& own, std::int64_t rows, std::int64_t begin);

// One step. Refers to its sequences.
class EvenParts {
 public:
  // `parts` of the data-parallel ranks, each with rows `own` in the plan. Throws
  // std::invalid_argument where even parts of `rows` do not hold all tokens.
  EvenParts(std::span<const StepPart> parts, const StepRows& own, std::int64_t rows);

  // Of kToEven or kToSampled: what goes from whom to whom, by rank, then by row. Own rows of
  // prompts and of decodes, of which attention makes tensors of their own, are in runs of their
  // own.
  [[nodiscard]] std::vector<RowRun> runs(RowMove move) const;
  // Writes the tables of one rank. Token ids are less `first_vocab_row`; those of padding and its
  // positions are 0, its sources -1.
  void fill(int dp_rank, const EvenLayout& layout, std::int32_t first_vocab_row,
            std::span<std::byte> bytes) const;

 private:
  // Tokens of one sequence.
  struct Placed {
    int rank = 0;
    std::int64_t row = 0;    // of the rank's own
    std::int64_t place = 0;  // among those of all ranks
    const SequenceTokens* sequence = nullptr;
    [[nodiscard]] std::int64_t count() const { return std::ssize(sequence->tokens); }
  };
  struct Sampled {
    int rank = 0;
    std::int64_t row = 0;  // of the rank's sampled ones
    std::int64_t place = 0;
  };

  StepRows own_;
  std::int64_t rows_ = 0;
  std::vector<Placed> placed_;
  std::vector<Sampled> sampled_;
};

}  // namespace orrery
