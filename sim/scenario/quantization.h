#pragma once

// The number formats that a checkpoint's own config.json gives: quantization_config as the tools
// that quantise write it, as far as a Precision can say it.

#include <optional>
#include <string>
#include <vector>

#include "sim/model/model.h"
#include "sim/scenario/reader.h"

namespace orrery {

struct CheckpointPrecision {
  Precision precision;             // kv_cache is the engine's choice and stays as it is
  std::string method;              // "fp8, blocks of 128 x 128"
  std::vector<std::string> notes;  // what of it is not simulated as it is
};

// The quantization_config (compression_config in older files) of a config.json, under text_config
// where it is there; null when there is none.
const YamlNode* quantization_config(const YamlNode& root);

// What hf_quant_config.json says, in the form of quantization_config. Throws ScenarioError.
YamlNode optimizer_quantization(const YamlNode& root);

// Reads what quantization_config() found. Throws ScenarioError at what is malformed, or not known
// here; the message says which model.weights of a scenario stands in.
CheckpointPrecision checkpoint_precision(const YamlNode& config, const ModelConfig& model);

}  // namespace orrery
