#pragma once

// A model as blocks, and its lowering: one engine step of a batch becomes the Plan of one rank that
// holds the whole model. Parallel passes (sim/parallel) then shard that plan by axis names.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/model/expert_load.h"
#include "sim/plan/batch.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

namespace axis {
// Tokens routed over the expert group: all tokens of the instance, since routed experts are shared
// by its data-parallel ranks. Data parallelism does not split this axis.
inline constexpr std::string_view kRoutedTokens = "routed_tokens";
// Rows of routed experts, one for each choice of a token, and experts with at least one. A rank
// that holds some of the experts has their part of both.
inline constexpr std::string_view kRoutedRows = "routed_rows";
inline constexpr std::string_view kActiveExperts = "active_experts";
}  // namespace axis

// A config.json flattened: nested objects by dotted keys ("text_config.hidden_size"), lists of
// scalars as vectors. Null values are kept as monostate.
using ConfigValue = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                                 std::vector<std::int64_t>, std::vector<std::string>>;
using ConfigFields = std::map<std::string, ConfigValue>;

enum class AttentionKind : std::uint8_t { kGqa, kMla, kMfa, kDeltaNet, kMamba2, kNone };
enum class FfnKind : std::uint8_t { kDense, kMoe, kNone };
// Where the norms of a layer stand.
//   kNormBefore  x + f(norm(x)), of attention, then of the FFN
//   kNormAfter   x + norm(f(x)), likewise
//   kNormAround  x + norm(f(norm(x))), likewise
//   kParallel    x + attention(norm(x)) + FFN(norm(x))
enum class LayerForm : std::uint8_t { kNormBefore, kNormAfter, kNormAround, kParallel };
enum class ScoringFunc : std::uint8_t { kSoftmax, kSigmoid };

// Fields carry the names of Hugging Face's config.json.
struct LayerConfig {
  AttentionKind attention = AttentionKind::kGqa;
  FfnKind ffn = FfnKind::kDense;
  std::int64_t sliding_window = 0;  // 0: full attention
  // Bytes that the layer keeps of a sequence however long it is (linear attention), in place of
  // keys and values of each token; 0: none.
  std::int64_t state_bytes = 0;
  std::int64_t intermediate_size = 0;  // dense FFN columns of this layer; 0 for MoE layers
  // Keys and values of each token.
  [[nodiscard]] bool caches_tokens() const {
    return state_bytes == 0 && attention != AttentionKind::kNone;
  }
  bool operator==(const LayerConfig&) const = default;
};

struct ModelConfig {
  std::string name;
  std::string model_type;
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  bool attention_bias = false;
  bool o_proj_bias = false;
  bool use_qk_norm = false;
  bool tie_word_embeddings = false;
  bool attn_output_gate = false;  // softmax attention's result times a sigmoid of its query's gate
  DType mamba_ssm_dtype = DType::kFp32;  // of the states of gated delta nets and of Mamba-2
  LayerForm layer_form = LayerForm::kNormBefore;
  bool has_ffn_norm = true;    // kParallel: the FFN norms x for itself, with its own gain
  bool has_rope = true;        // queries and keys turn with the position
  bool has_ffn_gate = true;    // dense FFNs multiply two projections
  bool has_silu = true;        // their activation; else another, which costs as much
  bool ffn_bias = false;       // of the projections of dense FFNs
  bool scales_logits = false;  // by a factor or a soft cap
  std::int64_t max_position_embeddings = 0;  // 0: the config does not say
  // MLA
  std::int64_t q_lora_rank = 0;  // 0: q is projected directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::int64_t index_topk = 0;  // sparse attention over the top-k cached tokens; 0: none
  std::int64_t index_n_heads = 0;
  std::int64_t index_head_dim = 0;
  // MFA
  std::int64_t share_q_dim = 0;
  // Gated delta nets; Mamba-2: its groups, heads, elements of a state and of a head
  std::int64_t linear_num_key_heads = 0;  // of queries too
  std::int64_t linear_num_value_heads = 0;
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel_dim = 0;
  // MoE
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;  // all shared experts together; 0: none
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool moe_bias = false;  // expert projections carry biases
  bool router_bias = false;
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  bool norm_topk_prob = false;          // weights of the chosen experts sum to 1
  bool has_shared_expert_gate = false;  // its result times a sigmoid of one number for each token
  double routed_scaling_factor = 1;
  // router_bias is e_score_correction_bias: added to the scores for the choice, not the weights.
  bool has_correction_bias = false;
  bool weighs_expert_inputs = false;  // weights multiply what experts read, not what they write
  std::vector<LayerConfig> layers;
  // Begins with what the target's last layer computed beside the embedding of the next token, both
  // normed and projected from 2 * hidden_size (DeepSeek-V3 report, section 2.2; EAGLE).
  bool joins_hidden = false;
  std::vector<std::string> notes;  // what of it is not simulated as it is, for readers of results
  // Elements of a query or key head that turn with the position.
  [[nodiscard]] std::int64_t rotary_dim() const {
    return kv_lora_rank > 0 ? qk_rope_head_dim : head_dim;
  }
  bool operator==(const ModelConfig&) const = default;
};

// Reads the fields of a Hugging Face config. Throws std::invalid_argument naming the missing or
// contradictory field, or the architecture part that has no block here (routed experts without a
// gate, ...).
ModelConfig model_config(std::string_view name, const ConfigFields& fields);
// The fields of the first `num_layers` layers of the same model, at most as many as it has: their
// number under each of its names, and lists with an entry for each layer as long.
ConfigFields with_num_layers(const ConfigFields& fields, std::int64_t num_layers);
// Every model_type that it reads.
std::vector<std::string> known_model_types();

struct Precision {
  DType weights = DType::kBf16;  // of linear layers; norms, router, embedding stay bf16
  // Routed experts where they differ (gpt-oss: mxfp4 experts, bf16 elsewhere); none: as `weights`.
  std::optional<DType> expert_weights;
  DType activations = DType::kBf16;  // inputs of linear layers (fp8: quantised before each)
  DType kv_cache = DType::kBf16;
  DType lm_head = DType::kBf16;
  bool operator==(const Precision&) const = default;
};

enum class MlaForm : std::uint8_t {
  kAuto,  // absorbed for decode, not absorbed for prefill
  kAbsorbed,
  kExpanded,
  kModule  // the whole attention of a layer as one op, as engines' module tables measure it
};
// Here and below, entry i names the enumerator of value i.
inline constexpr std::array<std::string_view, 4> kMlaFormNames{"auto", "absorbed", "expanded",
                                                               "module"};

// How softmax attention takes the sequences of a step.
enum class AttentionForm : std::uint8_t {
  kSplit,  // prompts in one call, decodes in another, each query against its own keys
  kPacked  // all in one call with a mask, every query against every key
};
inline constexpr std::array<std::string_view, 2> kAttentionFormNames{"split", "packed"};

// How routed experts are computed.
//   kFused          moe_route and moe, as engines' tables measure them
//   kPadding        as many rows for each expert as there are tokens, a batched gemm
//   kSlicing        a gemm for each expert, launched with counts that the host has read
//   kConcatenation  a slice for each expert, likewise, joined for a grouped gemm
//   kShuffling      tokens sorted by expert, a grouped gemm, counts on the device throughout
//   kPersistent     one kernel from the router to the sum of a token's experts, which on several
//                   ranks sends rows by itself
enum class MoeDesign : std::uint8_t {
  kFused,
  kPadding,
  kSlicing,
  kConcatenation,
  kShuffling,
  kPersistent
};
inline constexpr std::array<std::string_view, 6> kMoeDesignNames{
    "fused", "padding", "slicing", "concatenation", "shuffling", "persistent"};
std::string_view to_text(MoeDesign design);         // "fused", "padding", ...
MoeDesign parse_moe_design(std::string_view text);  // throws std::invalid_argument with the names

// No more experts than this are computed by kPersistent, so none drops anything beyond it.
inline constexpr double kMostCapacityFactor = 512;

struct LoweringOptions {
  Precision precision;
  MlaForm mla_form = MlaForm::kAuto;
  AttentionForm attention_form = AttentionForm::kSplit;
  bool fuse_residual_norm = true;  // residual add inside rms_norm
  bool fuse_norm_quant = true;     // fp8 quantisation inside rms_norm and silu_mul
  MoeDesign moe_design = MoeDesign::kFused;
  int moe_streams = 1;            // 2: the shared expert on stream 1, beside router and gather
  bool fuse_scatter_add = false;  // the second grouped gemm adds to the shared expert's result
  bool fuse_gather = false;       // the first grouped gemm reads rows where tokens have them
  bool shared_inside = false;     // of kPersistent: the shared expert in the same kernel
  // Of kPersistent, 100 times the capacity factor: of a data-parallel rank's tokens an expert takes
  // the first ceil(factor tokens topk / experts) that choose it. 0: all.
  std::int64_t capacity_percent = 0;
  ExpertLoad expert_load;  // of the designs other than kFused
  bool operator==(const LoweringOptions&) const = default;
};

// Throws std::invalid_argument when routed experts of the model cannot be computed by the design of
// `options`: options that contradict each other, a format or biases without kernels.
void check_moe_design(const ModelConfig& model, const LoweringOptions& options);

// The plan of one rank with the whole model. Equal consecutive layers are a Repeat.
// Throws std::invalid_argument when the batch is empty or a part has no lowering.
Plan lower(const ModelConfig& model, const Batch& batch, const LoweringOptions& options);

// One block of routed and shared experts alone: `x` [tokens, hidden], bf16, is an input, `y` of the
// same shape the output. With imposes_scores experts are chosen by an input `imposed_scores`
// [tokens, router], fp32, in place of the router's scores, which are computed all the same.
// Throws std::invalid_argument as `lower`, when the model has no routed experts, or when scores are
// imposed on design kFused.
Plan moe_layer_plan(const ModelConfig& model, std::int64_t tokens, const LoweringOptions& options,
                    bool imposes_scores = false);

struct ParameterCount {
  std::int64_t total = 0;
  std::int64_t active = 0;  // per token, embeddings included
};
ParameterCount count_parameters(const ModelConfig& model);

// Bytes one cached token takes over all layers, unsharded (window layers count up to the window in
// `kv_bytes`, which is exact for a sequence of `context` tokens).
Bytes kv_bytes_per_token(const ModelConfig& model, DType kv_dtype);
Bytes kv_bytes(const ModelConfig& model, DType kv_dtype, std::int64_t context);
// Bytes of the states that one sequence has in all layers, unsharded.
Bytes state_bytes(const ModelConfig& model);

}  // namespace orrery
