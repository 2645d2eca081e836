#include "sim/scenario/metrics_json.h"

#include <nlohmann/json.hpp>
#include <string>

namespace orrery {

using Json = nlohmann::ordered_json;

Json quantiles_json(const Quantiles& quantiles) {
  return {{"mean", quantiles.mean}, {"p50", quantiles.p50}, {"p90", quantiles.p90},
          {"p95", quantiles.p95},   {"p99", quantiles.p99}, {"max", quantiles.max}};
}

Json basis_json(const BasisShares& basis) {
  return {{"measured", basis.measured},
          {"interpolated", basis.interpolated},
          {"borrowed", basis.borrowed},
          {"roofline", basis.roofline}};
}

Json load_json(const LoadMetrics& load) {
  Json held_up = Json::object();
  for (std::size_t i = 0; i < load.held_up.size(); ++i) {
    held_up[std::string(kAdmissionLimitNames[i])] = load.held_up[i];
  }
  const auto limit = load.limit();
  return {{"offered_requests_per_s", load.offered_requests_per_s},
          {"served_requests_per_s", load.served_requests_per_s},
          {"waiting_at_last_arrival", load.num_waiting},
          {"is_overloaded", load.is_overloaded},
          {"is_settled", load.is_settled},
          {"limit",
           limit ? Json(kAdmissionLimitNames[static_cast<std::size_t>(*limit)]) : Json(nullptr)},
          {"held_up", std::move(held_up)}};
}

Json slo_json(const std::vector<SloCheck>& checks) {
  Json list = Json::array();
  for (const SloCheck& check : checks) {
    list.push_back({{"name", check.name},
                    {"value", check.value},
                    {"at_most", check.is_at_most},
                    {"limit", check.limit},
                    {"is_met", check.is_met()}});
  }
  return list;
}

}  // namespace orrery
