#pragma once

// What a config.json does not say because it is fixed in the architecture's code: one line for each
// model_type.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/model/config_reader.h"
#include "sim/model/model.h"

namespace orrery {

struct Architecture {
  struct Default {
    Field field;
    std::int64_t value = 0;  // 0: an entry that is not used
  };

  std::string_view model_type;
  AttentionKind attention = AttentionKind::kGqa;
  LayerForm layer_form = LayerForm::kNormBefore;
  bool is_moe = false;
  bool has_qkv_bias = false;        // biases on q, k, v whatever attention_bias says
  bool has_o_bias = false;          // and on o_proj
  bool o_proj_follows_bias = true;  // attention_bias also puts a bias on o_proj
  bool has_qk_norm = false;
  bool has_rope = true;
  bool has_router_bias = false;
  bool has_moe_bias = false;
  bool has_shared_expert = false;  // one shared expert of the routed experts' size
  // Routing, where the config has no scoring_func and norm_topk_prob. Sigmoid scores with a router
  // bias: the bias corrects the choice alone (e_score_correction_bias).
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  bool norm_topk_prob = true;
  bool weighs_expert_inputs = false;
  bool has_linear_attention = false;  // gated delta nets, with gates behind the other layers too
  bool has_attn_output_gate = false;  // where the config does not say
  bool has_mamba2 = false;            // in layers of type mamba
  bool has_shared_expert_gate = false;
  bool has_ffn_gate = true;
  bool has_silu = true;
  bool has_ffn_bias = false;
  bool scales_logits = false;
  bool ties_word_embeddings = false;  // where the config does not say
  bool has_layer_norm = false;        // in place of RMS norms
  // Each so many-th layer attends to all tokens, the others to a window; 0: the config says.
  std::int64_t window_pattern = 0;
  std::int64_t ffn_multiple = 0;  // of hidden_size, where the config has no intermediate_size
  std::int64_t matrices_of_intermediate_size = 1;  // 2: gate and up together have that many columns
  std::array<Default, 6> defaults{};               // of fields that files on the hub leave out
  std::string_view note;                           // what of it is not simulated as it is
  // What flags of its config change.
  void (*adjust)(const ConfigReader& reader, ModelConfig& model) = nullptr;
  // Its layers, where they are listed in a way of its own.
  std::vector<LayerConfig> (*layers)(const ConfigReader& reader,
                                     const ModelConfig& model) = nullptr;
};

// By model_type, else by that of the text part of a model that sees or hears.
// Throws std::invalid_argument: without model_type, or for one that is not known it names the
// block that is missing here, as far as the config's fields tell.
const Architecture& architecture_of(const ConfigReader& reader);

}  // namespace orrery
