#include "sim/scenario/set_paths.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>

namespace orrery {
namespace {

// Keys of a scenario whose values may be paths.
constexpr auto kPathKeys = std::to_array<std::string_view>(
    {"model.config", "model.expert_load.trace", "machine", "machine.name", "provider",
     "engine.profile", "engine.speculative.model", "workload.trace", "workload.mooncake"});

bool may_be_path(std::string_view name) {
  return name.find('/') != std::string_view::npos ||
         name.find('.') != std::string_view::npos;  // a plain name stays a name
}

}  // namespace

void anchor_paths(YamlNode& value, const std::string& key, const std::filesystem::path& working) {
  for (YamlNode::Entry& entry : value.entries) {
    anchor_paths(entry.value, key + "." + entry.key, working);
  }
  if (value.kind != YamlNode::Kind::kScalar || !may_be_path(value.scalar) ||
      std::ranges::find(kPathKeys, key) == kPathKeys.end()) {
    return;
  }
  const std::filesystem::path file = working / value.scalar;
  std::error_code error;
  if (std::filesystem::exists(file, error)) value.scalar = file.lexically_normal().string();
}

}  // namespace orrery
