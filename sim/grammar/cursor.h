#pragma once

// A line of a plan's text, read from left to right.

#include <charconv>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace orrery {

// What it expects and does not find is an std::invalid_argument that says both.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : rest_(line) {}

  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  [[nodiscard]] bool is_at(std::string_view token) const { return rest_.starts_with(token); }

  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) {
      rest_.remove_prefix(1);
    }
  }

  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) fail("\"" + std::string(token) + "\"");
  }

  // What stands before the next of space , = : ] or the end; may be empty.
  std::string_view word() {
    const std::string_view found = rest_.substr(0, rest_.find_first_of(" \t,=:]"));
    rest_.remove_prefix(found.size());
    return found;
  }

  std::string_view spaced_word() {
    skip_spaces();
    return word();
  }

  // A bare or quoted name.
  std::string name() {
    if (!take("\"")) {
      const std::string_view found = word();
      if (found.empty()) fail("a name");
      return std::string(found);
    }
    std::string text;
    while (!rest_.empty() && rest_.front() != '"') {
      if (take("\\")) {
        if (rest_.empty()) break;
        text += rest_.front() == 'n' ? '\n' : rest_.front();
      } else {
        text += rest_.front();
      }
      rest_.remove_prefix(1);
    }
    expect("\"");
    return text;
  }

  template <typename Number>
  Number number(std::string_view what) {
    Number value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{}) fail(what);
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  // "g3" for prefix "g".
  std::int32_t id(std::string_view prefix) {
    expect(prefix);
    const auto value = number<std::int32_t>("a number after \"" + std::string(prefix) + "\"");
    if (value == std::numeric_limits<std::int32_t>::max()) fail("a smaller number before it");
    return value;
  }

  [[noreturn]] void fail(std::string_view expected) const {
    std::string message = "found ";
    if (rest_.empty()) {
      message += "the end of the line";
    } else {
      message.append("\"").append(rest_.substr(0, 24)).append("\"");
    }
    throw std::invalid_argument(message.append(", expected ").append(expected));
  }

 private:
  std::string_view rest_;
};

}  // namespace orrery
