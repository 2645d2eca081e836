#pragma once

// A batch as the kernels see it. Whatever prices or lowers a step goes through this shape, so that
// two batches of one shape take the same time.

#include <cstdint>
#include <string>
#include <vector>

#include "sim/model/layer_runs.h"
#include "sim/model/model.h"

namespace orrery {

// Prefill chunks of different lengths are one uniform batch with the same tokens and the same
// causal work.
struct StepShape {
  std::int64_t tokens = 0;  // prefill_tokens + decode_rows
  std::int64_t seqs = 0;    // rows of logits
  std::int64_t prefill_tokens = 0;
  std::int64_t prefill_batch = 0;
  std::int64_t prefill_query = 0;
  std::int64_t prefill_context = 0;
  std::int64_t prefill_cached = 0;  // tokens before the chunks, of all sequences
  std::int64_t num_decodes = 0;
  // Rows that stand for decodes: decode_query of each, and those that pad a captured graph.
  std::int64_t decode_rows = 0;
  std::int64_t decode_context = 0;  // mean, the new tokens included
  int num_micro_batches = 0;        // of a pipeline that it is dealt to; 0: as the mesh says
  // Of the data-parallel rank that the rest is said of as if all were like it, beside `tokens` of
  // all; 0: the fullest where they are dealt evenly.
  std::int64_t rank_rows = 0;
  std::int64_t decode_query = 1;  // new tokens of each decode
  // Of `tokens`, those that only pad: rows of a captured graph, or of ranks that are made as full
  // as the fullest. Layers of experts in ops of their own give them none.
  std::int64_t padding = 0;
  auto operator<=>(const StepShape&) const = default;
};

// With T = sum q, W = sum q (c + q/2) (new tokens times cached tokens that they attend, up to a
// constant) over the chunks (q new tokens after c cached):
//   q_eff = sum q^2 / T    batch = max(1, round(T / q_eff))    query = round(T / batch)
//   context = max(0, round(W / T - query / 2)).
// Equal chunks come back as they are. Throws std::invalid_argument on an empty or contradictory
// batch.
StepShape step_shape(const Batch& batch);

// As above for a shape; its fields need not agree with each other as those of a batch do.
Plan lower(const ModelConfig& model, const StepShape& shape, const LoweringOptions& options);

// Sizes of all dims of all kernels of the attention blocks, in the order of `lower`'s ops: each
// kind of layer once. A hundred times cheaper than a plan.
struct AttentionDims {
  std::vector<std::int64_t> sizes;
  std::vector<std::string> ops;  // names, where they are asked for
};
void attention_dims(const ModelConfig& model, const std::vector<LayerRun>& runs,
                    const StepShape& shape, const LoweringOptions& options, bool wants_names,
                    AttentionDims& result);

}  // namespace orrery
