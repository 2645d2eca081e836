#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "sim/model/config_reader.h"
#include "sim/model/model.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

constexpr std::string_view kLinearAttention = "linear_attention";  // of layer_types

// What a config.json does not say because it is fixed in the architecture's code.
struct Architecture {
  std::string_view model_type;
  AttentionKind attention = AttentionKind::kGqa;
  bool is_moe = false;
  bool has_qkv_bias = false;        // biases on q, k, v whatever attention_bias says
  bool o_proj_follows_bias = true;  // attention_bias also puts a bias on o_proj
  bool has_qk_norm = false;
  bool has_router_bias = false;
  bool has_moe_bias = false;
  bool has_shared_expert = false;  // one shared expert of the routed experts' size
  // Routing, where the config has no scoring_func and norm_topk_prob. Sigmoid scores with a router
  // bias: the bias corrects the choice alone (e_score_correction_bias).
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  bool norm_topk_prob = true;
  bool weighs_expert_inputs = false;
  bool has_linear_attention = false;  // gated delta nets, with gates behind the other layers too
  bool has_shared_expert_gate = false;
};

// One line per model_type; the classes are those of Hugging Face transformers and of vLLM.
constexpr auto kArchitectures = std::to_array<Architecture>({
    {.model_type = "llama"},
    {.model_type = "mistral"},
    {.model_type = "qwen2", .has_qkv_bias = true, .o_proj_follows_bias = false},
    {.model_type = "qwen3", .has_qk_norm = true},
    {.model_type = "qwen3_moe", .is_moe = true, .has_qk_norm = true},
    {.model_type = "mixtral", .is_moe = true},
    {.model_type = "deepseek_v2", .attention = AttentionKind::kMla, .is_moe = true},
    {.model_type = "deepseek_v3",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "deepseek_v32",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "kimi_k2",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "kimi_k25",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "glm_moe_dsa",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "glm4_moe",
     .is_moe = true,
     .o_proj_follows_bias = false,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "gpt_oss", .is_moe = true, .has_router_bias = true, .has_moe_bias = true},
    {.model_type = "llama4",
     .is_moe = true,
     .has_shared_expert = true,
     .scoring_func = ScoringFunc::kSigmoid,
     .norm_topk_prob = false,
     .weighs_expert_inputs = true},
    {.model_type = "llama4_text",
     .is_moe = true,
     .has_shared_expert = true,
     .scoring_func = ScoringFunc::kSigmoid,
     .norm_topk_prob = false,
     .weighs_expert_inputs = true},
    {.model_type = "minimax_m2",
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "step3_text", .attention = AttentionKind::kMfa, .is_moe = true},
    {.model_type = "step3p7",
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "qwen3_next",
     .is_moe = true,
     .has_qk_norm = true,
     .has_linear_attention = true,
     .has_shared_expert_gate = true},
    {.model_type = "qwen3_5", .has_qk_norm = true, .has_linear_attention = true},
    {.model_type = "qwen3_5_text", .has_qk_norm = true, .has_linear_attention = true},
    {.model_type = "qwen3_5_moe",
     .is_moe = true,
     .has_qk_norm = true,
     .has_linear_attention = true,
     .has_shared_expert_gate = true},
    {.model_type = "qwen3_5_moe_text",
     .is_moe = true,
     .has_qk_norm = true,
     .has_linear_attention = true,
     .has_shared_expert_gate = true},
});

const Architecture& architecture(const ConfigReader& reader) {
  const std::string model_type = reader.text("model_type");
  std::vector<std::string_view> known;
  for (const Architecture& entry : kArchitectures) {
    if (entry.model_type == model_type) return entry;
    known.push_back(entry.model_type);
  }
  if (model_type.empty()) reader.fail("missing model_type; a config.json names its architecture");
  std::string names;
  for (const std::string_view name : known) names.append(names.empty() ? "" : ", ").append(name);
  reader.fail("model_type \"" + shown(model_type) + "\" has no lowering here, expected one of " +
              names + "; the nearest is \"" + nearest(model_type, known) + "\"");
}

void read_attention(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  model.attention_bias = arch.has_qkv_bias || reader.flag("attention_bias", false);
  model.o_proj_bias = arch.o_proj_follows_bias && reader.flag("attention_bias", false);
  model.use_qk_norm = arch.has_qk_norm || reader.flag("use_qk_norm", false);
  model.num_attention_heads = reader.at(Field::kNumAttentionHeads);
  const std::int64_t heads = model.num_attention_heads;

  if (arch.attention == AttentionKind::kMla) {
    reader.require(
        {Field::kKvLoraRank, Field::kQkNopeHeadDim, Field::kQkRopeHeadDim, Field::kVHeadDim});
    model.q_lora_rank = reader.get(Field::kQLoraRank, 0);
    model.kv_lora_rank = reader.at(Field::kKvLoraRank);
    model.qk_nope_head_dim = reader.at(Field::kQkNopeHeadDim);
    model.qk_rope_head_dim = reader.at(Field::kQkRopeHeadDim);
    model.v_head_dim = reader.at(Field::kVHeadDim);
    // The latent cache has one head; configs fill these two with unrelated values.
    model.num_key_value_heads = 1;
    model.head_dim = model.qk_nope_head_dim + model.qk_rope_head_dim;
    if (reader.find(Field::kIndexTopk)) {
      reader.require({Field::kIndexNHeads, Field::kIndexHeadDim, Field::kQLoraRank});
      model.index_topk = reader.at(Field::kIndexTopk);
      model.index_n_heads = reader.at(Field::kIndexNHeads);
      model.index_head_dim = reader.at(Field::kIndexHeadDim);
    }
    return;
  }

  model.num_key_value_heads = reader.get(Field::kNumKeyValueHeads, heads);
  if (heads % model.num_key_value_heads != 0) {
    reader.fail("num_attention_heads is " + std::to_string(heads) +
                ", not a multiple of num_key_value_heads, " +
                std::to_string(model.num_key_value_heads));
  }
  if (arch.attention == AttentionKind::kMfa) {
    reader.require({Field::kShareQDim, Field::kHeadDim});
    model.share_q_dim = reader.at(Field::kShareQDim);
  }
  if (!reader.find(Field::kHeadDim) && model.hidden_size % heads != 0) {
    reader.fail("there is no head_dim and hidden_size, " + std::to_string(model.hidden_size) +
                ", is not a multiple of num_attention_heads, " + std::to_string(heads));
  }
  model.head_dim = reader.get(Field::kHeadDim, model.hidden_size / heads);
  model.attn_output_gate = reader.flag("attn_output_gate", arch.has_linear_attention);
}

void read_linear_attention(const ConfigReader& reader, const Architecture& arch,
                           ModelConfig& model) {
  if (!arch.has_linear_attention) return;
  reader.require({Field::kLinearNumKeyHeads, Field::kLinearNumValueHeads, Field::kLinearKeyHeadDim,
                  Field::kLinearValueHeadDim, Field::kLinearConvKernelDim});
  model.linear_num_key_heads = reader.at(Field::kLinearNumKeyHeads);
  model.linear_num_value_heads = reader.at(Field::kLinearNumValueHeads);
  model.linear_key_head_dim = reader.at(Field::kLinearKeyHeadDim);
  model.linear_value_head_dim = reader.at(Field::kLinearValueHeadDim);
  model.linear_conv_kernel_dim = reader.at(Field::kLinearConvKernelDim);
  if (model.linear_num_value_heads % model.linear_num_key_heads != 0) {
    reader.fail("linear_num_value_heads is " + std::to_string(model.linear_num_value_heads) +
                ", not a multiple of linear_num_key_heads, " +
                std::to_string(model.linear_num_key_heads));
  }
  if (const std::string name = reader.text("mamba_ssm_dtype"); name == "bfloat16") {
    model.mamba_ssm_dtype = DType::kBf16;
  } else if (!name.empty() && name != "float32") {
    reader.fail("mamba_ssm_dtype is \"" + shown(name) + "\", expected float32 or bfloat16");
  }
}

// The matrices of value heads, and in bf16 the columns of the tokens that the convolution sees
// before the next.
std::int64_t delta_net_state_bytes(const ModelConfig& model) {
  const std::int64_t values = model.linear_num_value_heads * model.linear_value_head_dim;
  const std::int64_t channels = 2 * model.linear_num_key_heads * model.linear_key_head_dim + values;
  const std::int64_t element = model.mamba_ssm_dtype == DType::kFp32 ? 4 : 2;
  return element * values * model.linear_key_head_dim +
         2 * channels * (model.linear_conv_kernel_dim - 1);
}

void read_experts(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  if (!arch.is_moe) return;
  reader.require({Field::kNumExperts, Field::kNumExpertsPerTok});
  model.num_experts = reader.at(Field::kNumExperts);
  model.num_experts_per_tok = reader.at(Field::kNumExpertsPerTok);
  if (model.num_experts_per_tok > model.num_experts) {
    reader.fail("num_experts_per_tok is " + std::to_string(model.num_experts_per_tok) +
                ", more than the " + std::to_string(model.num_experts) + " experts");
  }
  model.moe_intermediate_size =
      reader.get(Field::kMoeIntermediateSize, reader.get(Field::kIntermediateSize, 0));
  if (model.moe_intermediate_size == 0) reader.require({Field::kMoeIntermediateSize});
  const std::int64_t num_shared =
      reader.get(Field::kNumSharedExperts, arch.has_shared_expert ? 1 : 0);
  model.shared_expert_intermediate_size =
      reader.get(Field::kSharedExpertIntermediateSize, num_shared * model.moe_intermediate_size);
  model.n_group = reader.get(Field::kNGroup, 1);
  model.topk_group = reader.get(Field::kTopkGroup, model.n_group);
  if (model.num_experts % model.n_group != 0 || model.topk_group > model.n_group) {
    reader.fail("n_group is " + std::to_string(model.n_group) + " and topk_group " +
                std::to_string(model.topk_group) + ", expected n_group to divide the " +
                std::to_string(model.num_experts) + " experts and topk_group <= n_group");
  }
  model.has_shared_expert_gate =
      arch.has_shared_expert_gate && model.shared_expert_intermediate_size > 0;
  model.moe_bias = arch.has_moe_bias;
  model.router_bias = arch.has_router_bias;
}

void read_routing(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  if (!arch.is_moe) return;
  model.scoring_func = arch.scoring_func;
  if (const std::string name = reader.text("scoring_func"); name == "softmax") {
    model.scoring_func = ScoringFunc::kSoftmax;
  } else if (name == "sigmoid") {
    model.scoring_func = ScoringFunc::kSigmoid;
  } else if (!name.empty()) {
    reader.fail("scoring_func is \"" + shown(name) + "\", expected softmax or sigmoid");
  }
  model.norm_topk_prob =
      reader.flag("norm_topk_prob", reader.flag("norm_expert_weight", arch.norm_topk_prob));
  model.routed_scaling_factor =
      reader.number("routed_scaling_factor", reader.number("moe_router_scaling_factor", 1));
  model.has_correction_bias = model.router_bias && model.scoring_func == ScoringFunc::kSigmoid;
  model.weighs_expert_inputs = arch.weighs_expert_inputs;
}

// Whether layer `i` has routed experts, for each way in which configs say so.
std::vector<bool> moe_layers(const ConfigReader& reader, const Architecture& arch,
                             std::int64_t num_layers) {
  std::vector<bool> result(static_cast<std::size_t>(num_layers), arch.is_moe);
  if (!arch.is_moe) return result;

  const auto listed = [&](std::string_view name, const std::vector<std::int64_t>& layers,
                          bool is_moe) {
    for (const std::int64_t layer : layers) {
      if (layer < 0 || layer >= num_layers) {
        reader.fail("field " + std::string(name) + " names layer " + std::to_string(layer) +
                    ", expected layers from 0 to " + std::to_string(num_layers - 1));
      }
      result[static_cast<std::size_t>(layer)] = is_moe;
    }
  };
  if (const auto layers = reader.integers("moe_layers_enum")) {
    result.assign(result.size(), false);
    listed("moe_layers_enum", *layers, true);
    return result;
  }

  const std::int64_t first = reader.get(Field::kFirstKDenseReplace, 0);
  const std::int64_t freq = reader.get(Field::kMoeLayerFreq, 1);
  // Two names of one rule: every step-th layer is MoE, counted from the end of the first step.
  const std::int64_t step =
      reader.get(Field::kInterleaveMoeLayerStep, reader.get(Field::kDecoderSparseStep, 1));
  if (first > num_layers) {
    reader.fail("first_k_dense_replace is " + std::to_string(first) + ", more than the " +
                std::to_string(num_layers) + " layers of num_hidden_layers");
  }
  for (std::int64_t i = 0; i < num_layers; ++i) {
    result[static_cast<std::size_t>(i)] = i >= first && i % freq == 0 && (i + 1) % step == 0;
  }
  if (const auto layers = reader.integers("mlp_only_layers")) {
    listed("mlp_only_layers", *layers, false);
  }
  return result;
}

// Which layers are linear attention: as layer_types says, else all but every interval-th.
std::vector<bool> linear_layers(const ConfigReader& reader, const Architecture& arch,
                                std::int64_t num_layers) {
  std::vector<bool> result(static_cast<std::size_t>(num_layers), false);
  if (!arch.has_linear_attention) return result;
  const std::vector<std::string> types = reader.texts("layer_types");
  if (types.empty()) reader.require({Field::kFullAttentionInterval});
  const std::int64_t interval = reader.get(Field::kFullAttentionInterval, 1);
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = types.empty() ? (static_cast<std::int64_t>(i) + 1) % interval != 0
                              : i < types.size() && types[i] == kLinearAttention;
  }
  return result;
}

// The window of each layer; 0 is full attention.
std::vector<std::int64_t> windows(const ConfigReader& reader, const Architecture& arch,
                                  std::int64_t num_layers) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(num_layers), 0);
  const std::vector<std::string> types = reader.texts("layer_types");
  if (!types.empty()) {
    if (types.size() != result.size()) {
      reader.fail("layer_types has " + std::to_string(types.size()) +
                  " entries, expected one for each of the " + std::to_string(num_layers) +
                  " layers of num_hidden_layers");
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] == "full_attention") continue;
      if (types[i] == kLinearAttention && arch.has_linear_attention) continue;
      if (types[i] == "sliding_attention") {
        result[i] = reader.at(Field::kSlidingWindow);
      } else if (types[i] == "chunked_attention") {
        result[i] = reader.at(Field::kAttentionChunkSize);
      } else {
        reader.fail("layer " + std::to_string(i) + " is of type \"" + types[i] +
                    "\", which has no block here; known are full_attention, sliding_attention, "
                    "chunked_attention");
      }
    }
    return result;
  }
  // Llama 4 attends inside chunks except in every fourth layer (Llama4TextConfig:
  // no_rope_layer_interval = 4). A chunk is counted as a window, which is its upper bound.
  if (const auto chunk = reader.find(Field::kAttentionChunkSize)) {
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = (i + 1) % 4 == 0 ? 0 : *chunk;
  }
  if (const auto window = reader.find(Field::kSlidingWindow);
      window && reader.flag("use_sliding_window", true)) {
    // Qwen2's max_window_layers: the first layers keep full attention.
    const std::int64_t first =
        reader.flag("use_sliding_window", false) ? reader.get(Field::kMaxWindowLayers, 0) : 0;
    for (std::int64_t i = first; i < num_layers; ++i) result[static_cast<std::size_t>(i)] = *window;
  }
  return result;
}

}  // namespace

ModelConfig model_config(std::string_view name, const ConfigFields& fields) {
  const ConfigReader reader(name, fields);
  const Architecture& arch = architecture(reader);
  reader.require(
      {Field::kHiddenSize, Field::kVocabSize, Field::kNumHiddenLayers, Field::kNumAttentionHeads});
  ModelConfig model;
  model.name = name;
  model.model_type = reader.text("model_type");
  model.hidden_size = reader.at(Field::kHiddenSize);
  model.vocab_size = reader.at(Field::kVocabSize);
  model.tie_word_embeddings = reader.flag("tie_word_embeddings", false);
  model.max_position_embeddings = reader.get(Field::kMaxPositionEmbeddings, 0);
  const std::int64_t num_layers = reader.at(Field::kNumHiddenLayers);
  const std::vector<std::int64_t> window = windows(reader, arch, num_layers);
  const std::vector<bool> is_linear = linear_layers(reader, arch, num_layers);
  read_attention(reader, arch, model);
  read_linear_attention(reader, arch, model);
  read_experts(reader, arch, model);
  read_routing(reader, arch, model);

  const std::vector<bool> is_moe = moe_layers(reader, arch, num_layers);
  for (std::size_t i = 0; i < is_moe.size(); ++i) {
    LayerConfig layer{.attention = arch.attention, .sliding_window = window[i]};
    if (is_linear[i]) {
      layer.attention = AttentionKind::kDeltaNet;
      layer.state_bytes = delta_net_state_bytes(model);
    }
    if (is_moe[i]) {
      layer.ffn = FfnKind::kMoe;
    } else {
      layer.intermediate_size =
          reader.get(Field::kIntermediateSizeMlp, reader.get(Field::kIntermediateSize, 0));
      if (layer.intermediate_size == 0) reader.require({Field::kIntermediateSize});
    }
    model.layers.push_back(layer);
  }
  const double expert_elements = 3.0 * static_cast<double>(model.num_experts) *
                                 static_cast<double>(model.moe_intermediate_size) *
                                 static_cast<double>(model.hidden_size * num_layers);
  if (expert_elements > 1e15) {
    reader.fail(
        "the routed experts hold more than 10^15 parameters; check n_routed_experts, "
        "moe_intermediate_size and num_hidden_layers");
  }
  return model;
}

}  // namespace orrery
