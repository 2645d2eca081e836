#include "sim/scenario/speculative_spec.h"

#include <algorithm>
#include <stdexcept>

#include "sim/scenario/keys.h"
#include "sim/scenario/model_file.h"
#include "sim/scenario/quantization.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

bool keeps_states(const ModelConfig& model) {
  return std::ranges::any_of(model.layers,
                             [](const LayerConfig& layer) { return layer.state_bytes > 0; });
}

// Where drafting and verification are not simulated.
void check_target(const Reader& reader, const SpeculativeTarget& target) {
  if (keeps_states(target.model)) {
    reader.fail("method", target.model.name +
                              " has layers that keep a state of a sequence, which rejected drafts "
                              "would have to be taken out of again; expected a model of "
                              "attention layers alone");
  }
  const Mesh& mesh = target.mesh;
  if (mesh.pp > 1 || mesh.cp > 1 || mesh.two_batch_overlap) {
    reader.fail("method",
                std::string("found speculative beside placement.") +
                    (mesh.pp > 1   ? "pp"
                     : mesh.cp > 1 ? "cp"
                                   : "two_batch_overlap") +
                    "; expected dp, tp and ep alone, in which the drafts of a step are verified");
  }
}

std::vector<double> read_acceptance(const Reader& reader, std::int64_t num_tokens) {
  reader.require({"acceptance"});
  std::vector<double> acceptance = reader.numbers("acceptance");
  const auto wrong = std::ranges::find_if(acceptance, [](double p) { return !(p >= 0 && p <= 1); });
  if (wrong != acceptance.end()) {
    reader.fail("acceptance",
                "found " + format_number(*wrong) +
                    "; expected probabilities from 0 to 1: entry i is that of the i-th draft, "
                    "given that those before it were accepted");
  }
  if (std::ssize(acceptance) < num_tokens) {
    reader.fail("acceptance", "found " + std::to_string(acceptance.size()) +
                                  " probabilities; expected one of each of the " +
                                  std::to_string(num_tokens) +
                                  " drafts (num_speculative_tokens), or more");
  }
  return acceptance;
}

// The layer that the target's hidden states go through.
ModelConfig own_layer(const ModelConfig& target) {
  ModelConfig layer = target;
  layer.name = target.name + " draft layer";
  layer.layers = {target.layers.back()};
  layer.joins_hidden = true;
  layer.notes.clear();
  return layer;
}

void read_formats(const Reader& reader, const ModelFile& file, const Precision& of_target,
                  SpeculativeSpec& spec) {
  spec.precision = {.kv_cache = of_target.kv_cache};
  if (!reader.has("weights") && file.quantization.kind != YamlNode::Kind::kNull) {
    spec.precision = checkpoint_precision(file.quantization, spec.model_config).precision;
    spec.precision.kv_cache = of_target.kv_cache;
  }
}

// Config and formats of a draft that is a file of its own.
void read_draft(const Reader& reader, const SpeculativeTarget& target,
                const std::filesystem::path& directory, const std::filesystem::path& root,
                SpeculativeSpec& spec) {
  spec.model = reader.text("model");
  const std::filesystem::path file = reader.convert("model", [&](std::string_view name) {
    return find_model(std::string(name), directory, root);
  });
  const ModelFile draft = read_model_file(file);
  spec.model_config = draft.config;
  const auto differs = [&](const char* field, std::int64_t own, std::int64_t of_target) {
    if (own == of_target) return;
    reader.fail("model", "found " + spec.model + " with " + field + " " + std::to_string(own) +
                             "; expected " + std::to_string(of_target) + ", that of " +
                             target.model.name);
  };
  differs("vocab_size", spec.model_config.vocab_size, target.model.vocab_size);
  if (spec.method == SpeculativeMethod::kEagle) {
    differs("hidden_size", spec.model_config.hidden_size, target.model.hidden_size);
    spec.model_config.joins_hidden = true;
  }
  if (keeps_states(spec.model_config)) {
    reader.fail("model", "found " + spec.model +
                             ", whose layers keep a state of a sequence; expected a model of "
                             "attention layers alone");
  }
  read_formats(reader, draft, target.precision, spec);
}

void read_layer(const Reader& reader, const SpeculativeTarget& target, SpeculativeSpec& spec) {
  if (reader.has("model")) {
    reader.fail("model",
                "found a model beside method mtp, whose layer is the target's; expected "
                "method draft_model or eagle");
  }
  const bool is_moe = target.model.layers.back().ffn == FfnKind::kMoe;
  if (spec.method == SpeculativeMethod::kEagle && is_moe) {
    reader.fail("method",
                "found eagle without a model on " + target.model.name +
                    ", whose last layer routes to experts; expected model: the config.json of "
                    "its head, or method mtp for a layer as the target's");
  }
  spec.model_config = own_layer(target.model);
  spec.precision = target.precision;
}

}  // namespace

std::optional<SpeculativeSpec> read_speculative(const YamlNode& node,
                                                const SpeculativeTarget& target,
                                                const std::filesystem::path& directory,
                                                const std::filesystem::path& root) {
  const Reader reader(node, "engine.speculative", key_names("speculative"));
  reader.require({"method", "num_speculative_tokens"});
  SpeculativeSpec spec;
  spec.method = static_cast<SpeculativeMethod>(reader.choice("method", kSpeculativeMethodNames));
  spec.num_tokens = reader.integer("num_speculative_tokens", 0, kMostSpeculativeTokens);
  spec.acceptance = read_acceptance(reader, spec.num_tokens);
  check_target(reader, target);
  const bool is_model = spec.method == SpeculativeMethod::kDraftModel;
  if (is_model) reader.require({"model"});
  if (is_model || (spec.method == SpeculativeMethod::kEagle && reader.has("model"))) {
    read_draft(reader, target, directory, root, spec);
  } else {
    read_layer(reader, target, spec);
  }
  for (const auto& [key, format] : {std::pair{"weights", &Precision::weights},
                                    std::pair{"activations", &Precision::activations}}) {
    if (reader.has(key)) spec.precision.*format = reader.convert(key, parse_dtype);
  }
  spec.mesh = target.mesh;
  if (!spec.model.empty()) spec.mesh = {.dp = target.mesh.dp, .tp = target.mesh.tp};
  if (reader.has("draft_tensor_parallel_size")) {
    if (!is_model) {
      reader.fail("draft_tensor_parallel_size",
                  "a layer behind the target's hidden states is placed as the target; expected "
                  "this beside method draft_model alone");
    }
    spec.mesh.tp =
        static_cast<int>(reader.integer("draft_tensor_parallel_size", 1, target.mesh.tp));
  }
  try {
    check_mesh(spec.model_config, spec.mesh);
  } catch (const std::invalid_argument& error) {
    reader.fail("model", spec.model_config.name + ": " + error.what());
  }
  if (spec.num_tokens == 0) return std::nullopt;
  return spec;
}

std::string to_yaml(const SpeculativeSpec& spec) {
  std::string acceptance;
  for (const double p : spec.acceptance) {
    acceptance += (acceptance.empty() ? "" : ", ") + format_number(p);
  }
  std::string text = "  speculative: {method: " +
                     std::string(kSpeculativeMethodNames[static_cast<std::size_t>(spec.method)]) +
                     ", num_speculative_tokens: " + std::to_string(spec.num_tokens) +
                     ", acceptance: [" + acceptance + "]";
  if (!spec.model.empty()) text += ", model: " + quoted_yaml(spec.model);
  if (!spec.shares_embedding()) {
    text += ", draft_tensor_parallel_size: " + std::to_string(spec.mesh.tp);
  }
  return text + ", weights: " + std::string(to_text(spec.precision.weights)) +
         ", activations: " + std::string(to_text(spec.precision.activations)) + "}\n";
}

Speculation speculation(const SpeculativeSpec& spec, std::uint64_t seed) {
  return {.num_tokens = spec.num_tokens,
          .acceptance = {spec.acceptance.begin(), spec.acceptance.begin() + spec.num_tokens},
          .seed = seed};
}

}  // namespace orrery
