#include "sim/units/text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace orrery {
namespace {

// Longest outcome is the fixed form of a number below 1e15 or the shortest form of any double.
using Buffer = std::array<char, 64>;

}  // namespace

std::string format_number(double value) {
  if (value == 0) return "0";
  if (std::isnan(value)) return "nan";
  Buffer buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

std::string format_significant(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return format_number(value);
  Buffer buffer;
  char* const first = buffer.data();
  char* const last = first + buffer.size();
  // Round once in decimal, then print the rounded number in its shortest form.
  const auto end =
      std::to_chars(first, last, value, std::chars_format::scientific, digits > 0 ? digits - 1 : 0)
          .ptr;
  double rounded = 0;
  std::from_chars(first, end, rounded);
  const double size = std::abs(rounded);
  if (size < 1e-5 || size >= 1e15) return format_number(rounded);
  const auto fixed = std::to_chars(first, last, rounded, std::chars_format::fixed).ptr;
  return {first, fixed};
}

}  // namespace orrery
