#include "sim/model/blocks/blocks.h"

namespace orrery {

void lower_swiglu(Lowering& step, std::string_view name, TensorId input, std::int64_t columns,
                  TensorId output) {
  const std::string prefix(name);
  const DType weights = step.options.precision.weights;
  const bool fuses_quant = step.has_fp8_activations() && step.options.fuse_norm_quant;
  const TensorId gate_up = step.linear({.name = prefix + "gate_up_proj",
                                        .inputs = {input},
                                        .rows = step.tokens(),
                                        .n = halves(axis::kFfn, columns),
                                        .k = step.hidden_axis(),
                                        .weights = weights});
  const DType activation = fuses_quant ? step.options.precision.activations : DType::kBf16;
  const AxisRef width{axis::kFfn, columns};
  const TensorId activated =
      step.tensor(prefix + "silu_mul", activation, TensorRole::kActivation, {step.tokens(), width});
  step.kernel(prefix + "silu_mul", "silu_mul", activation,
              {{"tokens", step.step.tokens, axis::kTokens}, {"ffn", columns, axis::kFfn}},
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
               .output = output});
}

void lower_dense_ffn(Lowering& step, const LayerConfig& layer) {
  const TensorId input = step.linear_input_norm("ffn_norm");
  const TensorId output = step.block_output("ffn_out");
  lower_swiglu(step, "", input, layer.intermediate_size, output);
  step.finish_block("ffn_residual", output);
}

}  // namespace orrery
