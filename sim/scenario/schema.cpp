#include "sim/scenario/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sim/scenario/keys.h"
#include "sim/units/unit_names.h"

namespace orrery {

namespace {

using Json = nlohmann::ordered_json;

Json reference(std::string_view section) {
  return {{"$ref", "#/definitions/" + std::string(section)}};
}

// "50 ms": a number and one of the units.
Json quantity(std::string_view kind) {
  std::string units;
  for (const std::string_view unit : unit_names(kind)) {
    units += (units.empty() ? "" : "|") + std::string(unit);
  }
  return {{"type", "string"},
          {"pattern", R"(^\s*[+-]?[0-9.]+([eE][+-]?[0-9]+)?\s*()" + units + R"()\s*$)"}};
}

Json number(double value) {
  constexpr double kExact = 9e15;
  if (value == std::floor(value) && std::abs(value) < kExact) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

Json bounded(const char* type, const Key& key) {
  Json schema = {{"type", type}};
  if (std::isfinite(key.least)) {
    schema[key.is_above ? "exclusiveMinimum" : "minimum"] = number(key.least);
  }
  if (std::isfinite(key.most)) schema["maximum"] = number(key.most);
  return schema;
}

Json of_kind(ValueKind kind, const Key& key) {
  switch (kind) {
    case ValueKind::kText:
      // Names that look like numbers are texts, too.
      return {{"type", {"string", "number", "boolean"}}};
    case ValueKind::kBoolean:
      return {{"type", "boolean"}};
    case ValueKind::kWhole:
      return bounded("integer", key);
    case ValueKind::kNumber:
      return bounded("number", key);
    case ValueKind::kTime:
      return quantity("time");
    case ValueKind::kSize:
      return quantity("size");
    case ValueKind::kDataRate:
      return quantity("data rate");
    case ValueKind::kComputeRate:
      return quantity("compute rate");
    case ValueKind::kPower:
      return quantity("power");
    case ValueKind::kChoice:
      return {{"enum", key.choices}};
    case ValueKind::kSection:
    case ValueKind::kAny:
      break;
  }
  return Json::object();
}

// One of the forms; {value, source} of each as well, in files that say where numbers are from.
Json value_of(const Key& key, bool is_sourced) {
  Json forms = Json::array();
  for (const ValueKind kind : key.kinds) {
    if (kind == ValueKind::kAny) return Json::object();
    if (kind != ValueKind::kSection) {
      forms.push_back(of_kind(kind, key));
      continue;
    }
    for (const std::string_view section : key.sections) forms.push_back(reference(section));
  }
  if (is_sourced && key.kinds.front() != ValueKind::kSection) {
    forms.push_back({{"type", "object"},
                     {"properties", {{"value", forms.front()}, {"source", {{"type", "string"}}}}},
                     {"required", {"value", "source"}},
                     {"additionalProperties", false}});
  }
  return forms.size() == 1 ? forms.front() : Json{{"anyOf", forms}};
}

Json default_of(const Key& key) {
  const std::string_view text = key.otherwise;
  if (text == "true" || text == "false") return text == "true";
  double found = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (error == std::errc() && end == text.data() + text.size()) return number(found);
  return text;
}

Json property(const Key& key, bool is_sourced) {
  Json schema = value_of(key, is_sourced);
  if (key.is_list) schema = {{"type", "array"}, {"items", std::move(schema)}};
  // Beside a $ref draft 7 reads nothing else.
  if (schema.contains("$ref")) schema = {{"allOf", Json::array({std::move(schema)})}};
  if (!key.about.empty()) schema["description"] = key.about;
  if (!key.otherwise.empty()) schema["default"] = default_of(key);
  return schema;
}

Json object_of(const Section& section) {
  Json properties = Json::object();
  Json patterns = Json::object();
  Json required = Json::array();
  Json either = Json::array();
  for (const Key& key : section.keys) {
    (key.is_pattern ? patterns : properties)[std::string(key.name)] =
        property(key, section.is_sourced);
    if (!key.is_required) continue;
    if (key.unless.empty()) {
      required.push_back(key.name);
    } else {
      either.push_back({{"required", {key.name}}});
      either.push_back({{"required", {key.unless}}});
    }
  }
  Json schema = {{"type", "object"}};
  if (!properties.empty()) schema["properties"] = std::move(properties);
  if (!patterns.empty()) schema["patternProperties"] = std::move(patterns);
  if (!required.empty() && !section.is_extended) schema["required"] = std::move(required);
  if (!either.empty()) schema["anyOf"] = std::move(either);
  if (!section.one_of.empty()) {
    Json alternatives = Json::array();
    for (const std::string_view name : section.one_of) {
      alternatives.push_back({{"required", {name}}});
    }
    schema["oneOf"] = std::move(alternatives);
  }
  schema["additionalProperties"] = false;
  return schema;
}

void reach(const Section& from, std::set<std::string_view>& found) {
  for (const Key& key : from.keys) {
    for (const std::string_view name : key.sections) {
      if (found.insert(name).second) reach(find_section(name), found);
    }
  }
}

}  // namespace

std::string json_schema(std::string_view name) {
  const Section& root = find_section(name);
  std::string title = "Orrery " + std::string(name);
  std::ranges::replace(title, '_', ' ');
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", title}};
  schema.update(object_of(root));
  std::set<std::string_view> reached;
  reach(root, reached);
  for (const std::string_view part : reached) {
    schema["definitions"][std::string(part)] = object_of(find_section(part));
  }
  return schema.dump(2) + "\n";
}

}  // namespace orrery
