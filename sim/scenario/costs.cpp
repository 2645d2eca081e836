#include "sim/scenario/costs.h"

#include <algorithm>

#include "sim/scenario/keys.h"
#include "sim/units/text.h"

namespace orrery {

OwnerCosts read_costs(const YamlNode& node, const OwnerCosts& before, const std::string& path) {
  const Reader reader(node, path, key_names("cost"));
  OwnerCosts costs = before;
  if (reader.has("usd_per_gpu_hour")) {
    costs.usd_per_gpu_hour = reader.number("usd_per_gpu_hour", 0, 1e6, true);
  }
  if (reader.has("usd_per_kwh")) costs.usd_per_kwh = reader.number("usd_per_kwh", 0, 1e3, true);
  if (reader.has("pue")) costs.pue = reader.number("pue", 1, 10);
  if (costs.usd_per_kwh > 0 && costs.usd_per_gpu_hour == 0) {
    reader.fail("usd_per_kwh",
                "found a price of electricity beside the rental price of the GPUs, which has it in "
                "it; expected usd_per_gpu_hour, what a GPU costs you without electricity");
  }
  if (costs.pue > 0 && costs.usd_per_kwh == 0) {
    reader.fail("pue", "found no usd_per_kwh; a PUE multiplies the price of electricity");
  }
  return costs;
}

std::string to_yaml(const OwnerCosts& costs, const std::string& indent) {
  std::string text;
  const auto add = [&](const char* key, double value) {
    if (value > 0) {
      text += (text.empty() ? indent + "cost: {" : std::string(", ")) + std::string(key) + ": " +
              format_number(value);
    }
  };
  add("usd_per_gpu_hour", costs.usd_per_gpu_hour);
  add("usd_per_kwh", costs.usd_per_kwh);
  add("pue", costs.pue);
  return text.empty() ? text : text + "}\n";
}

double usd_per_gpu_hour(const MachineSpec& machine) {
  const double own = machine.costs.usd_per_gpu_hour;
  return own > 0 ? own : machine.device.usd_per_hour;
}

std::string energy_basis(const Device& device) {
  return "model: waiting boards and the bytes and operations of kernels; " +
         std::string(device.power && device.power->is_own
                         ? "power of this device's kernels measured"
                         : "shares of the power limit as measured on an H100 and an H200");
}

std::optional<ServiceEnergy> service_energy(const Device& device, double num_gpus,
                                            const ServingMetrics& metrics) {
  if (!device.power || metrics.output_tokens == 0 || !(metrics.duration > Seconds(0))) {
    return std::nullopt;
  }
  const Joules all = device.power->waiting * metrics.duration * num_gpus + metrics.work_energy;
  return ServiceEnergy{.all = all,
                       .per_output_token = all / static_cast<double>(metrics.output_tokens),
                       .per_request = all / static_cast<double>(metrics.num_requests),
                       .per_gpu = all / metrics.duration / num_gpus,
                       .error = device.power->error};
}

}  // namespace orrery
