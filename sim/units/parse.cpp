#include "sim/units/parse.h"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/units/nearest.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"
#include "sim/units/unit_names.h"

namespace orrery {
namespace {

struct Unit {
  std::string_view name;
  double factor;  // base units in one of it
};

// The units of one kind of quantity. `printed` are those that to_text chooses from, ascending.
struct Kind {
  std::string_view name;
  std::string_view base;
  std::string_view example;
  std::span<const Unit> accepted;
  std::span<const Unit> printed;
};

constexpr double kKi = 1024.0;

constexpr std::array<Unit, 6> kTime{
    {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}}};

constexpr std::array<Unit, 10> kSize{{{"B", 1},
                                      {"kB", 1e3},
                                      {"MB", 1e6},
                                      {"GB", 1e9},
                                      {"TB", 1e12},
                                      {"PB", 1e15},
                                      {"KiB", kKi},
                                      {"MiB", kKi* kKi},
                                      {"GiB", kKi* kKi* kKi},
                                      {"TiB", kKi* kKi* kKi* kKi}}};

constexpr std::array<Unit, 5> kMemory{{{"B", 1},
                                       {"KiB", kKi},
                                       {"MiB", kKi* kKi},
                                       {"GiB", kKi* kKi* kKi},
                                       {"TiB", kKi* kKi* kKi* kKi}}};

constexpr std::array<Unit, 7> kAmount{{{"FLOP", 1},
                                       {"kFLOP", 1e3},
                                       {"MFLOP", 1e6},
                                       {"GFLOP", 1e9},
                                       {"TFLOP", 1e12},
                                       {"PFLOP", 1e15},
                                       {"EFLOP", 1e18}}};

constexpr std::array<Unit, 15> kDataRate{{{"B/s", 1},
                                          {"kB/s", 1e3},
                                          {"MB/s", 1e6},
                                          {"GB/s", 1e9},
                                          {"TB/s", 1e12},
                                          {"PB/s", 1e15},
                                          {"KiB/s", kKi},
                                          {"MiB/s", kKi* kKi},
                                          {"GiB/s", kKi* kKi* kKi},
                                          {"TiB/s", kKi* kKi* kKi* kKi},
                                          {"bit/s", 1.0 / 8},
                                          {"kbit/s", 1e3 / 8},
                                          {"Mbit/s", 1e6 / 8},
                                          {"Gbit/s", 1e9 / 8},
                                          {"Tbit/s", 1e12 / 8}}};

constexpr std::array<Unit, 7> kComputeRate{{{"FLOP/s", 1},
                                            {"kFLOP/s", 1e3},
                                            {"MFLOP/s", 1e6},
                                            {"GFLOP/s", 1e9},
                                            {"TFLOP/s", 1e12},
                                            {"PFLOP/s", 1e15},
                                            {"EFLOP/s", 1e18}}};

constexpr std::array<Unit, 4> kPower{{{"mW", 1e-3}, {"W", 1}, {"kW", 1e3}, {"MW", 1e6}}};

constexpr std::span<const Unit> first(std::span<const Unit> units, std::size_t count) {
  return units.first(count);
}

constexpr Kind kTimeKind{"time", "s", "50 ms", kTime, kTime};
constexpr Kind kSizeKind{"size", "B", "141 GB", kSize, first(kSize, 6)};
constexpr Kind kMemoryKind{"size", "B", "141 GiB", kMemory, kMemory};
constexpr Kind kAmountKind{"amount of operations", "FLOP", "2 TFLOP", kAmount, kAmount};
constexpr Kind kDataRateKind{"data rate", "B/s", "450 GB/s", kDataRate, first(kDataRate, 6)};
constexpr Kind kComputeRateKind{"compute rate", "FLOP/s", "989 TFLOP/s", kComputeRate,
                                kComputeRate};
constexpr Kind kPowerKind{"power", "W", "700 W", kPower, kPower};
constexpr std::array<const Kind*, 6> kKinds{&kTimeKind,     &kSizeKind,        &kAmountKind,
                                            &kDataRateKind, &kComputeRateKind, &kPowerKind};

// Of what to_text prints.
constexpr int kPrintedDigits = 3;

std::string_view strip(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

const Unit* find_unit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

[[noreturn]] void fail(std::string_view text, const Kind& kind, const std::string& what) {
  std::string message = "\"" + shown(text) + "\": " + what +
                        "; expected: " + std::string(kind.name) + " like \"" +
                        std::string(kind.example) + "\", in one of";
  for (const Unit& unit : kind.accepted) message.append(" ").append(unit.name);
  throw std::invalid_argument(message);
}

[[noreturn]] void fail_unit(std::string_view text, const Kind& kind, std::string_view unit) {
  const std::string quoted = "\"" + shown(unit) + "\"";
  for (const Kind* other : kKinds) {
    if (find_unit(other->accepted, unit) != nullptr) {
      fail(text, kind, quoted + " is a unit of " + std::string(other->name));
    }
  }
  std::vector<std::string_view> names;
  names.reserve(kind.accepted.size());
  for (const Unit& known : kind.accepted) names.push_back(known.name);
  fail(text, kind, "unknown unit " + quoted + ", nearest is \"" + nearest(unit, names) + "\"");
}

double parse(std::string_view text, const Kind& kind) {
  const std::string_view stripped = strip(text);
  double number = 0;
  const auto [end, error] =
      std::from_chars(stripped.data(), stripped.data() + stripped.size(), number);
  if (error == std::errc::invalid_argument) fail(text, kind, "does not start with a number");
  const std::string_view unit =
      strip(stripped.substr(static_cast<std::size_t>(end - stripped.data())));
  if (error == std::errc::result_out_of_range || !std::isfinite(number)) {
    fail(text, kind, "the number is not finite");
  }
  if (unit.empty()) fail(text, kind, "has no unit");
  const Unit* const known = find_unit(kind.accepted, unit);
  if (known == nullptr) fail_unit(text, kind, unit);
  const double value = number * known->factor;
  if (!std::isfinite(value)) fail(text, kind, "the number is not finite");
  return value;
}

// In the first unit in which the rounded number stays below 1000, else the largest.
std::string print(double value, const Kind& kind) {
  const auto scaled = [&](const Unit& unit) {
    return format_significant(value / unit.factor, kPrintedDigits);
  };
  if (value == 0 || !std::isfinite(value)) {
    return format_number(value) + " " + std::string(kind.base);
  }
  for (const Unit& unit : kind.printed) {
    // 999.5 rounds to 1000, which reads better as 1 of the next unit.
    if (std::abs(value) / unit.factor < 999.5) return scaled(unit) + " " + std::string(unit.name);
  }
  const Unit& largest = kind.printed.back();
  return scaled(largest) + " " + std::string(largest.name);
}

}  // namespace

std::vector<std::string_view> unit_names(std::string_view kind) {
  std::vector<std::string_view> names;
  for (const Kind* known : kKinds) {
    if (known->name != kind) continue;
    for (const Unit& unit : known->accepted) names.push_back(unit.name);
  }
  return names;
}

Seconds parse_seconds(std::string_view text) { return Seconds(parse(text, kTimeKind)); }
Bytes parse_bytes(std::string_view text) { return Bytes(parse(text, kSizeKind)); }
BytesPerSecond parse_bytes_per_second(std::string_view text) {
  return BytesPerSecond(parse(text, kDataRateKind));
}
FlopsPerSecond parse_flops_per_second(std::string_view text) {
  return FlopsPerSecond(parse(text, kComputeRateKind));
}
Watts parse_watts(std::string_view text) { return Watts(parse(text, kPowerKind)); }

std::string to_text(Seconds value) { return print(value.value(), kTimeKind); }
std::string to_text(Bytes value) { return print(value.value(), kSizeKind); }
std::string to_text(Flops value) { return print(value.value(), kAmountKind); }
std::string to_text(BytesPerSecond value) { return print(value.value(), kDataRateKind); }
std::string to_text(FlopsPerSecond value) { return print(value.value(), kComputeRateKind); }
std::string to_text(Watts value) { return print(value.value(), kPowerKind); }

std::string memory_text(Bytes value) { return print(value.value(), kMemoryKind); }

}  // namespace orrery
