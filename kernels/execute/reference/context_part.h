#pragma once

// What a context-parallel rank has of a step, and how rows and heads move between such ranks, in
// double.

#include <vector>

#include "kernels/binding/kernel_call.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

// Rows of a step on one rank, all of them or (rows_of_rank) a context-parallel rank's. `cp` ranks
// store decodes in turn by position.
PartRows part_rows(const StepPart& part, const StepRows& rows, std::int64_t block_size);
PartRows rows_of_rank(const PartRows& step, const Plan& plan, int rank, int cp);
// The decodes of all ranks, where they are dealt out, and those of their tokens that `rank` stores.
PartRows gathered_decodes(const PartRows& step, int rank, int cp);

// Whether an op works on these rows: it has some of the tokens of prompts, or uses the cache.
bool is_on_part(const Plan& plan, const Op& op);

// A layer of the cache as one tensor: keys, values and which slots have them.
Values packed(const KvLayer& kv);
// What all of them have stored.
KvLayer joined(const std::vector<const KvLayer*>& shards);

// Of MLA: latents and rotated keys of `prefill`, one sequence behind the other, of as many elements
// as `outputs` have.
std::vector<Values> latents_of(const KvLayer& all, std::int64_t block_size,
                               const std::vector<SequenceRows>& prefill,
                               const std::vector<const Tensor*>& outputs);

// Whether a collective brings queries, keys and values of dealt out decodes to all ranks; and what
// a rank gives of its rows, of `width` columns.
bool gathers_decodes(const Plan& plan, const Op& op);
Values own_decodes(const Tensor& gathered, std::int64_t cp, const Values& own,
                   const TensorView& view, std::int64_t width);
// Whether an all_to_all gives each rank rows of whole prompts, or its share of the heads, or of the
// decodes, over all parts of the keys.
bool moves_context(const Plan& plan, const Op& op);
// What each rank has of op.writes[i] then, for what each had of op.reads[i]; `rows` of the ranks.
std::vector<Values> exchanged(const Plan& plan, const Op& op, std::size_t i,
                              const std::vector<Values>& inputs,
                              const std::vector<const PartRows*>& rows);

}  // namespace orrery::reference
