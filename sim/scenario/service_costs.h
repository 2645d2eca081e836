#pragma once

// What the GPUs of a scenario cost and draw, those of both sides where prefill and decode are on
// devices or at prices of their own.

#include <optional>
#include <string>

#include "sim/scenario/costs.h"
#include "sim/scenario/scenario.h"
#include "sim/serve/serve.h"

namespace orrery {

// Of `prefill_gpus` and `decode_gpus` (a service that is not disaggregated has none of the first):
// rent or the owner's price of an hour, in USD; 0 where that of a kind of GPU is not known.
double usd_per_hour(const Scenario& scenario, int prefill_gpus, int decode_gpus);
// Of all instances of a disaggregated or a fixed service.
double usd_per_hour(const Scenario& scenario);

// As of costs.h, of `num_gpus` of one device, or of both sides of a disaggregated service: the sum
// of theirs, their errors taken to go together. None where a device's power is not known.
std::optional<ServiceEnergy> service_energy(const Scenario& scenario, double num_gpus,
                                            const ServingMetrics& metrics);
// Of one side of a disaggregated scenario (disaggregated_run.h), per output token and request of
// the whole service.
std::optional<ServiceEnergy> side_energy(const Scenario& side, const SideMetrics& own,
                                         const ServingMetrics& metrics);
// What the figures stand on, of each device where there are two.
std::string energy_basis(const Scenario& scenario);

}  // namespace orrery
