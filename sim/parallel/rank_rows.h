#pragma once

// Which rows of a step the data-parallel ranks, and the micro-batches of a pipeline, have. All are
// taken to be as full as the fullest, which the others wait for.

#include <cstdint>
#include <optional>
#include <string_view>

#include "sim/model/step_shape.h"
#include "sim/parallel/parallel.h"

namespace orrery {

// Sequences are dealt out whole, so where there are fewer prefill chunks than ranks a rank has more
// than tokens / ways rows.
struct RankRows {
  std::int64_t ways = 1;  // dp * num_micro_batches
  std::int64_t num_micro_batches = 1;
  std::int64_t tokens = 0;  // rows of the whole step
  std::int64_t rows = 0;    // of the fullest rank, or of the one that the shape names

  // `prefill_rows` and `decode_rows` of the fullest rank.
  RankRows(const Mesh& mesh, std::int64_t tokens, std::int64_t prefill_rows,
           std::int64_t decode_rows);
  RankRows(const Mesh& mesh, const StepShape& shape);

  // What is left on the rank of `size` along an axis; axes other than of rows are kept.
  [[nodiscard]] std::int64_t of(std::string_view axis, std::int64_t size) const;
};

// Of a dim of that name that is split as `axis` is.
std::optional<std::int64_t> find_dim(const Dims& dims, std::string_view name,
                                     std::string_view axis);

// Of the rows of a layer's shuffle those that choose experts, the others pad; `gather` copies a row
// for each choice.
double routed_share(const KernelOp& shuffle, const KernelOp& gather);

// The same of a plan whose tokens choose experts, of which fewer tokens choose fewer.
class RowShares {
 public:
  RowShares(const Plan& plan, const RankRows& rank, const ExpertLoad& load);
  std::int64_t operator()(std::string_view axis, std::int64_t size) const;

 private:
  RankRows rank_;
  std::int64_t active_ = 0;  // experts that its tokens choose, redundant ones aside
};

// The shape of which the data pass makes the fullest rank's own: each chunk goes, in order, to the
// data-parallel rank with the fewest prompt tokens so far; decodes are spread evenly. Micro-batches
// follow each other through a pipeline, so what counts is their sum: each has an even part of the
// rank's tokens, chunks cut where need be with the causal work kept, and there are no more of them
// than sequences. Two-batch overlap halves a step of two sequences or more on a rank, or of a
// prompt; other steps run whole. Prefill is that of one micro-batch times dp times their number;
// tokens are those of the whole step. Without data-parallel ranks and micro-batches the same as
// step_shape(batch).
StepShape dealt_shape(const Batch& batch, const Mesh& mesh);

// The shape of a step as the data-parallel rank with the batch `own` sees it: its own rows and
// attention, and experts that take in the `tokens` rows of all ranks. Of `own` decodes alone that
// are replayed as a graph, `padded` is the rows that each rank has; 0: there is no graph.
// `most_sequences`: of the rank with most of them. A rank without a batch computes one token.
StepShape rank_shape(const Batch& own, std::int64_t tokens, std::int64_t padded,
                     std::int64_t most_sequences, const Mesh& mesh);

// The shape of a step of which every data-parallel rank, or each micro-batch of one, has the batch
// `rank`. `tokens`: of all ranks, at least those of `rank`, where others have fewer and `rank` is
// what each has room for; 0: all have as many.
StepShape alike_shape(const Batch& rank, const Mesh& mesh, std::int64_t tokens = 0);

// Says in `shape` how many of its rows pad ranks and micro-batches that together hold `tokens`.
// `all_rows`: theirs; 0: as many as of the fullest of the shape on each. None where routers see
// other rows than the rank's own and executors do not tell: even parts of all ranks' rows, context
// parallelism, FFNs apart, a gather behind the router.
void set_padding(StepShape& shape, const Mesh& mesh, std::int64_t tokens,
                 std::int64_t all_rows = 0);

// Rows of logits of decodes like those of `batch` that are padded to so many rows.
std::int64_t sampled_rows(std::int64_t padded, const Batch& batch);

// The plan of `batch` on all ranks of one instance, and that of a shape dealt out already.
Plan step_plan(const ModelConfig& model, const Batch& batch, const LoweringOptions& options,
               const Mesh& mesh);
Plan step_plan(const ModelConfig& model, const StepShape& shape, const LoweringOptions& options,
               const Mesh& mesh);

}  // namespace orrery
