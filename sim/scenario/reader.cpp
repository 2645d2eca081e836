#include "sim/scenario/reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "sim/scenario/keys.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {

namespace {

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

Reader::Reader(const YamlNode& node, std::string path, std::initializer_list<std::string_view> keys)
    : Reader(node, std::move(path), std::vector<std::string_view>(keys)) {}

Reader::Reader(const YamlNode& node, std::string path, const std::vector<std::string_view>& known)
    : node_(&node), path_(std::move(path)) {
  const std::string name = path_.empty() ? "" : path_ + ": ";
  if (node.kind != YamlNode::Kind::kMap) {
    fail_at(node.where,
            name + "found " + describe(node) + "; expected a mapping with the keys " + join(known));
  }
  for (const YamlNode::Entry& entry : node.entries) {
    if (std::ranges::find(known, entry.key) == known.end()) {
      std::string found = name + "unknown key '" + shown(entry.key) + "'";
      if (!known.empty()) found.append("; ").append(instead_of(entry.key, known));
      found.append(found.ends_with('?') ? " " : ". ").append("Known keys: ").append(join(known));
      fail_at(entry.where, found);
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

void Reader::require(std::initializer_list<std::string_view> keys) const {
  std::string missing;
  int count = 0;
  for (const std::string_view key : keys) {
    if (has(key)) continue;
    missing += (count == 0 ? "'" : ", '") + std::string(key) + "'";
    ++count;
  }
  if (count > 0) {
    fail_at(node_->where, (path_.empty() ? "" : path_ + ": ") +
                              (count == 1 ? "missing key " : "missing keys ") + missing);
  }
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

std::vector<double> Reader::numbers(std::string_view key) const {
  const YamlNode& list = at(key);
  if (list.kind != YamlNode::Kind::kList) {
    fail(key, "found " + describe(list) + "; expected a list of numbers");
  }
  std::vector<double> result;
  for (const YamlNode& item : list.items) {
    double number = 0;
    if (item.kind != YamlNode::Kind::kScalar || item.is_quoted ||
        !parse_whole(item.scalar, number) || !std::isfinite(number)) {
      fail_at(item.where,
              path_of(key) + ": found " + describe(item) + "; expected a list of numbers");
    }
    result.push_back(number);
  }
  return result;
}

template <typename Quantity>
Quantity Reader::quantity(std::string_view key, Quantity (*parse)(std::string_view),
                          bool zero_allowed, std::string_view example, Quantity least,
                          Quantity most) const {
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
  if (result.value() != 0 && (result < least || result > most)) {
    fail(key, "found " + describe(value) + "; expected " + (zero_allowed ? "0 or " : "") +
                  to_text(least) + " to " + to_text(most));
  }
  return result;
}

Seconds Reader::seconds(std::string_view key, bool zero_allowed) const {
  // From less than a clock to 31 years.
  return quantity(key, parse_seconds, zero_allowed, "50 ms", Seconds(1e-15), Seconds(1e9));
}

Bytes Reader::bytes(std::string_view key, bool zero_allowed) const {
  return quantity(key, parse_bytes, zero_allowed, "80 GiB", Bytes(1), Bytes(1e18));
}

BytesPerSecond Reader::bytes_per_second(std::string_view key, bool zero_allowed) const {
  return quantity(key, parse_bytes_per_second, zero_allowed, "450 GB/s", BytesPerSecond(1),
                  BytesPerSecond(1e18));
}

FlopsPerSecond Reader::flops_per_second(std::string_view key) const {
  return quantity(key, parse_flops_per_second, false, "989 TFLOP/s", FlopsPerSecond(1),
                  FlopsPerSecond(1e21));
}

Watts Reader::watts(std::string_view key) const {
  return quantity(key, parse_watts, false, "700 W", Watts(1e-3), Watts(1e9));
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
