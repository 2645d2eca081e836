#include <cmath>

#include "kernels/attention/attention_prefill/kept_plan.h"
#include "kernels/attention/mla_prefill/mla_prefill.h"
#include "kernels/binding/bind_operands.h"

namespace orrery {

// reads queries, keys without position of all heads, rotated keys, values; writes
// out. Keys are those of the sequences of the step's tables, cached ones and new ones.
Launch bind_mla_prefill(const BindContext& context) {
  require_dtype(context);
  require_operands(context, 4, 1);
  const Dims& dims = context.op.dims;
  const std::int64_t heads = dim(dims, "heads");
  require_taken(
      context, dim(dims, "qk_head_dim") == kMlaQkHeadDim && dim(dims, "v_head_dim") == kMlaVHeadDim,
      "qk_head_dim 192 and v_head_dim 128");
  require_taken(context, !context.tables.prefill.empty(),
                "new tokens of prefill: mla_form auto, where decodes attend latents");
  std::int64_t tokens = 0;
  std::int64_t keys = 0;
  for (const PrefillSequence& sequence : context.tables.prefill) {
    tokens += sequence.query;
    keys += sequence.query + sequence.context;
  }
  const auto operand = [&](const Operand& of, const char* what, std::int64_t rows,
                           std::int64_t columns) {
    return typed<bf16>(
        require_operand(context, of, {.what = what, .size = {rows, columns}, .more_rows = true}));
  };
  const std::int64_t stride = matrix_size(*context.reads[2].tensor).columns;
  require_taken(context, num_columns(context.reads[2]) == kMlaRotatedDim, "rotated keys of 64");
  const bf16* const rotated =
      operand(context.reads[2], "rotated keys", keys, stride) + context.reads[2].first_column;
  const MlaPrefill call{
      .q = operand(context.reads[0], "q", tokens, heads * kMlaQkHeadDim),
      .keys = {.data = operand(context.reads[1], "keys", keys, heads * kMlaPlainDim)},
      .rotated = {.data = rotated, .stride = stride},
      .values = {.data = operand(context.reads[3], "values", keys, heads * kMlaVHeadDim)},
      .out = operand(context.writes[0], "out", tokens, heads * kMlaVHeadDim),
      .heads = static_cast<std::int32_t>(heads),
      .scale = 1 / std::sqrt(static_cast<float>(kMlaQkHeadDim))};
  const auto plan = kept_prefill_plan(context.resources, kMlaPrefillTileRows, kNoWindow);
  return [plan, call](const cuda::Stream& stream) { mla_prefill(stream, *plan, call); };
}

}  // namespace orrery
