#include "sim/scenario/service_costs.h"

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

std::optional<ServiceEnergy> service_energy(const Scenario& scenario, double num_gpus,
                                            const ServingMetrics& metrics) {
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
  const std::string basis = energy_basis(scenario.machine_spec.device);
  if (!has_two_devices(scenario)) return basis;
  const std::string prefill = energy_basis(prefill_setting(scenario).machine_spec.device);
  return prefill == basis ? basis : "prefill: " + prefill + "; decode: " + basis;
}

}  // namespace orrery
