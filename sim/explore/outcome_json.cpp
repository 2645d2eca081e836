#include "sim/explore/outcome_json.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "sim/scenario/metrics_json.h"

namespace orrery {

namespace {

using Json = nlohmann::ordered_json;

Json energy(const std::optional<ServiceEnergy>& found) {
  if (!found) return nullptr;
  return {{"j", found->all.value()},
          {"j_per_output_token", found->per_output_token.value()},
          {"j_per_request", found->per_request.value()},
          {"mean_w_per_gpu", found->per_gpu.value()},
          {"error", found->error}};
}

Json peak_use(const std::optional<PeakUse>& use) {
  if (!use) return nullptr;
  return {{"sequences", use->sequences},
          {"prompt_tokens", use->prompt_tokens},
          {"longest", use->longest}};
}

Json json_of(const Outcome& outcome) {
  const ServingMetrics& metrics = outcome.metrics;
  Json json{{"fidelity", kFidelityNames[static_cast<std::size_t>(outcome.fidelity)]},
            {"load_factor", outcome.load},
            {"requests", outcome.num_requests},
            {"error", outcome.error},
            {"meets", outcome.meets()},
            {"headroom", outcome.headroom()},
            {"is_lost", outcome.is_lost},
            {"peak_use", peak_use(outcome.peak_use)}};
  if (!outcome.error.empty()) return json;
  json["ttft_s"] = quantiles_json(metrics.ttft_s);
  json["tpot_s"] = quantiles_json(metrics.tpot_s);
  json["itl_s"] = quantiles_json(metrics.itl_s);
  json["e2e_s"] = quantiles_json(metrics.e2e_s);
  json["output_tokens_per_s"] = metrics.output_tokens_per_s;
  json["requests_per_s"] = metrics.requests_per_s;
  json["prompt_tokens"] = metrics.prompt_tokens;
  json["output_tokens"] = metrics.output_tokens;
  json["goodput"] = metrics.goodput_requests_per_s;
  json["slo_attainment"] = metrics.slo_attainment;
  json["num_gpus"] = outcome.num_gpus;
  json["duration_s"] = metrics.duration.value();
  json["energy"] = energy(outcome.energy);
  json["busy"] = metrics.busy;
  json["kv_utilisation"] = {{"mean", metrics.kv_utilisation_mean},
                            {"max", metrics.kv_utilisation_max}};
  json["preemptions"] = metrics.num_preemptions;
  json["mean_batch"] = metrics.mean_batch;
  json["basis"] = basis_json(metrics.basis);
  json["slo"] = slo_json(metrics.slo);
  json["load"] = load_json(metrics.load);
  return json;
}

}  // namespace

std::string to_json(const Outcome& outcome) { return json_of(outcome).dump(); }

std::string to_json(const SteadyState& state) {
  return Json{{"capacity_requests_per_s", state.capacity_requests_per_s},
              {"offered_requests_per_s", state.offered_requests_per_s},
              {"output_tokens_per_s", state.output_tokens_per_s},
              {"utilisation", state.utilisation},
              {"requests_per_s", state.requests_per_s},
              {"batch", state.batch},
              {"ttft_s", state.ttft.value()},
              {"tpot_s", state.tpot.value()},
              {"j_per_output_token", state.per_output_token.value()},
              {"impossible", state.impossible}}
      .dump();
}

std::string to_json(const Saturation& saturation) {
  return Json{{"load", saturation.load},
              {"low", saturation.low},
              {"high", saturation.high},
              {"seeds", saturation.num_seeds},
              {"at_most", json_of(saturation.at_most)},
              {"above", json_of(saturation.above)}}
      .dump();
}

std::string to_json(const std::vector<OperatingPoint>& curve) {
  Json list = Json::array();
  for (const OperatingPoint& point : curve) {
    list.push_back({{"batch", point.batch},
                    {"ttft_s", point.ttft.value()},
                    {"tpot_s", point.tpot.value()},
                    {"output_tokens_per_s_per_gpu", point.output_tokens_per_s_per_gpu},
                    {"j_per_output_token", point.per_output_token.value()}});
  }
  return list.dump();
}

}  // namespace orrery
