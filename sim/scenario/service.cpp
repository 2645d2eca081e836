#include "sim/scenario/service.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/expert_changes.h"
#include "sim/scenario/kv_cache.h"
#include "sim/scenario/run.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/router.h"
#include "sim/serve/service_checks.h"
#include "sim/serve/speculative_steps.h"

namespace orrery {

namespace {

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
    const std::int64_t size = tokens_of_block(engine, scenario.mesh);
    blocks += (prompt + size - 1) / size;
  }
  engine.max_num_seqs = std::max<std::int64_t>(engine.max_num_seqs, std::ssize(prompts));
  engine.max_num_batched_tokens =
      std::max({engine.max_num_batched_tokens, tokens, engine.max_num_seqs});
  const MemoryBudget memory = memory_budget(scenario);
  const std::int64_t left = memory.num_kv_blocks / scenario.mesh.dp;
  at_key(scenario, "workload", [&] {
    blocks += std::ssize(prompts) * memory.state_blocks;
    if (blocks > left) {
      throw std::invalid_argument(
          "the one step of a static batch, " + std::to_string(tokens) + " tokens on a GPU, takes " +
          memory_text(memory.activations) + " of activations and leaves " + std::to_string(left) +
          " KV blocks; expected the " + std::to_string(blocks) + " of its prompts");
    }
  });
}

ServiceConfig service_config(const Scenario& scenario, const MemoryBudget& memory,
                             std::shared_ptr<StepStore> step_store) {
  ServiceConfig config;
  config.engine = scenario.engine;
  config.engine.block_size = tokens_of_block(scenario.engine, scenario.mesh);
  config.front_end = scenario.engine_profile.front_end;
  config.num_replicas = scenario.replicas;
  config.autoscaling = scenario.autoscaling;
  config.router = scenario.router;
  config.num_dp_ranks = scenario.mesh.dp;
  config.num_kv_blocks = memory.num_kv_blocks;
  config.state_blocks = memory.state_blocks;
  config.num_threads = scenario.threads;
  if (scenario.speculative) {
    config.engine.speculation = speculation(*scenario.speculative, scenario.seed);
  }
  config.step_store = std::move(step_store);
  return config;
}

// Tiers behind the blocks of `config`, the service of `side`.
void add_tiers(const Scenario& side, const MemoryBudget& memory, StepTimes& times,
               const Workload& workload, ServiceConfig& config) {
  at_key(side, "kv_cache", [&] {
    config.kv_tiers =
        kv_tiers_of(side.kv_tiers, side.model_config, side.mesh, side.engine, memory, times);
    check_kv_tiers(config, workload);
  });
}

// None where nothing is to be spilled.
std::shared_ptr<StepStore> new_store(const std::filesystem::path& spill, int num_replicas) {
  return spill.empty() ? nullptr : std::make_shared<StepStore>(spill, num_replicas);
}

}  // namespace

bool contexts_differ(const Workload& workload) {
  return std::ranges::any_of(workload.requests, [&](const Request& request) {
    return request.prompt_tokens != workload.requests.front().prompt_tokens;
  });
}

namespace {

// Batches above the limits never run; what they would take does not change those below.
Scenario without_limits(Scenario side) {
  side.engine.max_num_seqs = 1'000'000'000;
  return side;
}

}  // namespace

StepModel::StepModel(const Scenario& side, bool contexts_differ)
    : assembly_(side), times_(at_key(side, "model", [&] {
        return steps_config(without_limits(side), assembly_, contexts_differ);
      })) {
  if (has_changing_experts(side)) {
    expert_times_ = at_key(side, "moe", [&] {
      return std::make_unique<ExpertStepTimes>(
          steps_config(without_limits(side), assembly_, contexts_differ),
          expert_changes(side, assembly_.machine()));
    });
  }
  if (!side.speculative) return;
  num_drafts_ = side.speculative->num_tokens;
  draft_times_ = at_key(side, "engine", [&] {
    return std::make_unique<StepTimes>(
        draft_config(without_limits(side), assembly_, contexts_differ));
  });
}

std::unique_ptr<StepBackend> StepModel::make_backend() {
  std::unique_ptr<TimedSteps> steps;
  if (draft_times_ == nullptr) {
    steps = std::make_unique<SimulatedSteps>(times_);
  } else {
    steps = std::make_unique<SpeculativeSteps>(times_, *draft_times_, num_drafts_);
  }
  if (expert_times_ == nullptr) return steps;
  return std::make_unique<ExpertSteps>(*expert_times_, std::move(steps));
}

std::string StepModel::key(const Scenario& side, bool contexts_differ) {
  Scenario shared = side;
  shared.question.clear();
  shared.replicas = 1;
  shared.engine = side.engine_profile.engine;
  shared.workload = {};
  shared.slo = {};
  shared.router = {};
  shared.autoscaling.reset();
  shared.kv_tiers = {};
  shared.chosen_step = {};
  shared.validation = {};
  if (!side.expert_load.drift) shared.seed = 0;
  return shared.name + "\n" + to_yaml(shared) + (contexts_differ ? "contexts differ" : "");
}

ServiceModel::ServiceModel(const Scenario& scenario, bool contexts_differ,
                           const StepModels& steps) {
  const auto model = [&](const Scenario& side) {
    return steps ? steps(side, contexts_differ)
                 : std::make_shared<StepModel>(side, contexts_differ);
  };
  if (!scenario.disaggregation) {
    memory_ = memory_budget(scenario);
    steps_ = model(scenario);
    return;
  }
  memory_ = memory_budget(decode_side(scenario));
  prefill_memory_ = memory_budget(prefill_side(scenario));
  // Sides are services of their own to whom times a step.
  prefill_steps_ = model(side_alone(scenario, kPrefillSide));
  steps_ = model(side_alone(scenario, kDecodeSide));
}

int num_gpus(const Scenario& scenario) {
  if (scenario.autoscaling) return scenario.autoscaling->max_replicas * num_ranks(scenario.mesh);
  if (!scenario.disaggregation) return scenario.replicas * num_ranks(scenario.mesh);
  return num_gpus(scenario.disaggregation->prefill.placement) +
         num_gpus(scenario.disaggregation->decode.placement);
}

namespace {

ScenarioService serve_aggregated(const Scenario& scenario, const Workload& workload,
                                 const ServiceModel& model, const ServiceOptions& options) {
  check_static_step(scenario, workload);
  const int replicas =
      scenario.autoscaling ? scenario.autoscaling->max_replicas : scenario.replicas;
  ServiceConfig config =
      service_config(scenario, model.memory(), new_store(options.spill, replicas));
  config.record_steps = options.record_steps;
  add_tiers(scenario, model.memory(), model.steps().times(), workload, config);
  return {.result = at_key(scenario, "workload",
                           [&] {
                             return serve(
                                 workload, config, scenario.slo,
                                 [&](int) { return model.steps().make_backend(); },
                                 options.progress);
                           }),
          .transfer_source = {},
          .kv_tiers = config.kv_tiers};
}

ScenarioService serve_disaggregated(const Scenario& scenario, const Workload& workload,
                                    const ServiceModel& model, const ServiceOptions& options) {
  const Scenario prefill = prefill_side(scenario);
  const Scenario decode = decode_side(scenario);
  TransferLinks links = at_key(scenario, "disaggregation", [&] {
    return transfer_links(scenario, make_machine(simulated_part(scenario)),
                          model.memory().kv_block);
  });
  const auto store = new_store(options.spill, prefill.replicas + decode.replicas);
  const MovedBlock block = moved_block(scenario, model.memory().kv_block);
  DisaggregatedConfig config{.prefill = service_config(prefill, *model.prefill_memory(), store),
                             .decode = service_config(decode, model.memory(), store),
                             .links = std::move(links.links),
                             .kv_block_per_gpu = block.of_gpu,
                             .kv_block = block.of_all,
                             .num_moved_layers = num_moved_layers(scenario)};
  config.prefill.record_steps = config.decode.record_steps = options.record_steps;
  add_tiers(prefill, *model.prefill_memory(), model.prefill_steps()->times(), workload,
            config.prefill);
  config.decode.router = decode_router(config.decode.router);  // they cache no prefixes
  return {.result = at_key(scenario, "workload",
                           [&] {
                             return orrery::serve_disaggregated(
                                 workload, config, scenario.slo,
                                 [&](int replica) {
                                   StepModel& steps = replica < prefill.replicas
                                                          ? *model.prefill_steps()
                                                          : model.steps();
                                   return steps.make_backend();
                                 },
                                 options.progress);
                           }),
          .transfer_source = std::move(links.source)};
}

}  // namespace

ScenarioService serve_scenario(const Scenario& scenario, const Workload& workload,
                               const ServiceModel& model, const ServiceOptions& options) {
  return scenario.disaggregation ? serve_disaggregated(scenario, workload, model, options)
                                 : serve_aggregated(scenario, workload, model, options);
}
}  // namespace orrery
