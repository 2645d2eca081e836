#include "kernels/binding/bind_operands.h"
#include "kernels/experts/routing_scores/imposed_bias.h"
#include "kernels/experts/routing_scores/routing_scores.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {
namespace {

// By which rows that pad the step are known; null where the op's rows are not the rank's own, or
// slots say where keys lie instead.
const std::int64_t* padding_slots(const StepTables& tables, std::int64_t tokens) {
  const bool are_own = tokens == tables.num_rows && tables.context_ranks == 1;
  return are_own ? tables.slots : nullptr;
}

}  // namespace

// reads x (one or several parts), w [, bias]; writes scores
Launch bind_routing_scores(const BindContext& context) {
  const Dims& dims = context.op.dims;
  const RoutingScoresShape shape{
      .tokens = dim(dims, "tokens"),
      .hidden = dim(dims, "hidden"),
      .experts_total = dim(dims, "experts_total"),
      .activation = context.numbers.routing.score == RoutingScore::kSigmoid
                        ? RouterActivation::kSigmoid
                        : RouterActivation::kSoftmax};
  const bf16* bias = imposed_bias(context, shape.experts_total);
  if (bias == nullptr && has_operand(context, "bias")) {
    bias = typed<const bf16>(operand(context, "bias"));
  }
  const InputRows x(context, "x", {shape.tokens, shape.hidden});
  const RoutingScoresOperands operands{.x = static_cast<const bf16*>(x.data()),
                                       .w = typed<const bf16>(operand(context, "w")),
                                       .bias = bias,
                                       .slots = padding_slots(context.tables, shape.tokens),
                                       .scores = typed<float>(result(context, "scores"))};
  const RoutingScoresTile tile = routing_scores_tile(shape);
  const bool overlap = context.resources.overlaps_weights();
  return [=](const cuda::Stream& stream) {
    x.gather(stream);
    routing_scores(stream, operands, shape, tile, overlap);
  };
}

}  // namespace orrery
