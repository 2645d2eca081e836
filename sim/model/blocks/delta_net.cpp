#include "sim/model/blocks/blocks.h"

namespace orrery {
namespace {

// A gated delta net (Qwen3NextGatedDeltaNet of Hugging Face transformers, arXiv 2412.06464): no
// token is attended, each value head keeps a matrix. Columns of one projection lie key head by key
// head, q, k, values and their gates together, so tensor parallelism divides them like heads; so do
// states.
class DeltaNet {
 public:
  explicit DeltaNet(Lowering& step)
      : step_(step),
        model_(step.model),
        shape_(step.step),
        keys_(model_.linear_num_key_heads * model_.linear_key_head_dim),
        values_(model_.linear_num_value_heads * model_.linear_value_head_dim) {}

  void lower();

 private:
  static AxisRef columns(std::int64_t count) { return {axis::kHeads, count}; }
  // Of all sequences of the step, which write it too.
  TensorId state(std::string_view name, DType dtype, std::int64_t elements) {
    return step_.tensor(name, dtype, TensorRole::kState,
                        {{axis::kSeqs, sequences_}, columns(elements)});
  }
  void attend(std::string_view name, std::string_view kernel, AxisRef rows, std::int64_t sequences,
              std::int64_t query, const TensorViews& reads);

  Lowering& step_;
  const ModelConfig& model_;
  const StepShape& shape_;
  std::int64_t keys_;
  std::int64_t values_;
  std::int64_t sequences_ = shape_.prefill_batch + shape_.num_decodes;
  TensorViews outputs_;
};

void DeltaNet::attend(std::string_view name, std::string_view kernel, AxisRef rows,
                      std::int64_t sequences, std::int64_t query, const TensorViews& reads) {
  outputs_.emplace_back(step_.activation(name, {rows, columns(values_)}));
  step_.kernel(name, kernel, model_.mamba_ssm_dtype,
               {{"sequences", sequences, axis::kSeqs},
                {"query", query},
                {"key_heads", model_.linear_num_key_heads, axis::kHeads},
                {"value_heads", model_.linear_num_value_heads, axis::kHeads},
                {"key_head_dim", model_.linear_key_head_dim},
                {"value_head_dim", model_.linear_value_head_dim}},
               reads, {outputs_.back(), reads.back()});
}

void DeltaNet::lower() {
  const DType weights = step_.options.precision.weights;
  const std::int64_t taps = model_.linear_conv_kernel_dim;
  const std::int64_t channels = 2 * keys_ + values_;
  const std::int64_t gates = 2 * model_.linear_num_value_heads;  // how much is kept, and is learned
  const TensorId normed = step_.block_norm("attn_norm", false);
  const TensorId qkvz = step_.linear(
      {.name = "in_proj_qkvz",
       .inputs = step_.quantized("in_quant", {normed}, step_.tokens(), step_.hidden_axis()),
       .rows = step_.tokens(),
       .n = columns(channels + values_),
       .k = step_.hidden_axis(),
       .weights = weights});
  const TensorId ba = step_.linear({.name = "in_proj_ba",
                                    .inputs = {normed},
                                    .rows = step_.tokens(),
                                    .n = columns(gates),
                                    .k = step_.hidden_axis(),
                                    .weights = DType::kBf16});
  const TensorId qkv = step_.activation("conv1d", {step_.tokens(), columns(channels)});
  const TensorId taps_before = state("conv_state", DType::kBf16, channels * (taps - 1));
  const TensorId filter =
      step_.weight("conv1d.weight", DType::kBf16, {columns(channels), {"taps", taps}});
  step_.kernel("conv1d", "causal_conv", DType::kBf16,
               {{"tokens", shape_.tokens, axis::kTokens},
                {"sequences", sequences_, axis::kSeqs},
                {"channels", channels, axis::kHeads},
                {"width", taps}},
               {qkvz, filter, taps_before}, {qkv, taps_before});
  const TensorId decay = step_.weight("decay", DType::kFp32, {columns(gates)});
  const TensorId kept =
      state("delta_state", model_.mamba_ssm_dtype, values_ * model_.linear_key_head_dim);
  const TensorViews reads{qkv, ba, decay, kept};
  if (shape_.prefill_tokens > 0) {
    attend("delta_prefill", "delta_rule_prefill", {axis::kTokens, shape_.prefill_tokens},
           shape_.prefill_batch, shape_.prefill_query, reads);
  }
  if (shape_.num_decodes > 0) {
    attend("delta_decode", "delta_rule_decode", {axis::kSeqs, shape_.num_decodes},
           shape_.num_decodes, 1, reads);
  }
  const TensorId gain =
      step_.weight("norm.weight", DType::kBf16, {{axis::kHeadDim, model_.linear_value_head_dim}});
  const TensorId gated =
      step_.gated("norm", qkvz, std::move(outputs_), columns(values_), values_, gain);
  const TensorId output = step_.block_output("attn_out");
  step_.linear({.name = "out_proj",
                .inputs = step_.quantized("o_quant", {gated}, step_.tokens(), columns(values_)),
                .rows = step_.tokens(),
                .n = step_.hidden_axis(),
                .k = columns(values_),
                .weights = weights,
                .output = output});
  step_.finish_block("attn_residual", output);
}

}  // namespace

void lower_delta_net(Lowering& step, const LayerConfig& /*layer*/) { DeltaNet(step).lower(); }

}  // namespace orrery
