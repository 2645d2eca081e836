#include <string>
#include <vector>

#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/device_copy.h"
#include "kernels/experts/index_shuffling/index_shuffling.h"

namespace orrery {
namespace {

// The slots of each expert, kept by the rank; null where experts lie in order.
IndexShufflingSlots kept_slots(const BindContext& context, std::int64_t num_experts) {
  const std::vector<std::int32_t>& expert_of_slot = context.numbers.routing.expert_of_slot;
  if (expert_of_slot.empty()) return {};
  const auto keep = [&](const char* name, auto part) {
    return context.resources
        .keep<cuda::DeviceBuffer<std::int32_t>>(
            std::string(name),
            [&] {
              return device_copy<std::int32_t>(expert_slots(expert_of_slot, num_experts).*part);
            })
        .get();
  };
  return {.first = keep("first slot of each expert", &ExpertSlots::first),
          .slots = keep("slots of experts", &ExpertSlots::slots)};
}

}  // namespace

// reads scores [, correction_bias]; writes counts, num_rows, row_token, row_weight, token_rows.
// Groups are judged by their two best where there is a correction bias, as in DeepSeek-V3.
Launch bind_index_shuffling(const BindContext& context) {
  const bool has_bias = has_operand(context, "correction_bias");
  const Dims& dims = context.op.dims;
  const Routing& routing = context.numbers.routing;
  const Operand counts = result(context, "counts");
  const IndexShufflingShape shape{
      .tokens = dim(dims, "tokens"),
      .experts_total = dim(dims, "experts_total"),
      .topk = dim(dims, "topk"),
      .groups = dim(dims, "groups"),
      .topk_groups = routing.topk_groups,
      .group_score = has_bias ? GroupScore::kBestTwo : GroupScore::kBest,
      .slots = std::ssize(routing.expert_of_slot),
      .first_expert = context.first_expert,
      .experts =
          routing.expert_of_slot.empty() ? dim(dims, "experts") : num_elements(*counts.tensor),
      .normalises = routing.normalises,
      .scale = routing.scale};
  require_index_shuffling_shape(shape);
  const std::int64_t rows = shape.tokens * std::min(shape.topk, shape.experts);
  const auto* scores = typed<const float>(operand(context, "scores"));
  const float* bias = has_bias ? typed<const float>(operand(context, "correction_bias")) : nullptr;
  const Operand row_token = result(context, "row_token");
  require_columns(context, row_token, rows);
  require_columns(context, counts, shape.experts);
  const IndexShufflingOutputs outputs{
      .counts = typed<std::int32_t>(counts),
      .num_rows = typed<std::int32_t>(result(context, "num_rows")),
      .row_token = typed<std::int32_t>(row_token),
      .row_weight = typed<float>(result(context, "row_weight")),
      .token_rows = typed<std::int32_t>(result(context, "token_rows"))};
  const IndexShufflingSlots slots = kept_slots(context, shape.experts_total);
  const IndexShufflingTile tile = index_shuffling_tile(shape, context.op.free_sms);
  std::byte* const workspace =
      context.resources.scratch("index_shuffling", index_shuffling_workspace_bytes());
  return [=](const cuda::Stream& stream) {
    index_shuffling(stream, scores, bias, slots, outputs, shape, tile, workspace);
  };
}

}  // namespace orrery
