#pragma once

// Reads the shipped config.json files for tests of the model and parallel rooms, which must not
// depend on sim/scenario.

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/model/model.h"

namespace orrery::testing {

inline ConfigValue config_scalar(const YAML::Node& node) {
  if (node.IsNull()) return std::monostate{};
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text == "true" || text == "false") return text == "true";
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto parsed = std::from_chars(text.data(), end, whole);
      parsed.ec == std::errc() && parsed.ptr == end) {
    return whole;
  }
  double fraction = 0;
  if (const auto parsed = std::from_chars(text.data(), end, fraction);
      parsed.ec == std::errc() && parsed.ptr == end) {
    return fraction;
  }
  return text;
}

inline ConfigValue config_list(const YAML::Node& node) {
  std::vector<std::int64_t> numbers;
  std::vector<std::string> texts;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) continue;
    const ConfigValue value = config_scalar(item);
    if (const auto* number = std::get_if<std::int64_t>(&value)) numbers.push_back(*number);
    texts.push_back(item.Scalar());
  }
  if (numbers.size() == texts.size()) return numbers;
  return texts;
}

// Lists of mappings by index, as sim/scenario flattens them.
inline void flatten_config(const YAML::Node& node, const std::string& prefix,
                           ConfigFields& fields) {
  for (const auto& entry : node) {
    const std::string key = prefix + entry.first.Scalar();
    if (entry.second.IsMap()) {
      flatten_config(entry.second, key + ".", fields);
    } else if (entry.second.IsSequence() && entry.second.size() > 0 && entry.second[0].IsMap()) {
      for (std::size_t i = 0; i < entry.second.size(); ++i) {
        flatten_config(entry.second[i], key + "." + std::to_string(i) + ".", fields);
      }
    } else {
      fields[key] =
          entry.second.IsSequence() ? config_list(entry.second) : config_scalar(entry.second);
    }
  }
}

inline std::filesystem::path models_directory() {
  return std::filesystem::path(ORRERY_SOURCE_DIR) / "models";
}

inline ConfigFields config_fields(const std::string& file) {
  ConfigFields fields;
  flatten_config(YAML::LoadFile((models_directory() / file).string()), "", fields);
  return fields;
}

// `name` is the file name without ".config.json".
inline ModelConfig shipped_model(const std::string& name) {
  return model_config(name, config_fields(name + ".config.json"));
}

}  // namespace orrery::testing
