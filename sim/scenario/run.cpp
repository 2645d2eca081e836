#include "sim/scenario/run.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/scenario/assembly.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/step_limits.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/simulated_steps.h"
#include "sim/serve/step_store.h"
#include "sim/units/parse.h"

namespace orrery {

MemoryBudget memory_budget(const Scenario& scenario) {
  const EngineProfile& profile = scenario.engine_profile;
  CapacityRequest request;
  request.model = scenario.model_config;
  request.mesh = scenario.mesh;
  request.lowering = lowering_options(scenario);
  request.engine = scenario.engine;
  request.graphs = graph_batch_sizes(scenario).empty() ? Bytes(0) : profile.graph_memory;
  request.communication = num_ranks(scenario.mesh) > 1 ? profile.communication_buffers : Bytes(0);
  request.context = profile.context_memory;
  request.workspace = profile.workspace_memory;
  return at_key(scenario, scenario.disaggregation ? "disaggregation" : "placement",
                [&] { return memory_budget(request, scenario.machine_spec.device); });
}

namespace {

// Prompts of different lengths lead to decodes of different contexts.
SimulatedStepsConfig steps_config(const Scenario& scenario, const Assembly& assembly,
                                  const Workload& workload) {
  const auto is_other = [&](const Request& request) {
    return request.prompt_tokens != workload.requests.front().prompt_tokens;
  };
  return steps_config(scenario, assembly, std::ranges::any_of(workload.requests, is_other));
}

// A static batch has all its prompts in one step, whatever the token budget: the activations of
// that step must fit beside the KV blocks of its prompts. Those of its outputs come when they are
// gone.
void check_static_step(Scenario scenario, const Workload& workload) {
  if (!workload.is_static_batch) {
    return;
  }
  std::vector<std::int64_t> prompts;
  prompts.reserve(workload.requests.size());
  for (const Request& request : workload.requests) {
    prompts.push_back(request.prompt_tokens);
  }
  std::ranges::sort(prompts, std::greater<>());
  const std::int64_t ranks = static_cast<std::int64_t>(scenario.replicas) * scenario.mesh.dp;
  prompts.resize(static_cast<std::size_t>((std::ssize(prompts) + ranks - 1) / ranks));
  EngineConfig& engine = scenario.engine;
  std::int64_t tokens = 0;
  std::int64_t blocks = 0;  // on a data-parallel rank
  for (const std::int64_t prompt : prompts) {
    tokens += prompt;
    blocks += (prompt + engine.block_size - 1) / engine.block_size;
  }
  engine.max_num_seqs = std::max<std::int64_t>(engine.max_num_seqs, std::ssize(prompts));
  engine.max_num_batched_tokens =
      std::max({engine.max_num_batched_tokens, tokens, engine.max_num_seqs});
  const MemoryBudget memory = memory_budget(scenario);
  const std::int64_t left = memory.num_kv_blocks / scenario.mesh.dp;
  at_key(scenario, "workload", [&] {
    if (blocks > left) {
      throw std::invalid_argument(
          "the one step of a static batch, " + std::to_string(tokens) + " tokens on a GPU, takes " +
          to_text(memory.activations) + " of activations and leaves " + std::to_string(left) +
          " KV blocks; expected the " + std::to_string(blocks) + " of its prompts");
    }
  });
}

ServiceConfig service_config(const Scenario& scenario, const MemoryBudget& memory,
                             std::shared_ptr<StepStore> step_store) {
  ServiceConfig config;
  config.engine = scenario.engine;
  config.front_end = scenario.engine_profile.front_end;
  config.num_replicas = scenario.replicas;
  config.router = scenario.router;
  config.num_dp_ranks = scenario.mesh.dp;
  config.num_kv_blocks = memory.num_kv_blocks;
  config.num_threads = scenario.threads;
  config.step_store = std::move(step_store);
  return config;
}

// None where nothing is to be spilled.
std::shared_ptr<StepStore> new_store(const std::filesystem::path& spill, int num_replicas) {
  return spill.empty() ? nullptr : std::make_shared<StepStore>(spill, num_replicas);
}

std::string joined(const std::vector<std::string>& texts) {
  std::string text;
  for (const std::string& part : texts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// What the reader of a result should know besides its numbers.
std::vector<std::string> warnings_of(const Scenario& scenario) {
  std::vector<std::string> warnings;
  warnings.reserve(scenario.precision_notes.size());
  for (const std::string& note : scenario.precision_notes) {
    warnings.push_back("quantization_config of " + scenario.model + ": " + note);
  }
  const int ranks = num_ranks(scenario.mesh);
  const int node = scenario.machine_spec.gpus_per_node;
  if (scenario.replicas > 1 && node % ranks != 0 && ranks % node != 0) {
    warnings.push_back("replicas of " + std::to_string(ranks) + " GPUs straddle nodes of " +
                       std::to_string(node) +
                       "; all are timed as the first one, which lies at the start of a node");
  }
  const std::int64_t positions = scenario.model_config.max_position_embeddings;
  if (positions > 0 && scenario.engine.max_model_len > positions) {
    warnings.push_back("max_model_len " + std::to_string(scenario.engine.max_model_len) +
                       " is more than the " + std::to_string(positions) +
                       " positions that the model was trained for");
  }
  if (scenario.kernel_tables.empty()) {
    warnings.emplace_back(
        "provider none: every kernel stands on its roofline and every collective on the rates of "
        "links, none is measured");
  }
  const auto other = std::ranges::find_if(scenario.kernel_tables, [&](const auto& tables) {
    return tables.device.name == scenario.machine_spec.device.name &&
           !differences(tables.device, scenario.machine_spec.device).empty();
  });
  if (other != scenario.kernel_tables.end()) {
    warnings.push_back("tables of " + other->device.name +
                       " were measured on another device: times are moved to " +
                       joined(differences(other->device, scenario.machine_spec.device)));
  }
  if (scenario.disaggregation && scenario.router == RouterKind::kPrefixAware) {
    warnings.emplace_back(
        "router prefix_aware chooses among prefill replicas; decode replicas cache no prefixes and "
        "are chosen by least_loaded");
  }
  std::ranges::move(warnings_of(scenario.workload), std::back_inserter(warnings));
  const auto& collectives = scenario.collective_tables;
  if (ranks > 1 && !collectives.empty() && !collectives.front().differences.empty()) {
    warnings.push_back("collectives of " + collectives.front().machine +
                       " were measured on other links: " + joined(collectives.front().differences) +
                       "; a rate scales the part of their times that grows with bytes, a latency "
                       "has no effect on them");
  } else if (ranks > 1 && !collectives.empty() && !collectives.front().is_own) {
    warnings.push_back("no collectives are measured on " + scenario.machine_spec.name +
                       ": within a node those of " + collectives.front().machine +
                       " stand in, scaled to its NVLink rate");
  }
  return warnings;
}

// Which tables answered instead of the provider's own of this device.
void warn_of_stand_ins(RunResult& result) {
  const std::string own =
      result.scenario.provider + " has no rows on " + result.scenario.machine_spec.device.name;
  for (const TableUse& use : result.tables_used) {
    const bool is_edited = use.provider == result.scenario.provider &&
                           use.device == result.scenario.machine_spec.device.name;
    if (use.origin != Origin::kOwn && !is_edited) {
      result.warnings.push_back(own + " for some calls: " + to_text(use));
    }
  }
}

// Which collectives the tables of the machine, or of the nearest that has some, do not have.
void warn_of_unmeasured(const Assembly& assembly, RunResult& result) {
  const Scenario& scenario = result.scenario;
  std::vector<std::string> kinds;
  for (const CollectiveKind kind : assembly.unmeasured_collectives()) {
    kinds.emplace_back(to_text(kind));
  }
  if (kinds.empty() || scenario.kernel_tables.empty()) return;  // provider none is said already
  const std::string tables =
      scenario.collective_tables.empty()
          ? "collectives of machines like " + scenario.machine_spec.name
          : "collectives measured on " + scenario.collective_tables.front().machine;
  result.warnings.push_back(tables + " have no rows for some calls of " + joined(kinds) +
                            ": other machines' or the rates of links stand in");
}

void serve_whole(const Scenario& scenario, const Assembly& assembly, const Workload& workload,
                 const Progress& progress, const std::filesystem::path& spill, RunResult& result) {
  result.num_gpus = scenario.replicas * num_ranks(scenario.mesh);
  result.memory = memory_budget(scenario);
  check_static_step(scenario, workload);
  StepTimes times = at_key(scenario, "model",
                           [&] { return StepTimes(steps_config(scenario, assembly, workload)); });
  result.service = at_key(scenario, "workload", [&] {
    return serve(
        workload, service_config(scenario, result.memory, new_store(spill, scenario.replicas)),
        scenario.slo, [&](int) { return std::make_unique<SimulatedSteps>(times); }, progress);
  });
}

void serve_apart(const Scenario& scenario, const Assembly& assembly, const Workload& workload,
                 const Progress& progress, const std::filesystem::path& spill, RunResult& result) {
  const Scenario prefill = prefill_side(scenario);
  const Scenario decode = decode_side(scenario);
  result.num_gpus = num_gpus(scenario.disaggregation->prefill.placement) +
                    num_gpus(scenario.disaggregation->decode.placement);
  result.memory = memory_budget(decode);
  DisaggregatedRun& run = result.disaggregated.emplace();
  run.prefill_memory = memory_budget(prefill);
  TransferLinks links = at_key(scenario, "disaggregation", [&] {
    return transfer_links(scenario, assembly.machine(), result.memory.kv_block);
  });
  run.transfer_source = links.source;
  const auto store = new_store(spill, prefill.replicas + decode.replicas);
  DisaggregatedConfig config{.prefill = service_config(prefill, run.prefill_memory, store),
                             .decode = service_config(decode, result.memory, store),
                             .links = std::move(links.links),
                             .kv_block_per_rank = result.memory.kv_block,
                             .kv_block = kv_block_of_instance(decode)};
  if (config.decode.router == RouterKind::kPrefixAware) {  // they cache no prefixes
    config.decode.router = RouterKind::kLeastLoaded;
  }
  StepTimes prefill_times = at_key(
      scenario, "model", [&] { return StepTimes(steps_config(prefill, assembly, workload)); });
  StepTimes decode_times = at_key(
      scenario, "model", [&] { return StepTimes(steps_config(decode, assembly, workload)); });
  result.service = at_key(scenario, "workload", [&] {
    return serve_disaggregated(
        workload, config, scenario.slo,
        [&](int replica) {
          return std::make_unique<SimulatedSteps>(replica < prefill.replicas ? prefill_times
                                                                             : decode_times);
        },
        progress);
  });
}

}  // namespace

std::string to_text(const TableUse& use) {
  std::string text;
  for (const std::string& kernel : use.kernels) {
    text += (text.empty() ? "" : ", ") + kernel;
  }
  return text + " from " + use.provider + " on " + use.device;
}

RunResult run_scenario(const Scenario& scenario, const Progress& progress,
                       const std::filesystem::path& spill) {
  RunResult result;
  result.scenario = scenario;
  result.warnings = warnings_of(scenario);
  const Workload workload =
      at_key(scenario, "workload", [&] { return make_workload(scenario.workload, scenario.seed); });
  const Scenario shown = scenario.disaggregation ? decode_side(scenario) : scenario;
  if (scenario.chosen_step != Batch{}) {
    at_key(scenario, "chosen_step", [&] {
      check_fits("the step", scenario.chosen_step, shown, memory_budget(shown).num_kv_blocks);
    });
  }
  const Assembly assembly(scenario);
  (scenario.disaggregation ? serve_apart : serve_whole)(scenario, assembly, workload, progress,
                                                        spill, result);
  // A disaggregated scenario's step is one of its decode replicas.
  const Batch batch =
      scenario.chosen_step == Batch{} ? median_decode_step(result.service) : scenario.chosen_step;
  // Every rank gets its row in the trace while they are few enough to read.
  constexpr int kMaxRanksShown = 16;
  const StepLevel level = num_ranks(scenario.mesh) <= kMaxRanksShown ? StepLevel::kAllRanks
                                                                     : StepLevel::kRepresentative;
  result.step = simulate_step(assembly, shown, batch, level);
  result.tables_used = assembly.tables_used();
  warn_of_stand_ins(result);
  warn_of_unmeasured(assembly, result);
  return result;
}

std::vector<Seconds> replayed_durations(const Scenario& scenario,
                                        std::span<const ReplicaStep> steps) {
  const Workload workload =
      at_key(scenario, "workload", [&] { return make_workload(scenario.workload, scenario.seed); });
  const Assembly assembly(scenario);
  // Of a scenario that is not disaggregated, all replicas are of the second kind.
  std::optional<StepTimes> prefill_times;
  if (scenario.disaggregation) {
    prefill_times.emplace(steps_config(prefill_side(scenario), assembly, workload));
  }
  const Scenario whole = scenario.disaggregation ? decode_side(scenario) : scenario;
  StepTimes times(steps_config(whole, assembly, workload));
  const int num_prefill = scenario.disaggregation ? prefill_side(scenario).replicas : 0;
  std::vector<SimulatedSteps> replicas;
  replicas.reserve(static_cast<std::size_t>(num_prefill) +
                   static_cast<std::size_t>(whole.replicas));
  for (int i = 0; i < num_prefill; ++i) replicas.emplace_back(*prefill_times);
  for (int i = 0; i < whole.replicas; ++i) replicas.emplace_back(times);
  std::vector<Seconds> durations;
  durations.reserve(steps.size());
  for (const ReplicaStep& step : steps) {
    const bool has_tokens = step.batch.num_decodes > 0 || !step.batch.prefill.empty();
    if (step.replica < 0 || step.replica >= static_cast<int>(replicas.size()) || !has_tokens) {
      throw std::invalid_argument("a step of replica " + std::to_string(step.replica) + " with " +
                                  std::to_string(step.batch.num_decodes) + " decodes and " +
                                  std::to_string(step.batch.prefill.size()) +
                                  " chunks; expected tokens and a replica below " +
                                  std::to_string(replicas.size()));
    }
    SimulatedSteps& replica = replicas[static_cast<std::size_t>(step.replica)];
    replica.starts(step.start);
    durations.push_back(step.batch.prefill.empty() ? replica.fast_forward(step.batch, 1).first
                                                   : replica.run(step.batch).duration);
  }
  return durations;
}

}  // namespace orrery
