#include <memory>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/fused_moe/fused_moe.h"

namespace orrery {

// reads x, router, w1, w2; writes y, scores, faults. Launches of equal shapes share a plan.
Launch bind_fused_moe(const BindContext& context) {
  const Dims& dims = context.op.dims;
  const Routing& routing = context.numbers.routing;
  const FusedMoeShape shape{.tokens = dim(dims, "tokens"),
                            .hidden = dim(dims, "hidden"),
                            .ffn = dim(dims, "ffn"),
                            .experts = dim(dims, "experts_total"),
                            .topk = dim(dims, "topk"),
                            .activation = static_cast<ExpertActivation>(dim(dims, "activation")),
                            .router = routing.score == RoutingScore::kSigmoid
                                          ? RouterActivation::kSigmoid
                                          : RouterActivation::kSoftmax,
                            .normalises = routing.normalises,
                            .scale = routing.scale};
  const FusedMoeOperands operands{.x = typed<const bf16>(operand(context, "x")),
                                  .router = typed<const bf16>(operand(context, "router")),
                                  .w1 = typed<const bf16>(operand(context, "w1")),
                                  .w2 = typed<const bf16>(operand(context, "w2")),
                                  .y = typed<bf16>(result(context, "y")),
                                  .scores = typed<float>(result(context, "scores")),
                                  .faults = typed<std::int32_t>(result(context, "faults"))};
  const FusedMoePlan* const plan =
      &context.resources.keep<FusedMoePlan>(shape, [&] { return FusedMoePlan(shape); });
  return [=](const cuda::Stream& stream) { plan->launch(stream, operands); };
}

}  // namespace orrery
