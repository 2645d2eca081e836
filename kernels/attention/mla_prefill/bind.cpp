#include <cmath>

#include "kernels/attention/attention_prefill/kept_plan.h"
#include "kernels/attention/mla_prefill/mla_prefill.h"
#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/check.h"

namespace orrery {
namespace {

// New tokens on this rank, and all that they attend to.
struct Sizes {
  std::int64_t tokens = 0;
  std::int64_t keys = 0;
};
Sizes sizes_of(const StepTables& tables) {
  if (tables.context.prompt_rows > 0) {
    return {.tokens = tables.context.prompt_rows, .keys = tables.context.num_keys};
  }
  Sizes sizes;
  for (const PrefillChunk& sequence : tables.prefill) {
    sizes.tokens += sequence.query;
    sizes.keys += sequence.query + sequence.context;
  }
  return sizes;
}

// Of a context-parallel rank's rows over the keys of all ranks.
Launch attend_pieces(const BindContext& context, const MlaPrefill& call, std::int64_t out_rows,
                     std::int64_t columns) {
  const ContextTables& tables = context.tables.context;
  const auto plan = context.resources.keep_for_step<PrefillPlan>(
      std::pair(kMlaPrefillTileRows, kNoWindow), [&](std::span<const PrefillChunk> /*chunks*/) {
        return PrefillPlan(tables.keys.front().pieces, tables.prompt_rows, tables.num_keys,
                           kMlaPrefillTileRows, kNoWindow);
      });
  // Rows that no piece has are padding: what other kernels make of them must be finite.
  std::int64_t rows_of_pieces = 0;
  for (const PrefillPiece& piece : tables.keys.front().pieces) rows_of_pieces += piece.query;
  const auto bytes = rows_of_pieces == out_rows
                         ? std::size_t{0}
                         : static_cast<std::size_t>(out_rows * columns) * sizeof(bf16);
  return [=](const cuda::Stream& stream) {
    if (bytes > 0) ORRERY_CUDA(cudaMemsetAsync(call.out, 0, bytes, stream.get()));
    mla_prefill(stream, *plan, call);
  };
}

}  // namespace

// reads queries, keys without position of all heads, rotated keys, values; writes
// out. Keys are those of the sequences of the step's tables, cached ones and new ones.
Launch bind_mla_prefill(const BindContext& context) {
  const Dims& dims = context.op.dims;
  const std::int64_t heads = dim(dims, "heads");
  require_taken(
      context, dim(dims, "qk_head_dim") == kMlaQkHeadDim && dim(dims, "v_head_dim") == kMlaVHeadDim,
      "qk_head_dim 192 and v_head_dim 128");
  const auto [tokens, keys] = sizes_of(context.tables);
  const auto of_rows = [&context](const Operand& tensor, std::int64_t rows) {
    require_rows(context, tensor, rows);
    return typed<bf16>(tensor);
  };
  const Operand plain = operand(context, "keys");
  require_columns(context, plain, heads * kMlaPlainDim);
  const Operand rotated = operand(context, "rotated");
  require_columns(context, rotated, kMlaRotatedDim);
  const Operand out = result(context, "out");
  const MlaPrefill call{.q = of_rows(operand(context, "q"), tokens),
                        .keys = {.data = of_rows(plain, keys)},
                        .rotated = {.data = of_rows(rotated, keys) + rotated.first_column,
                                    .stride = matrix_size(*rotated.tensor).columns},
                        .values = {.data = of_rows(operand(context, "values"), keys)},
                        .out = of_rows(out, tokens),
                        .heads = static_cast<std::int32_t>(heads),
                        .scale = 1 / std::sqrt(static_cast<float>(kMlaQkHeadDim))};
  const auto [rows, columns] = matrix_size(*out.tensor);
  if (context.tables.context.prompt_rows > 0) return attend_pieces(context, call, rows, columns);
  const auto plan = kept_prefill_plan(context.resources, kMlaPrefillTileRows, kNoWindow);
  // Rows past the sequences are padding: what other kernels make of them must be finite.
  bf16* const padding = typed<bf16>(out) + tokens * columns;
  const auto bytes = static_cast<std::size_t>((rows - tokens) * columns) * sizeof(bf16);
  return [plan, call, padding, bytes](const cuda::Stream& stream) {
    mla_prefill(stream, *plan, call);
    if (bytes > 0) ORRERY_CUDA(cudaMemsetAsync(padding, 0, bytes, stream.get()));
  };
}

}  // namespace orrery
