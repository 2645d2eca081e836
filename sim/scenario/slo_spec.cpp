#include "sim/scenario/slo_spec.h"

#include <stdexcept>
#include <string_view>
#include <vector>

#include "sim/scenario/keys.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

// ttft: 1 s limits each request; ttft: {p99: 1 s, mean: 300 ms, each: 2 s} statistics of all, too.
void read_limits(const Reader& reader, LatencyMetric metric, Seconds& each, Slo& slo) {
  const std::string_view key = kLatencyMetricNames[static_cast<std::size_t>(metric)];
  const YamlNode& node = reader.at(key);
  if (node.kind != YamlNode::Kind::kMap) {
    each = reader.seconds(key);
    return;
  }
  std::vector<std::string_view> keys;
  keys.reserve(node.entries.size());
  for (const YamlNode::Entry& entry : node.entries) keys.emplace_back(entry.key);
  const Reader limits(node, reader.path_of(key), keys);
  for (const YamlNode::Entry& entry : node.entries) {
    if (entry.key == "each") {
      each = limits.seconds("each");
      continue;
    }
    try {
      slo.limits.push_back({.metric = metric,
                            .percentile = parse_statistic(entry.key),
                            .limit = limits.seconds(entry.key)});
    } catch (const ScenarioError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      fail_at(entry.where, reader.path_of(key) + ": " + error.what() + ", or each");
    }
  }
}

std::string seconds_yaml(Seconds value) { return format_number(value.value()) + " s"; }

}  // namespace

void read_slo(const YamlNode& node, Slo& slo) {
  const Reader reader(node, "slo", key_names("slo"));
  const auto limits = [&](LatencyMetric metric, Seconds& each) {
    if (reader.has(kLatencyMetricNames[static_cast<std::size_t>(metric)])) {
      read_limits(reader, metric, each, slo);
    }
  };
  limits(LatencyMetric::kTtft, slo.ttft);
  limits(LatencyMetric::kTpot, slo.tpot);
  limits(LatencyMetric::kE2e, slo.e2e);
  if (reader.has("attainment")) slo.attainment = reader.number("attainment", 0, 1, /*above=*/true);
  if (reader.has("goodput")) slo.goodput = reader.number("goodput", 0, 1e9, /*above=*/true);
  for (const std::string_view key : {"attainment", "goodput"}) {
    if (reader.has(key) && !slo.limits_each()) {
      reader.fail(key, std::string(key) +
                           " counts requests that meet limits of each request; found none, "
                           "expected such as ttft: 1 s beside it");
    }
  }
}

std::string to_yaml(const Slo& slo) {
  if (slo.is_empty()) return "";
  const Slo none;
  std::string text;
  const auto limits = [&](LatencyMetric metric, Seconds each, Seconds absent) {
    const std::string key(kLatencyMetricNames[static_cast<std::size_t>(metric)]);
    std::string statistics;
    for (const LatencyLimit& limit : slo.limits) {
      if (limit.metric == metric) {
        statistics += (statistics.empty() ? "" : ", ") + statistic_name(limit.percentile) + ": " +
                      seconds_yaml(limit.limit);
      }
    }
    if (!statistics.empty()) {
      const std::string of_each = each < absent ? "each: " + seconds_yaml(each) + ", " : "";
      text += "\n  " + key + ": {" + of_each + statistics + "}";
    } else if (each < absent) {
      text += "\n  " + key + ": " + seconds_yaml(each);
    }
  };
  limits(LatencyMetric::kTtft, slo.ttft, none.ttft);
  limits(LatencyMetric::kTpot, slo.tpot, none.tpot);
  limits(LatencyMetric::kE2e, slo.e2e, none.e2e);
  if (slo.attainment != none.attainment) {
    text += "\n  attainment: " + format_number(slo.attainment);
  }
  if (slo.goodput > 0) text += "\n  goodput: " + format_number(slo.goodput);
  return "slo:" + text + "\n";
}

}  // namespace orrery
