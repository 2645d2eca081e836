#pragma once

// The validate part of a scenario: which steps `orrery validate` runs on GPUs, and how.
//
//   validate:
//     steps:                                             default: three steps of the simulated run
//       - {prefill: [2048, 512], context: 0}             context: tokens cached before each chunk
//       - {decodes: 64, context: 4096}                   of each sequence, its new token included
//       - {prefill: [2048], decodes: 32, context: 1024, prefill_context: 0, name: mixed}
//     modes: [graph, eager]      and megakernel; steps with prefill are launched eagerly whatever
//                                stands here, more than 8 decodes as a graph in place of megakernel
//     repeats: 20                timed runs of each step
//     serve: true                replay the workload, too
//     layers:                    of routed experts by themselves; with them no steps by default
//       - {name: shuffling_64, tokens: 64}             of all ranks of an instance together
//       - {tokens: 64, moe: {design: persistent}, mode: eager}        keys of moe, expert_comm and
//                                split_shared_expert in place of the scenario's

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/moe_spec.h"
#include "sim/scenario/reader.h"

namespace orrery {

struct ValidationStep {
  std::string name;  // file-safe; without the mode
  Batch batch;       // decodes all have the same context
  bool operator==(const ValidationStep&) const = default;
};

struct ValidationLayer {
  std::string name;                // likewise
  std::int64_t tokens = 0;         // of all ranks of an instance together
  std::optional<LaunchMode> mode;  // graph or eager; none: as the spec's modes
  // The scenario's, or what the entry has in their place.
  MoeSpec moe;
  ExpertComm expert_comm = ExpertComm::kAllToAll;
  bool split_shared_expert = true;
  bool operator==(const ValidationLayer&) const = default;
};

struct ValidationSpec {
  std::vector<ValidationStep> steps;  // empty: chosen from the run, where there are no layers
  std::vector<LaunchMode> modes = {LaunchMode::kGraph, LaunchMode::kEager};
  std::int64_t repeats = 20;
  bool serve = true;
  std::vector<ValidationLayer> layers;
  bool operator==(const ValidationSpec&) const = default;
};

// All but the layers (validation_layers.h), which go by the rest of the scenario. Throws
// ScenarioError: unknown keys and modes, an empty step, a name twice or not file-safe.
ValidationSpec read_validation(const YamlNode& node);

// Lists of `validate:`, and names that may stand in file names on any system. Throw ScenarioError.
const YamlNode& list_at(const Reader& reader, std::string_view key, std::string_view of);
void require_file_safe(const Reader& reader, const std::string& name);

// The value of `validate:` as flow YAML.
std::string to_yaml(const ValidationSpec& spec);

// What the batch is, as a file name: "prefill2048-512", "decode64_context4096",
// "prefill2048_decode32_context1024".
std::string step_name(const Batch& batch);

// Modes in which a step of `batch` runs: as the spec says, a step with prefill eagerly alone, one
// of more decodes than the megakernel takes as a graph in its place.
std::vector<LaunchMode> modes_of(const ValidationSpec& spec, const Batch& batch);

}  // namespace orrery
