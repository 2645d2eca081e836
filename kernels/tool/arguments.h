#pragma once

// Options of the program's commands, the fields that they and lines of cases are made of, and
// numbers in messages. No CUDA.

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace orrery::tool {

// What was given for an option or a field, and its name for messages.
struct Value {
  std::string_view name;
  std::string_view text;

  // From `least` to `most`. Throws std::invalid_argument for what is no whole number, or another.
  [[nodiscard]] std::int64_t whole(
      std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  // The same where an int is wanted.
  [[nodiscard]] int small(int least, int most = std::numeric_limits<int>::max()) const;
};

// "1 GPU", "2 GPUs": `noun` takes an s in the plural.
std::string counted(std::int64_t count, std::string_view noun);

// Words between `separator`s, of which several count as one.
std::vector<std::string_view> split(std::string_view text, char separator);

// A word that starts with '-': a flag, which stands alone, or one that a value follows.
struct Option {
  std::string_view name;
  std::variant<std::function<void()>, std::function<void(const Value&)>> read;
};

// Calls `read` of each option among the arguments of `command`, in order. Returns the one argument
// that is none; `operand` says what that is, and is empty where a command takes none.
// Throws std::invalid_argument for an unknown option (it names the nearest), one without its value,
// no operand where one is needed, and more than one.
std::string_view read_arguments(std::string_view command,
                                std::span<const std::string_view> arguments,
                                std::span<const Option> options, std::string_view operand = {});

}  // namespace orrery::tool
