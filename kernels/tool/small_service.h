#pragma once

// The model that checks of small services serve.

#include <cstdint>
#include <string>

#include "sim/model/model.h"

namespace orrery::tool {

inline constexpr std::int64_t kServedBlockTokens = 16;
inline constexpr std::int64_t kServedVocab = 1006;

// 8 layers, so that KV blocks of some move while others compute.
inline ModelConfig small_service_model(std::int64_t num_kv_heads) {
  const ConfigFields fields{{"model_type", std::string("llama")},
                            {"hidden_size", std::int64_t{512}},
                            {"vocab_size", kServedVocab},
                            {"num_hidden_layers", std::int64_t{8}},
                            {"num_attention_heads", std::int64_t{8}},
                            {"num_key_value_heads", num_kv_heads},
                            {"head_dim", std::int64_t{64}},
                            {"intermediate_size", std::int64_t{1024}},
                            {"tie_word_embeddings", false}};
  return model_config("small", fields);
}

}  // namespace orrery::tool
