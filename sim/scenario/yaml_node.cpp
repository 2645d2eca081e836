// YAML text to the tree of nodes that reader.h declares.

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/scenario/reader.h"
#include "sim/units/shown.h"
#include "sim/units/text_file.h"

namespace orrery {

namespace {

// Far above every scenario, model, machine and profile (the largest config.json in models/ has 0.2
// % of the size and 1 % of the values), and read within a second.
constexpr std::uint64_t kMostBytes = 16'000'000;
constexpr std::size_t kMostValues = 500'000;
constexpr std::size_t kDeepest = 64;

std::string place(const std::string& file, int line, int column) {
  if (line <= 0) {
    return file;
  }
  return file + ":" + std::to_string(line) + (column > 0 ? ":" + std::to_string(column) : "");
}

// Builds the tree from the parser's events. yaml-cpp's own node tree keeps neither duplicate keys
// nor whether a scalar was quoted.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string file) : file_(std::move(file)) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    add(node_at(YamlNode::Kind::kNull, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail_at(at(mark), "found an alias (*name); write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    const bool is_plain = tag == "?" || tag.empty();
    const bool is_null = is_plain && (value == "null" || value == "~" || value.empty());
    YamlNode node = node_at(is_null ? YamlNode::Kind::kNull : YamlNode::Kind::kScalar, mark);
    node.is_quoted = !is_plain;
    node.scalar = value;
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kList, mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kMap, mark);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    bool has_key = false;
    std::string key;
    Location key_where;
    std::unordered_map<std::string, int> lines;  // of the keys so far
  };

  // yaml-cpp counts from 0.
  Location at(const YAML::Mark& mark) const {
    return {.file = file_, .line = mark.line + 1, .column = mark.column + 1, .changed_by = {}};
  }

  YamlNode node_at(YamlNode::Kind kind, const YAML::Mark& mark) const {
    YamlNode node;
    node.kind = kind;
    node.where = at(mark);
    return node;
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (open_.size() == kDeepest) {
      fail_at(at(mark), "found lists and mappings nested more than " + std::to_string(kDeepest) +
                            " deep; expected fewer");
    }
    open_.emplace_back();
    open_.back().node = node_at(kind, mark);
  }

  void add(YamlNode node) {
    if (++num_values_ > kMostValues) {
      fail_at(node.where, "found more than " + std::to_string(kMostValues) +
                              " values; expected a scenario, model, machine or engine profile");
    }
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      if (node.kind != YamlNode::Kind::kScalar) {
        fail_at(node.where, "found " + describe(node) + " where a key is expected");
      }
      const auto [first, is_new] = parent.lines.emplace(node.scalar, node.where.line);
      if (!is_new) {
        fail_at(node.where, "key '" + shown(node.scalar) + "' appears twice (first in line " +
                                std::to_string(first->second) + ")");
      }
      parent.has_key = true;
      parent.key = node.scalar;
      parent.key_where = node.where;
    } else {
      if (node.kind == YamlNode::Kind::kNull) {
        node.where = parent.key_where;  // yaml-cpp marks the token after the missing value
      }
      parent.node.entries.push_back({parent.key, parent.key_where, std::move(node)});
      parent.has_key = false;
    }
  }

  void close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  std::string file_;
  YamlNode root_;
  std::vector<Open> open_;
  std::size_t num_values_ = 0;
};

}  // namespace

ScenarioError::ScenarioError(std::string file, int line, int column, const std::string& message)
    : std::invalid_argument(
          visible((file.empty() ? "" : place(file, line, column) + ": ") + message)),
      file_(std::move(file)),
      message_(visible(message)),
      line_(line),
      column_(column) {}

void fail_at(const Location& where, const std::string& message) {
  const std::string changed = where.changed_by.empty() ? "" : " (with " + where.changed_by + ")";
  throw ScenarioError(where.file, where.line, where.column, message + changed);
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "'" + shown(node.scalar) + "'";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a mapping";
  }
  return "";
}

const YamlNode* YamlNode::find(std::string_view key) const {
  const auto it = std::ranges::find(entries, key, &Entry::key);
  return it == entries.end() ? nullptr : &it->value;
}

YamlNode parse_yaml(std::string_view text, const std::string& file) {
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(file);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) {
      throw ScenarioError(file, 0, 0, "is empty; expected a mapping of keys to values");
    }
    YamlNode root = builder.take();
    TreeBuilder rest(file);
    if (parser.HandleNextDocument(rest)) {
      fail_at(rest.take().where, "found a second document; expected one");
    }
    return root;
  } catch (const YAML::Exception& error) {
    throw ScenarioError(file, error.mark.line + 1, error.mark.column + 1,
                        "YAML syntax: " + shown(error.msg));
  }
}

YamlNode read_yaml(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_text_file(path, kMostBytes);
  } catch (const TextFileError& error) {
    throw ScenarioError(path.string(), static_cast<int>(error.line()), 0, error.message());
  }
  return parse_yaml(text, path.string());
}

void make_mapping(YamlNode& name, std::string_view key) {
  YamlNode::Entry entry{.key = std::string(key), .where = name.where, .value = name};
  name = {.kind = YamlNode::Kind::kMap, .where = name.where};
  name.entries.push_back(std::move(entry));
}

void set_value(YamlNode& root, std::string_view assignment) {
  const std::string origin = "--set " + shown(assignment);
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw ScenarioError(origin, 0, 0, "expected key.path=value");
  }
  YamlNode value = parse_yaml(assignment.substr(equals + 1), origin);
  std::string_view path = assignment.substr(0, equals);
  YamlNode* node = &root;
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (node->kind == YamlNode::Kind::kNull) {
      node->kind = YamlNode::Kind::kMap;
    }
    if (node->kind != YamlNode::Kind::kMap) {
      throw ScenarioError(
          origin, 0, 0,
          "'" + shown(key) + "' is set inside " + describe(*node) + ", not a mapping");
    }
    auto entry = std::ranges::find(node->entries, key, &YamlNode::Entry::key);
    if (entry == node->entries.end()) {
      YamlNode::Entry added;
      added.key = key;
      added.where = {.file = origin, .line = 1, .column = 1, .changed_by = {}};
      added.value.where = added.where;
      node->entries.push_back(std::move(added));
      entry = node->entries.end() - 1;
    }
    node = &entry->value;
    if (dot == std::string_view::npos) {
      *node = std::move(value);
      entry->where = node->where;
      return;
    }
    if (node->kind == YamlNode::Kind::kScalar) {
      if (key == "machine") make_mapping(*node, "name");
      if (key == "model") make_mapping(*node, "config");
    }
    // What is wrong with the mapping as a whole may be due to the value set in it.
    if (entry->where.file != origin) {
      for (Location* where : {&entry->where, &node->where}) {
        where->changed_by += (where->changed_by.empty() ? "" : ", ") + origin;
      }
    }
    path.remove_prefix(dot + 1);
  }
}

void add_missing(YamlNode& node, const YamlNode& base) {
  if (node.kind != YamlNode::Kind::kMap || node.find("value") != nullptr) {
    return;
  }
  std::unordered_map<std::string, std::size_t> own;  // indices, which adding does not move
  for (const YamlNode::Entry& entry : node.entries) {
    own.emplace(entry.key, own.size());
  }
  for (const YamlNode::Entry& entry : base.entries) {
    if (const auto found = own.find(entry.key); found != own.end()) {
      add_missing(node.entries[found->second].value, entry.value);
    } else {
      node.entries.push_back(entry);
    }
  }
}

}  // namespace orrery
