#include <memory>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/routing_scores/imposed_bias.h"

namespace orrery {

// reads x, router, w1, w2 [, correction_bias] [, shared_w1, shared_w2]; writes scores, y, faults.
// Launches of all steps share the memory that they work in.
Launch bind_fused_moe(const BindContext& context) {
  const Operand w1 = operand(context, "w1");
  const Operand w2 = operand(context, "w2");
  const bool has_shared = has_operand(context, "shared_w1");
  const Operand shared_w1 = has_shared ? operand(context, "shared_w1") : Operand{};
  const Operand shared_w2 = has_shared ? operand(context, "shared_w2") : Operand{};
  const FusedMoeOperands operands{
      .x = typed<const bf16>(operand(context, "x")),
      .router = typed<const bf16>(operand(context, "router")),
      .w1 = w1.data,
      .w2 = w2.data,
      .w1_scale = w1.scales,
      .w2_scale = w2.scales,
      .shared_w1 = shared_w1.data,
      .shared_w2 = shared_w2.data,
      .shared_w1_scale = shared_w1.scales,
      .shared_w2_scale = shared_w2.scales,
      .correction_bias = has_operand(context, "correction_bias")
                             ? typed<const float>(operand(context, "correction_bias"))
                             : nullptr,
      .logit_bias = imposed_bias(context, dim(context.op.dims, "experts_total")),
      .y = typed<bf16>(result(context, "y")),
      .scores = typed<float>(result(context, "scores")),
      .faults = typed<std::int32_t>(result(context, "faults"))};
  require_taken(context, context.numbers.routing.expert_of_slot.empty(),
                "experts in order, without copies; moe design shuffling takes others");
  const RankedMoe& layer = context.ranked_moe;
  if (layer.plan == nullptr) refuse(context, "has no memory to work in");
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  return [=](const cuda::Stream& stream) {
    layer.plan->launch(stream, operands, tokens, layer.place);
  };
}

}  // namespace orrery
