#pragma once

// Strict reading of YAML (and so of JSON): a tree of nodes that know where they stand, and a Reader
// over one mapping that accepts exactly the keys it was told of. Every error is a ScenarioError
// with file, line and column, says what was found and what is expected, and offers the nearest
// known key.

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/units/parse.h"
#include "sim/units/units.h"

namespace orrery {

// what() is "file:line:column: message"; line and column count from 1, 0 means the file as a whole.
// Of a scenario that is in no file it is the message, which names the key.
class ScenarioError : public std::invalid_argument {
 public:
  ScenarioError(std::string file, int line, int column, const std::string& message);

  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] int line() const { return line_; }
  [[nodiscard]] int column() const { return column_; }
  // The message without its place.
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  std::string file_;
  std::string message_;
  int line_;
  int column_;
};

struct Location {
  std::string file;
  int line = 0;
  int column = 0;
  std::string changed_by;  // what --set put inside this mapping, for messages about it as a whole
};

struct YamlNode {
  enum class Kind : std::uint8_t { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  bool is_quoted = false;  // a quoted scalar is text, whatever it looks like
  std::string scalar;
  std::vector<YamlNode> items;
  std::vector<Entry> entries;  // in the order of the file; keys are distinct
  Location where;

  // Null when absent or when this is no mapping.
  [[nodiscard]] const YamlNode* find(std::string_view key) const;
};

struct YamlNode::Entry {
  std::string key;
  Location where;  // of the key
  YamlNode value;
};

// Throw ScenarioError on a syntax error, a duplicate key, an alias, more than one document, more
// than 500,000 values or 64 levels, or (for read_yaml) a file that cannot be read, is no regular
// file, no UTF-8 or larger than 16 MB. Linear in the text.
YamlNode parse_yaml(std::string_view text, const std::string& file);
YamlNode read_yaml(const std::filesystem::path& path);

// Sets the value at a dotted path ("placement.tp"), creating mappings on the way; `value` is YAML
// text. Its place is "--set ASSIGNMENT", which mappings around it name beside their own. A key
// inside a machine or a model that is a plain name makes it {name: NAME} or {config: NAME}. Throws
// ScenarioError when the path runs through something else that is no mapping.
void set_value(YamlNode& root, std::string_view assignment);

// A plain name as {key: NAME}, in which other keys can stand.
void make_mapping(YamlNode& name, std::string_view key);

// Adds to the mapping `node` the entries of the mapping `base` whose keys it lacks, at every depth.
// A {value, source} of `node` stays as it is.
void add_missing(YamlNode& node, const YamlNode& base);

[[noreturn]] void fail_at(const Location& where, const std::string& message);

// The value as messages say what was found: "'two'" (shortened when it is long), "a list",
// "nothing".
std::string describe(const YamlNode& node);

class Reader {
 public:
  // Throws ScenarioError unless `node` is a mapping whose keys are all among `keys`. `path` names
  // the mapping in messages ("placement"; empty for the root). The node must outlive the Reader.
  Reader(const YamlNode& node, std::string path, std::initializer_list<std::string_view> keys);
  Reader(const YamlNode& node, std::string path, const std::vector<std::string_view>& keys);

  // From here on each value may be written {value: V, source: TEXT}; sources are put into `sources`
  // under the key's name.
  void collect_sources(std::map<std::string, std::string>* sources) { sources_ = sources; }

  [[nodiscard]] bool has(std::string_view key) const { return node_->find(key) != nullptr; }
  [[nodiscard]] const YamlNode& node() const { return *node_; }
  // Where the mapping stands in the scenario ("workload.poisson").
  [[nodiscard]] const std::string& path() const { return path_; }
  // Throws ScenarioError that names all of `keys` that are missing.
  void require(std::initializer_list<std::string_view> keys) const;
  // Throws ScenarioError when the key is missing.
  [[nodiscard]] const YamlNode& at(std::string_view key) const;

  [[nodiscard]] std::string text(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::int64_t integer(
      std::string_view key, std::int64_t min = 1,
      std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  // A finite number in [min, max]; with `above`, strictly more than min.
  [[nodiscard]] double number(std::string_view key, double min,
                              double max = std::numeric_limits<double>::infinity(),
                              bool above = false) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key,
                                                   std::int64_t min = 1) const;
  // Finite ones.
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const;
  // Quantities need their unit ("450 GB/s"); zero only where allowed, never negative, and within
  // what machines and services may have (reader.cpp), so that sums and counts of them
  // stay in range.
  [[nodiscard]] Seconds seconds(std::string_view key, bool zero_allowed = false) const;
  [[nodiscard]] Bytes bytes(std::string_view key, bool zero_allowed = false) const;
  [[nodiscard]] BytesPerSecond bytes_per_second(std::string_view key,
                                                bool zero_allowed = false) const;
  [[nodiscard]] FlopsPerSecond flops_per_second(std::string_view key) const;
  [[nodiscard]] Watts watts(std::string_view key) const;
  // The text of `key` through `parse`, whose std::invalid_argument gets the place of the value.
  template <typename Parse>
  [[nodiscard]] auto convert(std::string_view key, Parse parse) const {
    const std::string value = text(key);
    try {
      return parse(std::string_view(value));
    } catch (const ScenarioError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      fail(key, error.what());
    }
  }
  // Index of the value among `choices`; the error names the nearest.
  [[nodiscard]] std::size_t choice(std::string_view key,
                                   std::span<const std::string_view> choices) const;

  // Throws ScenarioError at the value of `key` (at the mapping when it is absent).
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;
  [[nodiscard]] std::string path_of(std::string_view key) const;

 private:
  // The scalar of `key`; unwraps {value, source}.
  [[nodiscard]] const YamlNode& scalar(std::string_view key, std::string_view expected) const;
  template <typename Quantity>
  [[nodiscard]] Quantity quantity(std::string_view key, Quantity (*parse)(std::string_view),
                                  bool zero_allowed, std::string_view example, Quantity least,
                                  Quantity most) const;

  const YamlNode* node_;
  std::string path_;
  std::map<std::string, std::string>* sources_ = nullptr;
};

// As YAML writes it.
inline std::string yaml_bool(bool value) { return value ? "true" : "false"; }

}  // namespace orrery
