#include "sim/scenario/set_paths.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>

namespace orrery {
namespace {

// Keys of a scenario whose values may be paths.
constexpr auto kPathKeys = std::to_array<std::string_view>(
    {"model", "model.config", "model.expert_load.trace", "machine", "machine.name", "provider",
     "placement.ffn.machine", "placement.ffn.machine.name", "placement.ffn.provider",
     "disaggregation.prefill.machine", "disaggregation.prefill.machine.name",
     "disaggregation.prefill.provider", "disaggregation.decode.machine",
     "disaggregation.decode.machine.name", "disaggregation.decode.provider", "engine.profile",
     "engine.speculative.model", "workload.trace", "workload.mooncake"});

// A plain name stays a name.
bool may_be_path(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.find('.') != std::string_view::npos;
}

// Null where a part of the key is not there. `Node` is YamlNode, const or not.
template <typename Node>
Node* find_at(Node& root, std::string_view key) {
  Node* node = &root;
  while (!key.empty()) {
    const std::size_t dot = key.find('.');
    const auto entry = std::ranges::find(node->entries, key.substr(0, dot), &YamlNode::Entry::key);
    if (entry == node->entries.end()) return nullptr;
    node = &entry->value;
    key = dot == std::string_view::npos ? std::string_view() : key.substr(dot + 1);
  }
  return node;
}

// The absolute path of a scalar that --set put there; empty where it is none.
std::filesystem::path from_working(const YamlNode& node, const std::filesystem::path& working) {
  if (node.kind != YamlNode::Kind::kScalar || !node.where.file.starts_with("--set ") ||
      !may_be_path(node.scalar)) {
    return {};
  }
  const std::filesystem::path file = working / node.scalar;
  std::error_code error;
  return std::filesystem::exists(file, error) ? file.lexically_normal() : std::filesystem::path();
}

}  // namespace

std::optional<YamlNode> with_set_paths(const YamlNode& root, const std::filesystem::path& directory,
                                       const std::filesystem::path& working) {
  std::optional<YamlNode> changed;
  std::error_code error;
  if (std::filesystem::equivalent(directory, working, error)) return changed;
  for (const std::string_view key : kPathKeys) {
    const YamlNode* node = find_at(root, key);
    if (node == nullptr) continue;
    const std::filesystem::path file = from_working(*node, working);
    if (file.empty()) continue;
    if (!changed) changed = root;
    find_at(*changed, key)->scalar = file.string();
  }
  return changed;
}

}  // namespace orrery
