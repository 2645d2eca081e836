#pragma once

// What a service takes of money and energy: the owner's costs of a machine or a scenario, and the
// energy of a run.
//
//   cost: {usd_per_gpu_hour: 1.1, usd_per_kwh: 0.09, pue: 1.25}

#include <optional>
#include <string>

#include "sim/machine/machine.h"
#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"
#include "sim/units/energy.h"

namespace orrery {

// `before` with what `node` says in its place. Throws ScenarioError for values below 0 or a PUE
// below 1, a price of electricity without a price of the GPUs (a rental price has electricity in
// it), and a PUE without a price of electricity. `path`: of `node` in its file.
OwnerCosts read_costs(const YamlNode& node, const OwnerCosts& before,
                      const std::string& path = "cost");
// As a scenario writes it, `indent` before it; empty where nothing is given.
std::string to_yaml(const OwnerCosts& costs, const std::string& indent = {});

// Of a GPU: the owner's, or the device's rental price; 0: not known.
double usd_per_gpu_hour(const MachineSpec& machine);

// Of the boards of all GPUs (with autoscaling as many as there are on average) from the first
// arrival to the last finish, modelled.
struct ServiceEnergy {
  Joules all;
  Joules per_output_token;
  Joules per_request;
  Watts per_gpu;     // mean
  double error = 0;  // relative: half of the 80 % interval
};
// "model: ...": what the figures stand on, in words.
std::string energy_basis(const Device& device);
// None where neither the power of the device nor its limit is known, or nothing was served.
std::optional<ServiceEnergy> service_energy(const Device& device, double num_gpus,
                                            const ServingMetrics& metrics);

}  // namespace orrery
