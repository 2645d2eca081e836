#include "sim/model/architectures.h"

#include <algorithm>
#include <string>
#include <vector>

#include "sim/model/layer_lists.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

constexpr std::string_view kTextPart = "its vision part is not simulated: text alone";
constexpr std::string_view kFactors =
    "its factors on embeddings, residuals and scores are priced as nothing";
constexpr std::string_view kPositions = "embeddings of positions are left out";
constexpr std::string_view kAlibi = "biases of attention by distance (ALiBi) are priced as nothing";
constexpr std::string_view kWholeNorm =
    "norms of queries and keys over all heads are priced as of each head";

// Gemma3TextConfig of Hugging Face transformers: files on the hub hold what differs from it.
constexpr std::array<Architecture::Default, 6> kGemma3{{{Field::kVocabSize, 262208},
                                                        {Field::kNumAttentionHeads, 8},
                                                        {Field::kNumKeyValueHeads, 4},
                                                        {Field::kHeadDim, 256},
                                                        {Field::kSlidingWindow, 4096},
                                                        {Field::kMaxPositionEmbeddings, 131072}}};

void share_parallel_norm(const ConfigReader& /*reader*/, ModelConfig& model) {
  model.has_ffn_norm = false;
}

// Falcon-40B and 180B have new_decoder_architecture: grouped heads and a norm for each block;
// Falcon-7B one key and value head and one norm.
void adjust_falcon(const ConfigReader& reader, ModelConfig& model) {
  const bool is_new = reader.flag("new_decoder_architecture", false);
  if (!is_new) {
    model.num_key_value_heads = reader.flag("multi_query", true) ? 1 : model.num_attention_heads;
  }
  if (!is_new && !reader.flag("parallel_attn", true)) model.layer_form = LayerForm::kNormBefore;
  model.has_ffn_norm = is_new;
  const bool has_bias = reader.flag("bias", false);
  model.attention_bias = model.o_proj_bias = model.ffn_bias = has_bias;
  if (reader.flag("alibi", false)) model.has_rope = false;
}

void adjust_stablelm(const ConfigReader& reader, ModelConfig& model) {
  model.attention_bias = reader.flag("use_qkv_bias", false);
  if (!reader.flag("use_parallel_residual", false)) return;
  model.layer_form = LayerForm::kParallel;
  model.has_ffn_norm = false;
}

void adjust_granite_hybrid(const ConfigReader& reader, ModelConfig& model) {
  model.has_rope = reader.text("position_embedding_type") != "nope";
}

void adjust_searched(const ConfigReader& reader, ModelConfig& model) {
  model.num_key_value_heads = searched_kv_heads(reader, model.num_attention_heads);
}

// MPT names its grouped heads and ALiBi in attn_config.
void adjust_mpt(const ConfigReader& reader, ModelConfig& model) {
  const bool has_bias = !reader.flag("no_bias", false);
  model.attention_bias = model.o_proj_bias = model.ffn_bias = has_bias;
  model.has_rope =
      !reader.flag("attn_config.alibi", false) && reader.flag("attn_config.rope", false);
}

void adjust_big_code(const ConfigReader& reader, ModelConfig& model) {
  if (reader.flag("multi_query", true)) model.num_key_value_heads = 1;
}

// BailingMoeV2: the bias that corrects the choice of experts may be switched off.
void adjust_bailing(const ConfigReader& reader, ModelConfig& model) {
  model.attention_bias = reader.flag("use_qkv_bias", false);
  model.o_proj_bias = reader.flag("use_bias", false);
}

// Of MiniCPM-V each version has another text part: Llama 3, Qwen2, Qwen3.
void adjust_minicpmv(const ConfigReader& reader, ModelConfig& model) {
  const double version = reader.number("version", 2.6);
  if (version != 2.5 && version != 2.6 && version != 4.5) {
    reader.fail("version is " + format_number(version) + ", expected 2.5, 2.6 or 4.5");
  }
  model.attention_bias = version == 2.6;
  model.use_qk_norm = version == 4.5;
}

// MiniCPM4 may attend to chosen blocks of long contexts alone.
void adjust_minicpm(const ConfigReader& reader, ModelConfig& model) {
  if (!reader.has("sparse_config")) return;
  model.notes.emplace_back("its sparse attention to long contexts is simulated as full attention");
}

// OPT-350m has embeddings narrower than its layers, and norms behind blocks.
void adjust_opt(const ConfigReader& reader, ModelConfig& model) {
  const std::int64_t columns = reader.whole("word_embed_proj_dim").value_or(model.hidden_size);
  if (columns != model.hidden_size) {
    reader.fail("word_embed_proj_dim is " + std::to_string(columns) + " and hidden_size " +
                std::to_string(model.hidden_size) +
                "; projections between embeddings and layers have no block here");
  }
  if (!reader.flag("do_layer_norm_before", true)) model.layer_form = LayerForm::kNormAfter;
}

void adjust_hunyuan(const ConfigReader& reader, ModelConfig& /*model*/) {
  if (reader.flag("use_cla", false)) {
    reader.fail("use_cla is true; keys and values that layers share have no block here");
  }
}

void adjust_chatglm(const ConfigReader& reader, ModelConfig& model) {
  model.attention_bias = reader.flag("add_qkv_bias", false);
  model.o_proj_bias = model.ffn_bias = reader.flag("add_bias_linear", false);
}

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
    {.model_type = "glm4_moe_lite",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "glm_moe_dsa",
     .attention = AttentionKind::kMla,
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "minicpm3",
     .attention = AttentionKind::kMla,
     .ties_word_embeddings = true,
     .note = kFactors},
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
    // Text alone: what they see or hear is noted.
    {.model_type = "mistral3", .note = kTextPart},
    {.model_type = "qwen2_vl",
     .has_qkv_bias = true,
     .o_proj_follows_bias = false,
     .note = kTextPart},
    {.model_type = "qwen2_5_vl",
     .has_qkv_bias = true,
     .o_proj_follows_bias = false,
     .note = kTextPart},
    {.model_type = "qwen2_5_omni_text", .has_qkv_bias = true, .o_proj_follows_bias = false},
    {.model_type = "qwen3_omni_moe_text", .is_moe = true, .has_qk_norm = true},
    {.model_type = "qwen3_vl", .has_qk_norm = true, .note = kTextPart},
    {.model_type = "qwen3_vl_moe", .is_moe = true, .has_qk_norm = true, .note = kTextPart},
    {.model_type = "glm4v_moe",
     .is_moe = true,
     .o_proj_follows_bias = false,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid,
     .note = kTextPart},
    // As Llama, with biases, norms of heads or tied embeddings.
    {.model_type = "phi3"},
    {.model_type = "phi3_v", .note = kTextPart},
    {.model_type = "phi4mm",
     .note = "its vision and speech parts and their LoRA weights are left out: text alone"},
    {.model_type = "ministral3"},
    {.model_type = "exaone"},
    {.model_type = "minicpm",
     .ties_word_embeddings = true,
     .note = kFactors,
     .adjust = adjust_minicpm},
    {.model_type = "minicpmv", .note = kTextPart, .adjust = adjust_minicpmv},
    {.model_type = "dots_ocr",
     .has_qkv_bias = true,
     .o_proj_follows_bias = false,
     .note = kTextPart},
    {.model_type = "mimo",
     .has_qkv_bias = true,
     .o_proj_follows_bias = false,
     .note = "multi-token prediction is left out"},
    {.model_type = "qwen", .has_qkv_bias = true, .matrices_of_intermediate_size = 2},
    {.model_type = "chatglm", .adjust = adjust_chatglm},
    {.model_type = "olmo", .has_layer_norm = true},
    {.model_type = "seed_oss", .has_qkv_bias = true},
    {.model_type = "smollm3", .ties_word_embeddings = true},
    {.model_type = "internlm2"},
    {.model_type = "internlm3"},
    {.model_type = "baichuan"},
    {.model_type = "ernie4_5", .ties_word_embeddings = true},
    {.model_type = "hunyuan_v1_dense", .has_qk_norm = true, .adjust = adjust_hunyuan},
    {.model_type = "glm", .has_qkv_bias = true, .o_proj_follows_bias = false},
    {.model_type = "granite", .scales_logits = true, .note = kFactors},
    {.model_type = "exaone4", .layer_form = LayerForm::kNormAfter, .has_qk_norm = true},
    {.model_type = "olmo2",
     .layer_form = LayerForm::kNormAfter,
     .has_qk_norm = true,
     .note = kWholeNorm},
    {.model_type = "olmo3",
     .layer_form = LayerForm::kNormAfter,
     .has_qk_norm = true,
     .note = kWholeNorm},
    {.model_type = "glm4",
     .layer_form = LayerForm::kNormAround,
     .has_qkv_bias = true,
     .o_proj_follows_bias = false},
    {.model_type = "glm4v",
     .layer_form = LayerForm::kNormAround,
     .has_qkv_bias = true,
     .o_proj_follows_bias = false,
     .note = kTextPart},
    {.model_type = "gemma", .has_silu = false, .ties_word_embeddings = true, .note = kFactors},
    {.model_type = "gemma2",
     .layer_form = LayerForm::kNormAround,
     .has_silu = false,
     .scales_logits = true,
     .ties_word_embeddings = true,
     .window_pattern = 2,
     .note = "soft caps of attention scores and the factor on embeddings are priced as nothing"},
    {.model_type = "gemma3_text",
     .layer_form = LayerForm::kNormAround,
     .has_qk_norm = true,
     .has_silu = false,
     .ties_word_embeddings = true,
     .window_pattern = 6,
     .defaults = kGemma3,
     .note = kFactors},
    {.model_type = "gemma3",
     .layer_form = LayerForm::kNormAround,
     .has_qk_norm = true,
     .has_silu = false,
     .ties_word_embeddings = true,
     .window_pattern = 6,
     .defaults = kGemma3,
     .note = "its vision part and the factor on embeddings are left out: text alone"},
    {.model_type = "cohere",
     .layer_form = LayerForm::kParallel,
     .scales_logits = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .adjust = share_parallel_norm},
    {.model_type = "cohere2",
     .layer_form = LayerForm::kParallel,
     .scales_logits = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .window_pattern = 4,
     .adjust = share_parallel_norm},
    // Without a gate in the FFN.
    {.model_type = "nemotron", .has_ffn_gate = false, .has_layer_norm = true},
    {.model_type = "arcee", .has_ffn_gate = false},
    {.model_type = "apertus", .has_qk_norm = true, .has_ffn_gate = false},
    {.model_type = "starcoder2",
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true},
    {.model_type = "falcon",
     .layer_form = LayerForm::kParallel,
     .has_ffn_gate = false,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .adjust = adjust_falcon},
    {.model_type = "phi",
     .layer_form = LayerForm::kParallel,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .has_layer_norm = true,
     .adjust = share_parallel_norm},
    {.model_type = "gpt_neox",
     .layer_form = LayerForm::kParallel,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .has_layer_norm = true},
    {.model_type = "gpt2",
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_rope = false,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .note = kPositions},
    {.model_type = "gpt_bigcode",
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_rope = false,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .note = kPositions,
     .adjust = adjust_big_code},
    {.model_type = "opt",
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_rope = false,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .note = kPositions,
     .adjust = adjust_opt},
    {.model_type = "bloom",
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_rope = false,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .note = kAlibi},
    {.model_type = "mpt",
     .has_ffn_gate = false,
     .ties_word_embeddings = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .note = kAlibi,
     .adjust = adjust_mpt},
    {.model_type = "gptj",
     .layer_form = LayerForm::kParallel,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .adjust = share_parallel_norm},
    {.model_type = "codegen",
     .layer_form = LayerForm::kParallel,
     .has_ffn_gate = false,
     .has_ffn_bias = true,
     .has_layer_norm = true,
     .ffn_multiple = 4,
     .adjust = share_parallel_norm},
    {.model_type = "stablelm", .has_layer_norm = true, .adjust = adjust_stablelm},
    {.model_type = "stablelm_epoch", .has_layer_norm = true, .adjust = adjust_stablelm},
    // Mixtures of experts.
    {.model_type = "qwen2_moe",
     .is_moe = true,
     .has_qkv_bias = true,
     .o_proj_follows_bias = false,
     .norm_topk_prob = false,
     .has_shared_expert_gate = true},
    {.model_type = "olmoe",
     .is_moe = true,
     .has_qk_norm = true,
     .norm_topk_prob = false,
     .note = kWholeNorm},
    {.model_type = "flex_olmo",
     .layer_form = LayerForm::kNormAfter,
     .is_moe = true,
     .has_qk_norm = true,
     .norm_topk_prob = false,
     .note = kWholeNorm},
    {.model_type = "phimoe",
     .is_moe = true,
     .has_qkv_bias = true,
     .has_o_bias = true,
     .has_layer_norm = true},
    {.model_type = "dbrx", .is_moe = true, .has_layer_norm = true},
    {.model_type = "deepseek", .is_moe = true, .norm_topk_prob = false},
    {.model_type = "dots1",
     .is_moe = true,
     .has_qk_norm = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "exaone_moe",
     .is_moe = true,
     .has_qk_norm = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "solar_open",
     .is_moe = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid},
    {.model_type = "afmoe",
     .layer_form = LayerForm::kNormAround,
     .is_moe = true,
     .has_qk_norm = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid,
     .has_attn_output_gate = true,
     .note = kFactors},
    {.model_type = "bailing_moe", .is_moe = true, .adjust = adjust_bailing},
    {.model_type = "bailing_moe_v2",
     .is_moe = true,
     .has_qk_norm = true,
     .has_router_bias = true,
     .scoring_func = ScoringFunc::kSigmoid,
     .adjust = adjust_bailing},
    {.model_type = "hunyuan_v1_moe",
     .is_moe = true,
     .has_qk_norm = true,
     .ties_word_embeddings = true,
     .adjust = adjust_hunyuan},
    {.model_type = "granitemoe", .is_moe = true, .scales_logits = true, .note = kFactors},
    {.model_type = "granitemoeshared", .is_moe = true, .scales_logits = true, .note = kFactors},
    {.model_type = "ernie4_5_moe",
     .is_moe = true,
     .has_router_bias = true,
     .ties_word_embeddings = true},
    // Layers that differ.
    {.model_type = "granitemoehybrid",
     .is_moe = true,
     .has_mamba2 = true,
     .scales_logits = true,
     .note = kFactors,
     .adjust = adjust_granite_hybrid},
    {.model_type = "bamba", .has_mamba2 = true},
    {.model_type = "nemotron_h",
     .has_rope = false,
     .has_mamba2 = true,
     .has_ffn_gate = false,
     .layers = pattern_layers},
    {.model_type = "nemotron-nas", .adjust = adjust_searched, .layers = searched_layers},
});

// Fields of blocks that are not here, the most telling first.
struct MissingBlock {
  std::string_view field;
  std::string_view block;
};
constexpr auto kMissingBlocks = std::to_array<MissingBlock>({
    {"is_encoder_decoder", "an encoder with cross-attention to it"},
    {"cross_attention_layers", "layers that attend to images alone (cross-attention)"},
    {"altup_num_inputs", "alternating updates of several residual streams (AltUp)"},
    {"hidden_size_per_layer_input", "embeddings of each layer"},
    {"global_head_dim", "full attention with heads of another size than in windows"},
    {"linear_attn_config", "linear attention with a decay for each channel (Kimi delta attention)"},
    {"attn_type_list", "lightning attention"},
    {"compress_ratios", "attention to compressed tokens"},
    {"conv_L_cache", "short convolutions in place of attention"},
    {"mamba_d_ssm", "attention and Mamba side by side in one layer"},
    {"mamba_dt_rank", "Mamba-1 (a selective scan without heads)"},
    {"time_step_rank", "Mamba-1 (a selective scan without heads)"},
    {"num_mem_blocks", "attention blocks that layers share"},
    {"ssm_cfg", "state space layers"},
    {"state_size", "state space layers"},
    {"attention_hidden_size", "RWKV's time mixing"},
    {"blocksparse_block_size", "block-sparse attention"},
    {"zero_expert_num", "experts that compute nothing, behind two attention blocks a layer"},
    {"swa_num_key_value_heads", "windows with other heads than full attention has"},
    {"parallel_attn_mlp_res", "a dense FFN on the residual stream beside routed experts"},
    {"cla_share_factor", "keys and values that layers share"},
    {"attention_other_setting", "windows with other heads than full attention has"},
    {"num_key_value_heads_per_layer", "layers with different numbers of key and value heads"},
    {"num_query_heads", "layers with different numbers of heads"},
    {"layer_group_size", "lightning attention"},
    {"mb_per_layer", "Mamba-1 and memory units that layers share"},
    {"lru_width", "linear recurrences in place of attention"},
    {"attention_types", "windows by attention_types"},
    {"bskcn_1", "skips from layers to later ones"},
    {"residual_moe", "a dense FFN beside routed experts"},
    {"kv_lora_rank", "latent attention (MLA) in a family that is not known"},
    {"mask_token_id", "denoising of whole answers in place of decoding (diffusion)"},
    {"type_vocab_size", "an encoder that makes no tokens"},
    {"classifier_pooling", "an encoder that makes no tokens"},
});

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> known_model_types() {
  std::vector<std::string> types;
  types.reserve(kArchitectures.size());
  for (const Architecture& entry : kArchitectures) types.emplace_back(entry.model_type);
  return types;
}

const Architecture& architecture_of(const ConfigReader& reader) {
  const std::string model_type = reader.text("model_type");
  if (model_type.empty()) {
    reader.fail("missing model_type; a config.json names its architecture, one of " +
                joined(known_model_types()));
  }
  const auto* const found =
      std::ranges::find(kArchitectures, model_type, &Architecture::model_type);
  if (found != kArchitectures.end()) return *found;
  const auto* const text_part =
      std::ranges::find(kArchitectures, reader.text_part_type(), &Architecture::model_type);
  if (text_part != kArchitectures.end()) return *text_part;
  const std::string type = "model_type \"" + shown(model_type) + "\"";
  const auto* const missing =
      std::ranges::find_if(kMissingBlocks, [&](const MissingBlock& candidate) {
        const std::string field(candidate.field);
        return field == "is_encoder_decoder" ? reader.is_set(field) : reader.has(field);
      });
  if (missing != kMissingBlocks.end()) {
    reader.fail(type + " has a block that is not here: " + std::string(missing->block) +
                " (field " + std::string(missing->field) +
                "); model.as in a scenario simulates it as a known family without that");
  }
  reader.fail(type +
              " is not known, and no field of it names a block that is missing here; model.as in a "
              "scenario simulates it as one of " +
              joined(known_model_types()));
}

}  // namespace orrery
