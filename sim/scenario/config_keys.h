#pragma once

// Keys of a scenario that are fields of a mesh or an engine (sim/serve/config_fields.h).

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "sim/machine/machine.h"
#include "sim/scenario/reader.h"
#include "sim/serve/config_fields.h"

namespace orrery {

// What the mapping says of `fields`; the others stay as they are. Throws ScenarioError.
template <typename Config>
void read_config(const Reader& reader, std::span<const ConfigField<Config>> fields,
                 Config& config) {
  struct {
    const Reader& reader;
    std::string_view key;
    Bounds bounds;
    Config& config;
    void operator()(bool Config::* member) { config.*member = reader.boolean(key); }
    void operator()(int Config::* member) {
      const std::int64_t most = std::min<std::int64_t>(bounds.most, kMaxGpus);
      config.*member = static_cast<int>(reader.integer(key, bounds.least, most));
    }
    void operator()(std::int64_t Config::* member) {
      config.*member = reader.integer(key, bounds.least, bounds.most);
    }
    void operator()(double Config::* member) {
      config.*member = reader.number(key, static_cast<double>(bounds.least),
                                     static_cast<double>(bounds.most), /*above=*/true);
    }
    void operator()(const Choice<Config>& member) {
      member.set(config, reader.choice(key, member.names));
    }
  } visitor{reader, {}, {}, config};
  for (const ConfigField<Config>& field : fields) {
    if (!field.is_scenario_key || !reader.has(field.name)) continue;
    visitor.key = field.name;
    visitor.bounds = field.bounds;
    std::visit(visitor, field.member);
  }
}

// "\n<indent>key: value" of each.
template <typename Config>
std::string config_yaml(std::span<const ConfigField<Config>> fields, const Config& config,
                        std::string_view indent) {
  std::string text;
  for (const ConfigField<Config>& field : fields) {
    if (!field.is_scenario_key) continue;
    text.append("\n").append(indent).append(field.name).append(": ");
    text += field_text(field, config);
  }
  return text;
}

}  // namespace orrery
