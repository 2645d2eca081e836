#pragma once

// Keys of a scenario that are fields of a mesh or an engine (sim/serve/config_fields.h), for the
// tables of keys.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/scenario/key_makers.h"
#include "sim/serve/config_fields.h"

namespace orrery::key_makers {

// What a field is, for people; empty where nothing is said of it.
std::string_view about_field(std::string_view name);

// `others`, then those of `fields` that a scenario has.
template <typename Config>
std::vector<Key> with_fields(std::vector<Key> others, std::span<const ConfigField<Config>> fields) {
  struct {
    std::string_view name;
    Bounds bounds;
    Key operator()(bool Config::* /*member*/) const {
      return key(Kind::kBoolean, name, about_field(name));
    }
    Key operator()(int Config::* /*member*/) const {
      return whole(name, about_field(name), static_cast<double>(bounds.least),
                   static_cast<double>(std::min<std::int64_t>(bounds.most, kMaxGpus)));
    }
    Key operator()(std::int64_t Config::* /*member*/) const {
      return whole(name, about_field(name), static_cast<double>(bounds.least),
                   static_cast<double>(bounds.most));
    }
    Key operator()(double Config::* /*member*/) const {
      return number(name, about_field(name), static_cast<double>(bounds.least),
                    static_cast<double>(bounds.most), /*is_above=*/true);
    }
    Key operator()(const Choice<Config>& member) const {
      return choice(name, all_names(member.names), about_field(name));
    }
  } make{};
  for (const ConfigField<Config>& field : fields) {
    if (!field.is_scenario_key) continue;
    make.name = field.name;
    make.bounds = field.bounds;
    others.push_back(std::visit(make, field.member));
  }
  return others;
}

}  // namespace orrery::key_makers
