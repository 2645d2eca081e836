#include "kernels/execute/fault.h"

#include <array>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace orrery {
namespace {

constexpr std::array<std::pair<std::string_view, FaultKind>, 6> kKinds = {{
    {"throw", FaultKind::kThrow},
    {"hang", FaultKind::kHang},
    {"kill", FaultKind::kKill},
    {"nan", FaultKind::kNan},
    {"nccl", FaultKind::kNccl},
    {"stall", FaultKind::kStall},
}};

int whole(std::string_view key, std::string_view text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw std::invalid_argument("fault: " + std::string(key) + " is '" + std::string(text) +
                                "', expected a whole number of at least " + std::to_string(least));
  }
  return value;
}

FaultKind kind_of(std::string_view text) {
  std::string known;
  for (const auto& [name, kind] : kKinds) {
    if (name == text) return kind;
    if (!known.empty()) known += ", ";
    known += name;
  }
  throw std::invalid_argument("fault: how is '" + std::string(text) + "', expected one of " +
                              known);
}

}  // namespace

Fault parse_fault(std::string_view text) {
  Fault fault;
  bool has_rank = false;
  bool has_kind = false;
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find(','));
    text.remove_prefix(std::min(field.size() + 1, text.size()));
    const std::size_t equals = field.find('=');
    const std::string_view key = field.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
    if (key == "rank") {
      fault.rank = whole(key, value, 0);
      has_rank = true;
    } else if (key == "op") {
      fault.op = value;
    } else if (key == "how") {
      fault.kind = kind_of(value);
      has_kind = true;
    } else if (key == "run") {
      fault.run = whole(key, value, 1);
    } else {
      throw std::invalid_argument("fault: unknown field '" + std::string(field) +
                                  "', expected rank=, op=, how= or run=");
    }
  }
  if (!has_rank || !has_kind || fault.op.empty()) {
    throw std::invalid_argument("fault: needs rank=, op= and how=");
  }
  return fault;
}

}  // namespace orrery
