#pragma once

// Which rows of a step each rank works on: those of its sequences, its part of them where ranks
// share contexts, or an even part of the rows of all.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/reference/even_rows.h"
#include "kernels/execute/reference/model_setup.h"
#include "kernels/execute/row_moves.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

class RankRows {
 public:
  // All arguments are to outlive it. Throws std::invalid_argument where the input does not fit the
  // plan.
  RankRows(const ModelSetup& setup, const Plan& plan, const StepInput& input);
  // Of a layer by itself, whose ops look at no sequences.
  RankRows(const ModelSetup& setup, const Plan& plan);
  RankRows(const RankRows&) = delete;
  RankRows& operator=(const RankRows&) = delete;

  [[nodiscard]] const PartRows& of(const Op& op, int rank) const;
  // Of the op's micro-batch: all rows of the rank's sequences, and of these its part of contexts.
  [[nodiscard]] const PartRows& of_sequences(const Op& op, int rank) const;
  [[nodiscard]] const PartRows& of_context_part(const Op& op, int rank) const;

  // How a collective brings rows from the rank's own to even parts or back, by even().
  [[nodiscard]] RowMove move_of(const Op& op) const { return moves_.moves[index_of(op)]; }
  [[nodiscard]] const EvenRows& even() const { return even_; }

  [[nodiscard]] const StepPart& part(int rank, int micro_batch) const;
  // Of the whole step.
  [[nodiscard]] std::size_t num_sampled() const;
  // Where a rank has a sampled row of its part; of context-parallel ranks with the whole model one
  // has it.
  [[nodiscard]] std::optional<std::size_t> sampled_row(int rank, int micro_batch,
                                                       std::size_t sampled) const;

 private:
  void find_even_rows();
  [[nodiscard]] bool computes(int rank, int micro_batch, std::size_t sampled) const;
  [[nodiscard]] std::int64_t longest_model_len(const StepInput& input) const;
  [[nodiscard]] std::size_t slot(int rank, int micro_batch) const;
  [[nodiscard]] std::size_t index_of(const Op& op) const {
    return static_cast<std::size_t>(&op - plan_.ops().data());
  }

  const ModelSetup& setup_;
  const Plan& plan_;
  int num_micro_batches_;
  std::vector<StepPart> parts_;             // by data-parallel rank and micro-batch
  std::vector<PartRows> rows_;              // by rank and micro-batch
  std::vector<PartRows> parts_of_context_;  // likewise, of a mesh with cp
  std::vector<PartRows> gathered_decodes_;  // likewise
  RowMoves moves_;
  EvenRows even_;                    // points into rows_
  std::vector<PartRows> even_rows_;  // by data-parallel rank
};

}  // namespace orrery::reference
