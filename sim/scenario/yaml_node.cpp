// YAML text to the tree of nodes that reader.h declares.

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sim/scenario/reader.h"

namespace orrery {

namespace {

std::string place(const std::string& file, int line, int column) {
  if (line <= 0) {
    return file;
  }
  return file + ":" + std::to_string(line) + ":" + std::to_string(column);
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
  };

  // yaml-cpp counts from 0.
  Location at(const YAML::Mark& mark) const { return {file_, mark.line + 1, mark.column + 1}; }

  YamlNode node_at(YamlNode::Kind kind, const YAML::Mark& mark) const {
    YamlNode node;
    node.kind = kind;
    node.where = at(mark);
    return node;
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark) {
    open_.emplace_back();
    open_.back().node = node_at(kind, mark);
  }

  void add(YamlNode node) {
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
      if (parent.node.find(node.scalar) != nullptr) {
        fail_at(node.where, "key '" + node.scalar + "' appears twice (first in line " +
                                std::to_string(first_line(parent.node, node.scalar)) + ")");
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

  static int first_line(const YamlNode& map, const std::string& key) {
    const auto it = std::ranges::find(map.entries, key, &YamlNode::Entry::key);
    return it->where.line;
  }

  std::string file_;
  YamlNode root_;
  std::vector<Open> open_;
};

}  // namespace

ScenarioError::ScenarioError(std::string file, int line, int column, const std::string& message)
    : std::invalid_argument(place(file, line, column) + ": " + message),
      file_(std::move(file)),
      message_(message),
      line_(line),
      column_(column) {}

void fail_at(const Location& where, const std::string& message) {
  throw ScenarioError(where.file, where.line, where.column, message);
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "'" + node.scalar + "'";
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
                        "YAML syntax: " + error.msg);
  }
}

YamlNode read_yaml(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw ScenarioError(path.string(), 0, 0, "no such file");
  }
  if (std::filesystem::is_directory(path, ignored)) {
    throw ScenarioError(path.string(), 0, 0, "is a directory; expected a file");
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw ScenarioError(path.string(), 0, 0, "cannot be read");
  }
  return parse_yaml(text.str(), path.string());
}

void set_value(YamlNode& root, std::string_view assignment) {
  const std::string origin = "--set " + std::string(assignment);
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
      throw ScenarioError(origin, 0, 0,
                          "'" + key + "' is set inside " + describe(*node) + ", not a mapping");
    }
    auto entry = std::ranges::find(node->entries, key, &YamlNode::Entry::key);
    if (entry == node->entries.end()) {
      YamlNode::Entry added;
      added.key = key;
      added.where = {origin, 1, 1};
      added.value.where = added.where;
      node->entries.push_back(std::move(added));
      entry = node->entries.end() - 1;
    }
    node = &entry->value;
    if (dot == std::string_view::npos) {
      *node = std::move(value);
      return;
    }
    path.remove_prefix(dot + 1);
  }
}

void add_missing(YamlNode& node, const YamlNode& base) {
  if (node.kind != YamlNode::Kind::kMap || node.find("value") != nullptr) {
    return;
  }
  for (const YamlNode::Entry& entry : base.entries) {
    const auto own = std::ranges::find(node.entries, entry.key, &YamlNode::Entry::key);
    if (own == node.entries.end()) {
      node.entries.push_back(entry);
    } else {
      add_missing(own->value, entry.value);
    }
  }
}

}  // namespace orrery
