#include "sim/scenario/model_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "sim/scenario/hub_cache.h"
#include "sim/scenario/named_files.h"
#include "sim/scenario/quantization.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {

namespace {

constexpr std::string_view kConfig = ".config";
constexpr std::string_view kMeta = "meta-";
constexpr std::string_view kInstruct = "-instruct";
constexpr const char* kQuantFile = "hf_quant_config.json";

template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole_text = end == text.data() + text.size();
  return error == std::errc() && is_whole_text ? std::optional(value) : std::nullopt;
}

ConfigValue scalar_value(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kNull) {
    return std::monostate();
  }
  if (node.is_quoted) {
    return node.scalar;
  }
  if (node.scalar == "true" || node.scalar == "false") {
    return node.scalar == "true";
  }
  if (const auto whole = parse_number<std::int64_t>(node.scalar)) {
    return *whole;
  }
  if (const auto fraction = parse_number<double>(node.scalar);
      fraction && std::isfinite(*fraction)) {
    return *fraction;
  }
  return node.scalar;
}

// Of whole numbers alone, else of text.
ConfigValue list_value(const YamlNode& node) {
  std::vector<std::int64_t> numbers;
  std::vector<std::string> texts;
  for (const YamlNode& item : node.items) {
    const ConfigValue value = scalar_value(item);
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
      numbers.push_back(*number);
    }
    texts.push_back(item.scalar);
  }
  if (numbers.size() == texts.size()) {
    return numbers;
  }
  return texts;
}

void flatten(const YamlNode& node, const std::string& key, ConfigFields& fields) {
  const std::string prefix = key.empty() ? "" : key + ".";
  if (node.kind == YamlNode::Kind::kMap) {
    if (node.entries.empty() && !key.empty()) {
      fields[key] = std::string("{}");  // of no use as a value, but not absent
    }
    for (const YamlNode::Entry& entry : node.entries) {
      flatten(entry.value, prefix + entry.key, fields);
    }
    return;
  }
  if (node.kind != YamlNode::Kind::kList) {
    fields[key] = scalar_value(node);
    return;
  }
  const bool all_scalar = std::ranges::all_of(node.items, [](const YamlNode& item) {
    return item.kind == YamlNode::Kind::kScalar || item.kind == YamlNode::Kind::kNull;
  });
  if (all_scalar) {
    fields[key] = list_value(node);
    return;
  }
  for (std::size_t index = 0; index < node.items.size(); ++index) {
    flatten(node.items[index], prefix + std::to_string(index), fields);
  }
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// The file's name in lower case without its endings, or "" when it is no model file.
std::string full_name(const std::filesystem::path& file) {
  if (file.extension() != ".json" && file.extension() != ".yaml") {
    return "";
  }
  std::string name = lower_case(file.stem().string());
  if (name.ends_with(kConfig)) {
    name.resize(name.size() - kConfig.size());
  }
  return name;
}

// The full name without "<owner>--".
std::string own_name(const std::filesystem::path& file) {
  std::string name = full_name(file);
  if (const std::size_t owner = name.find("--"); owner != std::string::npos) {
    name.erase(0, owner + 2);
  }
  return name;
}

// The rule of models/README.md: without a leading "meta-" and a trailing "-instruct" either.
std::string short_name(const std::filesystem::path& file) {
  std::string name = own_name(file);
  if (name.starts_with(kMeta)) {
    name.erase(0, kMeta.size());
  }
  if (name.ends_with(kInstruct)) {
    name.resize(name.size() - kInstruct.size());
  }
  return name;
}

// Of the checkpoint that `file` lies in; of a snapshot of the hub's cache, which is named by its
// revision, the model's.
std::string directory_name(const std::filesystem::path& file) {
  constexpr std::string_view kModels = "models--";
  const std::filesystem::path directory = file.parent_path();
  if (directory.parent_path().filename() == "snapshots") {
    const std::string model = directory.parent_path().parent_path().filename().string();
    const std::size_t owner = model.find("--", kModels.size());
    if (model.starts_with(kModels) && owner != std::string::npos) return model.substr(owner + 2);
  }
  return directory.filename().string();
}

std::string unknown_model(const std::string& name, const std::vector<std::string>& names) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  std::string text = "unknown model '" + shown(name) + "'";
  if (!known.empty()) text += "; did you mean '" + nearest(name, known) + "'?";
  text += " Known: ";
  for (const std::string& each : names) text += (each == names.front() ? "" : ", ") + each;
  return text + "; or a path, or an id on the hub such as Qwen/Qwen3-8B";
}

}  // namespace

ConfigFields flatten_config(const YamlNode& root) {
  if (root.kind != YamlNode::Kind::kMap) {
    fail_at(root.where, "found " + describe(root) + "; expected the mapping of a config.json");
  }
  ConfigFields fields;
  flatten(root, "", fields);
  return fields;
}

ModelFile read_model_file(const std::filesystem::path& file, const std::string& as) {
  const YamlNode root = read_yaml(file);
  std::string name = short_name(file);
  if (name == "config") {  // a checkpoint's directory, as downloaded
    name = directory_name(file);
  }
  try {
    ConfigFields fields = flatten_config(root);
    if (!as.empty()) fields["model_type"] = as;
    ModelConfig config = model_config(name, fields);
    ModelFile model{.config = std::move(config), .fields = std::move(fields)};
    const YamlNode* quantization = quantization_config(root);
    if (quantization != nullptr) {
      model.quantization = *quantization;
      model.quantization_source = "quantization_config";
    } else if (const auto beside = file.parent_path() / kQuantFile;
               file.filename() == "config.json" && std::filesystem::exists(beside)) {
      model.quantization = optimizer_quantization(read_yaml(beside));
      model.quantization_source = kQuantFile;
    }
    return model;
  } catch (const ScenarioError&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw ScenarioError(file.string(), 0, 0, error.what());
  }
}

ModelConfig read_model(const std::filesystem::path& file, const std::string& as) {
  return read_model_file(file, as).config;
}

std::vector<std::string> model_names(const std::filesystem::path& models) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(models, error)) {
    if (std::string name = short_name(entry.path()); !name.empty()) {
      names.push_back(std::move(name));
    }
  }
  std::ranges::sort(names);
  return names;
}

std::filesystem::path model_path(const std::filesystem::path& models, const std::string& name) {
  const std::string wanted = lower_case(name);
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(models, error)) {
    const std::filesystem::path& file = entry.path();
    const bool is_named = short_name(file) == wanted || own_name(file) == wanted ||
                          full_name(file) == wanted ||
                          lower_case(file.filename().string()) == wanted;
    if (is_named && !full_name(file).empty()) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found.empty() || name.empty() ? std::filesystem::path() : found.front();
}

std::filesystem::path find_model(const std::string& name, const std::filesystem::path& directory,
                                 const std::filesystem::path& root) {
  const std::filesystem::path models = root / "models";
  const bool is_path =
      name.find('/') != std::string::npos || name.ends_with(".yaml") || name.ends_with(".json");
  if (!is_path) {
    std::filesystem::path file = model_path(models, name);
    if (file.empty()) throw std::invalid_argument(unknown_model(name, model_names(models)));
    return file;
  }
  if (std::filesystem::path file = resolve_path(name, directory, root); !file.empty()) {
    return std::filesystem::is_directory(file) ? file / "config.json" : file;
  }
  const std::string missing =
      "found no file '" + shown(name) + "' in " + directory.string() + " or " + root.string();
  if (!is_hub_id(name)) throw std::invalid_argument(missing);
  std::string shipped = name;
  shipped.replace(shipped.find('/'), 1, "--");
  if (std::filesystem::path file = model_path(models, shipped); !file.empty()) return file;
  try {
    return hub_config(hub_cache(), name);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(missing + "; as an id on the hub: " + error.what());
  }
}

}  // namespace orrery
