#pragma once

// JSON Schema (draft 7, which editors know) of scenarios, machines and engine profiles, written
// from the tables that their readers take keys from.

#include <string>
#include <string_view>

namespace orrery {

// Of kScenarioSection, kMachineSection or kEngineProfileSection, with every section that it may
// hold.
std::string json_schema(std::string_view section);

}  // namespace orrery
