#include "kernels/experts/fused_moe/call.h"

#include <stdexcept>

#include "kernels/experts/routing_scores/choice.h"

namespace orrery {

FusedMoeShape fused_moe_call(const KernelOp& op, const Routing& routing) {
  if (!routing.bias.empty()) {
    throw std::invalid_argument(
        "fused_moe: a load of experts is imposed on its router, expected model.expert_load: "
        "uniform, which random weights choose, or moe design shuffling");
  }
  const Dims& dims = op.dims;
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
                            .scale = routing.scale,
                            .ranks = dim(dims, "experts_total") / dim(dims, "experts")};
  require_fused_moe_shape(shape);
  return shape;
}

}  // namespace orrery
