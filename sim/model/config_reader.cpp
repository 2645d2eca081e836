#include "sim/model/config_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <stdexcept>

#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

// Larger than any field of a model in use; keeps products of sizes inside 64 bits.
constexpr std::int64_t kMaxSize = 1 << 20;

struct FieldSpec {
  Field field;
  std::array<std::string_view, 6> names;  // the first is the one used in messages
  std::int64_t least = 1;
  std::int64_t most = kMaxSize;
};

// Fields of blocks that a config may state for each layer.
constexpr auto kByLayer = std::to_array<Field>(
    {Field::kNumKeyValueHeads, Field::kIntermediateSize, Field::kNumExperts,
     Field::kNumExpertsPerTok, Field::kMoeIntermediateSize, Field::kNumSharedExperts});

// Every number that is read, by Field, with the names it has in different architectures.
constexpr std::array<FieldSpec, static_cast<std::size_t>(Field::kNumFields)> kFields = {{
    {Field::kHiddenSize, {"hidden_size", "d_model", "n_embd", "n_embed"}},
    {Field::kVocabSize, {"vocab_size", "padded_vocab_size"}},
    {Field::kNumHiddenLayers, {"num_hidden_layers", "n_layers", "n_layer", "num_layers"}, 1, 4096},
    {Field::kNumAttentionHeads, {"num_attention_heads", "n_heads", "n_head"}},
    {Field::kNumKeyValueHeads,
     {"num_key_value_heads", "num_attention_groups", "num_kv_heads", "attn_config.kv_n_heads",
      "multi_query_group_num"}},
    {Field::kHeadDim, {"head_dim", "attention_head_dim", "kv_channels"}},
    {Field::kIntermediateSize,
     {"intermediate_size", "ffn_hidden_size", "n_inner", "ffn_config.ffn_hidden_size", "ffn_dim"}},
    {Field::kIntermediateSizeMlp, {"intermediate_size_mlp"}},
    {Field::kMaxPositionEmbeddings,
     {"max_position_embeddings", "max_seq_len", "n_positions"},
     1,
     std::int64_t{1} << 40},
    {Field::kSlidingWindow, {"sliding_window"}, 1, std::int64_t{1} << 40},
    {Field::kAttentionChunkSize, {"attention_chunk_size"}, 1, std::int64_t{1} << 40},
    {Field::kMaxWindowLayers, {"max_window_layers"}, 0},
    {Field::kQLoraRank, {"q_lora_rank"}},
    {Field::kKvLoraRank, {"kv_lora_rank"}},
    {Field::kQkNopeHeadDim, {"qk_nope_head_dim"}},
    {Field::kQkRopeHeadDim, {"qk_rope_head_dim"}},
    {Field::kVHeadDim, {"v_head_dim"}},
    {Field::kIndexTopk, {"index_topk"}},
    {Field::kIndexNHeads, {"index_n_heads"}},
    {Field::kIndexHeadDim, {"index_head_dim"}},
    {Field::kShareQDim, {"share_q_dim"}},
    {Field::kMambaNumGroups, {"mamba_n_groups", "n_groups"}},
    {Field::kMambaNumHeads, {"mamba_num_heads", "mamba_n_heads"}},
    {Field::kMambaStateSize, {"ssm_state_size", "mamba_d_state"}},
    {Field::kMambaHeadDim, {"mamba_head_dim", "mamba_d_head"}},
    {Field::kMambaConvKernel, {"conv_kernel", "mamba_d_conv"}, 2},
    {Field::kLinearNumKeyHeads, {"linear_num_key_heads"}},
    {Field::kLinearNumValueHeads, {"linear_num_value_heads"}},
    {Field::kLinearKeyHeadDim, {"linear_key_head_dim"}},
    {Field::kLinearValueHeadDim, {"linear_value_head_dim"}},
    {Field::kLinearConvKernelDim, {"linear_conv_kernel_dim"}, 2},
    {Field::kFullAttentionInterval, {"full_attention_interval"}},
    {Field::kNumExperts,
     {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts",
      "ffn_config.moe_num_experts"},
     0},
    {Field::kNumExpertsPerTok,
     {"num_experts_per_tok", "experts_per_token", "moe_top_k", "moe_k", "ffn_config.moe_top_k",
      "moe_topk"},
     0},
    {Field::kMoeIntermediateSize, {"moe_intermediate_size"}},
    {Field::kSharedExpertIntermediateSize,
     {"shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size",
      "moe_shared_expert_intermediate_size"},
     0},
    {Field::kNumSharedExperts,
     {"n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "num_shared_expert"},
     0},
    {Field::kNGroup, {"n_group"}},
    {Field::kTopkGroup, {"topk_group"}},
    {Field::kFirstKDenseReplace,
     {"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"},
     0},
    {Field::kMoeLayerFreq, {"moe_layer_freq"}},
    {Field::kDecoderSparseStep, {"decoder_sparse_step"}},
    {Field::kInterleaveMoeLayerStep, {"interleave_moe_layer_step"}, 0},
}};

// Everything else that is read. All are checked, needed or not by the architecture at hand.
constexpr auto kFlags = std::to_array<std::string_view>(
    {"attention_bias", "use_qk_norm", "tie_word_embeddings", "norm_topk_prob", "norm_expert_weight",
     "use_sliding_window", "attn_output_gate", "route_norm"});
constexpr auto kNumbers = std::to_array<std::string_view>(
    {"routed_scaling_factor", "moe_router_scaling_factor", "route_scale"});
constexpr auto kTexts = std::to_array<std::string_view>(
    {"model_type", "scoring_func", "score_function", "score_func", "mamba_ssm_dtype"});
constexpr auto kTextLists = std::to_array<std::string_view>({"layer_types"});
constexpr std::string_view kMoeLayersEnum = "moe_layers_enum";
constexpr std::string_view kAttentionLayers = "attn_layer_indices";
constexpr auto kNumberLists =
    std::to_array<std::string_view>({kMoeLayersEnum, "mlp_only_layers", kAttentionLayers});

// The table is indexed by Field.
static_assert([] {
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    if (static_cast<std::size_t>(kFields[i].field) != i) return false;
  }
  return true;
}());

constexpr std::size_t kMostShown = 60;  // characters of a list

std::string describe(const ConfigValue& value) {
  struct {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return format_number(number); }
    std::string operator()(const std::string& text) const {
      return "the text \"" + shown(text) + "\"";
    }
    std::string operator()(const std::vector<std::int64_t>&) const { return "a list of numbers"; }
    std::string operator()(const std::vector<std::string>& items) const {
      std::string shown;
      for (const std::string& item : items) {
        if (shown.size() > kMostShown) return "the list [" + shown + ", ...]";
        shown += (shown.empty() ? "" : ", ") + item.substr(0, kMostShown);
      }
      return "the list [" + shown + "]";
    }
  } visitor;
  return std::visit(visitor, value);
}

// Under what multimodal configs keep their text part.
constexpr auto kTextParts = std::to_array<std::string_view>(
    {"text_config.", "llm_config.", "language_config.", "thinker_config.text_config."});

// Of a config: one of kTextParts, or "".
std::string_view text_part_of(const ConfigFields& fields) {
  const auto* const found = std::ranges::find_if(kTextParts, [&](std::string_view part) {
    const auto nested = fields.lower_bound(std::string(part));
    return nested != fields.end() && nested->first.starts_with(part);
  });
  return found == kTextParts.end() ? std::string_view() : *found;
}

const FieldSpec& spec_of(Field field) { return kFields[static_cast<std::size_t>(field)]; }

// Layers with a number below `num_layers`.
void keep_layers_below(std::vector<std::int64_t>& layers, std::int64_t num_layers) {
  std::erase_if(layers, [&](std::int64_t layer) { return layer >= num_layers; });
}

// A list that names layers, or has an entry for each of `all`.
void cut_list(std::string_view name, ConfigValue& value, std::size_t all, std::int64_t num_layers) {
  const auto resize = [&](auto& list) {
    if (list.size() == all) list.resize(static_cast<std::size_t>(num_layers));
  };
  if (auto* numbers = std::get_if<std::vector<std::int64_t>>(&value)) {
    if (std::ranges::find(kNumberLists, name) != kNumberLists.end()) {
      keep_layers_below(*numbers, num_layers);
    } else {
      resize(*numbers);
    }
  } else if (auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    resize(*texts);
  }
}

// The number of a field; of a list with one entry for each layer the number that all have.
const std::int64_t* one_number(Field field, const ConfigValue& value) {
  const auto* each = std::get_if<std::vector<std::int64_t>>(&value);
  if (each == nullptr) return std::get_if<std::int64_t>(&value);
  const bool is_one = std::ranges::find(kByLayer, field) != kByLayer.end() && !each->empty() &&
                      std::ranges::count(*each, each->front()) == std::ssize(*each);
  return is_one ? each->data() : nullptr;
}

std::string range_text(const FieldSpec& spec) {
  return "a whole number from " + std::to_string(spec.least) + " to " + std::to_string(spec.most);
}

}  // namespace

ConfigReader::ConfigReader(std::string_view model, const ConfigFields& fields)
    : model_(model), fields_(fields), prefix_(text_part_of(fields)) {
  for (const FieldSpec& spec : kFields) {
    auto& number = numbers_[static_cast<std::size_t>(spec.field)];
    std::string_view first_name;
    for (const std::string_view name : spec.names) {
      const ConfigValue* found = name.empty() ? nullptr : value(name);
      if (found == nullptr) continue;
      const bool is_by_layer = spec.field == Field::kMoeLayerFreq &&
                               std::holds_alternative<std::vector<std::int64_t>>(*found);
      if (is_by_layer) continue;  // read_layers takes it as a list
      const std::int64_t* whole = one_number(spec.field, *found);
      if (whole == nullptr || *whole < spec.least || *whole > spec.most) {
        fail("field " + std::string(name) + " is " + describe(*found) + ", expected " +
             range_text(spec));
      }
      if (number && *number != *whole) {
        fail("field " + std::string(name) + " is " + std::to_string(*whole) + " but " +
             std::string(first_name) + " is " + std::to_string(*number) +
             ", expected equal values: they are names of the same number");
      }
      number = *whole;
      first_name = name;
    }
  }
  for (const std::string_view name : kFlags) (void)flag(name, false);
  for (const std::string_view name : kNumbers) (void)this->number(name, 1);
  for (const std::string_view name : kTexts) (void)text(name);
  for (const std::string_view name : kTextLists) (void)texts(name);
  for (const std::string_view name : kNumberLists) (void)integers(name);
}

const ConfigValue* ConfigReader::value(std::string_view name) const {
  for (const std::string& key : {prefix_ + std::string(name), std::string(name)}) {
    const auto found = fields_.find(key);
    if (found != fields_.end() && !std::holds_alternative<std::monostate>(found->second)) {
      return &found->second;
    }
    // What lies below a mapping, or a list of them, has longer keys.
    const auto below = fields_.lower_bound(key + ".");
    if (below != fields_.end() && below->first.starts_with(key + ".")) {
      fail("field " + std::string(name) + " holds " + below->first + ", expected no mapping");
    }
  }
  return nullptr;
}

ConfigFields with_num_layers(const ConfigFields& fields, std::int64_t num_layers) {
  const ConfigReader reader("", fields);
  const auto all = static_cast<std::size_t>(reader.at(Field::kNumHiddenLayers));
  const std::string_view prefix = text_part_of(fields);
  const auto& names = spec_of(Field::kNumHiddenLayers).names;
  const auto& dense = spec_of(Field::kFirstKDenseReplace).names;
  ConfigFields cut = fields;
  for (auto& [key, value] : cut) {
    std::string_view name = key;
    if (!prefix.empty() && name.starts_with(prefix)) name.remove_prefix(prefix.size());
    if (std::ranges::find(names, name) != names.end()) {
      value = num_layers;
    } else if (std::ranges::find(dense, name) != dense.end()) {
      auto* number = std::get_if<std::int64_t>(&value);
      if (number != nullptr) *number = std::min(*number, num_layers);
    } else if (name == kMoeLayersEnum && std::holds_alternative<std::string>(value)) {
      std::vector<std::int64_t> layers = *reader.integers(name);
      keep_layers_below(layers, num_layers);
      value = layers;
    } else if (name.find('.') == std::string_view::npos) {
      cut_list(name, value, all, num_layers);
    }
  }
  return cut;
}

void ConfigReader::assume(Field field, std::int64_t value) {
  auto& number = numbers_[static_cast<std::size_t>(field)];
  if (!number) number = value;
}

std::optional<std::int64_t> ConfigReader::find(Field field) const {
  return numbers_[static_cast<std::size_t>(field)];
}

std::int64_t ConfigReader::get(Field field, std::int64_t otherwise) const {
  return find(field).value_or(otherwise);
}

std::int64_t ConfigReader::at(Field field) const {
  require({field});
  return *find(field);
}

void ConfigReader::require(std::initializer_list<Field> fields) const {
  std::string missing;
  for (const Field field : fields) {
    if (find(field)) continue;
    if (!missing.empty()) missing += ", ";
    missing += kFields[static_cast<std::size_t>(field)].names.front();
  }
  if (missing.empty()) return;
  fail("missing " + missing + "; a config.json of model_type \"" + shown(text("model_type")) +
       "\" needs these fields");
}

bool ConfigReader::flag(std::string_view name, bool otherwise) const {
  const ConfigValue* found = value(name);
  if (found == nullptr) return otherwise;
  if (const auto* result = std::get_if<bool>(found)) return *result;
  fail("field " + std::string(name) + " is " + describe(*found) + ", expected true or false");
}

double ConfigReader::number(std::string_view name, double otherwise) const {
  const ConfigValue* found = value(name);
  if (found == nullptr) return otherwise;
  double result = 0;
  if (const auto* whole = std::get_if<std::int64_t>(found)) result = static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(found)) result = *real;
  if (result > 0 && std::isfinite(result)) return result;
  fail("field " + std::string(name) + " is " + describe(*found) + ", expected a number above 0");
}

std::string ConfigReader::text(std::string_view name) const {
  // At the top first: a multimodal config names its own model_type there.
  const auto top = fields_.find(std::string(name));
  const ConfigValue* found = top != fields_.end() ? &top->second : value(name);
  if (found == nullptr || std::holds_alternative<std::monostate>(*found)) return "";
  if (const auto* result = std::get_if<std::string>(found)) return *result;
  fail("field " + std::string(name) + " is " + describe(*found) + ", expected text");
}

std::string ConfigReader::text_part_type() const {
  const auto found = fields_.find(prefix_ + "model_type");
  if (prefix_.empty() || found == fields_.end()) return "";
  const auto* type = std::get_if<std::string>(&found->second);
  return type == nullptr ? "" : *type;
}

std::vector<std::string> ConfigReader::texts(std::string_view name) const {
  const ConfigValue* found = value(name);
  if (found == nullptr) return {};
  if (const auto* result = std::get_if<std::vector<std::string>>(found)) return *result;
  const auto* numbers = std::get_if<std::vector<std::int64_t>>(found);
  if (numbers != nullptr && numbers->empty()) return {};  // an empty list has no type
  fail("field " + std::string(name) + " is " + describe(*found) + ", expected a list of texts");
}

std::optional<std::int64_t> ConfigReader::whole(std::string_view name) const {
  const ConfigValue* found = value(name);
  const auto* result = found == nullptr ? nullptr : std::get_if<std::int64_t>(found);
  return result == nullptr ? std::nullopt : std::optional(*result);
}

bool ConfigReader::has(std::string_view name) const {
  for (const std::string& key : {prefix_ + std::string(name), std::string(name)}) {
    const auto below = fields_.lower_bound(key + ".");
    if (fields_.contains(key) || (below != fields_.end() && below->first.starts_with(key + "."))) {
      return true;
    }
  }
  return false;
}

bool ConfigReader::is_set(std::string_view name) const {
  const ConfigValue* found = value(name);
  const auto* result = found == nullptr ? nullptr : std::get_if<bool>(found);
  return result != nullptr && *result;
}

std::optional<std::vector<std::int64_t>> ConfigReader::list(std::string_view name) const {
  const ConfigValue* found = value(name);
  const auto* list = found == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(found);
  return list == nullptr ? std::nullopt : std::optional(*list);
}

std::optional<std::vector<std::int64_t>> ConfigReader::integers(std::string_view name) const {
  const ConfigValue* found = value(name);
  if (found == nullptr) return std::nullopt;
  if (const auto* result = std::get_if<std::vector<std::int64_t>>(found)) return *result;
  const auto* list = std::get_if<std::vector<std::string>>(found);
  if (list != nullptr && list->empty()) return std::vector<std::int64_t>{};
  if (const auto* joined = std::get_if<std::string>(found)) {
    std::vector<std::int64_t> result;
    const char* at = joined->data();
    const char* const end = at + joined->size();
    while (at != end) {
      std::int64_t number = 0;
      const auto parsed = std::from_chars(at, end, number);
      if (parsed.ec != std::errc() || (parsed.ptr != end && *parsed.ptr != ',')) break;
      result.push_back(number);
      if (parsed.ptr == end) return result;
      at = parsed.ptr + 1;
    }
  }
  fail("field " + std::string(name) + " is " + describe(*found) +
       ", expected a list of whole numbers");
}

void ConfigReader::fail(const std::string& message) const {
  throw std::invalid_argument("model \"" + model_ + "\": " + message);
}

}  // namespace orrery
