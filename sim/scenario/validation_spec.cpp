#include "sim/scenario/validation_spec.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "sim/megakernel/instruction.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/lengths.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

constexpr std::int64_t kMaxRepeats = 10'000;
constexpr std::size_t kChunksNamed = 4;  // in a step's name, one by one

// A name that may stand in file names on any system.
bool is_file_safe(std::string_view name) {
  return !name.empty() && name.front() != '.' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

ValidationStep read_step(const YamlNode& node) {
  const Reader reader(node, "validate.steps", key_names("step"));
  ValidationStep step;
  Batch& batch = step.batch;
  if (!reader.has("prefill") && !reader.has("decodes")) {
    fail_at(node.where,
            "validate.steps: found neither prefill nor decodes; expected a step such as "
            "{prefill: [2048]} or {decodes: 64, context: 4096}");
  }
  if (reader.has("decodes")) {
    batch.num_decodes = reader.integer("decodes", 1, kMaxTokens);
    batch.decode_context = batch.num_decodes * reader.integer("context", 1, kMaxTokens);
  }
  if (reader.has("prefill")) {
    const bool is_mixed = batch.num_decodes > 0;
    if (!is_mixed && reader.has("prefill_context")) {
      reader.fail("prefill_context",
                  "belongs to steps with decodes; of a prefill alone say context");
    }
    const std::string_view key = is_mixed ? "prefill_context" : "context";
    const std::int64_t context = reader.has(key) ? reader.integer(key, 0, kMaxTokens) : 0;
    for (const std::int64_t query : reader.integers("prefill")) {
      batch.prefill.push_back({.query = query, .context = context});
    }
    if (batch.prefill.empty()) {
      reader.fail("prefill", "found an empty list; expected the new tokens of each chunk");
    }
  } else if (reader.has("prefill_context")) {
    reader.fail("prefill_context", "belongs to steps with prefill");
  }
  step.name = reader.has("name") ? reader.text("name") : step_name(batch);
  require_file_safe(reader, step.name);
  return step;
}

LaunchMode read_mode(const YamlNode& node) {
  const auto found = std::ranges::find(kStepModes, node.scalar);
  if (node.kind != YamlNode::Kind::kScalar || found == kStepModes.end()) {
    fail_at(
        node.where,
        "validate.modes: found " + describe(node) + "; expected graph, eager or megakernel" +
            (node.scalar.empty() ? std::string()
                                 : "; did you mean '" + nearest(node.scalar, kStepModes) + "'?"));
  }
  return static_cast<LaunchMode>(found - kStepModes.begin());
}

std::string step_yaml(const ValidationStep& step) {
  const Batch& batch = step.batch;
  std::string text = "{name: " + quoted_yaml(step.name);
  std::string queries;
  for (const PrefillChunk& chunk : batch.prefill) {
    queries += (queries.empty() ? "" : ", ") + std::to_string(chunk.query);
  }
  const bool is_mixed = !batch.prefill.empty() && batch.num_decodes > 0;
  if (!batch.prefill.empty()) {
    text += ", prefill: [" + queries + "], " + (is_mixed ? "prefill_context: " : "context: ") +
            std::to_string(batch.prefill.front().context);
  }
  if (batch.num_decodes > 0) {
    text += ", decodes: " + std::to_string(batch.num_decodes) +
            ", context: " + std::to_string(mean_context(batch));
  }
  return text + "}";
}

// All keys, whatever the scenario has.
std::string layer_yaml(const ValidationLayer& layer) {
  return "{name: " + quoted_yaml(layer.name) + ", tokens: " + std::to_string(layer.tokens) +
         (layer.mode ? ", mode: " + std::string(to_text(*layer.mode)) : std::string()) +
         ", moe: " + layer_moe_yaml(layer.moe) + ", expert_comm: " +
         std::string(kExpertCommNames[static_cast<std::size_t>(layer.expert_comm)]) +
         ", split_shared_expert: " + yaml_bool(layer.split_shared_expert) + "}";
}

}  // namespace

const YamlNode& list_at(const Reader& reader, std::string_view key, std::string_view of) {
  const YamlNode& node = reader.at(key);
  if (node.kind != YamlNode::Kind::kList) {
    reader.fail(key, "found " + describe(node) + "; expected a list of " + std::string(of));
  }
  return node;
}

void require_file_safe(const Reader& reader, const std::string& name) {
  if (is_file_safe(name)) return;
  reader.fail("name", "found '" + shown(name) +
                          "'; expected letters, digits, '_', '-' and '.', for file names");
}

ValidationSpec read_validation(const YamlNode& node) {
  const Reader reader(node, "validate", key_names("validate"));
  ValidationSpec spec;
  if (reader.has("steps")) {
    std::set<std::string> names;
    for (const YamlNode& item : list_at(reader, "steps", "steps").items) {
      spec.steps.push_back(read_step(item));
      if (!names.insert(spec.steps.back().name).second) {
        fail_at(item.where, "validate.steps: a second step named '" +
                                shown(spec.steps.back().name) + "'; give it a name of its own");
      }
    }
  }
  if (reader.has("modes")) {
    const YamlNode& modes = list_at(reader, "modes", "graph, eager and megakernel");
    spec.modes.clear();
    for (const YamlNode& item : modes.items) {
      const LaunchMode mode = read_mode(item);
      if (std::ranges::find(spec.modes, mode) != spec.modes.end()) {
        fail_at(item.where, "validate.modes: " + describe(item) + " stands there twice");
      }
      spec.modes.push_back(mode);
    }
    if (spec.modes.empty()) {
      reader.fail("modes", "found an empty list; expected graph, eager or megakernel, or several");
    }
  }
  if (reader.has("repeats")) {
    spec.repeats = reader.integer("repeats", 1, kMaxRepeats);
  }
  if (reader.has("serve")) {
    spec.serve = reader.boolean("serve");
  }
  return spec;
}

std::string to_yaml(const ValidationSpec& spec) {
  std::string steps;
  for (const ValidationStep& step : spec.steps) {
    steps += (steps.empty() ? "" : ", ") + step_yaml(step);
  }
  std::string modes;
  for (const LaunchMode mode : spec.modes) {
    modes += (modes.empty() ? "" : ", ") + std::string(to_text(mode));
  }
  std::string layers;
  for (const ValidationLayer& layer : spec.layers) {
    layers += (layers.empty() ? "" : ", ") + layer_yaml(layer);
  }
  return "{steps: [" + steps + "], modes: [" + modes +
         "], repeats: " + std::to_string(spec.repeats) + ", serve: " + yaml_bool(spec.serve) +
         (layers.empty() ? std::string() : ", layers: [" + layers + "]") + "}";
}

std::string step_name(const Batch& batch) {
  std::string chunks;
  if (batch.prefill.size() <= kChunksNamed) {
    for (const PrefillChunk& chunk : batch.prefill) {
      chunks += (chunks.empty() ? "" : "-") + std::to_string(chunk.query);
    }
  } else {
    chunks =
        std::to_string(batch.prefill.size()) + "x" + std::to_string(batch.prefill.front().query);
  }
  std::string name;
  if (!chunks.empty()) {
    name = "prefill" + chunks;
    if (const std::int64_t cached = batch.prefill.front().context; cached > 0) {
      name += "_cached" + std::to_string(cached);
    }
  }
  if (batch.num_decodes > 0) {
    name += (name.empty() ? "decode" : "_decode") + std::to_string(batch.num_decodes) + "_context" +
            std::to_string(mean_context(batch));
  }
  return name;
}

std::vector<LaunchMode> modes_of(const ValidationSpec& spec, const Batch& batch) {
  if (!batch.prefill.empty()) return {LaunchMode::kEager};
  std::vector<LaunchMode> modes;
  for (LaunchMode mode : spec.modes) {
    if (batch.num_decodes > megakernel::kMostSequences && mode == LaunchMode::kMegakernel) {
      mode = LaunchMode::kGraph;
    }
    if (std::ranges::find(modes, mode) == modes.end()) modes.push_back(mode);
  }
  return modes;
}

}  // namespace orrery
