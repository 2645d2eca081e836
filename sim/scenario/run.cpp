#include "sim/scenario/run.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/des/network_simgrid.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/service.h"
#include "sim/scenario/step_limits.h"
#include "sim/serve/router.h"
#include "sim/serve/simulated_steps.h"
#include "sim/serve/step_store.h"
#include "sim/units/parse.h"

namespace orrery {

namespace {

std::string joined(const std::vector<std::string>& texts) {
  std::string text;
  for (const std::string& part : texts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// Of what runs on one machine: a whole scenario that is not disaggregated, or a side.
std::vector<std::string> warnings_of_machine(const Scenario& scenario) {
  std::vector<std::string> warnings;
  if (scenario.is_provider_chosen) {
    warnings.push_back("provider " + scenario.provider + " is chosen, for " + scenario.profile +
                       " on " + scenario.machine_spec.device.name + "; the scenario names none");
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
  return warnings;
}

std::vector<std::string> warnings_of_collectives(const Scenario& scenario) {
  const auto& collectives = scenario.collective_tables;
  if (num_ranks(scenario.mesh) == 1 || collectives.empty()) return {};
  const CollectiveDirectory& nearest = collectives.front();
  if (!nearest.differences.empty()) {
    return {"collectives of " + nearest.machine +
            " were measured on other links: " + joined(nearest.differences) +
            "; a rate scales the part of their times that grows with bytes, a latency "
            "has no effect on them"};
  }
  if (nearest.is_own) return {};
  return {"no collectives are measured on " + scenario.machine_spec.name +
          ": within a node those of " + nearest.machine + " stand in, scaled to its NVLink rate"};
}

// Scenarios of what lies on machines, or stands on tables, of its own: both sides of a
// disaggregated service, or attention and FFNs. None where there is one of all.
std::vector<Scenario> sides_with_settings(const Scenario& scenario) {
  if (scenario.ffn) {
    Scenario attention = scenario;
    attention.side = "attention";
    return {std::move(attention), ffn_alone(scenario)};
  }
  if (!scenario.disaggregation || !scenario.disaggregation->prefill_setting) return {};
  return {prefill_side(scenario), decode_side(scenario)};
}

// `warn` of the scenario; of each side with a setting of its own, which the text names unless both
// are warned alike.
template <typename Warn>
void warn_of_sides(const Scenario& scenario, std::vector<std::string>& warnings, Warn warn) {
  const std::vector<Scenario> sides = sides_with_settings(scenario);
  if (sides.empty()) {
    std::ranges::move(warn(scenario), std::back_inserter(warnings));
    return;
  }
  const std::vector<std::string> first = warn(sides.front());
  const std::vector<std::string> second = warn(sides.back());
  const auto is_in = [](const auto& texts, const std::string& text) {
    return std::ranges::find(texts, text) != texts.end();
  };
  for (const std::string& text : first) {
    warnings.push_back((is_in(second, text) ? "" : sides.front().side + ": ") + text);
  }
  for (const std::string& text : second) {
    if (!is_in(first, text)) warnings.push_back(sides.back().side + ": " + text);
  }
}

// What the engine does between data-parallel ranks, where there is one alone.
void warn_of_lone_ranks(const Scenario& scenario, std::vector<std::string>& warnings) {
  const bool has_ranks =
      scenario.mesh.dp > 1 ||
      (scenario.disaggregation && scenario.disaggregation->prefill.placement.mesh.dp > 1);
  if (has_ranks) return;
  const EngineConfig& engine = scenario.engine;
  const auto warn = [&](const std::string& what, const std::string& why) {
    warnings.push_back("engine." + what +
                       " is passed over: no replica has data-parallel ranks (dp " +
                       "of 2 or more) " + why);
  };
  if (engine.dp_router != scenario.engine_profile.engine.dp_router) {
    warn("dp_router " + std::string(kDpRouterNames[static_cast<std::size_t>(engine.dp_router)]),
         "to choose from");
  }
  if (engine.dp_balance_timeout_iters > 0) {
    warn("dp_balance_timeout_iters " + std::to_string(engine.dp_balance_timeout_iters),
         "whose prompts would wait for each other");
  }
}

// What the reader of a result should know besides its numbers.
std::vector<std::string> warnings_of(const Scenario& scenario) {
  std::vector<std::string> warnings;
  if (!scenario.model_as.empty()) {
    warnings.push_back(scenario.model + " is simulated as " + scenario.model_as +
                       " (model.as): blocks of its own are left out");
  }
  for (const std::string& note : scenario.model_config.notes) {
    warnings.push_back(scenario.model + ": " + note);
  }
  warnings.insert(warnings.end(), scenario.precision_notes.begin(), scenario.precision_notes.end());
  const int ranks = num_ranks(scenario.mesh) - (scenario.ffn ? num_ffn_ranks(scenario.mesh) : 0);
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
  warn_of_lone_ranks(scenario, warnings);
  warn_of_sides(scenario, warnings, warnings_of_machine);
  if (scenario.disaggregation && !scenario.disaggregation->unused_machine.empty()) {
    warnings.push_back("machine " + scenario.disaggregation->unused_machine +
                       " is passed over: prefill and decode name machines of their own");
  }
  if (scenario.disaggregation && scenario.router != decode_router(scenario.router)) {
    warnings.push_back("router " + std::string(to_text(scenario.router)) +
                       " chooses among prefill replicas; decode replicas cache no prefixes and are "
                       "chosen by least_loaded");
  }
  if (scenario.moe.design == MoeDesign::kPersistent &&
      (scenario.expert_load.drift || scenario.moe.eplb)) {
    warnings.emplace_back(
        "moe design persistent is priced by the expert_load and the moe.experts that a run begins "
        "with: drift and eplb change nothing of its layers' time");
  }
  if (scenario.where.contains("search")) {
    warnings.emplace_back(
        "search is passed over: this is the scenario's own plan; orrery explore searches for one");
  }
  std::ranges::move(warnings_of(scenario.workload), std::back_inserter(warnings));
  warn_of_sides(scenario, warnings, warnings_of_collectives);
  return warnings;
}

// Tables of both, their kernels together, in the order in which they are asked.
std::vector<TableUse> together(std::vector<TableUse> uses, const std::vector<TableUse>& more) {
  for (const TableUse& use : more) {
    const auto same = std::ranges::find_if(uses, [&](const TableUse& other) {
      return other.provider == use.provider && other.device == use.device &&
             other.origin == use.origin;
    });
    if (same == uses.end()) {
      uses.push_back(use);
      continue;
    }
    std::set<std::string> kernels(same->kernels.begin(), same->kernels.end());
    kernels.insert(use.kernels.begin(), use.kernels.end());
    same->kernels.assign(kernels.begin(), kernels.end());
  }
  std::ranges::stable_sort(uses, {}, &TableUse::origin);
  return uses;
}

// Which tables answered instead of the provider's own of this device.
std::vector<std::string> stand_ins(const Scenario& scenario, const std::vector<TableUse>& used) {
  const std::string own =
      scenario.provider + " has no rows on " + scenario.machine_spec.device.name;
  std::vector<std::string> warnings;
  for (const TableUse& use : used) {
    const bool is_edited =
        use.provider == scenario.provider && use.device == scenario.machine_spec.device.name;
    if (use.origin != Origin::kOwn && !is_edited) {
      warnings.push_back(own + " for some calls: " + to_text(use));
    }
  }
  return warnings;
}

void warn_of_stand_ins(RunResult& result) {
  warn_of_sides(result.scenario, result.warnings, [&](const Scenario& side) {
    if (side.side == kPrefillSide) return stand_ins(side, result.disaggregated->prefill_tables);
    if (side.side == kDecodeSide) return stand_ins(side, result.disaggregated->decode_tables);
    if (side.side.empty()) return stand_ins(side, result.tables_used);
    return stand_ins(side, side.side == kFfnSide ? result.with_ffn->ffn_tables
                                                 : result.with_ffn->attention_tables);
  });
}

// Which collectives the tables of the machine, or of the nearest that has some, do not have.
std::vector<std::string> unmeasured_of(const Scenario& scenario,
                                       const std::vector<const Assembly*>& assemblies) {
  std::set<CollectiveKind> unmeasured;
  for (const Assembly* assembly : assemblies) {
    std::ranges::copy(assembly->unmeasured_collectives(),
                      std::inserter(unmeasured, unmeasured.end()));
  }
  std::vector<std::string> kinds;
  kinds.reserve(unmeasured.size());
  for (const CollectiveKind kind : unmeasured) kinds.emplace_back(to_text(kind));
  if (kinds.empty() || scenario.kernel_tables.empty()) return {};  // provider none is said already
  const std::string tables =
      scenario.collective_tables.empty()
          ? "collectives of machines like " + scenario.machine_spec.name
          : "collectives measured on " + scenario.collective_tables.front().machine;
  return {tables + " have no rows for some calls of " + joined(kinds) +
          ": other machines' or the rates of links stand in"};
}

void warn_of_unmeasured(const ServiceModel& model, RunResult& result) {
  const Assembly& own = model.steps().assembly();
  warn_of_sides(result.scenario, result.warnings, [&](const Scenario& side) {
    std::vector<const Assembly*> assemblies{side.side == kFfnSide ? own.ffn() : &own};
    if (model.prefill_steps() != nullptr && side.side != kDecodeSide) {
      const Assembly* prefill = &model.prefill_steps()->assembly();
      if (side.side == kPrefillSide) assemblies.clear();
      assemblies.push_back(prefill);
    }
    return unmeasured_of(side, assemblies);
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
  std::ranges::copy(workload.notes, std::back_inserter(result.warnings));
  if (!scenario.kv_tiers.tiers.empty() && workload.hash_block_tokens == 0) {
    result.warnings.emplace_back(
        "kv_cache: the requests of this workload name no prefixes that they share, so no tier is "
        "used");
  }
  if (!workload.turns.empty() && !scenario.engine.enable_prefix_caching) {
    result.warnings.emplace_back(
        "engine.enable_prefix_caching is off: every turn of a session computes the whole "
        "conversation again");
  }
  const Scenario shown = scenario.disaggregation ? decode_side(scenario) : scenario;
  if (scenario.chosen_step != Batch{}) {
    at_key(scenario, "chosen_step",
           [&] { check_fits("the step", scenario.chosen_step, shown, memory_budget(shown)); });
  }
  ServiceModel model(scenario, contexts_differ(workload));
  result.num_gpus = num_gpus(scenario);
  result.memory = model.memory();
  ScenarioService served =
      serve_scenario(scenario, workload, model, {.spill = spill, .progress = progress});
  result.service = std::move(served.result);
  result.kv_tiers = std::move(served.kv_tiers);
  if (scenario.disaggregation) {
    result.disaggregated = {.prefill_memory = *model.prefill_memory(),
                            .prefill_tables = {},
                            .decode_tables = {},
                            .transfer_source = std::move(served.transfer_source)};
  }
  // A disaggregated scenario's step is one of its decode replicas.
  Batch batch =
      scenario.chosen_step == Batch{} ? median_decode_step(result.service) : scenario.chosen_step;
  if (scenario.speculative && batch.num_decodes > 0) {  // the target's part of a step
    batch.decode_query = 1 + scenario.speculative->num_tokens;
    batch.decode_context = std::max(batch.decode_context, batch.num_decodes * batch.decode_query);
  }
  // Every rank gets its row in the trace while they are few enough to read.
  constexpr int kMaxRanksShown = 16;
  const StepLevel with_simgrid = num_ranks(scenario.mesh) <= kMaxRanksShown
                                     ? StepLevel::kAllRanks
                                     : StepLevel::kRepresentative;
  const StepLevel level = des::has_simgrid() ? with_simgrid : StepLevel::kHeap;
  result.step = simulate_step(model.steps().assembly(), shown, batch, level);
  result.tables_used = model.steps().assembly().tables_used();
  if (const Assembly* ffn = model.steps().assembly().ffn()) {
    result.with_ffn = {.attention_tables = result.tables_used, .ffn_tables = ffn->tables_used()};
    result.tables_used = together(result.tables_used, result.with_ffn->ffn_tables);
  }
  if (model.prefill_steps() != nullptr) {
    DisaggregatedRun& sides = *result.disaggregated;
    sides.decode_tables = result.tables_used;
    sides.prefill_tables = model.prefill_steps()->assembly().tables_used();
    result.tables_used = together(sides.prefill_tables, result.tables_used);
  }
  warn_of_stand_ins(result);
  warn_of_unmeasured(model, result);
  return result;
}

std::vector<Seconds> replayed_durations(const Scenario& scenario,
                                        std::span<const ReplicaStep> steps) {
  const Workload workload =
      at_key(scenario, "workload", [&] { return make_workload(scenario.workload, scenario.seed); });
  const bool differ = contexts_differ(workload);
  // Of a scenario that is not disaggregated, all replicas are of the second kind.
  std::optional<Assembly> prefill_assembly;
  std::optional<StepTimes> prefill_times;
  if (scenario.disaggregation) {
    const Scenario prefill = prefill_side(scenario);
    prefill_assembly.emplace(prefill);
    prefill_times.emplace(steps_config(prefill, *prefill_assembly, differ));
  }
  const Scenario whole = scenario.disaggregation ? decode_side(scenario) : scenario;
  const Assembly assembly(whole);
  StepTimes times(steps_config(whole, assembly, differ));
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
    const std::span<const Batch> batch(&step.batch, 1);
    durations.push_back(step.batch.prefill.empty() ? replica.fast_forward(batch, 1).first
                                                   : replica.run(batch).duration);
  }
  return durations;
}

}  // namespace orrery
