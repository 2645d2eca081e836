#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/model/model.h"

namespace orrery {
namespace {

// Caches that a layer keeps besides K and V: vLLM's indexer cache holds fp8 keys with one fp32
// scale per 128 elements (vllm/v1/attention/backends/mla/indexer.py).
Bytes index_bytes_per_token(const ModelConfig& model) {
  if (model.index_topk == 0) return Bytes(0);
  const auto elements = static_cast<double>(model.index_head_dim);
  return Bytes(elements + 4.0 * elements / 128.0);
}

Bytes layer_bytes_per_token(const ModelConfig& model, const LayerConfig& layer, DType kv_dtype) {
  if (!layer.caches_tokens()) return Bytes(0);
  if (layer.attention == AttentionKind::kMla) {
    const auto width = static_cast<double>(model.kv_lora_rank + model.qk_rope_head_dim);
    return Bytes(width * bytes_per_element(kv_dtype)) + index_bytes_per_token(model);
  }
  const auto width = static_cast<double>(2 * model.num_key_value_heads * model.head_dim);
  return Bytes(width * bytes_per_element(kv_dtype));
}

}  // namespace

// From the weights of a lowered step, so that what is counted is what is computed. Active: of the
// routed experts only those that one token visits.
ParameterCount count_parameters(const ModelConfig& model) {
  const Batch one_token{.prefill = {}, .num_decodes = 1, .decode_context = 1};
  const Plan plan = lower(model, one_token, {});
  const std::vector<std::int64_t> copies = num_copies(plan);
  ParameterCount count;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role != TensorRole::kWeight) continue;
    const std::int64_t elements = num_elements(tensor) * copies[i];
    const bool is_routed = std::ranges::any_of(
        tensor.axes, [](const Axis& entry) { return entry.name == axis::kExperts; });
    count.total += elements;
    count.active += is_routed ? elements / model.num_experts * model.num_experts_per_tok : elements;
  }
  return count;
}

Bytes kv_bytes_per_token(const ModelConfig& model, DType kv_dtype) {
  return kv_bytes(model, kv_dtype, 1);
}

Bytes state_bytes(const ModelConfig& model) {
  std::int64_t bytes = 0;
  for (const LayerConfig& layer : model.layers) bytes += layer.state_bytes;
  return Bytes(static_cast<double>(bytes));
}

Bytes kv_bytes(const ModelConfig& model, DType kv_dtype, std::int64_t context) {
  Bytes total;
  for (const LayerConfig& layer : model.layers) {
    const std::int64_t tokens =
        layer.sliding_window > 0 ? std::min(context, layer.sliding_window) : context;
    total += layer_bytes_per_token(model, layer, kv_dtype) * static_cast<double>(tokens);
  }
  return total;
}

}  // namespace orrery
