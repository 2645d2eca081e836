#pragma once

// Models from a Hugging Face config.json as it is, or YAML with the same field names.

#include <filesystem>
#include <string>
#include <vector>

#include "sim/model/model.h"
#include "sim/scenario/reader.h"

namespace orrery {

// Nested mappings by dotted keys; lists of whole numbers, or of anything else scalar as text; lists
// of mappings by index.
ConfigFields flatten_config(const YamlNode& root);

struct ModelFile {
  ModelConfig config;
  ConfigFields fields;    // what config was read from
  YamlNode quantization;  // quantization_config as it stands there; kNull: none
};
// Throw ScenarioError (the file as a whole where model_config names a field).
ModelFile read_model_file(const std::filesystem::path& file);
ModelConfig read_model(const std::filesystem::path& file);

// Short names of the files in `models`, ascending, by the rule of models/README.md:
// "meta-llama--Meta-Llama-3.1-8B-Instruct.config.json" is "llama-3.1-8b".
std::vector<std::string> model_names(const std::filesystem::path& models);
// The file of a short name, of the part after the owner, or of its own name, in any case; empty
// when there is none.
std::filesystem::path model_path(const std::filesystem::path& models, const std::string& name);

}  // namespace orrery
