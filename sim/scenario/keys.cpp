#include "sim/scenario/keys.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

#include "sim/scenario/key_tables.h"
#include "sim/units/nearest.h"

namespace orrery {
namespace {

std::vector<Section> all_sections() {
  std::vector<Section> all = {scenario_section()};
  for (auto* make : {model_sections, placement_sections, engine_sections, workload_sections,
                     step_sections, machine_sections, profile_sections}) {
    std::ranges::move(make(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

std::span<const Section> sections() {
  static const std::vector<Section> all = all_sections();
  return all;
}

const Section& find_section(std::string_view name) {
  const auto all = sections();
  const auto found = std::ranges::find(all, name, &Section::name);
  if (found == all.end()) {
    throw std::invalid_argument("no section '" + std::string(name) + "' of scenarios or machines");
  }
  return *found;
}

std::vector<std::string_view> key_names(std::string_view of) {
  std::vector<std::string_view> found;
  for (const Key& key : find_section(of).keys) found.push_back(key.name);
  return found;
}

std::string instead_of(std::string_view found, std::span<const std::string_view> known) {
  for (const std::string_view section : {"engine", "placement", "moe", "model"}) {
    const std::vector<std::string_view> names = key_names(section);
    if (std::ranges::find(names, found) == names.end()) continue;
    return "that is a key of " + std::string(section);
  }
  return "did you mean '" + nearest(found, known) + "'?";
}

}  // namespace orrery
