#include "sim/scenario/outputs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "sim/scenario/costs.h"
#include "sim/scenario/provenance.h"
#include "sim/serve/phases.h"
#include "sim/serve/records_csv.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

constexpr double kSecondsPerHour = 3600;

std::string json_number(double value) {
  return std::isfinite(value) ? format_number(value) : "null";
}

std::string json_string(std::string_view text) { return quoted_yaml(text); }

// Builds one JSON object with a key per line at the top and nested values written inline.
class JsonObject {
 public:
  JsonObject& number(std::string_view key, double value) { return raw(key, json_number(value)); }
  JsonObject& whole(std::string_view key, std::int64_t value) {
    return raw(key, std::to_string(value));
  }
  JsonObject& text(std::string_view key, std::string_view value) {
    return raw(key, json_string(value));
  }
  JsonObject& raw(std::string_view key, const std::string& value) {
    body_ += (body_.empty() ? "" : ",\n") + indent_ + json_string(key) + ": " + value;
    return *this;
  }
  [[nodiscard]] std::string inline_text() const {
    std::string flat = "{";
    for (const char c : body_) {
      flat += c == '\n' ? ' ' : c;
    }
    return flat + "}";
  }
  [[nodiscard]] std::string block_text() const { return "{\n" + body_ + "\n}\n"; }

  static JsonObject block() {
    JsonObject object;
    object.indent_ = "  ";
    return object;
  }

 private:
  std::string body_;
  std::string indent_;
};

std::string quantiles_json(const Quantiles& quantiles) {
  JsonObject object;
  object.number("mean", quantiles.mean)
      .number("p50", quantiles.p50)
      .number("p90", quantiles.p90)
      .number("p95", quantiles.p95)
      .number("p99", quantiles.p99)
      .number("max", quantiles.max);
  return object.inline_text();
}

std::string breakdown_json(const std::vector<StepShare>& shares) {
  std::string text;
  for (const StepShare& share : shares) {
    JsonObject object;
    object.text("op", share.op)
        .text("kind", to_text(share.kind))
        .number("time_s", share.time.value())
        .number("share", share.share)
        .text("basis", to_text(share.basis));
    text += (text.empty() ? "\n    " : ",\n    ") + object.inline_text();
  }
  return "[" + text + "]";
}

std::string step_json(const StepResult& step) {
  std::int64_t prefill_tokens = 0;
  for (const PrefillChunk& chunk : step.batch.prefill) {
    prefill_tokens += chunk.query;
  }
  JsonObject object;
  object.text("level", to_text(step.level))
      .whole("prefill_tokens", prefill_tokens)
      .whole("num_prefills", static_cast<std::int64_t>(step.batch.prefill.size()))
      .whole("num_decodes", step.batch.num_decodes)
      .whole("decode_context", step.batch.decode_context)
      .number("makespan_s", makespan(step.timeline).value());
  return object.inline_text();
}

std::string sides_json(const std::vector<StepSide>& sides) {
  std::string text;
  for (const StepSide& side : sides) {
    JsonObject object;
    object.text("side", side.side)
        .whole("num_gpus", side.num_ranks)
        .number("bubble_s", side.bubble.value())
        .number("bubble_share", side.share)
        .number("exposed_transfer_s", side.exposed.value());
    text += (text.empty() ? "\n    " : ",\n    ") + object.inline_text();
  }
  return "[" + text + "]";
}

std::string memory_json(const MemoryBudget& memory) {
  JsonObject object;
  object.number("weights_bytes", memory.weights.value())
      .number("kv_cache_bytes", memory.kv_cache.value())
      .number("activations_bytes", memory.activations.value())
      .number("graphs_bytes", memory.graphs.value())
      .number("communication_bytes", memory.communication.value())
      .number("hbm_bytes", memory.hbm.value());
  return object.inline_text();
}

std::string side_json(const SideMetrics& side, const Placement& placement,
                      const MemoryBudget& memory) {
  JsonObject utilisation;
  utilisation.number("mean", side.kv_utilisation_mean).number("max", side.kv_utilisation_max);
  JsonObject object;
  object.whole("replicas", side.num_replicas)
      .whole("num_gpus", num_gpus(placement))
      .number("busy", side.busy)
      .raw("kv_utilisation", utilisation.inline_text())
      .whole("num_steps", side.num_steps)
      .number("mean_batch", side.mean_batch)
      .whole("num_kv_blocks", memory.num_kv_blocks)
      .raw("memory_per_gpu", memory_json(memory));
  return object.inline_text();
}

// "prefill" and "decode" as sides, and the transfers between them.
std::string disaggregation_json(const RunResult& result) {
  const DisaggregationMetrics& metrics = *result.service.metrics.disaggregation;
  const Disaggregation& placed = *result.scenario.disaggregation;
  JsonObject transfer;
  transfer.whole("count", metrics.num_transfers)
      .number("bytes", metrics.transferred.value())
      .text("source", result.disaggregated->transfer_source)
      .raw("time_s", quantiles_json(metrics.transfer_s))
      .raw("wait_s", quantiles_json(metrics.wait_s))
      .raw("second_token_s", quantiles_json(metrics.second_token_s))
      .raw("exposed_s", quantiles_json(metrics.exposed_s))
      .number("exposed_share", metrics.exposed_share);
  JsonObject object;
  object
      .raw("prefill", side_json(metrics.prefill, placed.prefill.placement,
                                result.disaggregated->prefill_memory))
      .raw("decode", side_json(metrics.decode, placed.decode.placement, result.memory))
      .raw("transfer", transfer.inline_text());
  return object.inline_text();
}

// Data-parallel ranks of one replica that wait for each other.
std::string ranks_json(const RankMetrics& ranks) {
  std::string waits;
  for (const Seconds wait : ranks.wait) {
    waits += (waits.empty() ? "" : ", ") + format_number(wait.value());
  }
  JsonObject object;
  object.number("balance", ranks.balance).raw("wait_s", "[" + waits + "]");
  return object.inline_text();
}

std::string rebalances_json(const ExpertHistory& history) {
  std::string text;
  for (const Rebalance& rebalance : history.rebalances) {
    JsonObject object;
    object.whole("replica", history.replica)
        .number("time_s", rebalance.time.value())
        .whole("step", rebalance.step)
        .whole("slots", rebalance.num_slots)
        .number("bytes", rebalance.moved.value())
        .number("held_up_s", rebalance.held_up.value())
        .number("balance_before", rebalance.balance_before)
        .number("balance_after", rebalance.balance_after);
    text += (text.empty() ? "" : ", ") + object.inline_text();
  }
  return text;
}

// Experts whose load drifts or that are placed anew. `balances`: [replica, time in s, balance]
// where it changed.
std::string experts_json(const ExpertMetrics& metrics) {
  std::string rebalances;
  std::string balances;
  for (const ExpertHistory& history : metrics.replicas) {
    const std::string own = rebalances_json(history);
    rebalances += (rebalances.empty() || own.empty() ? "" : ", ") + own;
    for (const BalanceFrom& from : history.balances) {
      balances += (balances.empty() ? "[" : ", [") + std::to_string(history.replica) + ", " +
                  format_number(from.time.value()) + ", " + format_number(from.balance) + "]";
    }
  }
  JsonObject object;
  object.number("balance", metrics.balance)
      .whole("num_rebalances", metrics.num_rebalances)
      .number("moved_bytes", metrics.moved.value())
      .number("held_up_s", metrics.held_up.value())
      .raw("rebalances", "[" + rebalances + "]")
      .raw("balances", "[" + balances + "]");
  return object.inline_text();
}

// KV blocks behind those of the GPUs.
std::string kv_tiers_json(const KvTierMetrics& metrics, std::int64_t prompt_tokens) {
  const auto share = [&](std::int64_t tokens) {
    return static_cast<double>(tokens) /
           static_cast<double>(std::max<std::int64_t>(prompt_tokens, 1));
  };
  std::string tiers;
  for (const TierMetrics& tier : metrics.tiers) {
    JsonObject object;
    object.text("name", tier.name)
        .whole("hit_tokens", tier.hit_tokens)
        .number("hit_rate", share(tier.hit_tokens))
        .number("loaded_bytes", tier.loaded.value())
        .number("written_bytes", tier.written.value())
        .number("evicted_bytes", tier.evicted.value())
        .number("held_bytes", tier.held.value())
        .number("capacity_bytes", tier.capacity.value());
    tiers += (tiers.empty() ? "" : ", ") + object.inline_text();
  }
  JsonObject object;
  object.raw("tiers", "[" + tiers + "]")
      .number("exposed_s", metrics.exposed.value())
      .number("exposed_share", metrics.exposed_share)
      .whole("recomputed_tokens", metrics.recomputed_tokens);
  return object.inline_text();
}

// Drafts and what they cost.
std::string speculation_json(const RunResult& result) {
  const SpeculationMetrics& metrics = *result.service.metrics.speculation;
  const SpeculativeSpec& spec = *result.scenario.speculative;
  JsonObject object;
  object.text("method", kSpeculativeMethodNames[static_cast<std::size_t>(spec.method)])
      .text("draft", spec.model_config.name)
      .whole("num_speculative_tokens", spec.num_tokens)
      .number("acceptance_length", metrics.acceptance_length)
      .number("draft_s", metrics.draft.value())
      .number("draft_share", metrics.draft_share)
      .number("draft_weights_bytes", result.memory.draft_weights.value())
      .number("draft_kv_block_bytes", result.memory.draft_kv_block.value())
      .number("kv_block_bytes", result.memory.kv_block.value());
  return object.inline_text();
}

// GPUs that there are, with autoscaling on average.
double mean_gpus(const RunResult& result) {
  const auto& scaling = result.service.metrics.autoscaling;
  return scaling ? scaling->mean_replicas() * num_ranks(result.scenario.mesh)
                 : static_cast<double>(result.num_gpus);
}

std::string sessions_json(const SessionMetrics& sessions) {
  JsonObject object;
  object.whole("count", sessions.num_sessions)
      .number("mean_turns", sessions.mean_turns)
      .number("sessions_per_s", sessions.sessions_per_s)
      .raw("duration_s", quantiles_json(sessions.duration_s))
      .raw("first_ttft_s", quantiles_json(sessions.first_ttft_s))
      .raw("later_ttft_s", quantiles_json(sessions.later_ttft_s))
      .number("later_cached_share", sessions.later_cached_share);
  return object.inline_text();
}

// `counts`: [time in s, ready, starting, draining] at each change.
std::string autoscaling_json(const RunResult& result) {
  const AutoscalingMetrics& metrics = *result.service.metrics.autoscaling;
  const AutoscalingConfig& config = *result.scenario.autoscaling;
  const double gpu_hours =
      metrics.replica_time.value() * num_ranks(result.scenario.mesh) / kSecondsPerHour;
  const double price = usd_per_gpu_hour(result.scenario.machine_spec);
  std::string counts;
  for (const ReplicaCount& count : metrics.counts) {
    counts += (counts.empty() ? "[" : ", [") + format_number(count.time.value()) + ", " +
              std::to_string(count.ready) + ", " + std::to_string(count.starting) + ", " +
              std::to_string(count.draining) + "]";
  }
  JsonObject object;
  object.text("metric", kScalingMetricNames[static_cast<std::size_t>(config.metric)])
      .number("target", config.target)
      .whole("min_replicas", config.min_replicas)
      .whole("max_replicas", config.max_replicas)
      .number("mean_replicas", metrics.mean_replicas())
      .whole("most_replicas", metrics.most_replicas)
      .whole("starts", metrics.num_starts)
      .whole("stops", metrics.num_stops)
      .number("time_s", metrics.time.value())
      .number("gpu_hours", gpu_hours)
      .raw("usd", price > 0 ? json_number(gpu_hours * price) : "null")
      .raw("counts", "[" + counts + "]");
  return object.inline_text();
}

std::string energy_json(const RunResult& result) {
  const Device& device = result.scenario.machine_spec.device;
  const auto energy = service_energy(device, mean_gpus(result), result.service.metrics);
  if (!energy) return "null";
  JsonObject object;
  object.number("j", energy->all.value())
      .number("j_per_output_token", energy->per_output_token.value())
      .number("j_per_request", energy->per_request.value())
      .number("mean_w_per_gpu", energy->per_gpu.value())
      .number("error", energy->error)
      .text("basis", energy_basis(device));
  return object.inline_text();
}

std::string slo_json(const std::vector<SloCheck>& checks) {
  std::string text;
  for (const SloCheck& check : checks) {
    JsonObject object;
    object.text("name", check.name)
        .number("value", check.value)
        .raw("at_most", check.is_at_most ? "true" : "false")
        .number("limit", check.limit)
        .raw("is_met", check.is_met() ? "true" : "false");
    text += (text.empty() ? "" : ", ") + object.inline_text();
  }
  return "[" + text + "]";
}

// Whose kernel tables answered, and how near to the provider and device asked for they are.
std::string tables_json(const std::vector<TableUse>& tables) {
  std::string text;
  for (const TableUse& use : tables) {
    std::string kernels;
    for (const std::string& kernel : use.kernels) {
      kernels += (kernels.empty() ? "" : ", ") + json_string(kernel);
    }
    JsonObject object;
    object.text("provider", use.provider)
        .text("device", use.device)
        .text("origin", to_text(use.origin))
        .raw("kernels", "[" + kernels + "]");
    text += (text.empty() ? "" : ", ") + object.inline_text();
  }
  return "[" + text + "]";
}

// Nodes that one replica takes, the larger kind of a disaggregated service.
std::int64_t nodes_per_replica(const Scenario& scenario) {
  const auto nodes = [&](const Mesh& mesh) {
    const int per_node = scenario.machine_spec.gpus_per_node;
    return (num_ranks(mesh) + per_node - 1) / per_node;
  };
  if (!scenario.disaggregation) return nodes(scenario.mesh);
  return std::max(nodes(scenario.disaggregation->prefill.placement.mesh),
                  nodes(scenario.disaggregation->decode.placement.mesh));
}

std::string load_json(const LoadMetrics& load) {
  JsonObject held_up;
  for (std::size_t i = 0; i < load.held_up.size(); ++i) {
    held_up.number(kAdmissionLimitNames[i], load.held_up[i]);
  }
  const std::optional<AdmissionLimit> limit = load.limit();
  JsonObject object;
  object.number("offered_requests_per_s", load.offered_requests_per_s)
      .number("served_requests_per_s", load.served_requests_per_s)
      .whole("waiting_at_last_arrival", load.num_waiting)
      .raw("is_overloaded", load.is_overloaded ? "true" : "false")
      .raw("is_settled", load.is_settled ? "true" : "false")
      .raw("limit",
           limit ? json_string(kAdmissionLimitNames[static_cast<std::size_t>(*limit)]) : "null")
      .raw("held_up", held_up.inline_text());
  return object.inline_text();
}

// How long the service filled and emptied, and how many requests the figures leave out.
std::string phases_json(const RunResult& result) {
  const std::optional<RunPhases> phases = run_phases(result.service.requests);
  if (!phases) return "null";
  const WorkloadSpec& workload = result.scenario.workload;
  JsonObject object;
  object.number("ramp_s", phases->ramp.value())
      .number("drain_s", phases->drain.value())
      .number("run_s", phases->whole.value())
      .whole("ramp_requests", phases->ramp_requests)
      .whole("drained_requests", phases->drained_requests)
      .whole("warmup_requests", workload.warmup_requests)
      .whole("drain_requests", workload.drain_requests);
  return object.inline_text();
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
  JsonObject utilisation;
  utilisation.number("mean", metrics.kv_utilisation_mean).number("max", metrics.kv_utilisation_max);
  JsonObject basis;
  basis.number("measured", metrics.basis.measured)
      .number("interpolated", metrics.basis.interpolated)
      .number("borrowed", metrics.basis.borrowed)
      .number("roofline", metrics.basis.roofline);
  std::string warnings;
  for (const std::string& warning : result.warnings) {
    warnings += (warnings.empty() ? "" : ", ") + json_string(warning);
  }
  JsonObject origin;
  for (const auto& [name, text] : provenance(result.scenario, result.tables_used)) {
    origin.text(name, text);
  }
  JsonObject summary = JsonObject::block();
  summary.text("scenario", result.scenario.name)
      .text("question", result.scenario.question)
      .whole("seed", static_cast<std::int64_t>(result.scenario.seed))
      .whole("requests", metrics.num_requests)
      .whole("prompt_tokens", metrics.prompt_tokens)
      .whole("cached_tokens", metrics.cached_tokens)
      .whole("output_tokens", metrics.output_tokens)
      .raw("ttft_s", quantiles_json(metrics.ttft_s))
      .raw("tpot_s", quantiles_json(metrics.tpot_s))
      .raw("itl_s", quantiles_json(metrics.itl_s))
      .raw("e2e_s", quantiles_json(metrics.e2e_s))
      .number("output_tokens_per_s", metrics.output_tokens_per_s)
      .number("output_tokens_per_s_per_gpu", metrics.output_tokens_per_s / mean_gpus(result))
      .number("requests_per_s", metrics.requests_per_s)
      .number("goodput", metrics.goodput_requests_per_s)
      .number("slo_attainment", metrics.slo_attainment)
      .raw("slo", slo_json(metrics.slo))
      .raw("load", load_json(metrics.load))
      .raw("kv_utilisation", utilisation.inline_text())
      .whole("preemptions", metrics.num_preemptions)
      .whole("num_steps", metrics.num_steps)
      .number("mean_batch", metrics.mean_batch)
      .raw("basis", basis.inline_text())
      .number("duration_s", metrics.duration.value())
      .raw("phases", phases_json(result))
      .raw("energy", energy_json(result))
      .whole("num_gpus", result.num_gpus)
      .text("device", result.scenario.machine_spec.device.name)
      .whole("nodes_per_replica", nodes_per_replica(result.scenario))
      .raw("tables", tables_json(result.tables_used))
      .raw("memory_per_gpu", memory_json(result.memory))
      .whole("num_kv_blocks", result.memory.num_kv_blocks);
  if (result.disaggregated) summary.raw("disaggregation", disaggregation_json(result));
  if (result.service.metrics.ranks) {
    summary.raw("data_parallel", ranks_json(*result.service.metrics.ranks));
  }
  if (metrics.experts) summary.raw("expert_balance", experts_json(*metrics.experts));
  if (metrics.kv_tiers) {
    summary.raw("kv_tiers", kv_tiers_json(*metrics.kv_tiers, metrics.prompt_tokens));
  }
  if (metrics.speculation) summary.raw("speculative", speculation_json(result));
  if (metrics.sessions) summary.raw("sessions", sessions_json(*metrics.sessions));
  if (metrics.autoscaling) summary.raw("autoscaling", autoscaling_json(result));
  summary.raw("step", step_json(result.step))
      .raw("step_breakdown", breakdown_json(result.step.shares));
  if (!result.step.sides.empty()) summary.raw("step_sides", sides_json(result.step.sides));
  summary.raw("warnings", "[" + warnings + "]").raw("provenance", origin.inline_text());
  return summary.block_text();
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
