#include "kernels/binding/bind_operands.h"
#include "kernels/experts/index_shuffling/index_shuffling.h"

namespace orrery {

// reads scores [, correction_bias]; writes counts, num_rows, row_token, row_weight, token_rows.
// Groups are judged by their two best where there is a correction bias, as in DeepSeek-V3.
Launch bind_index_shuffling(const BindContext& context) {
  require_dtype(context);
  const bool has_bias = context.reads.size() == 2;
  require_operands(context, has_bias ? 2 : 1, 5);
  const Dims& dims = context.op.dims;
  const Routing& routing = context.numbers.routing;
  const IndexShufflingShape shape{
      .tokens = dim(dims, "tokens"),
      .experts_total = dim(dims, "experts_total"),
      .topk = dim(dims, "topk"),
      .groups = dim(dims, "groups"),
      .topk_groups = routing.topk_groups,
      .group_score = has_bias ? GroupScore::kBestTwo : GroupScore::kBest,
      .first_expert = context.first_expert,
      .experts = dim(dims, "experts"),
      .normalises = routing.normalises,
      .scale = routing.scale};
  require_index_shuffling_shape(shape);
  const std::int64_t rows = shape.tokens * std::min(shape.topk, shape.experts);
  const auto operand = [&](const Operand& of, const char* what, DType dtype, MatrixSize size) {
    return require_operand(context, of, {.what = what, .dtype = dtype, .size = size});
  };
  const auto* scores = typed<const float>(
      operand(context.reads[0], "scores", DType::kFp32, {shape.tokens, shape.experts_total}));
  const float* bias = has_bias ? typed<const float>(operand(context.reads[1], "correction_bias",
                                                            DType::kFp32, {1, shape.experts_total}))
                               : nullptr;
  const auto counts = operand(context.writes[0], "counts", DType::kInt32, {1, shape.experts});
  const auto num_rows = operand(context.writes[1], "num_rows", DType::kInt32, {1, 1});
  const auto row_token = operand(context.writes[2], "row_token", DType::kInt32, {1, rows});
  const auto row_weight = operand(context.writes[3], "row_weight", DType::kFp32, {1, rows});
  const auto token_rows =
      operand(context.writes[4], "token_rows", DType::kInt32, {shape.tokens, shape.topk});
  const IndexShufflingOutputs outputs{.counts = typed<std::int32_t>(counts),
                                      .num_rows = typed<std::int32_t>(num_rows),
                                      .row_token = typed<std::int32_t>(row_token),
                                      .row_weight = typed<float>(row_weight),
                                      .token_rows = typed<std::int32_t>(token_rows)};
  const IndexShufflingTile tile = index_shuffling_tile(shape);
  std::byte* const workspace =
      context.resources.scratch("index_shuffling", index_shuffling_workspace_bytes());
  return [=](const cuda::Stream& stream) {
    index_shuffling(stream, scores, bias, outputs, shape, tile, workspace);
  };
}

}  // namespace orrery
