#include "sim/scenario/ignored_modules.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

namespace orrery {
namespace {

constexpr std::array<std::string_view, 4> kPartNames = {"attention", "dense FFN", "shared experts",
                                                        "routed experts"};
// Alternatives of one pattern multiply: more than any checkpoint has.
constexpr std::size_t kMostGlobs = 64;

// * stands for any run of characters, ? for one.
bool matches(std::string_view glob, std::string_view text) {
  std::size_t at = 0;
  std::size_t in_text = 0;
  std::size_t star = std::string_view::npos;
  std::size_t behind_star = 0;
  while (in_text < text.size()) {
    if (at < glob.size() && glob[at] == '*') {
      star = at++;
      behind_star = in_text;
    } else if (at < glob.size() && (glob[at] == '?' || glob[at] == text[in_text])) {
      ++at;
      ++in_text;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in_text = ++behind_star;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', at) == std::string_view::npos;
}

// Appends each of `endings` to each of `globs`.
void append_each(std::vector<std::string>& globs, std::span<const std::string> endings) {
  std::vector<std::string> longer;
  for (const std::string& glob : globs) {
    for (const std::string& ending : endings) longer.push_back(glob + ending);
  }
  globs = std::move(longer);
}

struct Token {
  std::string_view regex;
  std::string_view glob;
};
// The longest first.
constexpr auto kTokens = std::to_array<Token>(
    {{"[0-9]+", "*"}, {"\\d+", "*"}, {".*", "*"}, {".+", "*"}, {"\\.", "."}, {".", "?"}});

bool is_literal(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// The globs that a regular expression without nested groups stands for; none when it has more.
std::optional<std::vector<std::string>> globs_of(std::string_view regex) {
  std::vector<std::string> globs{""};
  if (regex.starts_with('^')) regex.remove_prefix(1);
  const bool has_end = regex.ends_with('$');
  if (has_end) regex.remove_suffix(1);
  while (!regex.empty() && globs.size() <= kMostGlobs) {
    const auto* token = std::ranges::find_if(
        kTokens, [&](const Token& known) { return regex.starts_with(known.regex); });
    if (token != kTokens.end()) {
      append_each(globs, std::array{std::string(token->glob)});
      regex.remove_prefix(token->regex.size());
    } else if (is_literal(regex.front())) {
      append_each(globs, std::array{std::string(1, regex.front())});
      regex.remove_prefix(1);
    } else if (regex.front() == '(') {
      std::vector<std::string> choices{""};
      std::size_t at = 1;
      for (; at < regex.size() && (is_literal(regex[at]) || regex[at] == '|'); ++at) {
        if (regex[at] == '|') {
          choices.emplace_back();
        } else {
          choices.back() += regex[at];
        }
      }
      if (at == regex.size() || regex[at] != ')') return std::nullopt;
      append_each(globs, choices);
      regex.remove_prefix(at + 1);
    } else {
      return std::nullopt;
    }
  }
  if (!regex.empty()) return std::nullopt;
  if (!has_end) append_each(globs, std::array{std::string("*")});
  return globs;
}

// Modules of one part in a layer, with the names that each has in different architectures.
using Module = std::vector<std::string>;

std::vector<Module> named(std::initializer_list<std::string_view> blocks,
                          std::initializer_list<std::initializer_list<std::string_view>> modules) {
  std::vector<Module> found;
  for (const auto& spellings : modules) {
    Module module;
    for (const std::string_view block : blocks) {
      for (const std::string_view spelling : spellings) {
        module.push_back(std::string(block).append(".").append(spelling));
      }
    }
    found.push_back(std::move(module));
  }
  return found;
}

std::vector<Module> modules_of(const ModelConfig& model, const LayerConfig& layer,
                               ModulePart part) {
  const bool has_experts = layer.ffn == FfnKind::kMoe;
  switch (part) {
    case ModulePart::kAttention:
      if (layer.attention == AttentionKind::kMla) {
        return named({"self_attn"},
                     {{"q_a_proj", "q_proj"}, {"kv_a_proj_with_mqa"}, {"kv_b_proj"}, {"o_proj"}});
      }
      if (layer.attention == AttentionKind::kDeltaNet) {
        return named({"linear_attn"}, {{"in_proj_qkvz", "in_proj_qkv"}, {"out_proj"}});
      }
      if (layer.attention == AttentionKind::kMamba2) {
        return named({"mixer", "mamba"}, {{"in_proj"}, {"out_proj"}});
      }
      if (layer.attention == AttentionKind::kNone) return {};
      return named(
          {"self_attn"},
          {{"q_proj", "qkv_proj"}, {"k_proj", "qkv_proj"}, {"v_proj", "qkv_proj"}, {"o_proj"}});
    case ModulePart::kDenseFfn:
      if (layer.ffn != FfnKind::kDense) return {};
      return named({"mlp", "feed_forward"},
                   {{"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"}, {"down_proj"}});
    case ModulePart::kSharedExperts:
      if (!has_experts || model.shared_expert_intermediate_size == 0) return {};
      return named({"mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert",
                    "block_sparse_moe.shared_experts"},
                   {{"gate_proj"}, {"up_proj"}, {"down_proj"}});
    case ModulePart::kRoutedExperts:
      if (!has_experts) return {};
      return named(
          {"mlp.experts.0", "mlp.experts", "block_sparse_moe.experts.0", "feed_forward.experts"},
          {{"gate_proj", "w1", "gate_up_proj"},
           {"up_proj", "w3", "gate_up_proj"},
           {"down_proj", "w2"}});
  }
  return {};
}

class Patterns {
 public:
  explicit Patterns(const std::vector<std::string>& patterns) {
    constexpr std::string_view kRegex = "re:";
    for (const std::string& pattern : patterns) {
      if (!pattern.starts_with(kRegex)) {
        runs_.push_back("*." + pattern + ".*");
      } else if (auto globs = globs_of(std::string_view(pattern).substr(kRegex.size()))) {
        std::ranges::move(*globs, std::back_inserter(whole_));
      } else {
        unread_.push_back(pattern);
      }
    }
  }

  [[nodiscard]] bool match(const std::string& name) const {
    const std::string dotted = "." + name + ".";
    return std::ranges::any_of(runs_, [&](const auto& glob) { return matches(glob, dotted); }) ||
           std::ranges::any_of(whole_, [&](const auto& glob) { return matches(glob, name); });
  }
  [[nodiscard]] const std::vector<std::string>& unread() const { return unread_; }

 private:
  std::vector<std::string> runs_;   // of a name between dots
  std::vector<std::string> whole_;  // names
  std::vector<std::string> unread_;
};

// In a text model, or the text part of one that sees.
bool is_ignored(const Patterns& patterns, const Module& module, const std::string& layer) {
  return std::ranges::any_of(module, [&](const std::string& name) {
    const std::string full = "model.layers." + layer + "." + name;
    return patterns.match(full) || patterns.match("language_model." + full) ||
           patterns.match("model.language_model.layers." + layer + "." + name);
  });
}

}  // namespace

std::string_view to_text(ModulePart part) { return kPartNames[static_cast<std::size_t>(part)]; }

IgnoredModules ignored_modules(const ModelConfig& model, const std::vector<std::string>& patterns) {
  const Patterns read(patterns);
  IgnoredModules found{.parts = {}, .unread_patterns = read.unread()};
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    IgnoredPart part{.part = static_cast<ModulePart>(i)};
    for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
      for (const Module& module : modules_of(model, model.layers[layer], part.part)) {
        ++part.num_modules;
        part.num_ignored += is_ignored(read, module, std::to_string(layer)) ? 1 : 0;
      }
    }
    found.parts.push_back(part);
  }
  return found;
}

}  // namespace orrery
