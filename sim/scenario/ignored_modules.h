#pragma once

// Which linear layers of a model a quantised checkpoint leaves as they were, by the patterns of
// modules_to_not_convert or ignore.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.h"

namespace orrery {

// The parts of a model that Precision can tell apart, or could.
enum class ModulePart : std::uint8_t { kAttention, kDenseFfn, kSharedExperts, kRoutedExperts };
std::string_view to_text(ModulePart part);  // "attention", "dense FFN", ...

struct IgnoredPart {
  ModulePart part = ModulePart::kAttention;
  std::size_t num_modules = 0;  // of the part in this model; 0: it has none
  std::size_t num_ignored = 0;
  [[nodiscard]] bool is_ignored() const { return num_modules > 0 && num_ignored == num_modules; }
};

struct IgnoredModules {
  std::vector<IgnoredPart> parts;            // one of each, in the order of ModulePart
  std::vector<std::string> unread_patterns;  // regular expressions of a kind not known here
};

// `patterns` as Hugging Face and compressed-tensors write them: a run of a module's dotted name in
// which * stands for anything ("lm_head", "model.layers.*.self_attn"), or "re:" and a regular
// expression that matches from the start of the name, of literals, . .* .+ \. \d+ and (a|b).
IgnoredModules ignored_modules(const ModelConfig& model, const std::vector<std::string>& patterns);

}  // namespace orrery
