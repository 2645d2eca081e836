#include "kernels/binding/bind_operands.h"
#include "kernels/experts/routing_scores/routing_scores.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {

// reads x (one or several parts), w [, bias]; writes scores
Launch bind_routing_scores(const BindContext& context) {
  require_dtype(context);
  require_taken(context, context.reads.size() >= 2 && context.writes.size() == 1,
                "x, w and perhaps a bias, and writes scores");
  const Dims& dims = context.op.dims;
  const RoutingScoresShape shape{
      .tokens = dim(dims, "tokens"),
      .hidden = dim(dims, "hidden"),
      .experts_total = dim(dims, "experts_total"),
      .activation = context.numbers.routing.score == RoutingScore::kSigmoid
                        ? RouterActivation::kSigmoid
                        : RouterActivation::kSoftmax};
  const bool has_bias = context.reads.back().tensor->axes.size() == 1;
  require_taken(context, !has_bias || context.reads.size() >= 3, "x and w beside the bias");
  const std::size_t inputs = context.reads.size() - (has_bias ? 2 : 1);
  const Operand w = require_operand(context, context.reads[inputs],
                                    {.what = "w", .size = {shape.experts_total, shape.hidden}});
  const bf16* bias =
      has_bias
          ? typed<const bf16>(require_operand(context, context.reads.back(),
                                              {.what = "bias", .size = {1, shape.experts_total}}))
          : nullptr;
  const InputRows x(context, context.reads.first(inputs), DType::kBf16,
                    {shape.tokens, shape.hidden});
  const Operand scores = require_operand(
      context, context.writes[0],
      {.what = "scores", .dtype = DType::kFp32, .size = {shape.tokens, shape.experts_total}});
  const RoutingScoresOperands operands{.x = static_cast<const bf16*>(x.data()),
                                       .w = typed<const bf16>(w),
                                       .bias = bias,
                                       .scores = typed<float>(scores)};
  const RoutingScoresTile tile = routing_scores_tile(shape);
  const bool overlap = context.resources.overlaps_weights();
  return [=](const cuda::Stream& stream) {
    x.gather(stream);
    routing_scores(stream, operands, shape, tile, overlap);
  };
}

}  // namespace orrery
