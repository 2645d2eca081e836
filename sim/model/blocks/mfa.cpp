#include "sim/model/blocks/blocks.h"

namespace orrery {

// Multi-matrix factorisation attention (Step-3 report, arXiv 2507.19427, section 2): q passes
// through a shared rank of share_q_dim, and all query heads share one key and one value head.
void lower_mfa(Lowering& step, const LayerConfig& layer) {
  const ModelConfig& model = step.model;
  const DType weights = step.options.precision.weights;
  const bool fuses_quant = step.has_fp8_activations() && step.options.fuse_norm_quant;
  const AxisRef rank{axis::kLatent, model.share_q_dim};
  const std::int64_t kv_columns = 2 * model.num_key_value_heads * model.head_dim;
  const TensorId input = step.linear_input_norm("attn_norm");
  const TensorId qkv_a = step.linear({.name = "qkv_a_proj",
                                      .inputs = {input},
                                      .rows = step.tokens(),
                                      .n = {axis::kLatent, model.share_q_dim + kv_columns},
                                      .k = step.hidden_axis(),
                                      .weights = weights});
  const TensorView q_columns{qkv_a, 0, static_cast<std::int32_t>(model.share_q_dim)};
  const TensorId normed = step.rms_norm("q_norm", q_columns, step.tokens(), rank, fuses_quant);
  TensorViews q_input{normed};
  if (!fuses_quant) q_input = step.quantized("q_quant", {normed}, step.tokens(), rank);
  const TensorId q = step.linear({.name = "q_b_proj",
                                  .inputs = q_input,
                                  .rows = step.tokens(),
                                  .n = {axis::kHeads, model.num_attention_heads * model.head_dim},
                                  .k = rank,
                                  .weights = weights});
  lower_softmax_attention(step, layer, q, qkv_a);
}

}  // namespace orrery
