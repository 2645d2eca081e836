#include "sim/model/blocks/blocks.h"

namespace orrery {

namespace {

// What an activation reads of `columns`, and how it is called.
struct Activation {
  AxisRef input;
  std::string_view projection;
  std::string_view kernel;
  std::string_view dim;
};
Activation activation_of(const ModelConfig& model, std::int64_t columns) {
  if (!model.has_ffn_gate) return {{axis::kFfn, columns}, "up_proj", "pointwise", "width"};
  return {halves(axis::kFfn, columns), "gate_up_proj",
          model.has_silu ? "silu_mul" : "activation_mul", "ffn"};
}

}  // namespace

void lower_swiglu(Lowering& step, std::string_view name, TensorId input, std::int64_t columns,
                  TensorId output) {
  const std::string prefix(name);
  const DType weights = step.options.precision.weights;
  const bool fuses_quant = step.has_fp8_activations() && step.options.fuse_norm_quant;
  const Activation form = activation_of(step.model, columns);
  const TensorId gate_up = step.linear({.name = prefix + std::string(form.projection),
                                        .inputs = {input},
                                        .rows = step.tokens(),
                                        .n = form.input,
                                        .k = step.hidden_axis(),
                                        .weights = weights,
                                        .has_bias = step.model.ffn_bias});
  const DType activation = fuses_quant ? step.options.precision.activations : DType::kBf16;
  const AxisRef width{axis::kFfn, columns};
  const std::string act = prefix + std::string(form.kernel);
  const TensorId activated =
      step.tensor(act, activation, TensorRole::kActivation, {step.tokens(), width});
  step.kernel(act, form.kernel, activation,
              {{"tokens", step.step.tokens, axis::kTokens}, {form.dim, columns, axis::kFfn}},
              {gate_up}, {activated});
  TensorViews down_input{activated};
  if (!fuses_quant) {
    down_input = step.quantized(prefix + "down_quant", {activated}, step.tokens(), width);
  }
  step.linear({.name = prefix + "down_proj",
               .inputs = down_input,
               .rows = step.tokens(),
               .n = step.hidden_axis(),
               .k = width,
               .weights = weights,
               .has_bias = step.model.ffn_bias,
               .output = output});
}

void lower_dense_ffn(Lowering& step, const LayerConfig& layer) {
  const TensorId input = step.linear_input_norm("ffn_norm");
  const TensorId output = step.block_output("ffn_out");
  lower_swiglu(step, "", input, layer.intermediate_size, output);
  step.finish_block("ffn_residual", output);
}

}  // namespace orrery
