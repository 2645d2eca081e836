#include "sim/scenario/model_part.h"

#include <string>
#include <utility>
#include <vector>

#include "sim/scenario/experts.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/model_file.h"
#include "sim/scenario/quantization.h"

namespace orrery {
namespace {

// The first `num_layers` of the model.
void cut_layers(const Reader& reader, std::int64_t num_layers, ModelFile& model) {
  const std::int64_t all = std::ssize(model.config.layers);
  if (num_layers < 1 || num_layers > all) {
    reader.fail("layers", "found " + std::to_string(num_layers) + "; expected 1 to " +
                              std::to_string(all) + ", those of " + model.config.name);
  }
  model.fields = with_num_layers(model.fields, num_layers);
  model.config = model_config(model.config.name, model.fields);
}

// What the scenario says; without model.weights in it, the checkpoint's own formats before that.
void read_precision(const Reader& reader, const ModelFile& model, Scenario& scenario) {
  Precision& precision = scenario.precision;
  const bool is_quantised = model.quantization.kind != YamlNode::Kind::kNull;
  if (reader.has("weights")) {
    scenario.precision_source = "scenario";
  } else if (!is_quantised) {
    scenario.precision_source = "default: " + scenario.model + " has no quantization_config";
  } else {
    CheckpointPrecision found = checkpoint_precision(model.quantization, scenario.model_config);
    precision = found.precision;
    scenario.precision_source = "checkpoint, " + model.quantization_source + " " + found.method;
    for (const std::string& note : found.notes) {
      scenario.precision_notes.push_back(model.quantization_source + " of " + scenario.model +
                                         ": " + note);
    }
  }
  const auto format = [&](std::string_view key, auto& dtype) {
    if (reader.has(key)) {
      dtype = reader.convert(key, parse_dtype);
    }
  };
  format("weights", precision.weights);
  format("expert_weights", precision.expert_weights);
  format("activations", precision.activations);
  format("kv_cache", precision.kv_cache);
  format("lm_head", precision.lm_head);
}

}  // namespace

void read_model_part(const YamlNode& node, const std::filesystem::path& directory,
                     Scenario& scenario) {
  if (node.kind == YamlNode::Kind::kScalar) {
    YamlNode named = node;
    make_mapping(named, "config");
    return read_model_part(named, directory, scenario);
  }
  const Reader reader(node, "model", key_names("model"));
  scenario.model = reader.text("config");
  const std::filesystem::path file = reader.convert("config", [&](std::string_view name) {
    return find_model(std::string(name), directory, scenario.paths.root);
  });
  if (reader.has("as")) {
    const std::vector<std::string> types = known_model_types();
    const std::vector<std::string_view> known(types.begin(), types.end());
    scenario.model_as = types[reader.choice("as", known)];
  }
  ModelFile model = read_model_file(file, scenario.model_as);
  if (reader.has("layers")) {
    scenario.num_layers = reader.integer("layers");
    cut_layers(reader, *scenario.num_layers, model);
  }
  scenario.model_config = std::move(model.config);
  scenario.model_fields = std::move(model.fields);
  read_precision(reader, model, scenario);
  if (reader.has("expert_load")) {
    scenario.expert_load = read_expert_load(reader, "expert_load");
  }
}

}  // namespace orrery
