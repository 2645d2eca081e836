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
  // Where that stands: "quantization_config", or the file beside it that TensorRT Model Optimizer
  // writes, "hf_quant_config.json".
  std::string quantization_source;
};
// Throw ScenarioError (the file as a whole where model_config names a field). With `as` the model
// is read as if that were its model_type.
ModelFile read_model_file(const std::filesystem::path& file, const std::string& as = "");
ModelConfig read_model(const std::filesystem::path& file, const std::string& as = "");

// Short names of the files in `models`, ascending, by the rule of models/README.md:
// "meta-llama--Meta-Llama-3.1-8B-Instruct.config.json" is "llama-3.1-8b".
std::vector<std::string> model_names(const std::filesystem::path& models);
// The file of a short name, of the part after the owner, or of its own name, in any case; empty
// when there is none.
std::filesystem::path model_path(const std::filesystem::path& models, const std::string& name);
// The file that a scenario in `directory` means by `name`: a path, there or in `root`, of a file or
// of the directory of a config.json; a name of root/models; an id on the hub, of a model there or
// in the hub's cache (hub_cache.h). Throws std::invalid_argument that says where it looked.
std::filesystem::path find_model(const std::string& name, const std::filesystem::path& directory,
                                 const std::filesystem::path& root);

}  // namespace orrery
