#pragma once

// Short forms of keys for the tables of them (key_tables.h).

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/scenario/keys.h"

namespace orrery::key_makers {

using Kind = ValueKind;
using Names = std::vector<std::string_view>;

inline constexpr double kEndless = std::numeric_limits<double>::infinity();
inline constexpr double kBillion = 1e9;

// Keys of one kind, and what makes them others.

inline Key key(Kind kind, std::string_view name, std::string_view about,
               std::string_view otherwise = {}) {
  return {.name = name, .kinds = {kind}, .about = about, .otherwise = otherwise};
}

inline Key whole(std::string_view name, std::string_view about, double least = 1,
                 double most = kEndless, std::string_view otherwise = {}) {
  Key made = key(Kind::kWhole, name, about, otherwise);
  made.least = least;
  made.most = most;
  return made;
}

inline Key number(std::string_view name, std::string_view about, double least, double most,
                  bool is_above = false, std::string_view otherwise = {}) {
  Key made = key(Kind::kNumber, name, about, otherwise);
  made.least = least;
  made.most = most;
  made.is_above = is_above;
  return made;
}

inline Key choice(std::string_view name, Names choices, std::string_view about,
                  std::string_view otherwise = {}) {
  Key made = key(Kind::kChoice, name, about, otherwise);
  made.choices = std::move(choices);
  return made;
}

inline Key part(std::string_view name, Names sections, std::string_view about) {
  Key made = key(Kind::kSection, name, about);
  made.sections = std::move(sections);
  return made;
}

inline Key or_part(Key made, Names sections) {
  made.kinds.push_back(Kind::kSection);
  made.sections = std::move(sections);
  return made;
}

inline Key list(Key made) {
  made.is_list = true;
  return made;
}

inline Key needed(Key made) {
  made.is_required = true;
  return made;
}

inline Key needed_without(std::string_view other, Key made) {
  made.unless = other;
  return needed(std::move(made));
}

inline Names all_names(std::span<const std::string_view> names) {
  return {names.begin(), names.end()};
}

template <typename Enum>
Names texts_until(Enum last) {
  Names found;
  for (int i = 0; i <= static_cast<int>(last); ++i) found.push_back(to_text(static_cast<Enum>(i)));
  return found;
}

// Of the scenario or of a part with GPUs of its own.
inline Key machine_key(std::string_view about) {
  return or_part(key(Kind::kText, "machine", about), {"scenario_machine"});
}

inline Key provider_key(std::string_view about) { return key(Kind::kText, "provider", about); }

inline std::vector<Key> joined(std::vector<Key> first, std::vector<Key> second) {
  std::ranges::move(second, std::back_inserter(first));
  return first;
}

}  // namespace orrery::key_makers
