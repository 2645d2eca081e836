#include "sim/model/blocks/moe.h"

#include <stdexcept>
#include <utility>

namespace orrery {
namespace {

// Biases of the routed experts, where the model has them.
TensorViews expert_biases(Lowering& step) {
  const ModelConfig& model = step.model;
  if (!model.moe_bias) return {};
  const AxisRef experts{axis::kExperts, model.num_experts};
  const AxisRef gate_up = halves(axis::kExpertFfn, model.moe_intermediate_size);
  const TensorId up = step.weight("experts.gate_up_bias", DType::kBf16, {experts, gate_up});
  return {up, step.weight("experts.down_bias", DType::kBf16, {experts, step.hidden_axis()})};
}

}  // namespace

TensorId lower_shared_expert(Lowering& step, TensorId normed, TensorId input) {
  const ModelConfig& model = step.model;
  if (model.shared_expert_intermediate_size == 0) return -1;
  const TensorId shared = step.activation("shared_out", {step.tokens(), step.hidden_axis()});
  lower_swiglu(step, "shared.", input, model.shared_expert_intermediate_size, shared);
  if (!model.has_shared_expert_gate) return shared;
  const TensorId gate = step.linear({.name = "shared_gate",
                                     .inputs = {normed},
                                     .rows = step.tokens(),
                                     .n = {"shared_gate", 1},
                                     .k = step.hidden_axis(),
                                     .weights = DType::kBf16});
  return step.gated("shared_gated", gate, {shared}, step.hidden_axis(), 1);
}

void add_shared_expert(Lowering& step, TensorId routed, TensorId shared, TensorId output) {
  step.kernel("shared_add", "residual_add", DType::kBf16,
              {{"tokens", step.step.tokens, axis::kTokens},
               {"hidden", step.model.hidden_size, axis::kHidden}},
              {routed, shared}, {output});
}

namespace {

// With FP8 activations one `quantize` op makes the copy that routed and shared experts read (and
// that is dispatched to other ranks). Routed experts of FP8 beside bf16 for the rest read a copy of
// their own.
void lower_fused(Lowering& step, TensorId normed, TensorId output) {
  const ModelConfig& model = step.model;
  const std::int64_t tokens = step.step.tokens;
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

  const TensorId shared = lower_shared_expert(step, normed, input);
  const bool has_shared = shared >= 0;
  const TensorId routed =
      has_shared ? step.activation("routed_out", {step.tokens(), step.hidden_axis()}) : output;
  const ExpertWeights weights = expert_weights(step);
  const bool needs_copy = is_input_format(weights.dtype) && !step.has_fp8_activations();
  const TensorId routed_input = needs_copy
                                    ? step.quantized_as(weights.dtype, "experts.quant", {normed},
                                                        step.tokens(), step.hidden_axis())
                                    : input;
  TensorViews reads{routed_input, routing, weights.gate_up, weights.down};
  for (const TensorView& bias : expert_biases(step)) reads.push_back(bias);
  step.kernel("experts", "moe", weights.dtype,
              {{"tokens", tokens, axis::kRoutedTokens},
               {"hidden", model.hidden_size, axis::kHidden},
               {"inter", model.moe_intermediate_size, axis::kExpertFfn},
               {"topk", model.num_experts_per_tok},
               {"experts", model.num_experts, axis::kExperts},
               {"experts_total", model.num_experts}},
              std::move(reads), {routed});
  if (has_shared) add_shared_expert(step, routed, shared, output);
}

// The bf16 rows `normed` through router, routed and shared experts into `output`.
void lower_experts(Lowering& step, TensorId normed, TensorId output, bool imposes_scores) {
  check_moe_design(step.model, step.options);
  const MoeDesign design = step.options.moe_design;
  const bool is_one_op = design == MoeDesign::kFused || design == MoeDesign::kPersistent;
  if (imposes_scores && is_one_op) {
    throw std::invalid_argument("moe design " + std::string(to_text(design)) +
                                " makes its scores itself and cannot take imposed ones, expected "
                                "another design, or a load imposed by a bias on the router");
  }
  if (design == MoeDesign::kFused) {
    lower_fused(step, normed, output);
  } else if (design == MoeDesign::kPersistent) {
    lower_persistent_moe(step, normed, output);
  } else {
    lower_moe_design(step, normed, output, imposes_scores);
  }
}

}  // namespace

ExpertWeights expert_weights(Lowering& step) {
  const ModelConfig& model = step.model;
  const DType dtype =
      step.options.precision.expert_weights.value_or(step.options.precision.weights);
  const AxisRef experts{axis::kExperts, model.num_experts};
  const AxisRef gate_up = halves(axis::kExpertFfn, model.moe_intermediate_size);
  const AxisRef down{axis::kExpertFfn, model.moe_intermediate_size};
  ExpertWeights weights{.dtype = dtype};
  weights.gate_up =
      step.weight("experts.gate_up_proj", dtype, {experts, gate_up, step.hidden_axis()});
  weights.down = step.weight("experts.down_proj", dtype, {experts, step.hidden_axis(), down});
  return weights;
}

// The norm writes bf16, which the router needs.
void lower_moe(Lowering& step, const LayerConfig& /*layer*/) {
  const TensorId normed = step.block_norm("ffn_norm", false);
  const TensorId output = step.block_output("ffn_out");
  lower_experts(step, normed, output, false);
  step.finish_block("ffn_residual", output);
}

Plan moe_layer_plan(const ModelConfig& model, std::int64_t tokens, const LoweringOptions& options,
                    bool imposes_scores) {
  if (model.num_experts == 0) {
    throw std::invalid_argument("model \"" + model.name +
                                "\" has no routed experts, expected a mixture of experts");
  }
  Lowering step(model, tokens, options);
  const TensorId output =
      step.tensor("y", DType::kBf16, TensorRole::kOutput, {step.tokens(), step.hidden_axis()});
  lower_experts(step, step.hidden, output, imposes_scores);
  return std::move(step.plan);
}

}  // namespace orrery
