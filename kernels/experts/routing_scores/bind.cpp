#include <string>
#include <vector>

#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/device_copy.h"
#include "kernels/experts/routing_scores/routing_scores.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {
namespace {

// What `bias` was when the rank first asked for it, in memory that stays.
const bf16* imposed_bias(const BindContext& context, const std::vector<float>& bias) {
  const auto upload = [&] {
    return device_copy<bf16>(std::vector<bf16>(bias.begin(), bias.end()));
  };
  using Key = std::string;
  return context.resources.keep<cuda::DeviceBuffer<bf16>>(Key("bias of the router"), upload).get();
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
  const std::vector<float>& imposed = context.numbers.routing.bias;
  if (!imposed.empty() && std::ssize(imposed) != shape.experts_total) {
    refuse(context, std::to_string(shape.experts_total) + " biases of a load, one for each expert");
  }
  const bf16* bias = nullptr;
  if (!imposed.empty()) {
    bias = imposed_bias(context, imposed);
  } else if (has_operand(context, "bias")) {
    bias = typed<const bf16>(operand(context, "bias"));
  }
  const InputRows x(context, "x", {shape.tokens, shape.hidden});
  const RoutingScoresOperands operands{.x = static_cast<const bf16*>(x.data()),
                                       .w = typed<const bf16>(operand(context, "w")),
                                       .bias = bias,
                                       .scores = typed<float>(result(context, "scores"))};
  const RoutingScoresTile tile = routing_scores_tile(shape);
  const bool overlap = context.resources.overlaps_weights();
  return [=](const cuda::Stream& stream) {
    x.gather(stream);
    routing_scores(stream, operands, shape, tile, overlap);
  };
}

}  // namespace orrery
