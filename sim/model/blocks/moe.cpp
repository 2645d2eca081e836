#include "sim/model/blocks/blocks.h"

namespace orrery {
namespace {

// Weights of all routed experts: gate+up and down, biases where the model has them.
std::vector<TensorId> expert_weights(Lowering& step) {
  const ModelConfig& model = step.model;
  const DType dtype =
      step.options.precision.expert_weights.value_or(step.options.precision.weights);
  const AxisRef experts{axis::kExperts, model.num_experts};
  const AxisRef gate_up{axis::kExpertFfn, 2 * model.moe_intermediate_size};
  const AxisRef down{axis::kExpertFfn, model.moe_intermediate_size};
  std::vector<TensorId> result{
      step.weight("experts.gate_up_proj", dtype, {experts, gate_up, step.hidden_axis()}),
      step.weight("experts.down_proj", dtype, {experts, step.hidden_axis(), down})};
  if (model.moe_bias) {
    result.push_back(step.weight("experts.gate_up_bias", DType::kBf16, {experts, gate_up}));
    result.push_back(step.weight("experts.down_bias", DType::kBf16, {experts, step.hidden_axis()}));
  }
  return result;
}

}  // namespace

// The norm writes bf16, which the router needs; with FP8 activations one `quantize` op makes the
// copy that routed and shared experts read (and that is dispatched to other ranks).
void lower_moe(Lowering& step, const LayerConfig& /*layer*/) {
  const ModelConfig& model = step.model;
  const std::int64_t tokens = step.step.tokens;
  const TensorId normed = step.block_norm("ffn_norm", false);
  const TensorId logits = step.linear({.name = "router",
                                       .inputs = {normed},
                                       .rows = step.tokens(),
                                       .n = {"router", model.num_experts},
                                       .k = step.hidden_axis(),
                                       .weights = DType::kBf16,
                                       .has_bias = model.router_bias});
  // An expert and its weight for each of the top-k.
  const TensorId routing = step.tensor("routing", DType::kInt32, TensorRole::kActivation,
                                       {step.tokens(), {"topk", 2 * model.num_experts_per_tok}});
  step.kernel("route", "moe_route", DType::kBf16,
              {{"tokens", tokens, axis::kTokens},
               {"experts_total", model.num_experts},
               {"topk", model.num_experts_per_tok},
               {"groups", model.n_group}},
              {logits}, {routing});
  const TensorId input =
      step.quantized("ffn_quant", {normed}, step.tokens(), step.hidden_axis()).front();

  const bool has_shared = model.shared_expert_intermediate_size > 0;
  const TensorId output = step.block_output("ffn_out");
  TensorId shared = -1;
  if (has_shared) {
    shared = step.activation("shared_out", {step.tokens(), step.hidden_axis()});
    lower_swiglu(step, "shared.", input, model.shared_expert_intermediate_size, shared);
  }
  const TensorId routed =
      has_shared ? step.activation("routed_out", {step.tokens(), step.hidden_axis()}) : output;
  std::vector<TensorId> reads{input, routing};
  for (const TensorId id : expert_weights(step)) reads.push_back(id);
  const DType dtype = step.plan.tensors()[static_cast<std::size_t>(reads[2])].dtype;
  step.kernel("experts", "moe", dtype,
              {{"tokens", tokens, axis::kRoutedTokens},
               {"hidden", model.hidden_size, axis::kHidden},
               {"inter", model.moe_intermediate_size, axis::kExpertFfn},
               {"topk", model.num_experts_per_tok},
               {"experts", model.num_experts, axis::kExperts},
               {"experts_total", model.num_experts}},
              std::move(reads), {routed});
  if (has_shared) {
    step.kernel("shared_add", "residual_add", DType::kBf16,
                {{"tokens", tokens, axis::kTokens}, {"hidden", model.hidden_size, axis::kHidden}},
                {routed, shared}, {output});
  }
  step.finish_block("ffn_residual", output);
}

}  // namespace orrery
