#pragma once

// The keys of scenarios, machines and engine profiles, section by section, with what their values
// may be: readers take the names from here, and schema.h writes a JSON Schema of all.

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/reader.h"

namespace orrery {

enum class ValueKind : std::uint8_t {
  kText,
  kBoolean,
  kWhole,
  kNumber,
  kTime,
  kSize,
  kDataRate,
  kComputeRate,
  kPower,
  kChoice,
  kSection,
  kAny
};

// What initialisers leave out has one of its own, as g++ warns of it else.
// NOLINTBEGIN(readability-redundant-member-init)

struct Key {
  std::string_view name;
  std::vector<ValueKind> kinds;     // any of them
  std::string_view about;           // for people; one sentence without a full stop
  std::string_view otherwise = {};  // as YAML, where the key is left out; "" where that depends
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool is_above = false;  // more than `least`
  std::vector<std::string_view> choices = {};
  std::vector<std::string_view> sections = {};  // of kSection: one of these
  bool is_list = false;
  bool is_required = false;
  bool is_pattern = false;       // `name` is a regular expression of names
  std::string_view unless = {};  // is_required where this key is not there
};

struct Section {
  std::string_view name;
  std::vector<Key> keys;
  bool is_sourced = false;   // values may be {value, source}
  bool is_extended = false;  // keys that are required may stand in a file that this one extends
  std::vector<std::string_view> one_of = {};  // exactly one of these keys is there
};

// NOLINTEND(readability-redundant-member-init)

// Of model.expert_load, moe.experts and workload.time_unit; entry i names enumerator i.
inline constexpr std::array<std::string_view, 4> kExpertLoadNames = {
    "balanced", "uniform", "power_law_1.01", "power_law_1.2"};
// The first: what the engine of the tables ran; then kMoeBackends (sim/cost/cost.h).
inline constexpr std::array<std::string_view, 5> kMoeBackendNames = {"auto", "cutlass", "deepgemm",
                                                                     "marlin", "triton"};
inline constexpr std::array<std::string_view, 4> kExpertOrderNames = {
    "in_order", "balanced", "balanced_on_nodes", "by_links"};
inline constexpr std::array<std::string_view, 4> kTimeUnits = {"s", "ms", "us", "ns"};

inline constexpr std::string_view kScenarioSection = "scenario";
inline constexpr std::string_view kMachineSection = "machine";
inline constexpr std::string_view kEngineProfileSection = "engine_profile";

std::span<const Section> sections();
const Section& find_section(std::string_view name);
// The names of its keys, as a Reader takes them.
std::vector<std::string_view> key_names(std::string_view section);
// What to write in place of `found`, which is none of the keys `known`, in words: where it is to
// the letter a key of a scenario's engine, placement, moe or model, that; else the nearest of
// `known`.
std::string instead_of(std::string_view found, std::span<const std::string_view> known);

}  // namespace orrery
