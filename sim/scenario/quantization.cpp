#include "sim/scenario/quantization.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "sim/scenario/ignored_modules.h"

namespace orrery {
namespace {

// The blocks that fp8_block counts a scale for (bytes_per_element).
constexpr std::int64_t kBlock = 128;
// The group of weights that int4 counts a scale for.
constexpr std::int64_t kGroup = 128;

// A mapping of quantization_config. Tools add keys of their own, so unknown ones pass.
class Config {
 public:
  Config(const YamlNode& node, const std::string& path)
      : node_(&node), reader_(node, path, keys_of(node)) {}

  [[nodiscard]] const YamlNode* find(std::string_view key) const {
    const YamlNode* found = node_->find(key);
    return found == nullptr || found->kind == YamlNode::Kind::kNull ? nullptr : found;
  }
  [[nodiscard]] const Reader& reader() const { return reader_; }
  [[nodiscard]] Config at(std::string_view key) const {
    return {reader_.at(key), reader_.path_of(key)};
  }
  [[nodiscard]] std::string text(std::string_view key, const std::string& otherwise) const {
    return find(key) == nullptr ? otherwise : reader_.text(key);
  }
  [[nodiscard]] bool flag(std::string_view key) const {
    return find(key) != nullptr && reader_.boolean(key);
  }
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const {
    const YamlNode* found = node_->find(key);
    reader_.fail(key, (found == nullptr ? "missing" : "found " + describe(*found)) + "; expected " +
                          expected);
  }

 private:
  static std::vector<std::string_view> keys_of(const YamlNode& node) {
    std::vector<std::string_view> keys;
    keys.reserve(node.entries.size());
    for (const YamlNode::Entry& entry : node.entries) keys.emplace_back(entry.key);
    return keys;
  }

  const YamlNode* node_;
  Reader reader_;
};

// Of all linear layers that the checkpoint quantises.
struct Formats {
  DType weights = DType::kBf16;
  DType activations = DType::kBf16;
  std::string text;
  std::vector<std::string> notes;
};

void check_group(const Config& config, std::string_view key, Formats& formats) {
  if (config.find(key) == nullptr) return;
  const std::int64_t group = config.reader().integer(key, -1, 1 << 20);
  if (group == 0) config.refuse(key, "-1 (a scale per channel) or a whole number from 1");
  if (group > 0 && group != kGroup) {
    formats.notes.push_back("the checkpoint has a scale for each " + std::to_string(group) +
                            " weights; int4 here counts one for each " + std::to_string(kGroup));
  }
}

// `key` holds the rows and columns of a block.
void check_block(const Config& config, std::string_view key) {
  if (config.reader().integers(key, 1) != std::vector{kBlock, kBlock}) {
    config.refuse(key, "blocks of [128, 128]");
  }
}

Formats read_fp8(const Config& config) {
  const std::string fmt = config.text("fmt", "e4m3");
  if (fmt != "e4m3" && fmt != "float8_e4m3fn") config.refuse("fmt", "e4m3");
  const std::string scheme = config.text("activation_scheme", "dynamic");
  if (scheme != "dynamic" && scheme != "static") {
    config.refuse("activation_scheme", "dynamic or static");
  }
  if (config.find("weight_block_size") == nullptr) return {DType::kFp8, DType::kFp8, "fp8", {}};
  check_block(config, "weight_block_size");
  return {DType::kFp8Block, DType::kFp8Block, "fp8 in blocks of 128 x 128", {}};
}

Formats read_fbgemm(const Config&) { return {DType::kFp8, DType::kFp8, "fp8 by rows", {}}; }

Formats read_mxfp4(const Config&) { return {DType::kMxfp4, DType::kBf16, "mxfp4", {}}; }

// AWQ and GPTQ: whole numbers of `bits` with a scale for a group, widened to bf16.
Formats read_whole_numbers(const Config& config) {
  const std::string_view key = config.find("w_bit") != nullptr ? "w_bit" : "bits";
  if (config.find(key) == nullptr) config.refuse(key, "4 or 8");
  const std::int64_t bits = config.reader().integer(key, 1, 64);
  if (bits != 4 && bits != 8) config.refuse(key, "4 or 8");
  Formats formats{
      bits == 4 ? DType::kInt4 : DType::kInt8, DType::kBf16, "int" + std::to_string(bits), {}};
  if (bits == 4) check_group(config, "group_size", formats);
  return formats;
}

// quant_algo of TensorRT Model Optimizer.
struct Algorithm {
  std::string_view name;
  DType weights = DType::kBf16;
  DType activations = DType::kBf16;
  std::string_view text;
};
constexpr auto kAlgorithms = std::to_array<Algorithm>({
    {"FP8", DType::kFp8, DType::kFp8, "fp8"},
    {"FP8_PER_CHANNEL_PER_TOKEN", DType::kFp8, DType::kFp8, "fp8 by rows"},
    {"FP8_PB_WO", DType::kFp8Block, DType::kFp8Block, "fp8 in blocks of 128 x 128"},
    {"NVFP4", DType::kNvfp4, DType::kNvfp4, "nvfp4"},
    {"NVFP4_AWQ", DType::kNvfp4, DType::kNvfp4, "nvfp4"},
    {"W4A16_AWQ", DType::kInt4, DType::kBf16, "int4"},
    {"W8A16", DType::kInt8, DType::kBf16, "int8"},
});

Formats read_modelopt(const Config& config) {
  const std::string name = config.text("quant_algo", "");
  std::string known;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) {
      Formats formats{algorithm.weights, algorithm.activations, std::string(algorithm.text), {}};
      if (algorithm.weights == DType::kInt4) check_group(config, "group_size", formats);
      return formats;
    }
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  config.refuse("quant_algo", "one of " + known);
}

// One of compressed-tensors' config_groups.
Formats read_group(const Config& group) {
  if (group.find("weights") == nullptr) group.refuse("weights", "what weights are quantised to");
  const Config weights = group.at("weights");
  const std::int64_t bits = weights.reader().integer("num_bits", 1, 64);
  const std::string type = weights.text("type", "int");
  const YamlNode* inputs = group.find("input_activations");
  std::int64_t input_bits = 16;
  if (inputs != nullptr) {
    const Config input = group.at("input_activations");
    input_bits = input.reader().integer("num_bits", 1, 64);
    if (input_bits < 16 &&
        (input_bits != bits || input.text("type", "int") != type || type != "float")) {
      input.refuse("num_bits", "activations that are not quantised, or floats as the weights are");
    }
  }
  Formats formats;
  if (type == "int" && (bits == 4 || bits == 8)) {
    formats = {
        bits == 4 ? DType::kInt4 : DType::kInt8, DType::kBf16, "int" + std::to_string(bits), {}};
    if (bits == 4) check_group(weights, "group_size", formats);
    return formats;
  }
  if (type != "float" || (bits != 4 && bits != 8)) {
    weights.refuse(type == "float" || type == "int" ? "num_bits" : "type",
                   "int or float of 4 or 8 bits");
  }
  if (bits == 8 && weights.text("strategy", "tensor") == "block") {
    check_block(weights, "block_structure");
    formats = {DType::kFp8Block, DType::kBf16, "fp8 in blocks of 128 x 128", {}};
  } else if (bits == 8) {
    formats = {DType::kFp8, DType::kBf16, "fp8", {}};
  } else if (weights.find("group_size") != nullptr &&
             weights.reader().integer("group_size", -1, 1 << 20) == 32) {
    formats = {DType::kMxfp4, DType::kBf16, "mxfp4", {}};
  } else {
    formats = {DType::kNvfp4, DType::kBf16, "nvfp4", {}};
  }
  if (input_bits < 16 && formats.weights != DType::kMxfp4) formats.activations = formats.weights;
  return formats;
}

Formats read_compressed_tensors(const Config& config) {
  const Config groups(config.reader().at("config_groups"), "quantization_config.config_groups");
  std::optional<Formats> formats;
  for (const YamlNode::Entry& entry : groups.reader().node().entries) {
    Formats own = read_group(groups.at(entry.key));
    if (formats && (own.weights != formats->weights || own.activations != formats->activations)) {
      groups.refuse(entry.key, "groups of one format");
    }
    formats = std::move(own);
  }
  if (!formats) config.refuse("config_groups", "at least one group");
  return *formats;
}

// AMD Quark: one format of weights for all layers, inputs in it too or in bf16.
Formats read_quark(const Config& config) {
  if (config.find("global_quant_config") == nullptr) {
    config.refuse("global_quant_config", "the formats of all layers");
  }
  const Config global = config.at("global_quant_config");
  if (global.find("weight") == nullptr) global.refuse("weight", "what weights are quantised to");
  const Config weight = global.at("weight");
  const std::string dtype = weight.text("dtype", "");
  if (dtype != "fp8_e4m3" && dtype != "fp4") weight.refuse("dtype", "fp8_e4m3 or fp4");
  const bool is_fp8 = dtype == "fp8_e4m3";
  if (!is_fp8 && (weight.find("group_size") == nullptr ||
                  weight.reader().integer("group_size", -1, 1 << 20) != 32)) {
    weight.refuse("group_size", "32");
  }
  Formats formats{is_fp8 ? DType::kFp8 : DType::kMxfp4, DType::kBf16, is_fp8 ? "fp8" : "mxfp4", {}};
  if (global.find("input_tensors") != nullptr) {
    const Config inputs = global.at("input_tensors");
    if (inputs.text("dtype", "") != dtype) inputs.refuse("dtype", "that of the weights, " + dtype);
    if (is_fp8) formats.activations = DType::kFp8;
    if (!is_fp8) formats.notes.emplace_back("inputs in mxfp4 are simulated in bf16");
  }
  const YamlNode* own = config.find("layer_quant_config");
  if (own != nullptr && !own->entries.empty()) {
    formats.notes.emplace_back(
        "layers with formats of their own (layer_quant_config) are taken as the others");
  }
  return formats;
}

// AutoRound stores whole numbers as GPTQ and AWQ do.
Formats read_auto_round(const Config& config) {
  if (config.text("data_type", "int") != "int") config.refuse("data_type", "int");
  Formats formats = read_whole_numbers(config);
  if (config.find("extra_config") != nullptr) {
    formats.notes.emplace_back(
        "layers with bits of their own (extra_config) are taken as the others");
  }
  return formats;
}

struct Method {
  std::string_view name;
  Formats (*read)(const Config&);
  std::string_view instead;  // what a scenario may set
};

constexpr std::string_view kFp8Instead = "fp8 or fp8_block, with model.activations of the same";
constexpr auto kMethods = std::to_array<Method>({
    {"fp8", read_fp8, kFp8Instead},
    {"fbgemm_fp8", read_fbgemm, kFp8Instead},
    {"modelopt", read_modelopt, "fp8 or nvfp4, with model.activations of the same"},
    {"modelopt_fp4", read_modelopt, "nvfp4, with model.activations of the same"},
    {"compressed-tensors", read_compressed_tensors, "fp8, int4 or int8"},
    {"mxfp4", read_mxfp4, "bf16, with model.expert_weights: mxfp4"},
    {"awq", read_whole_numbers, "int4"},
    {"gptq", read_whole_numbers, "int4 or int8"},
    {"auto-round", read_auto_round, "int4 or int8"},
    {"quark", read_quark, "fp8, with model.activations of the same, or mxfp4"},
});

const Method& method_of(const Config& config) {
  std::string known;
  for (const Method& method : kMethods) {
    known += (known.empty() ? "" : ", ") + std::string(method.name);
  }
  if (config.find("quant_method") == nullptr) config.refuse("quant_method", "one of " + known);
  const std::string name = config.reader().text("quant_method");
  const auto* found = std::ranges::find(kMethods, name, &Method::name);
  if (found == kMethods.end()) {
    config.refuse("quant_method",
                  "a way to quantise whose kernels are known here, one of " + known);
  }
  return *found;
}

// Texts under any of the names that tools give to such a list.
std::vector<std::string> ignore_list(const Config& config) {
  std::vector<std::string> patterns;
  for (const std::string_view key : {"modules_to_not_convert", "ignore", "ignored_layers",
                                     "exclude_modules", "exclude", "llm_int8_skip_modules"}) {
    const YamlNode* list = config.find(key);
    if (list == nullptr) continue;
    const auto is_text = [](const YamlNode& item) {
      return item.kind == YamlNode::Kind::kScalar && item.is_quoted;
    };
    if (list->kind != YamlNode::Kind::kList || !std::ranges::all_of(list->items, is_text)) {
      config.refuse(key, "a list of names of modules");
    }
    for (const YamlNode& item : list->items) patterns.push_back(item.scalar);
  }
  return patterns;
}

// Puts `formats` where the checkpoint has them, as far as Precision tells parts apart.
void apply(const Formats& formats, const IgnoredModules& ignored, CheckpointPrecision& found) {
  const auto& routed = ignored.parts[static_cast<std::size_t>(ModulePart::kRoutedExperts)];
  const auto rest = std::span(ignored.parts).first(ignored.parts.size() - 1);
  const bool rest_is_ignored = std::ranges::all_of(
      rest, [](const IgnoredPart& part) { return part.num_ignored == part.num_modules; });
  if (rest_is_ignored && (routed.num_modules == 0 || routed.is_ignored())) return;
  Precision& precision = found.precision;
  if (rest_is_ignored) {
    precision.expert_weights = formats.weights;
  } else {
    precision.weights = formats.weights;
    precision.activations = formats.activations;
    if (routed.is_ignored()) precision.expert_weights = DType::kBf16;
  }
  for (const IgnoredPart& part : ignored.parts) {
    const bool is_routed = part.part == ModulePart::kRoutedExperts;
    const bool is_said = part.is_ignored() && (rest_is_ignored || is_routed);
    if (part.num_ignored == 0 || is_said) continue;
    found.notes.push_back("the checkpoint leaves " + std::to_string(part.num_ignored) + " of " +
                          std::to_string(part.num_modules) + " linear layers of its " +
                          std::string(to_text(part.part)) + " in bf16; all are simulated as " +
                          std::string(to_text(formats.weights)));
  }
}

CheckpointPrecision read_config(const YamlNode& node, const ModelConfig& model,
                                std::string_view& instead) {
  const Config config(node, "quantization_config");
  const Method& method = method_of(config);
  instead = method.instead;
  const Formats formats = method.read(config);
  const IgnoredModules ignored = ignored_modules(model, ignore_list(config));
  CheckpointPrecision found{.method = std::string(method.name) + ": " + formats.text,
                            .notes = formats.notes};
  apply(formats, ignored, found);
  if (config.flag("lm_head")) found.precision.lm_head = formats.weights;
  for (const std::string& pattern : ignored.unread_patterns) {
    found.notes.push_back("'" + pattern + "' is not understood; no module is left out for it");
  }
  if (config.find("kv_cache_scheme") != nullptr || config.find("kv_cache_quant_algo") != nullptr) {
    found.notes.emplace_back(
        "the checkpoint has scales of a quantised KV cache; model.kv_cache decides");
  }
  return found;
}

}  // namespace

const YamlNode* quantization_config(const YamlNode& root) {
  for (const YamlNode* part : {root.find("text_config"), &root}) {
    if (part == nullptr) continue;
    for (const std::string_view key : {"quantization_config", "compression_config"}) {
      const YamlNode* found = part->find(key);
      if (found != nullptr && found->kind != YamlNode::Kind::kNull) return found;
    }
  }
  return nullptr;
}

YamlNode optimizer_quantization(const YamlNode& root) {
  const YamlNode* found = root.find("quantization");
  if (found == nullptr || found->kind != YamlNode::Kind::kMap) {
    fail_at(root.where, "missing quantization; expected the mapping of an hf_quant_config.json");
  }
  YamlNode config = *found;
  std::erase_if(config.entries,
                [](const YamlNode::Entry& entry) { return entry.key == "quant_method"; });
  YamlNode method{.kind = YamlNode::Kind::kScalar,
                  .is_quoted = true,
                  .scalar = "modelopt",
                  .items = {},
                  .entries = {},
                  .where = found->where};
  config.entries.push_back(
      {.key = "quant_method", .where = found->where, .value = std::move(method)});
  return config;
}

CheckpointPrecision checkpoint_precision(const YamlNode& config, const ModelConfig& model) {
  std::string_view instead = "bf16, fp8, fp8_block, mxfp4, nvfp4, int4 or int8";
  try {
    return read_config(config, model, instead);
  } catch (const ScenarioError& error) {
    throw ScenarioError(
        error.file(), error.line(), error.column(),
        error.message() + "; model.weights in the scenario overrides it: " + std::string(instead));
  }
}

}  // namespace orrery
