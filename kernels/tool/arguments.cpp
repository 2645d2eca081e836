#include "kernels/tool/arguments.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>

#include "sim/units/nearest.h"

namespace orrery::tool {
namespace {

[[noreturn]] void refuse(std::string_view command, const std::string& why) {
  throw std::invalid_argument(std::string(command) + ": " + why);
}

const Option& option_named(std::string_view command, std::string_view name,
                           std::span<const Option> options) {
  const auto found = std::ranges::find(options, name, &Option::name);
  if (found != options.end()) return *found;
  std::vector<std::string_view> names;
  for (const Option& option : options) names.push_back(option.name);
  refuse(command,
         "unknown option '" + std::string(name) + "', nearest is '" + nearest(name, names) + "'");
}

}  // namespace

std::int64_t Value::whole(std::int64_t least, std::int64_t most) const {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && stop == text.data() + text.size() && value >= least &&
      value <= most) {
    return value;
  }
  const bool is_open = most >= std::numeric_limits<int>::max();
  throw std::invalid_argument(std::string(name) + ": found '" + std::string(text) +
                              "'; expected a whole number from " + std::to_string(least) +
                              (is_open ? "" : " to " + std::to_string(most)));
}

int Value::small(int least, int most) const { return static_cast<int>(whole(least, most)); }

std::string counted(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (!word.empty()) found.push_back(word);
  }
  return found;
}

std::string_view read_arguments(std::string_view command,
                                std::span<const std::string_view> arguments,
                                std::span<const Option> options, std::string_view operand) {
  std::string_view found;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    if (!word.starts_with('-')) {
      if (operand.empty() || !found.empty()) {
        refuse(command, "found '" + std::string(word) + "'; expected " +
                            (operand.empty() ? "options alone" : "only " + std::string(operand)));
      }
      found = word;
      continue;
    }
    const Option& option = option_named(command, word, options);
    if (const auto* flag = std::get_if<std::function<void()>>(&option.read)) {
      (*flag)();
      continue;
    }
    if (++i == arguments.size()) refuse(command, std::string(word) + " needs a value");
    std::get<std::function<void(const Value&)>>(option.read)({.name = word, .text = arguments[i]});
  }
  if (found.empty() && !operand.empty()) refuse(command, "needs " + std::string(operand));
  return found;
}

}  // namespace orrery::tool
