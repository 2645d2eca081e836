#include "sim/scenario/lengths.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "sim/scenario/keys.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

// The pairs that log-normal lengths may be given by.
struct LogNormalForm {
  std::string_view first;
  std::string_view second;
  LengthDistribution (*make)(double, double, std::int64_t, std::int64_t);
};
constexpr std::array kLogNormalForms = {LogNormalForm{"mean", "cv", lognormal_of_mean_cv},
                                        LogNormalForm{"mean", "p50", lognormal_of_mean_p50},
                                        LogNormalForm{"p50", "p99", lognormal_of_p50_p99}};

LengthDistribution read_log_normal(const Reader& reader) {
  const std::int64_t max = reader.integer("max", 1, kMaxTokens);
  const std::int64_t min = reader.has("min") ? reader.integer("min", 1, max) : 1;
  std::string given;
  std::size_t count = 0;
  for (const std::string_view key : {"mean", "cv", "p50", "p99"}) {
    if (reader.has(key)) {
      given += (given.empty() ? "" : ", ") + std::string(key);
      ++count;
    }
  }
  for (const LogNormalForm& form : kLogNormalForms) {
    if (count != 2 || !reader.has(form.first) || !reader.has(form.second)) {
      continue;
    }
    const auto value = [&](std::string_view key) {
      return key == "cv" ? reader.number(key, 0, 100)
                         : reader.number(key, 1, static_cast<double>(kMaxTokens));
    };
    try {
      return form.make(value(form.first), value(form.second), min, max);
    } catch (const ScenarioError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      reader.fail(form.second, error.what());
    }
  }
  fail_at(reader.node().where,
          reader.path() + ": found " + (given.empty() ? "none of mean, cv, p50, p99" : given) +
              "; log-normal lengths are given by mean and cv, mean and p50, or p50 and p99");
}

}  // namespace

LengthDistribution read_lengths(const Reader& parent, std::string_view key) {
  const YamlNode& node = parent.at(key);
  LengthDistribution lengths;
  if (node.kind != YamlNode::Kind::kMap) {
    lengths.min = lengths.max = parent.integer(key, 1, kMaxTokens);
    lengths.mean = static_cast<double>(lengths.min);
    return lengths;
  }
  if (node.find("values") != nullptr) {
    const Reader reader(node, parent.path_of(key), key_names("length_values"));
    lengths.kind = LengthKind::kUniform;
    lengths.values = reader.integers("values");
    if (lengths.values.empty()) {
      reader.fail("values", "found an empty list; expected at least one length");
    }
    lengths.min = std::ranges::min(lengths.values);
    lengths.max = std::ranges::max(lengths.values);
    return lengths;
  }
  const Reader reader(node, parent.path_of(key), key_names("lengths"));
  if (node.entries.size() > 2 || !reader.has("min") || !reader.has("max")) {
    return read_log_normal(reader);
  }
  lengths.kind = LengthKind::kUniform;
  lengths.max = reader.integer("max", 1, kMaxTokens);
  lengths.min = reader.integer("min", 1, lengths.max);
  return lengths;
}

std::string to_yaml(const LengthDistribution& lengths) {
  switch (lengths.kind) {
    case LengthKind::kFixed:
      return std::to_string(lengths.min);
    case LengthKind::kUniform: {
      std::string values;
      for (const std::int64_t value : lengths.values) {
        values += (values.empty() ? "" : ", ") + std::to_string(value);
      }
      if (!values.empty()) {
        return "{values: [" + values + "]}";
      }
      return "{min: " + std::to_string(lengths.min) + ", max: " + std::to_string(lengths.max) + "}";
    }
    case LengthKind::kLogNormal: {
      const bool has_cv = lengths.p50 == 0;
      const std::string mean =
          lengths.mean > 0 ? "mean: " + format_number(lengths.mean) + ", " : "";
      const std::string p50 = has_cv ? "" : "p50: " + format_number(lengths.p50) + ", ";
      const std::string rest = has_cv              ? "cv: " + format_number(lengths.cv) + ", "
                               : lengths.mean == 0 ? "p99: " + format_number(lengths.p99) + ", "
                                                   : "";
      return "{" + mean + p50 + rest + "min: " + std::to_string(lengths.min) +
             ", max: " + std::to_string(lengths.max) + "}";
    }
  }
  return "";
}

}  // namespace orrery
