#include <algorithm>

#include "sim/model/blocks/blocks.h"

namespace orrery {
namespace {

// How attention kernels say that there is no window.
constexpr std::int64_t kFullAttention = std::int64_t{1} << 30;

// Keys of all sequences of a step in a layer that keeps `window` of each, the new ones included.
std::int64_t attended_keys(const StepShape& shape, std::int64_t window) {
  const std::int64_t cached =
      shape.prefill_cached / std::max<std::int64_t>(shape.prefill_batch, 1) < window
          ? shape.prefill_cached
          : shape.prefill_batch * window;
  return shape.prefill_tokens + cached + shape.num_decodes * std::min(shape.decode_context, window);
}

}  // namespace

void lower_gqa(Lowering& step, const LayerConfig& layer) {
  const ModelConfig& model = step.model;
  const std::int64_t heads = model.num_attention_heads;
  const std::int64_t kv_heads = model.num_key_value_heads;
  const std::int64_t gates = model.attn_output_gate ? heads : 0;  // beside each query
  const TensorId input = step.linear_input_norm("attn_norm");
  const TensorId qkv =
      step.linear({.name = "qkv_proj",
                   .inputs = {input},
                   .rows = step.tokens(),
                   .n = {axis::kQkv, (gates + heads + 2 * kv_heads) * model.head_dim},
                   .k = step.hidden_axis(),
                   .weights = step.options.precision.weights,
                   .has_bias = model.attention_bias});
  if (model.use_qk_norm) {
    // Query and key heads are normed in place over head_dim, with one weight for each of the two.
    const AxisRef width{axis::kQkv, (heads + kv_heads) * model.head_dim};
    const TensorId gain =
        step.weight("qk_norm.weight", DType::kBf16, {{axis::kHeadDim, 2 * model.head_dim}});
    step.kernel("qk_norm", "rms_norm", DType::kBf16,
                {{"tokens", step.step.tokens, axis::kTokens}, {"hidden", width.size, width.name}},
                {qkv, gain}, {qkv});
  }
  lower_softmax_attention(step, layer, qkv, qkv);
}

void lower_softmax_attention(Lowering& step, const LayerConfig& layer, TensorId q,
                             TensorId kv_source) {
  const ModelConfig& model = step.model;
  const StepShape& shape = step.step;
  const DType kv_dtype = step.options.precision.kv_cache;
  const std::int64_t heads = model.num_attention_heads;
  const std::int64_t kv_heads = model.num_key_value_heads;
  const std::int64_t head_dim = model.head_dim;
  const std::int64_t window = layer.sliding_window > 0 ? layer.sliding_window : kFullAttention;
  const AxisRef columns{axis::kHeads, heads * head_dim};

  if (model.has_rope) {
    TensorViews qk{q};
    if (kv_source != q) qk.emplace_back(kv_source);
    step.kernel("rope", "rope", DType::kBf16,
                {{"tokens", shape.tokens, axis::kTokens},
                 {"heads", heads + kv_heads, axis::kQkv},
                 {"head_dim", head_dim}},
                qk, qk);
  }
  // The part of the KV cache that this step writes; how much the cache holds is serve's business.
  const AxisRef kv_width = halves(axis::kKvHeads, kv_heads * head_dim);
  const TensorId kv =
      step.tensor("kv_new", kv_dtype, TensorRole::kKvCache, {step.tokens(), kv_width});
  step.kernel("kv_append", "kv_append", kv_dtype,
              {{"tokens", shape.tokens, axis::kTokens}, {"width", kv_width.size, kv_width.name}},
              {kv_source}, {kv});

  TensorViews outputs;
  const bool is_packed = step.options.attention_form == AttentionForm::kPacked;
  if (is_packed) {
    outputs.emplace_back(step.activation("attn_packed", {step.tokens(), columns}));
    step.kernel("attn_packed", "attention_packed", kv_dtype,
                {{"queries", shape.tokens, axis::kTokens},
                 {"keys", attended_keys(shape, window), axis::kTokens},
                 {"heads", heads, axis::kHeads},
                 {"kv_heads", kv_heads, axis::kKvHeads},
                 {"head_dim", head_dim}},
                {q, kv}, {outputs.back()});
  }
  if (!is_packed && shape.prefill_tokens > 0) {
    outputs.emplace_back(
        step.activation("attn_prefill", {{axis::kTokens, shape.prefill_tokens}, columns}));
    step.kernel("attn_prefill", "attention_prefill", kv_dtype,
                {{"batch", shape.prefill_batch, axis::kSeqs},
                 {"query", shape.prefill_query},
                 {"context", shape.prefill_context},
                 {"heads", heads, axis::kHeads},
                 {"kv_heads", kv_heads, axis::kKvHeads},
                 {"head_dim", head_dim},
                 {"window", window}},
                {q, kv}, {outputs.back()});
  }
  if (!is_packed && shape.num_decodes > 0 && shape.decode_query > 1) {
    outputs.emplace_back(step.activation(
        "attn_verify", {{axis::kSeqs, shape.num_decodes * shape.decode_query}, columns}));
    step.kernel("attn_verify", "attention_verify", kv_dtype,
                {{"batch", shape.num_decodes, axis::kSeqs},
                 {"query", shape.decode_query},
                 {"context", shape.decode_context},
                 {"heads", heads, axis::kHeads},
                 {"kv_heads", kv_heads, axis::kKvHeads},
                 {"head_dim", head_dim},
                 {"window", window}},
                {q, kv}, {outputs.back()});
  } else if (!is_packed && shape.num_decodes > 0) {
    outputs.emplace_back(
        step.activation("attn_decode", {{axis::kSeqs, shape.num_decodes}, columns}));
    step.kernel("attn_decode", "attention_decode", kv_dtype,
                {{"batch", shape.num_decodes, axis::kSeqs},
                 {"context", shape.decode_context},
                 {"heads", heads, axis::kHeads},
                 {"kv_heads", kv_heads, axis::kKvHeads},
                 {"head_dim", head_dim},
                 {"window", window}},
                {q, kv}, {outputs.back()});
  }
  if (model.attn_output_gate) {
    outputs = {step.gated("attn_gate", q, std::move(outputs), columns, columns.size)};
  }
  // Attention kernels write bf16, so quantisation before o_proj is always an op of its own.
  const TensorId output = step.block_output("attn_out");
  step.linear({.name = "o_proj",
               .inputs = step.quantized("o_quant", outputs, step.tokens(), columns),
               .rows = step.tokens(),
               .n = step.hidden_axis(),
               .k = columns,
               .weights = step.options.precision.weights,
               .has_bias = model.o_proj_bias,
               .output = output});
  step.finish_block("attn_residual", output);
}

}  // namespace orrery
