#include "sim/scenario/autoscaling.h"

#include "sim/machine/machine.h"
#include "sim/scenario/keys.h"
#include "sim/units/text.h"

namespace orrery {

AutoscalingConfig read_autoscaling(const YamlNode& node) {
  const Reader reader(node, "autoscaling", key_names("autoscaling"));
  reader.require({"max_replicas", "target", "start_up"});
  AutoscalingConfig config;
  config.max_replicas = static_cast<int>(reader.integer("max_replicas", 1, kMaxGpus));
  if (reader.has("min_replicas")) {
    config.min_replicas = static_cast<int>(reader.integer("min_replicas", 1, config.max_replicas));
  }
  const Reader target(reader.at("target"), "autoscaling.target", key_names("scaling_target"));
  target.require({"metric", "value"});
  config.metric = static_cast<ScalingMetric>(target.choice("metric", kScalingMetricNames));
  const bool is_share = config.metric == ScalingMetric::kKvUtilisation;
  config.target = target.number("value", 0, is_share ? 1 : 1e9, /*above=*/true);
  if (reader.has("interval")) config.interval = reader.seconds("interval");
  config.start_up = reader.seconds("start_up", /*zero_allowed=*/true);
  if (reader.has("scale_down_delay")) {
    config.scale_down_delay = reader.seconds("scale_down_delay", /*zero_allowed=*/true);
  }
  if (reader.has("tolerance")) config.tolerance = reader.number("tolerance", 0, 1);
  return config;
}

std::string to_yaml(const AutoscalingConfig& config) {
  const auto seconds = [](Seconds time) { return format_number(time.value()) + " s"; };
  return "autoscaling:\n  min_replicas: " + std::to_string(config.min_replicas) +
         "\n  max_replicas: " + std::to_string(config.max_replicas) + "\n  target: {metric: " +
         std::string(kScalingMetricNames[static_cast<std::size_t>(config.metric)]) +
         ", value: " + format_number(config.target) + "}\n  interval: " + seconds(config.interval) +
         "\n  start_up: " + seconds(config.start_up) +
         "\n  scale_down_delay: " + seconds(config.scale_down_delay) +
         "\n  tolerance: " + format_number(config.tolerance) + "\n";
}

}  // namespace orrery
