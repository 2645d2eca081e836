#include "sim/model/layer_lists.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "sim/units/shown.h"

namespace orrery {
namespace {

constexpr std::string_view kLinearAttention = "linear_attention";  // of layer_types
constexpr std::string_view kMamba = "mamba";

// The matrices of value heads, and in bf16 the columns of the tokens that the convolution sees
// before the next.
std::int64_t recurrent_state_bytes(const ModelConfig& model) {
  const std::int64_t values = model.linear_num_value_heads * model.linear_value_head_dim;
  const std::int64_t channels = 2 * model.linear_num_key_heads * model.linear_key_head_dim + values;
  const std::int64_t element = model.mamba_ssm_dtype == DType::kFp32 ? 4 : 2;
  return element * values * model.linear_key_head_dim +
         2 * channels * (model.linear_conv_kernel_dim - 1);
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

  if (const auto has_experts = reader.list("moe_layer_freq")) {  // 1 or 0 for each layer
    if (std::ssize(*has_experts) != num_layers) {
      reader.fail("moe_layer_freq has " + std::to_string(has_experts->size()) +
                  " entries, expected one for each of the " + std::to_string(num_layers) +
                  " layers of num_hidden_layers");
    }
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = (*has_experts)[i] != 0;
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
    result[static_cast<std::size_t>(i)] =
        i >= first && i % freq == 0 && step != 0 && (i + 1) % step == 0;
  }
  if (const auto layers = reader.integers("mlp_only_layers")) {
    listed("mlp_only_layers", *layers, false);
  }
  return result;
}

// Which layers keep a state in place of keys and values: as layer_types says, else, of linear
// attention, all but every interval-th.
std::vector<bool> recurrent_layers(const ConfigReader& reader, const Architecture& arch,
                                   std::int64_t num_layers) {
  std::vector<bool> result(static_cast<std::size_t>(num_layers), false);
  const std::vector<std::string> types = reader.texts("layer_types");
  if (arch.has_mamba2) {
    if (const auto attending = reader.integers("attn_layer_indices")) {  // Bamba
      result.flip();
      for (const std::int64_t layer : *attending) {
        if (layer >= 0 && layer < num_layers) result[static_cast<std::size_t>(layer)] = false;
      }
      return result;
    }
    for (std::size_t i = 0; i < std::min(result.size(), types.size()); ++i) {
      result[i] = types[i] == kMamba;
    }
  }
  if (!arch.has_linear_attention) return result;
  if (types.empty()) reader.require({Field::kFullAttentionInterval});
  const std::int64_t interval = reader.get(Field::kFullAttentionInterval, 1);
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = types.empty() ? (static_cast<std::int64_t>(i) + 1) % interval != 0
                              : i < types.size() && types[i] == kLinearAttention;
  }
  return result;
}

// The window that each entry of layer_types says.
std::vector<std::int64_t> listed_windows(const ConfigReader& reader, const Architecture& arch,
                                         const std::vector<std::string>& types) {
  std::vector<std::int64_t> result(types.size(), 0);
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] == kLinearAttention && arch.has_linear_attention) continue;
    if (arch.has_mamba2 && (types[i] == kMamba || types[i] == "attention")) continue;
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
    return listed_windows(reader, arch, types);
  }
  if (arch.window_pattern > 0) {
    const std::int64_t pattern =
        reader.whole("sliding_window_pattern").value_or(arch.window_pattern);
    if (pattern < 1) {
      reader.fail("sliding_window_pattern is " + std::to_string(pattern) +
                  ", expected a whole number from 1");
    }
    const std::int64_t window = reader.at(Field::kSlidingWindow);
    for (std::int64_t i = 0; i < num_layers; ++i) {
      result[static_cast<std::size_t>(i)] = (i + 1) % pattern == 0 ? 0 : window;
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

// Columns of a dense FFN.
std::int64_t dense_columns(const ConfigReader& reader, const Architecture& arch,
                           const ModelConfig& model) {
  if (arch.has_mamba2 && model.num_experts == 0) {  // GraniteMoeHybridMLP, the shared one alone
    if (const auto shared = reader.find(Field::kSharedExpertIntermediateSize)) return *shared;
  }
  const std::int64_t multiple = reader.whole("expansion_ratio").value_or(arch.ffn_multiple);
  const std::int64_t columns =
      reader.get(Field::kIntermediateSizeMlp,
                 reader.get(Field::kIntermediateSize, multiple * model.hidden_size));
  if (columns == 0) reader.require({Field::kIntermediateSize});
  return columns / arch.matrices_of_intermediate_size;
}

// The kind of layer that one character or one word of nemotron_h says.
std::optional<LayerConfig> mixer(std::string_view text, const ModelConfig& model,
                                 std::int64_t columns) {
  if (text == "M" || text == kMamba) {
    return LayerConfig{.attention = AttentionKind::kMamba2,
                       .ffn = FfnKind::kNone,
                       .state_bytes = recurrent_state_bytes(model)};
  }
  if (text == "*" || text == "attention") return LayerConfig{.ffn = FfnKind::kNone};
  if (text == "-" || text == "mlp") {
    return LayerConfig{.attention = AttentionKind::kNone, .intermediate_size = columns};
  }
  return std::nullopt;
}

// What block_configs says of layer `i`.
class SearchedBlock {
 public:
  SearchedBlock(const ConfigReader& reader, std::int64_t i)
      : reader_(reader), at_("block_configs." + std::to_string(i) + ".") {
    if (!reader.has(at_ + "attention") || !reader.has(at_ + "ffn")) {
      reader.fail("missing " + at_ + "attention or " + at_ +
                  "ffn; expected both for each layer of num_hidden_layers");
    }
    for (const std::string_view part : {"attention", "ffn"}) {
      if (!flag(part, "replace_with_linear")) continue;
      reader.fail("layer " + std::to_string(i) + " has one linear layer in place of its " +
                  std::string(part) + " (replace_with_linear), which has no block here");
    }
  }
  [[nodiscard]] bool is_left_out(std::string_view part) const { return flag(part, "no_op"); }
  [[nodiscard]] std::optional<std::int64_t> heads_in_group() const {
    return reader_.whole(at_ + "attention.n_heads_in_group");
  }
  // DeciLM's rule: two thirds of ffn_mult times hidden, up to the next multiple of 256.
  [[nodiscard]] std::int64_t columns(std::int64_t hidden) const {
    if (const auto size = reader_.whole(at_ + "ffn.intermediate_size")) return *size;
    const double multiple = reader_.number(at_ + "ffn.ffn_mult", 0);
    const auto size = static_cast<std::int64_t>(2 * multiple * static_cast<double>(hidden) / 3);
    if (size < 1 || multiple > kMostMultiple) {
      reader_.fail(at_ + "ffn has neither intermediate_size nor an ffn_mult from 0.01 to 1000");
    }
    return (size + 255) / 256 * 256;
  }

 private:
  static constexpr double kMostMultiple = 1000;
  [[nodiscard]] bool flag(std::string_view part, std::string_view name) const {
    return reader_.flag(at_ + std::string(part) + "." + std::string(name), false);
  }

  const ConfigReader& reader_;
  std::string at_;
};

}  // namespace

std::vector<LayerConfig> read_layers(const ConfigReader& reader, const Architecture& arch,
                                     const ModelConfig& model) {
  if (arch.layers != nullptr) return arch.layers(reader, model);
  const std::int64_t num_layers = reader.at(Field::kNumHiddenLayers);
  const std::vector<std::int64_t> window = windows(reader, arch, num_layers);
  const std::vector<bool> is_recurrent = recurrent_layers(reader, arch, num_layers);
  const std::vector<bool> is_moe = moe_layers(reader, arch, num_layers);
  std::vector<LayerConfig> layers;
  for (std::size_t i = 0; i < is_moe.size(); ++i) {
    LayerConfig layer{.attention = arch.attention, .sliding_window = window[i]};
    if (is_recurrent[i]) {
      layer.attention = arch.has_mamba2 ? AttentionKind::kMamba2 : AttentionKind::kDeltaNet;
      layer.state_bytes = recurrent_state_bytes(model);
    }
    if (is_moe[i]) {
      layer.ffn = FfnKind::kMoe;
    } else {
      layer.intermediate_size = dense_columns(reader, arch, model);
    }
    layers.push_back(layer);
  }
  return layers;
}

std::vector<LayerConfig> pattern_layers(const ConfigReader& reader, const ModelConfig& model) {
  std::vector<std::string> kinds = reader.texts("layers_block_type");
  for (const char kind : reader.text("hybrid_override_pattern")) kinds.emplace_back(1, kind);
  const std::int64_t num_layers = reader.at(Field::kNumHiddenLayers);
  if (std::ssize(kinds) < num_layers) {
    reader.fail("hybrid_override_pattern has " + std::to_string(kinds.size()) +
                " layers, expected the " + std::to_string(num_layers) + " of num_hidden_layers");
  }
  std::vector<LayerConfig> layers;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const std::string& kind = kinds[static_cast<std::size_t>(i)];
    const auto layer = mixer(kind, model, reader.get(Field::kIntermediateSize, 0));
    if (kind == "E" || kind == "moe") {
      reader.fail("layer " + std::to_string(i) +
                  " has routed experts without a gate (squared ReLU), which have no block here");
    }
    if (!layer) {
      reader.fail("layer " + std::to_string(i) + " is of type \"" + shown(kind) +
                  "\", which has no block here; known are M (mamba), - (mlp) and * (attention)");
    }
    if (layer->attention == AttentionKind::kNone) reader.require({Field::kIntermediateSize});
    layers.push_back(*layer);
  }
  return layers;
}

std::vector<LayerConfig> searched_layers(const ConfigReader& reader, const ModelConfig& model) {
  std::vector<LayerConfig> layers;
  for (std::int64_t i = 0; i < reader.at(Field::kNumHiddenLayers); ++i) {
    const SearchedBlock block(reader, i);
    LayerConfig layer;
    if (block.is_left_out("attention")) layer.attention = AttentionKind::kNone;
    if (block.is_left_out("ffn")) {
      layer.ffn = FfnKind::kNone;
    } else {
      layer.intermediate_size = block.columns(model.hidden_size);
    }
    // A layer without both does nothing.
    if (!block.is_left_out("attention") || !block.is_left_out("ffn")) layers.push_back(layer);
  }
  return layers;
}

std::int64_t searched_kv_heads(const ConfigReader& reader, std::int64_t num_heads) {
  std::optional<std::int64_t> group;
  for (std::int64_t i = 0; i < reader.at(Field::kNumHiddenLayers); ++i) {
    const SearchedBlock block(reader, i);
    if (block.is_left_out("attention")) continue;
    const auto own = block.heads_in_group();
    if (!own || *own < 1 || num_heads % *own != 0) {
      reader.fail("layer " + std::to_string(i) + " has n_heads_in_group " +
                  (own ? std::to_string(*own) : "missing") + ", expected a divisor of the " +
                  std::to_string(num_heads) + " of num_attention_heads");
    }
    if (group && *group != *own) {
      reader.fail("layer " + std::to_string(i) + " has n_heads_in_group " + std::to_string(*own) +
                  " and layers before it " + std::to_string(*group) +
                  "; layers with different numbers of key and value heads have no form here");
    }
    group = own;
  }
  return num_heads / group.value_or(num_heads);
}

}  // namespace orrery
