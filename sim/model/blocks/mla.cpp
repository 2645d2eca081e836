#include <algorithm>
#include <stdexcept>

#include "sim/model/blocks/blocks.h"

namespace orrery {
namespace {

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). The cache holds one
// latent of kv_lora_rank and one rotary key per token for all heads. k_b and v_b expand a latent to
// keys and values of a head; they are one projection in the expanded form and two batched GEMMs
// around latent attention in the absorbed form.
class Mla {
 public:
  explicit Mla(Lowering& step)
      : step_(step),
        model_(step.model),
        shape_(step.step),
        heads_(model_.num_attention_heads),
        kv_width_(model_.kv_lora_rank + model_.qk_rope_head_dim),
        weights_(step.options.precision.weights),
        kv_dtype_(step.options.precision.kv_cache) {}

  void lower();

 private:
  void lower_module();
  void project();
  void lower_indexer(TensorId input);
  // New tokens and their context, as attention sees them, and the cached ones of all sequences.
  struct Queries {
    DimRef batch;
    std::int64_t query = 0;
    std::int64_t context = 0;
    std::int64_t cached = 0;
  };
  struct Latents {
    TensorId latents = -1;  // [rows, kv_lora_rank]
    TensorView rotated;     // [rows, qk_rope_head_dim]
    AxisRef rows;
  };
  void lower_expanded(std::string_view name, AxisRef rows, const Queries& queries);
  Latents gathered(std::string_view name, AxisRef rows, std::int64_t cached);
  // `batch` times `query` of the rows attend, `query` of them the same latents; the others pad a
  // captured graph.
  void lower_absorbed(std::string_view name, AxisRef rows, std::int64_t batch, std::int64_t query,
                      std::int64_t context);
  TensorId projected(std::string_view name, TensorViews input, AxisRef n, AxisRef k) {
    return step_.linear({.name = name,
                         .inputs = std::move(input),
                         .rows = step_.tokens(),
                         .n = n,
                         .k = k,
                         .weights = weights_});
  }
  static TensorView columns(TensorId id, std::int64_t first, std::int64_t count) {
    return {id, static_cast<std::int32_t>(first), static_cast<std::int32_t>(count)};
  }
  [[nodiscard]] bool is_sparse() const { return model_.index_topk > 0; }
  [[nodiscard]] std::int64_t attended(std::int64_t context) const {
    return is_sparse() ? std::min(context, model_.index_topk) : context;
  }
  [[nodiscard]] AxisRef head_columns(std::int64_t per_head) const {
    return {axis::kHeads, heads_ * per_head};
  }

  Lowering& step_;
  const ModelConfig& model_;
  const StepShape& shape_;
  std::int64_t heads_;
  std::int64_t kv_width_;
  DType weights_;
  DType kv_dtype_;
  TensorId q_ = -1;
  TensorId kv_ = -1;
  TensorId kv_normed_ = -1;  // latents of the new tokens
  TensorView rotated_;       // keys of the new tokens, columns of what is projected
  TensorId k_b_ = -1;
  TensorId v_b_ = -1;
  TensorViews outputs_;
};

void Mla::lower_indexer(TensorId input) {
  // Lightning indexer (DeepSeek-V3.2 report, section 2.1): its heads are not sharded. Its keys live
  // in a cache of their own.
  const AxisRef q_rank{axis::kLatent, model_.q_lora_rank};
  const AxisRef head{"index_head_dim", model_.index_head_dim};
  const TensorId query = projected(
      "index_q_proj", {q_}, {"index_heads", model_.index_n_heads * model_.index_head_dim}, q_rank);
  const TensorId key = projected("index_k_proj", {input}, head, step_.hidden_axis());
  const TensorId gates = projected("index_weights_proj", {input},
                                   {"index_heads", model_.index_n_heads}, step_.hidden_axis());
  const TensorId picked = step_.tensor("index", DType::kInt32, TensorRole::kActivation,
                                       {step_.tokens(), {"index_topk", model_.index_topk}});
  // Mean context of a row, prefill and decode rows together.
  const std::int64_t prefill_context = shape_.prefill_context + (shape_.prefill_query + 1) / 2;
  const std::int64_t context =
      (shape_.prefill_tokens * prefill_context +
       shape_.num_decodes * shape_.decode_query * shape_.decode_context + shape_.tokens - 1) /
      shape_.tokens;
  step_.kernel("sparse_index", "sparse_index", kv_dtype_,
               {{"tokens", shape_.tokens, axis::kTokens},
                {"context", context},
                {"index_heads", model_.index_n_heads},
                {"index_head_dim", model_.index_head_dim}},
               {query, key, gates}, {picked});
}

void Mla::project() {
  const bool fuses_quant = step_.has_fp8_activations() && step_.options.fuse_norm_quant;
  const AxisRef kv_rank{axis::kLatent, model_.kv_lora_rank};
  const AxisRef q_columns = head_columns(model_.qk_nope_head_dim + model_.qk_rope_head_dim);
  const TensorId input = step_.linear_input_norm("attn_norm");
  TensorId latent = -1;
  TensorId q = -1;
  if (model_.q_lora_rank > 0) {
    const AxisRef q_rank{axis::kLatent, model_.q_lora_rank};
    latent = projected("qkv_a_proj", {input}, {axis::kLatent, model_.q_lora_rank + kv_width_},
                       step_.hidden_axis());
    q_ = step_.rms_norm("q_a_norm", columns(latent, 0, model_.q_lora_rank), step_.tokens(), q_rank,
                        fuses_quant);
    if (!fuses_quant) q_ = step_.quantized("q_a_quant", {q_}, step_.tokens(), q_rank).front();
    if (is_sparse()) lower_indexer(input);
    q = projected("q_b_proj", {q_}, q_columns, q_rank);
  } else {
    q = projected("q_proj", {input}, q_columns, step_.hidden_axis());
    latent = projected("kv_a_proj", {input}, {axis::kLatent, kv_width_}, step_.hidden_axis());
  }
  q_ = q;
  // The latent of q, if any, that of keys and values, the key that turns.
  const std::int64_t first = model_.q_lora_rank;
  rotated_ = columns(latent, first + model_.kv_lora_rank, model_.qk_rope_head_dim);
  kv_normed_ = step_.rms_norm("kv_a_norm", columns(latent, first, model_.kv_lora_rank),
                              step_.tokens(), kv_rank, false);
  step_.kernel("rope", "rope", DType::kBf16,
               {{"tokens", shape_.tokens, axis::kTokens},
                {"heads", heads_ + 1, axis::kQkv},
                {"head_dim", model_.qk_rope_head_dim}},
               {q_, rotated_}, {q_, rotated_});
  kv_ = step_.tensor("kv_new", kv_dtype_, TensorRole::kKvCache,
                     {step_.tokens(), {axis::kLatent, kv_width_}});
  step_.kernel("kv_append", "kv_append", kv_dtype_,
               {{"tokens", shape_.tokens, axis::kTokens}, {"width", kv_width_}},
               {kv_normed_, rotated_}, {kv_});
  k_b_ =
      step_.weight("k_b_proj.weight", weights_, {head_columns(model_.qk_nope_head_dim), kv_rank});
  v_b_ = step_.weight("v_b_proj.weight", weights_, {head_columns(model_.v_head_dim), kv_rank});
}

// What `rows` new tokens see: their own latents where there are no others in the step, else those
// of their sequences, out of the cache.
Mla::Latents Mla::gathered(std::string_view name, AxisRef rows, std::int64_t cached) {
  if (cached == 0 && rows.size == shape_.tokens) {
    return {.latents = kv_normed_, .rotated = rotated_, .rows = rows};
  }
  const std::string prefix(name);
  const AxisRef all{rows.name, rows.size + cached};
  const Latents found{
      .latents = step_.activation(prefix + ".latents", {all, {axis::kLatent, model_.kv_lora_rank}}),
      .rotated =
          step_.activation(prefix + ".rotated", {all, {axis::kLatent, model_.qk_rope_head_dim}}),
      .rows = all};
  step_.kernel(prefix + ".kv_gather", "kv_gather", kv_dtype_,
               {{"tokens", all.size, all.name},
                {"kv_lora_rank", model_.kv_lora_rank},
                {"rope_dim", model_.qk_rope_head_dim}},
               {kv_}, {found.latents, found.rotated});
  return found;
}

// New tokens after cached ones: all their latents are expanded.
void Mla::lower_expanded(std::string_view name, AxisRef rows, const Queries& queries) {
  const std::string prefix(name);
  const Latents latents = gathered(name, rows, queries.cached);
  const auto expanded = [&](std::string_view part, std::int64_t per_head, TensorId weight) {
    const AxisRef columns = head_columns(per_head);
    const std::string part_name = prefix + "." + std::string(part);
    const TensorId result = step_.activation(part_name, {latents.rows, columns});
    step_.kernel(part_name + "_proj", "gemm", weights_,
                 {{"m", latents.rows.size, latents.rows.name},
                  {"n", columns.size, columns.name},
                  {"k", model_.kv_lora_rank, axis::kLatent}},
                 {latents.latents, weight}, {result});
    return result;
  };
  const TensorId keys = expanded("k_b", model_.qk_nope_head_dim, k_b_);
  const TensorId values = expanded("v_b", model_.v_head_dim, v_b_);
  outputs_.emplace_back(step_.activation(prefix, {rows, head_columns(model_.v_head_dim)}));
  step_.kernel(prefix, "mla_prefill", DType::kBf16,
               {{"batch", queries.batch.size, queries.batch.axis},
                {"query", queries.query},
                {"context", queries.context},
                {"heads", heads_, axis::kHeads},
                {"qk_head_dim", model_.qk_nope_head_dim + model_.qk_rope_head_dim},
                {"v_head_dim", model_.v_head_dim}},
               {q_, keys, latents.rotated, values}, {outputs_.back()});
}

// Each row attends the latents of `context` tokens by itself, or `query` rows of a sequence do so
// together. Engines keep the halves of kv_b in bf16 for this (vLLM: W_UK_T, W_UV), so the batched
// GEMMs are bf16 whatever the weights are.
void Mla::lower_absorbed(std::string_view name, AxisRef rows, std::int64_t batch,
                         std::int64_t query, std::int64_t context) {
  const std::string prefix(name);
  const TensorId q_latent =
      step_.activation(prefix + ".q_latent", {rows, head_columns(model_.kv_lora_rank)});
  step_.kernel(prefix + ".absorb_k", "batched_gemm", DType::kBf16,
               {{"batch", heads_, axis::kHeads},
                {"m", rows.size, rows.name},
                {"n", model_.kv_lora_rank},
                {"k", model_.qk_nope_head_dim}},
               {q_, k_b_}, {q_latent});
  const TensorId latent_out =
      step_.activation(prefix + ".latent", {rows, head_columns(model_.kv_lora_rank)});
  if (query > 1) {
    step_.kernel(prefix, "mla_verify", kv_dtype_,
                 {{"batch", batch, rows.name},
                  {"query", query},
                  {"context", context},
                  {"heads", heads_, axis::kHeads},
                  {"kv_lora_rank", model_.kv_lora_rank},
                  {"rope_dim", model_.qk_rope_head_dim}},
                 {q_latent, q_, kv_}, {latent_out});
  } else {
    step_.kernel(prefix, "mla_decode", kv_dtype_,
                 {{"batch", batch, rows.name},
                  {"context", context},
                  {"heads", heads_, axis::kHeads},
                  {"kv_lora_rank", model_.kv_lora_rank},
                  {"rope_dim", model_.qk_rope_head_dim}},
                 {q_latent, q_, kv_}, {latent_out});
  }
  outputs_.emplace_back(step_.activation(prefix + ".out", {rows, head_columns(model_.v_head_dim)}));
  step_.kernel(prefix + ".absorb_v", "batched_gemm", DType::kBf16,
               {{"batch", heads_, axis::kHeads},
                {"m", rows.size, rows.name},
                {"n", model_.v_head_dim},
                {"k", model_.kv_lora_rank}},
               {latent_out, v_b_}, {outputs_.back()});
}

// The whole attention of a layer as one op; it reads every weight that the op-by-op form has.
void Mla::lower_module() {
  if (is_sparse()) {
    throw std::invalid_argument("model \"" + model_.name +
                                "\": mla_form module has no kernel for sparse attention "
                                "(index_topk), expected auto, absorbed or expanded");
  }
  const AxisRef kv_rank{axis::kLatent, model_.kv_lora_rank};
  const AxisRef v_columns = head_columns(model_.v_head_dim);
  const std::int64_t qk_head_dim = model_.qk_nope_head_dim + model_.qk_rope_head_dim;
  const TensorId input = step_.block_norm("attn_norm", false);
  const auto weight = [&](std::string_view name, std::initializer_list<AxisRef> axes) {
    return step_.weight(name, weights_, axes);
  };
  kv_ = step_.tensor("kv_new", kv_dtype_, TensorRole::kKvCache,
                     {step_.tokens(), {axis::kLatent, kv_width_}});
  TensorViews reads{input};
  const AxisRef q_columns = head_columns(qk_head_dim);
  if (model_.q_lora_rank > 0) {
    const AxisRef q_rank{axis::kLatent, model_.q_lora_rank};
    reads.push_back(weight("qkv_a_proj.weight",
                           {{axis::kLatent, model_.q_lora_rank + kv_width_}, step_.hidden_axis()}));
    reads.push_back(step_.weight("q_a_norm.weight", DType::kBf16, {q_rank}));
    reads.push_back(weight("q_b_proj.weight", {q_columns, q_rank}));
  } else {
    reads.push_back(weight("q_proj.weight", {q_columns, step_.hidden_axis()}));
    reads.push_back(weight("kv_a_proj.weight", {{axis::kLatent, kv_width_}, step_.hidden_axis()}));
  }
  reads.push_back(step_.weight("kv_a_norm.weight", DType::kBf16, {kv_rank}));
  reads.push_back(weight("k_b_proj.weight", {head_columns(model_.qk_nope_head_dim), kv_rank}));
  reads.push_back(weight("v_b_proj.weight", {v_columns, kv_rank}));
  reads.push_back(weight("o_proj.weight", {step_.hidden_axis(), v_columns}));
  const TensorId output = step_.block_output("attn_out");
  const auto kv_bits = static_cast<std::int64_t>(8 * bytes_per_element(kv_dtype_));
  if (shape_.prefill_tokens > 0) {
    step_.kernel("mla_prefill", "mla_prefill_module", weights_,
                 {{"batch", shape_.prefill_batch, axis::kSeqs},
                  {"query", shape_.prefill_query},
                  {"context", shape_.prefill_context},
                  {"heads", heads_, axis::kHeads},
                  {"hidden", model_.hidden_size, axis::kHidden},
                  {"q_lora_rank", model_.q_lora_rank},
                  {"kv_lora_rank", model_.kv_lora_rank},
                  {"qk_nope_head_dim", model_.qk_nope_head_dim},
                  {"qk_rope_head_dim", model_.qk_rope_head_dim},
                  {"v_head_dim", model_.v_head_dim},
                  {"kv_bits", kv_bits}},
                 reads, {kv_, output});
  }
  if (shape_.num_decodes > 0) {
    step_.kernel("mla_decode", "mla_decode_module", weights_,
                 {{"batch", shape_.num_decodes * shape_.decode_query, axis::kSeqs},
                  {"context", shape_.decode_context},
                  {"heads", heads_, axis::kHeads},
                  {"hidden", model_.hidden_size, axis::kHidden},
                  {"q_lora_rank", model_.q_lora_rank},
                  {"kv_lora_rank", model_.kv_lora_rank},
                  {"qk_nope_head_dim", model_.qk_nope_head_dim},
                  {"qk_rope_head_dim", model_.qk_rope_head_dim},
                  {"v_head_dim", model_.v_head_dim},
                  {"kv_bits", kv_bits}},
                 reads, {kv_, output});
  }
  step_.finish_block("attn_residual", output);
}

void Mla::lower() {
  if (step_.options.attention_form == AttentionForm::kPacked) {
    throw std::invalid_argument("model \"" + model_.name +
                                "\": attention form packed has no kernel for latent attention, "
                                "expected split");
  }
  const MlaForm form = step_.options.mla_form;
  if (form == MlaForm::kModule) {
    lower_module();
    return;
  }
  project();
  if (shape_.prefill_tokens > 0) {
    const AxisRef rows{axis::kTokens, shape_.prefill_tokens};
    // Sparse attention gathers latents for each row, which only the absorbed form can use.
    if (form == MlaForm::kAbsorbed || is_sparse()) {
      const std::int64_t context = shape_.prefill_context + (shape_.prefill_query + 1) / 2;
      lower_absorbed("mla_prefill", rows, rows.size, 1, attended(context));
    } else {
      lower_expanded("mla_prefill", rows,
                     {.batch = {"batch", shape_.prefill_batch, axis::kSeqs},
                      .query = shape_.prefill_query,
                      .context = shape_.prefill_context,
                      .cached = shape_.prefill_cached});
    }
  }
  if (shape_.num_decodes > 0) {
    const AxisRef rows{axis::kSeqs, shape_.decode_rows};
    if (form == MlaForm::kExpanded) {
      const std::int64_t context = attended(shape_.decode_context) - shape_.decode_query;
      lower_expanded("mla_decode", rows,
                     {.batch = {"batch", shape_.num_decodes, axis::kSeqs},
                      .query = shape_.decode_query,
                      .context = context,
                      .cached = shape_.num_decodes * context});
    } else if (is_sparse()) {  // each row picks latents of its own
      lower_absorbed("mla_decode", rows, shape_.num_decodes * shape_.decode_query, 1,
                     attended(shape_.decode_context));
    } else {
      lower_absorbed("mla_decode", rows, shape_.num_decodes, shape_.decode_query,
                     shape_.decode_context);
    }
  }
  const AxisRef columns = head_columns(model_.v_head_dim);
  const TensorId output = step_.block_output("attn_out");
  step_.linear({.name = "o_proj",
                .inputs = step_.quantized("o_quant", outputs_, step_.tokens(), columns),
                .rows = step_.tokens(),
                .n = step_.hidden_axis(),
                .k = columns,
                .weights = weights_,
                .output = output});
  step_.finish_block("attn_residual", output);
}

}  // namespace

void lower_mla(Lowering& step, const LayerConfig& /*layer*/) { Mla(step).lower(); }

}  // namespace orrery
