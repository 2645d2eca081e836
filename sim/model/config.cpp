#include <string>
#include <vector>

#include "sim/model/architectures.h"
#include "sim/model/config_reader.h"
#include "sim/model/layer_lists.h"
#include "sim/model/model.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

void read_attention(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  const bool has_bias = reader.flag("attention_bias", false);
  model.attention_bias = arch.has_qkv_bias || has_bias;
  model.o_proj_bias =
      arch.has_o_bias || reader.flag("attention_out_bias", arch.o_proj_follows_bias && has_bias);
  model.has_rope = arch.has_rope;
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
  model.attn_output_gate =
      reader.flag("attn_output_gate", arch.has_attn_output_gate || arch.has_linear_attention);
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

// Mamba-2 in the fields of gated delta nets, whose states have the same form.
void read_mamba(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  if (!arch.has_mamba2) return;
  reader.require({Field::kMambaNumGroups, Field::kMambaNumHeads, Field::kMambaStateSize,
                  Field::kMambaHeadDim, Field::kMambaConvKernel});
  model.linear_num_key_heads = reader.at(Field::kMambaNumGroups);
  model.linear_num_value_heads = reader.at(Field::kMambaNumHeads);
  model.linear_key_head_dim = reader.at(Field::kMambaStateSize);
  model.linear_value_head_dim = reader.at(Field::kMambaHeadDim);
  model.linear_conv_kernel_dim = reader.at(Field::kMambaConvKernel);
  if (model.linear_num_value_heads % model.linear_num_key_heads != 0) {
    reader.fail("the model has " + std::to_string(model.linear_num_value_heads) +
                " Mamba heads, not a multiple of its " +
                std::to_string(model.linear_num_key_heads) + " groups");
  }
}

void read_experts(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  if (!arch.is_moe) return;
  reader.require({Field::kNumExperts, Field::kNumExpertsPerTok});
  model.num_experts = reader.at(Field::kNumExperts);
  model.num_experts_per_tok = reader.at(Field::kNumExpertsPerTok);
  if (model.num_experts == 0 || model.num_experts_per_tok == 0) {
    reader.fail("there are " + std::to_string(model.num_experts) + " routed experts, of which " +
                std::to_string(model.num_experts_per_tok) +
                " for each token; expected at least 1 of both in model_type \"" +
                shown(reader.text("model_type")) + "\"");
  }
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
  std::string name = reader.text("scoring_func");
  if (name.empty()) name = reader.text("score_function");
  if (name.empty()) name = reader.text("score_func");
  if (name == "softmax") {
    model.scoring_func = ScoringFunc::kSoftmax;
  } else if (name == "sigmoid" || name == "noaux_tc") {  // as dots1 calls it
    model.scoring_func = ScoringFunc::kSigmoid;
  } else if (!name.empty()) {
    reader.fail("scoring_func is \"" + shown(name) + "\", expected softmax or sigmoid");
  }
  model.norm_topk_prob = reader.flag(
      "norm_topk_prob",
      reader.flag("norm_expert_weight", reader.flag("route_norm", arch.norm_topk_prob)));
  model.routed_scaling_factor =
      reader.number("routed_scaling_factor",
                    reader.number("moe_router_scaling_factor", reader.number("route_scale", 1)));
  model.has_correction_bias = model.router_bias && model.scoring_func == ScoringFunc::kSigmoid;
  model.weighs_expert_inputs = arch.weighs_expert_inputs;
}

void read_ffn(const ConfigReader& reader, const Architecture& arch, ModelConfig& model) {
  model.layer_form = arch.layer_form;
  model.has_ffn_gate = arch.has_ffn_gate;
  model.has_silu = arch.has_silu;
  model.ffn_bias = reader.flag("mlp_bias", arch.has_ffn_bias);
  model.scales_logits = arch.scales_logits;
}

void add_notes(const Architecture& arch, const ConfigReader& reader, ModelConfig& model) {
  if (arch.model_type != model.model_type) {
    model.notes.emplace_back(
        "model_type " + shown(model.model_type) + " is simulated by its text part alone, " +
        shown(reader.text_part_type()) + ": what it sees or hears is left out");
  }
  if (arch.has_layer_norm) model.notes.emplace_back("layer norms are priced as RMS norms");
  if (!arch.note.empty()) model.notes.emplace_back(arch.note);
}

}  // namespace

ModelConfig model_config(std::string_view name, const ConfigFields& fields) {
  ConfigReader reader(name, fields);
  Architecture arch = architecture_of(reader);
  // Granite 4's hybrids and Llama 4's without experts have the fields of those with some.
  const bool may_be_dense = arch.has_mamba2 || arch.has_shared_expert;
  if (may_be_dense && reader.get(Field::kNumExperts, 1) == 0) arch.is_moe = false;
  for (const Architecture::Default& entry : arch.defaults) {
    if (entry.value != 0) reader.assume(entry.field, entry.value);
  }
  reader.require(
      {Field::kHiddenSize, Field::kVocabSize, Field::kNumHiddenLayers, Field::kNumAttentionHeads});
  ModelConfig model;
  model.name = name;
  model.model_type = reader.text("model_type");
  model.hidden_size = reader.at(Field::kHiddenSize);
  model.vocab_size = reader.at(Field::kVocabSize);
  model.tie_word_embeddings = reader.flag("tie_word_embeddings", arch.ties_word_embeddings);
  model.max_position_embeddings =
      reader.get(Field::kMaxPositionEmbeddings,
                 reader.whole("seq_length").value_or(reader.whole("model_max_length").value_or(0)));
  const std::int64_t num_layers = reader.at(Field::kNumHiddenLayers);
  read_attention(reader, arch, model);
  read_linear_attention(reader, arch, model);
  read_mamba(reader, arch, model);
  read_ffn(reader, arch, model);
  read_experts(reader, arch, model);
  read_routing(reader, arch, model);
  if (arch.adjust != nullptr) arch.adjust(reader, model);
  model.layers = read_layers(reader, arch, model);
  add_notes(arch, reader, model);
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
