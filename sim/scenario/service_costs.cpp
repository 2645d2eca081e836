#include "sim/scenario/service_costs.h"

#include <algorithm>

#include "sim/scenario/disaggregated_run.h"

namespace orrery {

namespace {

// Whether the sides' GPUs draw unlike power.
bool has_two_devices(const Scenario& scenario) {
  return scenario.disaggregation && scenario.disaggregation->has_two_machines &&
         prefill_setting(scenario).machine_spec.device.name != scenario.machine_spec.device.name;
}

}  // namespace

double usd_per_hour(const Scenario& scenario, int prefill_gpus, int decode_gpus) {
  const double price = usd_per_gpu_hour(scenario.machine_spec);
  if (!scenario.disaggregation || !scenario.disaggregation->prefill_setting) {
    return price * (prefill_gpus + decode_gpus);
  }
  const double of_prefill = usd_per_gpu_hour(prefill_setting(scenario).machine_spec);
  if (of_prefill == 0 || price == 0) return 0;
  return of_prefill * prefill_gpus + price * decode_gpus;
}

double usd_per_hour(const Scenario& scenario) {
  if (scenario.ffn) {
    const double attention = usd_per_gpu_hour(scenario.machine_spec);
    const double ffn = usd_per_gpu_hour(scenario.ffn->setting.machine_spec);
    const int num_ffn = scenario.replicas * num_ffn_ranks(scenario.mesh);
    if (attention == 0 || ffn == 0) return 0;
    return attention * (scenario.replicas * num_ranks(scenario.mesh) - num_ffn) + ffn * num_ffn;
  }
  if (!scenario.disaggregation) {
    return usd_per_hour(scenario, 0, scenario.replicas * num_ranks(scenario.mesh));
  }
  return usd_per_hour(scenario, num_gpus(scenario.disaggregation->prefill.placement),
                      num_gpus(scenario.disaggregation->decode.placement));
}

std::optional<ServiceEnergy> side_energy(const Scenario& side, const SideMetrics& own,
                                         const ServingMetrics& metrics) {
  ServingMetrics of_side = metrics;
  of_side.work_energy = own.work_energy;
  return service_energy(side.machine_spec.device, side.replicas * num_ranks(side.mesh), of_side);
}

namespace {

// Boards of both kinds wait all the time; work is summed with the device that each step's part runs
// on.
std::optional<ServiceEnergy> energy_with_ffn(const Scenario& scenario,
                                             const ServingMetrics& metrics) {
  const int num_ffn = scenario.replicas * num_ffn_ranks(scenario.mesh);
  const int num_attention = scenario.replicas * num_ranks(scenario.mesh) - num_ffn;
  ServingMetrics idle = metrics;
  idle.work_energy = Joules(0);
  const Device& device = scenario.machine_spec.device;
  const Device& ffn_device = scenario.ffn->setting.machine_spec.device;
  const auto attention = service_energy(device, num_attention, metrics);
  const auto ffn = service_energy(ffn_device, num_ffn, idle);
  if (!attention || !ffn) return std::nullopt;
  const Joules all = attention->all + ffn->all;
  return ServiceEnergy{.all = all,
                       .per_output_token = attention->per_output_token + ffn->per_output_token,
                       .per_request = attention->per_request + ffn->per_request,
                       .per_gpu = all / metrics.duration / (num_attention + num_ffn),
                       .error = std::max(attention->error, ffn->error)};
}

}  // namespace

std::optional<ServiceEnergy> service_energy(const Scenario& scenario, double num_gpus,
                                            const ServingMetrics& metrics) {
  if (scenario.ffn) return energy_with_ffn(scenario, metrics);
  if (!has_two_devices(scenario)) {
    return service_energy(scenario.machine_spec.device, num_gpus, metrics);
  }
  const DisaggregationMetrics& sides = *metrics.disaggregation;
  const auto prefill = side_energy(prefill_side(scenario), sides.prefill, metrics);
  const auto decode = side_energy(decode_side(scenario), sides.decode, metrics);
  if (!prefill || !decode) return std::nullopt;
  const Joules all = prefill->all + decode->all;
  return ServiceEnergy{
      .all = all,
      .per_output_token = prefill->per_output_token + decode->per_output_token,
      .per_request = prefill->per_request + decode->per_request,
      .per_gpu = all / metrics.duration / num_gpus,
      .error = prefill->error * (prefill->all / all) + decode->error * (decode->all / all)};
}

std::string energy_basis(const Scenario& scenario) {
  std::string basis = energy_basis(scenario.machine_spec.device);
  if (scenario.ffn) {
    const std::string ffn = energy_basis(scenario.ffn->setting.machine_spec.device);
    return ffn == basis ? basis : "attention: " + basis + "; ffn: " + ffn;
  }
  if (!has_two_devices(scenario)) return basis;
  const std::string prefill = energy_basis(prefill_setting(scenario).machine_spec.device);
  return prefill == basis ? basis : "prefill: " + prefill + "; decode: " + basis;
}

}  // namespace orrery
