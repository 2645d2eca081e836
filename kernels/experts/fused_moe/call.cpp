#include "kernels/experts/fused_moe/call.h"

#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/experts/routing_scores/choice.h"

namespace orrery {

FusedMoeShape fused_moe_call(const KernelOp& op, const Routing& routing) {
  FusedMoeShape shape = fused_moe_shape(op.dtype, op.dims);
  shape.router = routing.score == RoutingScore::kSigmoid ? RouterActivation::kSigmoid
                                                         : RouterActivation::kSoftmax;
  shape.normalises = routing.normalises;
  shape.scale = routing.scale;
  shape.groups = routing.groups;
  shape.topk_groups = routing.topk_groups;
  require_fused_moe_shape(shape);
  return shape;
}

}  // namespace orrery
