#pragma once

// The fields of a mesh and of an engine by the names that files have for them, in the order in
// which they are written: scenarios and deployments are read and written by these tables.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "sim/parallel/parallel.h"
#include "sim/serve/serve.h"

namespace orrery {

// An enumerator, whose value is the place of its name.
template <typename Config>
struct Choice {
  std::span<const std::string_view> names;
  std::size_t (*get)(const Config& config) = nullptr;
  void (*set)(Config& config, std::size_t value) = nullptr;
};

// Bounds of a number; a fraction is more than the least, a number of ranks within a machine too.
struct Bounds {
  std::int64_t least = 1;
  std::int64_t most = 1'000'000'000;
};

template <typename Config>
struct ConfigField {
  std::string_view name;
  std::variant<bool Config::*, int Config::*, std::int64_t Config::*, double Config::*,
               Choice<Config>>
      member;
  Bounds bounds = {};
  bool is_scenario_key = true;  // else an engine profile alone says it
};

// Of all but the expert load.
std::span<const ConfigField<Mesh>> mesh_fields();
std::span<const ConfigField<EngineConfig>> engine_fields();

// As a scenario and a deployment write it.
std::string field_text(const ConfigField<Mesh>& field, const Mesh& mesh);
std::string field_text(const ConfigField<EngineConfig>& field, const EngineConfig& engine);

}  // namespace orrery
