#include "sim/scenario/outputs.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "sim/scenario/costs.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/metrics_json.h"
#include "sim/scenario/provenance.h"
#include "sim/scenario/service_costs.h"
#include "sim/serve/phases.h"
#include "sim/serve/records_csv.h"

namespace orrery {

namespace {

constexpr double kSecondsPerHour = 3600;

using Json = nlohmann::ordered_json;

Json breakdown_json(const std::vector<StepShare>& shares) {
  Json list = Json::array();
  for (const StepShare& share : shares) {
    list.push_back({{"op", share.op},
                    {"kind", to_text(share.kind)},
                    {"time_s", share.time.value()},
                    {"share", share.share},
                    {"basis", to_text(share.basis)}});
  }
  return list;
}

Json step_json(const StepResult& step) {
  std::int64_t prefill_tokens = 0;
  for (const PrefillChunk& chunk : step.batch.prefill) {
    prefill_tokens += chunk.query;
  }
  return {{"level", to_text(step.level)},
          {"prefill_tokens", prefill_tokens},
          {"num_prefills", step.batch.prefill.size()},
          {"num_decodes", step.batch.num_decodes},
          {"decode_context", step.batch.decode_context},
          {"makespan_s", makespan(step.timeline).value()}};
}

Json sides_json(const std::vector<StepSide>& sides) {
  Json list = Json::array();
  for (const StepSide& side : sides) {
    list.push_back({{"side", side.side},
                    {"num_gpus", side.num_ranks},
                    {"bubble_s", side.bubble.value()},
                    {"bubble_share", side.share},
                    {"exposed_transfer_s", side.exposed.value()}});
  }
  return list;
}

Json memory_json(const MemoryBudget& memory) {
  return {{"weights_bytes", memory.weights.value()},
          {"kv_cache_bytes", memory.kv_cache.value()},
          {"activations_bytes", memory.activations.value()},
          {"graphs_bytes", memory.graphs.value()},
          {"communication_bytes", memory.communication.value()},
          {"hbm_bytes", memory.hbm.value()}};
}

Json side_json(const SideMetrics& side, const Placement& placement, const MemoryBudget& memory) {
  return {
      {"replicas", side.num_replicas},
      {"num_gpus", num_gpus(placement)},
      {"busy", side.busy},
      {"kv_utilisation", {{"mean", side.kv_utilisation_mean}, {"max", side.kv_utilisation_max}}},
      {"num_steps", side.num_steps},
      {"mean_batch", side.mean_batch},
      {"num_kv_blocks", memory.num_kv_blocks},
      {"memory_per_gpu", memory_json(memory)}};
}

Json energy_json(const std::optional<ServiceEnergy>& energy, const std::string& basis) {
  if (!energy) return nullptr;
  return {{"j", energy->all.value()},
          {"j_per_output_token", energy->per_output_token.value()},
          {"j_per_request", energy->per_request.value()},
          {"mean_w_per_gpu", energy->per_gpu.value()},
          {"error", energy->error},
          {"basis", basis}};
}

// Whose kernel tables answered, and how near to the provider and device asked for they are.
Json tables_json(const std::vector<TableUse>& tables) {
  Json list = Json::array();
  for (const TableUse& use : tables) {
    list.push_back({{"provider", use.provider},
                    {"device", use.device},
                    {"origin", to_text(use.origin)},
                    {"kernels", use.kernels}});
  }
  return list;
}

Json usd_json(double usd) { return usd > 0 ? Json(usd) : Json(nullptr); }

// Of a side whose machine, provider or price is its own: what is on it, and what it takes.
void add_setting(const Scenario& side, const SideMetrics& own, const std::vector<TableUse>& tables,
                 const ServingMetrics& metrics, Json& json) {
  const Device& device = side.machine_spec.device;
  json["machine"] = side.machine_spec.name;
  json["device"] = device.name;
  json["provider"] = side.provider;
  json["usd_per_hour"] =
      usd_json(usd_per_gpu_hour(side.machine_spec) * side.replicas * num_ranks(side.mesh));
  json["energy"] = energy_json(side_energy(side, own, metrics), energy_basis(device));
  json["tables"] = tables_json(tables);
}

// Of the output tokens of a service that goes on as it did.
Json usd_per_million_tokens(const RunResult& result) {
  constexpr double kMillion = 1e6;
  const double tokens_per_s = result.service.metrics.output_tokens_per_s;
  const double usd = usd_per_hour(result.scenario);
  return usd_json(tokens_per_s > 0 ? usd / kSecondsPerHour / tokens_per_s * kMillion : 0);
}

// "prefill" and "decode" as sides, and the transfers between them.
Json disaggregation_json(const RunResult& result) {
  const DisaggregationMetrics& metrics = *result.service.metrics.disaggregation;
  const Disaggregation& placed = *result.scenario.disaggregation;
  Json prefill =
      side_json(metrics.prefill, placed.prefill.placement, result.disaggregated->prefill_memory);
  Json decode = side_json(metrics.decode, placed.decode.placement, result.memory);
  Json cost = Json::object();
  if (placed.prefill_setting) {
    const ServingMetrics& all = result.service.metrics;
    add_setting(prefill_side(result.scenario), metrics.prefill,
                result.disaggregated->prefill_tables, all, prefill);
    add_setting(decode_side(result.scenario), metrics.decode, result.disaggregated->decode_tables,
                all, decode);
    cost = {{"usd_per_hour", usd_json(usd_per_hour(result.scenario))},
            {"usd_per_million_output_tokens", usd_per_million_tokens(result)}};
  }
  Json json = {{"prefill", std::move(prefill)},
               {"decode", std::move(decode)},
               {"transfer",
                {{"count", metrics.num_transfers},
                 {"bytes", metrics.transferred.value()},
                 {"source", result.disaggregated->transfer_source},
                 {"time_s", quantiles_json(metrics.transfer_s)},
                 {"wait_s", quantiles_json(metrics.wait_s)},
                 {"second_token_s", quantiles_json(metrics.second_token_s)},
                 {"exposed_s", quantiles_json(metrics.exposed_s)},
                 {"exposed_share", metrics.exposed_share}}}};
  json.update(cost);
  return json;
}

// Data-parallel ranks of one replica that wait for each other.
Json ranks_json(const RankMetrics& ranks) {
  Json waits = Json::array();
  for (const Seconds wait : ranks.wait) waits.push_back(wait.value());
  return {{"balance", ranks.balance}, {"wait_s", std::move(waits)}};
}

// Experts whose load drifts or that are placed anew. `balances`: [replica, time in s, balance]
// where it changed.
Json experts_json(const ExpertMetrics& metrics) {
  Json rebalances = Json::array();
  Json balances = Json::array();
  for (const ExpertHistory& history : metrics.replicas) {
    for (const Rebalance& rebalance : history.rebalances) {
      rebalances.push_back({{"replica", history.replica},
                            {"time_s", rebalance.time.value()},
                            {"step", rebalance.step},
                            {"slots", rebalance.num_slots},
                            {"bytes", rebalance.moved.value()},
                            {"held_up_s", rebalance.held_up.value()},
                            {"balance_before", rebalance.balance_before},
                            {"balance_after", rebalance.balance_after}});
    }
    for (const BalanceFrom& from : history.balances) {
      balances.push_back({history.replica, from.time.value(), from.balance});
    }
  }
  return {{"balance", metrics.balance},           {"num_rebalances", metrics.num_rebalances},
          {"moved_bytes", metrics.moved.value()}, {"held_up_s", metrics.held_up.value()},
          {"rebalances", std::move(rebalances)},  {"balances", std::move(balances)}};
}

// KV blocks behind those of the GPUs.
Json kv_tiers_json(const KvTierMetrics& metrics, std::int64_t prompt_tokens) {
  const auto share = [&](std::int64_t tokens) {
    return static_cast<double>(tokens) /
           static_cast<double>(std::max<std::int64_t>(prompt_tokens, 1));
  };
  Json tiers = Json::array();
  for (const TierMetrics& tier : metrics.tiers) {
    tiers.push_back({{"name", tier.name},
                     {"hit_tokens", tier.hit_tokens},
                     {"hit_rate", share(tier.hit_tokens)},
                     {"loaded_bytes", tier.loaded.value()},
                     {"written_bytes", tier.written.value()},
                     {"evicted_bytes", tier.evicted.value()},
                     {"held_bytes", tier.held.value()},
                     {"capacity_bytes", tier.capacity.value()}});
  }
  return {{"tiers", std::move(tiers)},
          {"exposed_s", metrics.exposed.value()},
          {"exposed_share", metrics.exposed_share},
          {"recomputed_tokens", metrics.recomputed_tokens}};
}

// Drafts and what they cost.
Json speculation_json(const RunResult& result) {
  const SpeculationMetrics& metrics = *result.service.metrics.speculation;
  const SpeculativeSpec& spec = *result.scenario.speculative;
  return {{"method", kSpeculativeMethodNames[static_cast<std::size_t>(spec.method)]},
          {"draft", spec.model_config.name},
          {"num_speculative_tokens", spec.num_tokens},
          {"acceptance_length", metrics.acceptance_length},
          {"draft_s", metrics.draft.value()},
          {"draft_share", metrics.draft_share},
          {"draft_weights_bytes", result.memory.draft_weights.value()},
          {"draft_kv_block_bytes", result.memory.draft_kv_block.value()},
          {"kv_block_bytes", result.memory.kv_block.value()}};
}

// GPUs that there are, with autoscaling on average.
double mean_gpus(const RunResult& result) {
  const auto& scaling = result.service.metrics.autoscaling;
  return scaling ? scaling->mean_replicas() * num_ranks(result.scenario.mesh)
                 : static_cast<double>(result.num_gpus);
}

Json sessions_json(const SessionMetrics& sessions) {
  return {{"count", sessions.num_sessions},
          {"mean_turns", sessions.mean_turns},
          {"sessions_per_s", sessions.sessions_per_s},
          {"duration_s", quantiles_json(sessions.duration_s)},
          {"first_ttft_s", quantiles_json(sessions.first_ttft_s)},
          {"later_ttft_s", quantiles_json(sessions.later_ttft_s)},
          {"later_cached_share", sessions.later_cached_share}};
}

// `counts`: [time in s, ready, starting, draining] at each change.
Json autoscaling_json(const RunResult& result) {
  const AutoscalingMetrics& metrics = *result.service.metrics.autoscaling;
  const AutoscalingConfig& config = *result.scenario.autoscaling;
  const double gpu_hours =
      metrics.replica_time.value() * num_ranks(result.scenario.mesh) / kSecondsPerHour;
  const double price = usd_per_gpu_hour(result.scenario.machine_spec);
  Json counts = Json::array();
  for (const ReplicaCount& count : metrics.counts) {
    counts.push_back({count.time.value(), count.ready, count.starting, count.draining});
  }
  return {{"metric", kScalingMetricNames[static_cast<std::size_t>(config.metric)]},
          {"target", config.target},
          {"min_replicas", config.min_replicas},
          {"max_replicas", config.max_replicas},
          {"mean_replicas", metrics.mean_replicas()},
          {"most_replicas", metrics.most_replicas},
          {"starts", metrics.num_starts},
          {"stops", metrics.num_stops},
          {"time_s", metrics.time.value()},
          {"gpu_hours", gpu_hours},
          {"usd", price > 0 ? Json(gpu_hours * price) : Json(nullptr)},
          {"counts", std::move(counts)}};
}

Json energy_json(const RunResult& result) {
  return energy_json(service_energy(result.scenario, mean_gpus(result), result.service.metrics),
                     energy_basis(result.scenario));
}

// One, or those of both sides: "h100-sxm + h200-sxm".
std::string devices_of(const Scenario& scenario) {
  const std::string& device = scenario.machine_spec.device.name;
  if (scenario.ffn) {
    const std::string& ffn = scenario.ffn->setting.machine_spec.device.name;
    return ffn == device ? device : device + " + " + ffn;
  }
  if (!scenario.disaggregation) return device;
  const std::string& prefill = prefill_setting(scenario).machine_spec.device.name;
  return prefill == device ? device : prefill + " + " + device;
}

// Attention and FFNs on machines of their own: what is on each.
Json attention_ffn_json(const RunResult& result) {
  const Scenario& scenario = result.scenario;
  const int num_ffn = scenario.replicas * num_ffn_ranks(scenario.mesh);
  const auto side = [](const MachineSetting& setting, int num_gpus,
                       const std::vector<TableUse>& tables) -> Json {
    return {{"num_gpus", num_gpus},
            {"machine", setting.machine_spec.name},
            {"device", setting.machine_spec.device.name},
            {"provider", setting.provider},
            {"usd_per_hour", usd_json(usd_per_gpu_hour(setting.machine_spec) * num_gpus)},
            {"tables", tables_json(tables)}};
  };
  return {
      {"attention", side(scenario, result.num_gpus - num_ffn, result.with_ffn->attention_tables)},
      {"ffn", side(scenario.ffn->setting, num_ffn, result.with_ffn->ffn_tables)},
      {"usd_per_hour", usd_json(usd_per_hour(scenario))},
      {"usd_per_million_output_tokens", usd_per_million_tokens(result)}};
}

// Nodes that one replica takes, the larger kind of a disaggregated service.
std::int64_t nodes_per_replica(const Scenario& scenario) {
  const auto nodes = [](const Mesh& mesh, const MachineSetting& setting) {
    const int per_node = setting.machine_spec.gpus_per_node;
    return (num_ranks(mesh) + per_node - 1) / per_node;
  };
  if (scenario.ffn) {
    const Mesh ffn{.dp = scenario.mesh.ffn_instances, .tp = scenario.mesh.ffn_tp};
    const Mesh attention{.dp = scenario.mesh.dp, .tp = scenario.mesh.tp};
    return nodes(attention, scenario) + nodes(ffn, scenario.ffn->setting);
  }
  if (!scenario.disaggregation) return nodes(scenario.mesh, scenario);
  return std::max(nodes(scenario.disaggregation->prefill.placement.mesh, prefill_setting(scenario)),
                  nodes(scenario.disaggregation->decode.placement.mesh, scenario));
}

// How long the service filled and emptied, and how many requests the figures leave out.
Json phases_json(const RunResult& result) {
  const std::optional<RunPhases> phases = run_phases(result.service.requests);
  if (!phases) return nullptr;
  const WorkloadSpec& workload = result.scenario.workload;
  return {{"ramp_s", phases->ramp.value()},
          {"drain_s", phases->drain.value()},
          {"run_s", phases->whole.value()},
          {"ramp_requests", phases->ramp_requests},
          {"drained_requests", phases->drained_requests},
          {"warmup_requests", workload.warmup_requests},
          {"drain_requests", workload.drain_requests}};
}

}  // namespace

void write_file(const std::filesystem::path& path, const std::string& text) {
  write_file(path, [&](std::ostream& file) {
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
  });
}

void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& write) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  write(file);
  file.close();
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be written");
  }
}

std::string summary_json(const RunResult& result) {
  const ServingMetrics& metrics = result.service.metrics;
  Json origin = Json::object();
  for (const auto& [name, text] : provenance(result.scenario, result.tables_used)) {
    origin[name] = text;
  }
  Json summary = {{"scenario", result.scenario.name},
                  {"question", result.scenario.question},
                  {"seed", result.scenario.seed},
                  {"requests", metrics.num_requests},
                  {"prompt_tokens", metrics.prompt_tokens},
                  {"cached_tokens", metrics.cached_tokens},
                  {"output_tokens", metrics.output_tokens},
                  {"ttft_s", quantiles_json(metrics.ttft_s)},
                  {"tpot_s", quantiles_json(metrics.tpot_s)},
                  {"itl_s", quantiles_json(metrics.itl_s)},
                  {"e2e_s", quantiles_json(metrics.e2e_s)},
                  {"output_tokens_per_s", metrics.output_tokens_per_s},
                  {"output_tokens_per_s_per_gpu", metrics.output_tokens_per_s / mean_gpus(result)},
                  {"requests_per_s", metrics.requests_per_s},
                  {"goodput", metrics.goodput_requests_per_s},
                  {"slo_attainment", metrics.slo_attainment},
                  {"slo", slo_json(metrics.slo)},
                  {"load", load_json(metrics.load)},
                  {"kv_utilisation",
                   {{"mean", metrics.kv_utilisation_mean}, {"max", metrics.kv_utilisation_max}}},
                  {"preemptions", metrics.num_preemptions},
                  {"num_steps", metrics.num_steps},
                  {"mean_batch", metrics.mean_batch},
                  {"basis", basis_json(metrics.basis)},
                  {"duration_s", metrics.duration.value()},
                  {"phases", phases_json(result)},
                  {"energy", energy_json(result)},
                  {"num_gpus", result.num_gpus},
                  {"device", devices_of(result.scenario)},
                  {"nodes_per_replica", nodes_per_replica(result.scenario)},
                  {"tables", tables_json(result.tables_used)},
                  {"memory_per_gpu", memory_json(result.memory)},
                  {"num_kv_blocks", result.memory.num_kv_blocks}};
  if (result.disaggregated) summary["disaggregation"] = disaggregation_json(result);
  if (result.with_ffn) summary["attention_ffn"] = attention_ffn_json(result);
  if (metrics.ranks) summary["data_parallel"] = ranks_json(*metrics.ranks);
  if (metrics.experts) summary["expert_balance"] = experts_json(*metrics.experts);
  if (metrics.kv_tiers) {
    summary["kv_tiers"] = kv_tiers_json(*metrics.kv_tiers, metrics.prompt_tokens);
  }
  if (metrics.speculation) summary["speculative"] = speculation_json(result);
  if (metrics.sessions) summary["sessions"] = sessions_json(*metrics.sessions);
  if (metrics.autoscaling) summary["autoscaling"] = autoscaling_json(result);
  summary["step"] = step_json(result.step);
  summary["step_breakdown"] = breakdown_json(result.step.shares);
  if (!result.step.sides.empty()) summary["step_sides"] = sides_json(result.step.sides);
  summary["warnings"] = result.warnings;
  summary["provenance"] = std::move(origin);
  // Names and questions come from files, whose bytes need not be UTF-8.
  return summary.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

void write_outputs(const RunResult& result, const std::filesystem::path& directory) {
  // Requests that were in memory stand in requests.csv, beside what became of them.
  write_file(directory / "scenario.yaml", to_yaml(result.scenario, "requests.csv"));
  write_file(directory / "summary.json", summary_json(result));
  write_file(directory / "requests.csv",
             [&](std::ostream& file) { write_requests_csv(result.service, file); });
  write_file(directory / "steps.csv",
             [&](std::ostream& file) { write_steps_csv(result.service, file); });
  write_file(directory / "step.trace.json", to_perfetto(result.step.timeline));
}

}  // namespace orrery
