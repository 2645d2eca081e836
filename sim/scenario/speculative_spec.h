#pragma once

// engine.speculative of a scenario: what drafts tokens, how many, and how often they are accepted.
// Names are those of vLLM's speculative_config.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/reader.h"
#include "sim/serve/speculation.h"

namespace orrery {

// Entry i names the enumerator of value i.
//   kDraftModel  a smaller model of the same vocabulary
//   kEagle       one decoder layer behind the target's hidden states, and the target's LM head
//   kMtp         likewise, a layer as the target's last one (DeepSeek-V3's MTP module)
enum class SpeculativeMethod : std::uint8_t { kDraftModel, kEagle, kMtp };
inline constexpr std::array<std::string_view, 3> kSpeculativeMethodNames{"draft_model", "eagle",
                                                                         "mtp"};

struct SpeculativeSpec {
  SpeculativeMethod method = SpeculativeMethod::kDraftModel;
  std::int64_t num_tokens = 1;
  std::vector<double> acceptance;  // at least num_tokens
  std::string model;               // name or path; empty: a layer of the target
  Mesh mesh;                       // that drafts
  Precision precision;

  ModelConfig model_config;  // what drafts
  // What the target's own weights serve as well: embedding and LM head.
  [[nodiscard]] bool shares_embedding() const { return method != SpeculativeMethod::kDraftModel; }
};

// What a target is, of which `mesh` is one instance.
struct SpeculativeTarget {
  const ModelConfig& model;
  const Precision& precision;
  const Mesh& mesh;
};

// None where num_speculative_tokens is 0. Throws ScenarioError.
std::optional<SpeculativeSpec> read_speculative(const YamlNode& node,
                                                const SpeculativeTarget& target,
                                                const std::filesystem::path& directory,
                                                const std::filesystem::path& root);
// A line of the engine section.
std::string to_yaml(const SpeculativeSpec& spec);
// As the scheduler sees it.
Speculation speculation(const SpeculativeSpec& spec, std::uint64_t seed);

}  // namespace orrery
