#pragma once

// Dims, slots and work that both MLA modules share: projections around the attention, traffic of
// the cache.

#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {

// `batch_dims`, which say what the step computes, followed by the dims of the layer.
inline std::vector<DimSpec> mla_module_dims(std::vector<DimSpec> batch_dims) {
  std::vector<DimSpec> dims = std::move(batch_dims);
  for (const DimSpec& dim : std::vector<DimSpec>{
           {.name = "heads",
            .meaning = "heads on this rank; the output projection sums over them",
            .is_contraction = true},
           {.name = "hidden", .meaning = "columns of the residual stream"},
           {.name = "q_lora_rank",
            .meaning = "elements of the latent of q; 0: q is projected directly",
            .may_be_zero = true},
           {.name = "kv_lora_rank", .meaning = "elements of the latent of k and v"},
           {.name = "qk_nope_head_dim", .meaning = "unrotated elements of a query or key"},
           {.name = "qk_rope_head_dim", .meaning = "rotated elements of a query or key"},
           {.name = "v_head_dim", .meaning = "elements of a value"},
           {.name = "kv_bits", .meaning = "bits per cached element"}}) {
    dims.push_back(dim);
  }
  return dims;
}

// Both read and write the same: q is projected by way of a latent, or directly.
inline std::vector<Slot> mla_module_slots() {
  return {
      {.name = "x", .axes = ".., hidden", .type = SlotType::kBf16},
      {.name = "qkv_a",
       .axes = "q_lora_rank+kv_lora_rank+qk_rope_head_dim, hidden",
       .use = Use::kWeight,
       .is_optional = true},
      {.name = "q_a_norm",
       .axes = "q_lora_rank",
       .type = SlotType::kBf16,
       .use = Use::kWeight,
       .is_optional = true},
      {.name = "q_b",
       .axes = "heads*qk_nope_head_dim+heads*qk_rope_head_dim, q_lora_rank",
       .use = Use::kWeight,
       .is_optional = true},
      {.name = "q",
       .axes = "heads*qk_nope_head_dim+heads*qk_rope_head_dim, hidden",
       .use = Use::kWeight,
       .is_optional = true},
      {.name = "kv_a",
       .axes = "kv_lora_rank+qk_rope_head_dim, hidden",
       .use = Use::kWeight,
       .is_optional = true},
      {.name = "kv_a_norm", .axes = "kv_lora_rank", .type = SlotType::kBf16, .use = Use::kWeight},
      {.name = "k_b", .axes = "heads*qk_nope_head_dim, kv_lora_rank", .use = Use::kWeight},
      {.name = "v_b", .axes = "heads*v_head_dim, kv_lora_rank", .use = Use::kWeight},
      {.name = "o", .axes = "hidden, heads*v_head_dim", .use = Use::kWeight},
      {.name = "cache",
       .axes = ".., kv_lora_rank+qk_rope_head_dim",
       .type = SlotType::kAny,
       .use = Use::kCache,
       .is_result = true},
      {.name = "out", .axes = ".., hidden", .type = SlotType::kBf16, .is_result = true}};
}

// Sizes of one layer on one rank, in elements.
struct MlaModule {
  double heads, hidden, kv_lora_rank, nope, rope, v;
  double q_weights;     // hidden -> (q_lora_rank ->) heads (nope + rope)
  double kv_a_weights;  // hidden -> kv_lora_rank + rope
  double kv_b_weights;  // kv_lora_rank -> heads (nope + v)
  double o_weights;     // heads v -> hidden
  double cached_token_bytes;

  [[nodiscard]] double weights() const {
    return q_weights + kv_a_weights + kv_b_weights + o_weights;
  }
};

inline MlaModule mla_module(const Dims& dims) {
  MlaModule m{};
  m.heads = size(dims, "heads");
  m.hidden = size(dims, "hidden");
  m.kv_lora_rank = size(dims, "kv_lora_rank");
  m.nope = size(dims, "qk_nope_head_dim");
  m.rope = size(dims, "qk_rope_head_dim");
  m.v = size(dims, "v_head_dim");
  const double q_lora_rank = size(dims, "q_lora_rank");
  const double q_columns = m.heads * (m.nope + m.rope);
  m.q_weights = q_lora_rank > 0 ? q_lora_rank * (m.hidden + q_columns) : m.hidden * q_columns;
  m.kv_a_weights = m.hidden * (m.kv_lora_rank + m.rope);
  m.kv_b_weights = m.kv_lora_rank * m.heads * (m.nope + m.v);
  m.o_weights = m.heads * m.v * m.hidden;
  m.cached_token_bytes = (m.kv_lora_rank + m.rope) * size(dims, "kv_bits") / 8;
  return m;
}

// `new_tokens` pass through in bf16 and are cached; `cached_tokens` are read from the cache.
inline Work mla_module_work(DType dtype, const MlaModule& m, double flops, double new_tokens,
                            double cached_tokens) {
  const double stream = new_tokens * m.hidden * bytes_per_element(DType::kBf16);
  return {.flops = Flops(flops),
          .bytes_read = Bytes(m.weights() * weight_bytes(dtype) + stream +
                              cached_tokens * m.cached_token_bytes),
          .bytes_written = Bytes(stream + new_tokens * m.cached_token_bytes)};
}

}  // namespace orrery
