#pragma once

// Metrics of a service as JSON, the same in a run's summary and in outcomes of a search. Numbers
// that are not finite become null when the JSON is written.

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "sim/serve/load.h"
#include "sim/serve/serve.h"
#include "sim/serve/slo.h"
#include "sim/timeline/timeline.h"

namespace orrery {

nlohmann::ordered_json quantiles_json(const Quantiles& quantiles);
nlohmann::ordered_json basis_json(const BasisShares& basis);
nlohmann::ordered_json load_json(const LoadMetrics& load);
nlohmann::ordered_json slo_json(const std::vector<SloCheck>& checks);

}  // namespace orrery
