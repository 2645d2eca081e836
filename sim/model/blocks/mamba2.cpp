#include "sim/model/blocks/blocks.h"

namespace orrery {
namespace {

AxisRef columns(std::int64_t count) { return {axis::kHeads, count}; }

// Of all sequences of the step, which write it too.
TensorId state(Lowering& step, std::string_view name, DType dtype, std::int64_t elements) {
  const AxisRef sequences{axis::kSeqs, step.step.prefill_batch + step.step.num_decodes};
  return step.tensor(name, dtype, TensorRole::kState, {sequences, columns(elements)});
}

// The scan of `sequences` of `query` new tokens; `reads` ends with the state, which it writes.
TensorId scan(Lowering& step, std::string_view name, AxisRef rows, std::int64_t sequences,
              std::int64_t query, const TensorViews& reads) {
  const ModelConfig& model = step.model;
  const TensorId output = step.activation(
      name, {rows, columns(model.linear_num_value_heads * model.linear_value_head_dim)});
  step.kernel(name, name, model.mamba_ssm_dtype,
              {{"sequences", sequences, axis::kSeqs},
               {"query", query},
               {"groups", model.linear_num_key_heads, axis::kHeads},
               {"ssm_heads", model.linear_num_value_heads, axis::kHeads},
               {"state_dim", model.linear_key_head_dim},
               {"head_size", model.linear_value_head_dim}},
              reads, {output, reads.back()});
  return output;
}

}  // namespace

// Mamba-2's mixer (Dao, Gu, arXiv 2405.21060; NemotronHMamba2Mixer of Hugging Face transformers): a
// projection to the gate z, to x, B and C, which a causal convolution passes over, and to a step
// for each head. Columns lie group by group, so tensor parallelism divides them like heads; so do
// states.
void lower_mamba2(Lowering& step, const LayerConfig& /*layer*/) {
  const ModelConfig& model = step.model;
  const StepShape& shape = step.step;
  const DType weights = step.options.precision.weights;
  const std::int64_t heads = model.linear_num_value_heads;
  const std::int64_t values = heads * model.linear_value_head_dim;
  const std::int64_t channels = values + 2 * model.linear_num_key_heads * model.linear_key_head_dim;
  const std::int64_t taps = model.linear_conv_kernel_dim;
  const TensorId zxbcdt = step.linear({.name = "in_proj",
                                       .inputs = {step.linear_input_norm("attn_norm")},
                                       .rows = step.tokens(),
                                       .n = columns(values + channels + heads),
                                       .k = step.hidden_axis(),
                                       .weights = weights});
  const TensorId xbc = step.activation("conv1d", {step.tokens(), columns(channels)});
  const TensorId taps_before = state(step, "conv_state", DType::kBf16, channels * (taps - 1));
  const TensorId filter =
      step.weight("conv1d.weight", DType::kBf16, {columns(channels), {"taps", taps}});
  step.kernel("conv1d", "causal_conv", DType::kBf16,
              {{"tokens", shape.tokens, axis::kTokens},
               {"sequences", shape.prefill_batch + shape.num_decodes, axis::kSeqs},
               {"channels", channels, axis::kHeads},
               {"width", taps}},
              {zxbcdt, filter, taps_before}, {xbc, taps_before});
  // Of each head: its decay, the bias of its step and the factor by which x skips the scan.
  const TensorId decay = step.weight("decay", DType::kFp32, {columns(3 * heads)});
  const TensorId kept =
      state(step, "ssm_state", model.mamba_ssm_dtype, values * model.linear_key_head_dim);
  const TensorViews reads{xbc, zxbcdt, decay, kept};
  TensorViews outputs;
  if (shape.prefill_tokens > 0) {
    outputs.emplace_back(scan(step, "ssm_prefill", {axis::kTokens, shape.prefill_tokens},
                              shape.prefill_batch, shape.prefill_query, reads));
  }
  if (shape.num_decodes > 0) {
    outputs.emplace_back(
        scan(step, "ssm_decode", {axis::kSeqs, shape.num_decodes}, shape.num_decodes, 1, reads));
  }
  const TensorId gain = step.weight("norm.weight", DType::kBf16, {columns(values)});
  const TensorId gated =
      step.gated("norm", zxbcdt, std::move(outputs), columns(values), values, gain);
  const TensorId output = step.block_output("attn_out");
  step.linear({.name = "out_proj",
               .inputs = step.quantized("o_quant", {gated}, step.tokens(), columns(values)),
               .rows = step.tokens(),
               .n = step.hidden_axis(),
               .k = columns(values),
               .weights = weights,
               .output = output});
  step.finish_block("attn_residual", output);
}

}  // namespace orrery
