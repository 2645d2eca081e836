#pragma once

// Small models of each family, for laws and golden plans.

#include "sim/model/model.h"

namespace orrery::testing {

inline ConfigFields small_llama_fields() {
  return {{"model_type", "llama"},
          {"hidden_size", std::int64_t{256}},
          {"vocab_size", std::int64_t{1000}},
          {"num_hidden_layers", std::int64_t{4}},
          {"num_attention_heads", std::int64_t{8}},
          {"num_key_value_heads", std::int64_t{2}},
          {"intermediate_size", std::int64_t{512}},
          {"tie_word_embeddings", false}};
}

// One dense layer, then three with 16 routed experts (top-4 of 2 groups) and a shared one; MLA.
inline ConfigFields small_deepseek_fields() {
  return {{"model_type", "deepseek_v3"},
          {"hidden_size", std::int64_t{256}},
          {"vocab_size", std::int64_t{1000}},
          {"num_hidden_layers", std::int64_t{4}},
          {"num_attention_heads", std::int64_t{8}},
          {"num_key_value_heads", std::int64_t{8}},
          {"intermediate_size", std::int64_t{512}},
          {"q_lora_rank", std::int64_t{96}},
          {"kv_lora_rank", std::int64_t{64}},
          {"qk_nope_head_dim", std::int64_t{32}},
          {"qk_rope_head_dim", std::int64_t{16}},
          {"v_head_dim", std::int64_t{32}},
          {"first_k_dense_replace", std::int64_t{1}},
          {"n_routed_experts", std::int64_t{16}},
          {"num_experts_per_tok", std::int64_t{4}},
          {"moe_intermediate_size", std::int64_t{128}},
          {"n_shared_experts", std::int64_t{1}},
          {"n_group", std::int64_t{2}},
          {"topk_group", std::int64_t{1}}};
}

inline ModelConfig small_llama() { return model_config("small-llama", small_llama_fields()); }
inline ModelConfig small_deepseek() {
  return model_config("small-deepseek", small_deepseek_fields());
}

inline constexpr Precision kFp8Precision{.weights = DType::kFp8,
                                         .expert_weights = {},
                                         .activations = DType::kFp8,
                                         .kv_cache = DType::kFp8,
                                         .lm_head = DType::kBf16};

}  // namespace orrery::testing
