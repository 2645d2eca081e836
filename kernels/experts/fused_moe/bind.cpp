#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/device_copy.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/index_shuffling/choice.h"
#include "kernels/experts/routing_scores/imposed_bias.h"

namespace orrery {

namespace {

// Where each expert lies, kept by the rank; null where experts lie in order.
const std::int32_t* kept_places(const BindContext& context, std::int64_t num_experts) {
  const std::vector<std::int32_t>& expert_of_slot = context.numbers.routing.expert_of_slot;
  if (expert_of_slot.empty()) return nullptr;
  require_taken(context, std::ssize(expert_of_slot) == num_experts,
                "experts without copies; moe design shuffling takes copies");
  const auto upload = [&] {
    return device_copy<std::int32_t>(expert_slots(expert_of_slot, num_experts).slots);
  };
  using Key = std::string;
  return context.resources.keep<cuda::DeviceBuffer<std::int32_t>>(Key("slots of experts"), upload)
      .get();
}

}  // namespace

// reads x, router, w1, w2 [, correction_bias] [, shared_w1, shared_w2]; writes scores, y, faults.
// Launches of all steps share the memory that they work in.
Launch bind_fused_moe(const BindContext& context) {
  const std::int64_t num_experts = dim(context.op.dims, "experts_total");
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
      .logit_bias = imposed_bias(context, num_experts),
      .places = kept_places(context, num_experts),
      .y = typed<bf16>(result(context, "y")),
      .scores = typed<float>(result(context, "scores")),
      .faults = typed<std::int32_t>(result(context, "faults"))};
  const RankedMoe& layer = context.ranked_moe;
  if (layer.plan == nullptr) refuse(context, "has no memory to work in");
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  return [=](const cuda::Stream& stream) {
    layer.plan->launch(stream, operands, tokens, layer.place);
  };
}

}  // namespace orrery
