#include "sim/scenario/check_keys.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "sim/scenario/keys.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

struct Problem {
  Location where;
  std::string text;
  bool is_missing = false;
};

const Key* find_key(const Section& section, std::string_view name) {
  const auto found = std::ranges::find(section.keys, name, &Key::name);
  return found == section.keys.end() ? nullptr : &*found;
}

bool is_missing(const YamlNode& node, const Key& key) {
  const bool is_replaced = !key.unless.empty() && node.find(key.unless) != nullptr;
  return key.is_required && node.find(key.name) == nullptr && !is_replaced;
}

bool is_open(const Section& section) { return std::ranges::any_of(section.keys, &Key::is_pattern); }

// How many keys are not as in the section.
std::ptrdiff_t num_other(const YamlNode& node, const Section& section) {
  const auto unknown = std::ranges::count_if(node.entries, [&](const YamlNode::Entry& entry) {
    return find_key(section, entry.key) == nullptr;
  });
  return unknown +
         std::ranges::count_if(section.keys, [&](const Key& key) { return is_missing(node, key); });
}

void find_problems(const YamlNode& node, const std::string& path, const Section& section,
                   std::vector<Problem>& problems);

// Of a value that may be a section, or a list of them.
void find_problems_of(const YamlNode& value, const std::string& path, const Key& key,
                      std::vector<Problem>& problems) {
  if (key.sections.empty()) return;
  if (key.is_list && value.kind == YamlNode::Kind::kList) {
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const YamlNode& item = value.items[i];
      if (item.kind == YamlNode::Kind::kMap) {
        find_problems(item, path + "[" + std::to_string(i) + "]",
                      find_section(key.sections.front()), problems);
      }
    }
  } else if (!key.is_list && value.kind == YamlNode::Kind::kMap) {
    const std::string_view nearest_form = *std::ranges::min_element(
        key.sections, {},
        [&](std::string_view name) { return num_other(value, find_section(name)); });
    find_problems(value, path, find_section(nearest_form), problems);
  }
}

void find_problems(const YamlNode& node, const std::string& path, const Section& section,
                   std::vector<Problem>& problems) {
  if (is_open(section)) return;
  const std::string prefix = path.empty() ? "" : path + ": ";
  std::vector<std::string_view> known;
  std::string missing;
  int num_missing = 0;
  for (const Key& key : section.keys) {
    known.push_back(key.name);
    if (!is_missing(node, key)) continue;
    missing += (num_missing++ == 0 ? "'" : ", '") + std::string(key.name) + "'";
  }
  for (const YamlNode::Entry& entry : node.entries) {
    if (const Key* key = find_key(section, entry.key); key != nullptr) {
      find_problems_of(entry.value, path.empty() ? entry.key : path + "." + entry.key, *key,
                       problems);
    } else {
      problems.push_back({entry.where, prefix + "unknown key '" + shown(entry.key) + "' (" +
                                           instead_of(entry.key, known) + ")"});
    }
  }
  if (num_missing > 0) {
    problems.push_back({node.where,
                        prefix + (num_missing == 1 ? "missing key " : "missing keys ") + missing,
                        true});
  }
}

}  // namespace

void check_keys(const YamlNode& root, std::string_view of) {
  if (root.kind != YamlNode::Kind::kMap) return;
  std::vector<Problem> problems;
  find_problems(root, "", find_section(of), problems);
  if (problems.size() < 2) return;
  // Unknown ones first, as what is missing may be among them under another name.
  std::ranges::stable_sort(problems, {}, [](const Problem& problem) {
    return std::tuple(problem.is_missing, problem.where.line, problem.where.column);
  });
  std::string text = std::to_string(problems.size()) + " keys to mend";
  for (const Problem& problem : problems) {
    text += &problem == &problems.front() ? ": " : "; ";
    if (problem.where.line > 0) text += "line " + std::to_string(problem.where.line) + ", ";
    text += problem.text;
  }
  fail_at(problems.front().where, text);
}

}  // namespace orrery
