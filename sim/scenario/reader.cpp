#include "sim/scenario/reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "sim/units/nearest.h"

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

template <typename Number>
bool parse_whole(std::string_view text, Number& value) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::string join(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

std::string suggestion(std::string_view found, std::span<const std::string_view> names) {
  return names.empty() ? "" : "; did you mean '" + nearest(found, names) + "'?";
}

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

Reader::Reader(const YamlNode& node, std::string path, std::initializer_list<std::string_view> keys)
    : node_(&node), path_(std::move(path)) {
  const std::vector<std::string_view> known(keys);
  const std::string name = path_.empty() ? "" : path_ + ": ";
  if (node.kind != YamlNode::Kind::kMap) {
    fail_at(node.where,
            name + "found " + describe(node) + "; expected a mapping with the keys " + join(known));
  }
  for (const YamlNode::Entry& entry : node.entries) {
    if (std::ranges::find(known, entry.key) == known.end()) {
      fail_at(entry.where, name + "unknown key '" + entry.key + "'" + suggestion(entry.key, known) +
                               " Known keys: " + join(known));
    }
  }
}

std::string Reader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void Reader::fail(std::string_view key, const std::string& message) const {
  const YamlNode* value = node_->find(key);
  fail_at(value == nullptr ? node_->where : value->where, path_of(key) + ": " + message);
}

const YamlNode& Reader::at(std::string_view key) const {
  const YamlNode* value = node_->find(key);
  if (value == nullptr) {
    fail_at(node_->where,
            (path_.empty() ? "" : path_ + ": ") + "missing key '" + std::string(key) + "'");
  }
  return *value;
}

const YamlNode& Reader::scalar(std::string_view key, std::string_view expected) const {
  const YamlNode* value = &at(key);
  if (sources_ != nullptr && value->kind == YamlNode::Kind::kMap) {
    const Reader sourced(*value, path_of(key), {"value", "source"});
    (*sources_)[std::string(key)] = sourced.text("source");
    value = &sourced.at("value");
  }
  if (value->kind != YamlNode::Kind::kScalar) {
    fail_at(value->where,
            path_of(key) + ": found " + describe(*value) + "; expected " + std::string(expected));
  }
  return *value;
}

std::string Reader::text(std::string_view key) const { return scalar(key, "text").scalar; }

bool Reader::boolean(std::string_view key) const {
  const YamlNode& value = scalar(key, "true or false");
  if (!value.is_quoted && value.scalar == "true") {
    return true;
  }
  if (!value.is_quoted && value.scalar == "false") {
    return false;
  }
  fail(key, "found " + describe(value) + "; expected true or false");
}

std::int64_t Reader::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const std::string expected =
      max == std::numeric_limits<std::int64_t>::max()
          ? "a whole number, at least " + std::to_string(min)
          : "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  const YamlNode& value = scalar(key, expected);
  std::int64_t result = 0;
  if (value.is_quoted || !parse_whole(value.scalar, result) || result < min || result > max) {
    fail(key, "found " + describe(value) + "; expected " + expected);
  }
  return result;
}

double Reader::number(std::string_view key, double min, double max, bool above) const {
  std::ostringstream expected;
  expected << "a number " << (above ? "above " : "of at least ") << min;
  if (std::isfinite(max)) {
    expected << " and at most " << max;
  }
  const YamlNode& value = scalar(key, expected.str());
  double result = 0;
  if (value.is_quoted || !parse_whole(value.scalar, result) || !std::isfinite(result) ||
      result < min || result > max || (above && result == min)) {
    fail(key, "found " + describe(value) + "; expected " + expected.str());
  }
  return result;
}

std::vector<std::int64_t> Reader::integers(std::string_view key, std::int64_t min) const {
  const YamlNode& list = at(key);
  const std::string expected = "a list of whole numbers, each at least " + std::to_string(min);
  if (list.kind != YamlNode::Kind::kList) {
    fail(key, "found " + describe(list) + "; expected " + expected);
  }
  std::vector<std::int64_t> result;
  for (const YamlNode& item : list.items) {
    std::int64_t number = 0;
    if (item.kind != YamlNode::Kind::kScalar || item.is_quoted ||
        !parse_whole(item.scalar, number) || number < min) {
      fail_at(item.where, path_of(key) + ": found " + describe(item) + "; expected " + expected);
    }
    result.push_back(number);
  }
  return result;
}

template <typename Quantity>
Quantity Reader::quantity(std::string_view key, Quantity (*parse)(std::string_view),
                          bool zero_allowed, std::string_view example) const {
  const YamlNode& value =
      scalar(key, "a number with its unit, such as '" + std::string(example) + "'");
  Quantity result;
  try {
    result = parse(value.scalar);
  } catch (const std::invalid_argument& error) {
    fail(key, error.what());
  }
  if (result.value() < 0 || (!zero_allowed && result.value() == 0)) {
    fail(key, "found " + describe(value) + "; expected " +
                  (zero_allowed ? "zero or more" : "more than zero"));
  }
  return result;
}

Seconds Reader::seconds(std::string_view key, bool zero_allowed) const {
  return quantity(key, parse_seconds, zero_allowed, "50 ms");
}

Bytes Reader::bytes(std::string_view key, bool zero_allowed) const {
  return quantity(key, parse_bytes, zero_allowed, "80 GiB");
}

BytesPerSecond Reader::bytes_per_second(std::string_view key, bool zero_allowed) const {
  return quantity(key, parse_bytes_per_second, zero_allowed, "450 GB/s");
}

FlopsPerSecond Reader::flops_per_second(std::string_view key) const {
  return quantity(key, parse_flops_per_second, false, "989 TFLOP/s");
}

Watts Reader::watts(std::string_view key) const {
  return quantity(key, parse_watts, false, "700 W");
}

std::size_t Reader::choice(std::string_view key, std::span<const std::string_view> choices) const {
  const YamlNode& value = scalar(key, "one of " + join(choices));
  const auto it = std::ranges::find(choices, value.scalar);
  if (it == choices.end()) {
    fail(key, "found " + describe(value) + "; expected one of " + join(choices) +
                  suggestion(value.scalar, choices));
  }
  return static_cast<std::size_t>(it - choices.begin());
}

}  // namespace orrery
