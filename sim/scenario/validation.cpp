#include "sim/scenario/validation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "kernels/kernel_spec.h"
#include "sim/memory/footprint.h"
#include "sim/parallel/halves.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/chain.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/executable.h"
#include "sim/scenario/step_limits.h"
#include "sim/scenario/validation_layers.h"
#include "sim/serve/executed_tiers.h"
#include "sim/serve/megakernel_step.h"

namespace orrery {
namespace {

// 80 % of a normal distribution lie within so many standard deviations.
constexpr double kDeviations = 1.2816;

// Every rank has its own spans while they are few enough to compare one by one.
constexpr int kMaxRanksShown = 16;

std::int64_t mean_prompt(const Workload& workload) {
  double sum = 0;
  for (const Request& request : workload.requests) {
    sum += static_cast<double>(request.prompt_tokens);
  }
  const auto count = static_cast<double>(std::max<std::size_t>(workload.requests.size(), 1));
  return std::max<std::int64_t>(1, std::llround(sum / count));
}

std::vector<ValidationStep> steps_of_run(const Scenario& scenario, const RunResult& run,
                                         const Workload& workload) {
  const Batch median = median_decode_step(run.service);
  Batch decode{.num_decodes = median.num_decodes};
  decode.decode_context = decode.num_decodes * mean_context(median);
  const std::int64_t budget = scenario.engine.max_num_batched_tokens;
  Batch prefill;
  prefill.prefill.push_back({.query = std::min(mean_prompt(workload), budget), .context = 0});
  std::vector<ValidationStep> steps;
  if (decode.num_decodes > 0) steps.push_back({.name = step_name(decode), .batch = decode});
  steps.push_back({.name = step_name(prefill), .batch = prefill});
  Batch mixed = decode;  // of as many as leave the prompt a seat
  const std::int64_t seats = scenario.engine.max_num_seqs * scenario.mesh.dp;
  mixed.num_decodes = std::min(decode.num_decodes, seats - 1);
  mixed.decode_context = mixed.num_decodes * mean_context(median);
  const std::int64_t left = budget - mixed.num_decodes;
  mixed.prefill.push_back({.query = std::min(mean_prompt(workload), left), .context = 0});
  if (mixed.num_decodes > 0 && left > 0) {
    steps.push_back({.name = step_name(mixed), .batch = mixed});
  }
  return steps;
}

// Standard deviation of a step: copies of an op, and ops of equal shape, err alike.
Seconds deviation(const PricedPlan& priced) {
  std::map<std::string, double> by_call;
  for (std::size_t i = 0; i < priced.times.size(); ++i) {
    const Op& op = priced.plan->ops()[i];
    std::string call;
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
      call = kernel->kernel + " " + std::string(to_text(kernel->dtype));
      for (const Dim& dim : kernel->dims) call += " " + std::to_string(dim.size);
    } else if (const auto* comm = std::get_if<CommOp>(&op.body)) {
      call = std::string(to_text(comm->kind)) + " " + std::to_string(comm->bytes_per_rank.value());
      if (comm->is_copied) call += " copied";
    }
    const Estimate& estimate = priced.times[i];
    by_call[call] += estimate.time.value() * estimate.spread *
                     static_cast<double>(priced.plan->multiplicity(static_cast<OpId>(i)));
  }
  double variance = 0;
  for (const auto& [call, sum] : by_call) variance += sum * sum;
  return Seconds(std::sqrt(variance));
}

// Times of its plan, kernel by kernel.
void predict_times(const Scenario& scenario, const Assembly& assembly, StepPrediction& prediction) {
  const CostModel& cost = assembly.cost(prediction.mode);
  const int ranks = num_ranks(scenario.mesh);
  at_key(scenario, "provider", [&] {
    const PricedPlan priced = price_repeated(assembly, scenario, prediction.plan, prediction.mode);
    prediction.timeline =
        simulate(priced, assembly.machine(), cost,
                 {.level = ranks <= kMaxRanksShown ? StepLevel::kAllRanks : StepLevel::kHeap});
    const Seconds error = deviation(priced) * kDeviations;
    prediction.duration = makespan(prediction.timeline);
    prediction.low = std::max(Seconds(0), prediction.duration - error);
    prediction.high = prediction.duration + error;
  });
}

StepPrediction predict_step(const Scenario& scenario, const Assembly& assembly,
                            const ValidationStep& step, LaunchMode mode) {
  StepPrediction prediction;
  prediction.name = step.name + "_" + std::string(to_text(mode));
  prediction.mode = mode;
  prediction.batch = step.batch;
  at_key(scenario, "model", [&] {
    prediction.plan =
        executed_plan(scenario.model_config, step.batch, lowering_options(scenario), scenario.mesh);
  });
  const EngineProfile& profile = scenario.engine_profile;
  const std::int64_t of_rank =
      (num_sequences(step.batch) + scenario.mesh.dp - 1) / scenario.mesh.dp;
  prediction.host =
      profile.scheduler_base + profile.scheduler_per_sequence * static_cast<double>(of_rank);
  if (mode == LaunchMode::kMegakernel) {
    at_key(scenario, "validate", [&] {
      require_megakernel(scenario, step.batch.num_decodes);
      prediction.timeline = megakernel_timeline(
          prediction.plan, scenario.machine_spec.device.num_sms, megakernel_times(scenario));
    });
    prediction.duration = makespan(prediction.timeline);
    const double error = kMegakernelSpread * kDeviations;
    prediction.low = prediction.duration * (1 - error);
    prediction.high = prediction.duration * (1 + error);
    return prediction;
  }
  predict_times(scenario, assembly, prediction);
  return prediction;
}

StepPrediction predict_layer(const Scenario& scenario, const Assembly& assembly,
                             const ValidationLayer& layer, LaunchMode mode) {
  const int sets = num_layer_sets(scenario);
  StepPrediction prediction;
  prediction.name = layer.name + "_" + std::string(to_text(mode));
  prediction.mode = mode;
  prediction.layers = {.count = sets, .tokens = layer.tokens};
  prediction.plan = chained(layer_plan(scenario, layer), sets);
  predict_times(scenario, assembly, prediction);
  return prediction;
}

// Bytes of one cached token on each rank, all its layers.
std::vector<Bytes> kv_bytes_by_rank(const Scenario& scenario) {
  Mesh mesh = scenario.mesh;
  mesh.num_micro_batches = 1;  // they share the cache
  const std::int64_t dp = mesh.dp;
  const Batch one{.num_decodes = dp, .decode_context = dp};  // a token on each rank
  const Plan plan =
      parallelize(lower(scenario.model_config, one, lowering_options(scenario)), mesh);
  std::vector<Bytes> bytes;
  bytes.reserve(static_cast<std::size_t>(plan.num_ranks()));
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    bytes.push_back(memory_of(plan, rank).kv_cache);
  }
  return bytes;
}

// Steps that a service prepares besides those that it runs: its fullest, and a decode for each
// graph (kernels/serve/executor_runner.cpp).
struct ServedSteps {
  std::optional<Plan> fullest;
  std::optional<Plan> decode;
  std::size_t num_graphs = 0;
};

ServedSteps served_steps(const Scenario& scenario, const Deployment& deployment,
                         FootprintRequest& request) {
  ServedSteps steps;
  if (!scenario.validation.serve) return steps;
  const EngineConfig& engine = deployment.engine;
  const auto& sizes = deployment.graph_batch_sizes;
  const auto last =
      std::ranges::find_if(sizes, [&](std::int64_t size) { return size >= engine.max_num_seqs; });
  steps.num_graphs = static_cast<std::size_t>(last - sizes.begin()) + (last != sizes.end() ? 1 : 0);
  const std::int64_t most_rows = steps.num_graphs == 0 ? 0 : sizes[steps.num_graphs - 1];
  const auto captured = std::span(sizes).first(steps.num_graphs);
  for (const std::int64_t rows : deployment.megakernel_batch_sizes) {
    if (std::ranges::find(captured, rows) != captured.end()) --steps.num_graphs;
  }
  // Ranks are as full as the fullest, of prompts and of decodes apart (kernels/execute/
  // rank_batches.h).
  const std::int64_t dp = scenario.mesh.dp;
  request.max_tokens =
      std::max(engine.max_num_batched_tokens + (dp > 1 ? engine.max_num_seqs : 0), most_rows);
  request.max_sequences = std::max(engine.max_num_seqs, most_rows);
  request.max_model_len = engine.max_model_len;
  const auto plan_of = [&](const Batch& batch) {
    if (dp > 1) {
      return step_plan(scenario.model_config, batch, lowering_options(scenario), scenario.mesh);
    }
    return parallelize(lower(scenario.model_config, batch, lowering_options(scenario)),
                       scenario.mesh);
  };
  const std::int64_t decodes = std::min(request.max_sequences, request.max_tokens - 1);
  Batch fullest{.num_decodes = decodes * dp, .decode_context = decodes * dp};
  for (std::int64_t left = request.max_tokens - decodes; left > 0;) {
    const std::int64_t query =
        engine.max_model_len > 0 ? std::min(left, engine.max_model_len) : left;
    fullest.prefill.insert(fullest.prefill.end(), static_cast<std::size_t>(dp), {.query = query});
    left -= query;
  }
  steps.fullest = plan_of(fullest);
  if (most_rows > 0)
    steps.decode = plan_of({.num_decodes = most_rows * dp, .decode_context = most_rows * dp});
  return steps;
}

// As `orrery-gpu execute` and `serve` lay it out: what their steps need, KV blocks of all layers.
std::map<int, RankMemory> predict_memory(const ValidationPrediction& prediction,
                                         const Scenario& scenario) {
  const Deployment& deployment = prediction.deployment;
  const std::vector<Bytes> kv_token = kv_bytes_by_rank(prediction.scenario);
  const EngineProfile& profile = prediction.scenario.engine_profile;
  FootprintRequest request{.block_size = deployment.engine.block_size,
                           .head_dim = prediction.scenario.model_config.rotary_dim(),
                           .fixed = {.context = profile.context_memory,
                                     .libraries = profile.library_memory,
                                     .workspace = profile.workspace_memory}};
  std::vector<const Plan*> steps;
  std::vector<const Plan*> captured;
  const ServedSteps served = served_steps(scenario, deployment, request);
  if (served.fullest) steps.push_back(&*served.fullest);
  if (served.decode) captured.assign(served.num_graphs, &*served.decode);
  for (const StepPrediction& step : prediction.steps) {
    steps.push_back(&step.plan);
    if (step.mode == LaunchMode::kGraph) captured.push_back(&step.plan);
    const Batch& batch = step.batch;
    request.max_tokens = std::max(request.max_tokens, num_tokens(batch));
    request.max_sequences = std::max(request.max_sequences, num_sequences(batch));
    request.max_model_len = std::max(request.max_model_len, longest_context(batch));
  }
  request.steps = steps;
  request.captured = captured;
  const auto tokens = static_cast<double>(deployment.num_kv_blocks * deployment.engine.block_size);
  std::map<int, RankMemory> memory;
  // On GPUs prefill replicas come first.
  const std::optional<Disaggregation>& apart = prediction.scenario.disaggregation;
  const int first_rank = apart ? num_gpus(apart->prefill.placement) : 0;
  for (int rank = 0; rank < num_ranks(deployment.mesh); ++rank) {
    request.kv_cache = kv_token[static_cast<std::size_t>(rank)] * tokens;
    request.scratch = Bytes(0);
    for (const Plan* plan : request.steps) {
      request.scratch = std::max(request.scratch, workspace_of(*plan, rank));
    }
    memory[first_rank + rank] = footprint(request, rank);
  }
  return memory;
}

// Kernels of `more` that `tables` does not have yet are added to it.
void add_tables(std::vector<TableUse>& tables, const std::vector<TableUse>& more) {
  for (const TableUse& use : more) {
    const auto same = std::ranges::find_if(tables, [&](const TableUse& table) {
      return table.provider == use.provider && table.device == use.device;
    });
    if (same == tables.end()) {
      tables.push_back(use);
      continue;
    }
    same->kernels.insert(same->kernels.end(), use.kernels.begin(), use.kernels.end());
    std::ranges::sort(same->kernels);
    const auto repeated = std::ranges::unique(same->kernels);
    same->kernels.erase(repeated.begin(), repeated.end());
  }
}

}  // namespace

Deployment deployment_of(const Scenario& scenario, const MemoryBudget& memory) {
  Deployment deployment;
  deployment.name = scenario.model_config.name;
  deployment.config = scenario.model_fields;
  deployment.lowering = lowering_options(scenario);
  deployment.mesh = scenario.mesh;
  deployment.engine = scenario.engine;
  deployment.graph_batch_sizes = graph_batch_sizes(scenario);
  deployment.megakernel_batch_sizes = megakernel_batch_sizes(scenario);
  deployment.num_kv_blocks = memory.num_kv_blocks / scenario.mesh.dp;
  deployment.seed = scenario.seed;
  return deployment;
}

ValidationPrediction predict_validation(const Scenario& given, const Progress& progress) {
  check_executable(given);
  // Steps are those of the decode side where it is apart.
  const Scenario scenario = given.disaggregation ? decode_side(given) : given;
  ValidationPrediction prediction;
  prediction.scenario = given;
  ValidationSpec& spec = prediction.scenario.validation;
  const bool has_layers_alone = !spec.serve && spec.steps.empty() && !spec.layers.empty();
  // Of a model that need not fit.
  const MemoryBudget memory = has_layers_alone ? MemoryBudget{} : memory_budget(scenario);
  prediction.deployment = deployment_of(scenario, memory);
  const bool chooses_steps = spec.steps.empty() && spec.layers.empty();
  if (spec.serve || chooses_steps) {
    prediction.run = run_scenario(given, progress);
    prediction.warnings = prediction.run->warnings;
    prediction.tables_used = prediction.run->tables_used;
  }
  if (chooses_steps) {
    const Workload workload = at_key(
        scenario, "workload", [&] { return make_workload(scenario.workload, scenario.seed); });
    spec.steps = steps_of_run(scenario, *prediction.run, workload);
  }
  const Assembly assembly(scenario);
  for (const ValidationStep& step : spec.steps) {
    at_key(scenario, "validate",
           [&] { check_formed("step '" + step.name + "'", step.batch, scenario, memory); });
    for (const LaunchMode mode : modes_of(spec, step.batch)) {
      prediction.steps.push_back(predict_step(scenario, assembly, step, mode));
    }
  }
  if (!spec.serve) prediction.run.reset();
  if (!has_layers_alone) prediction.memory = predict_memory(prediction, scenario);
  for (const ValidationLayer& layer : spec.layers) {
    for (const LaunchMode mode : modes_of(scenario, layer)) {
      prediction.steps.push_back(predict_layer(scenario, assembly, layer, mode));
    }
  }
  add_tables(prediction.tables_used, assembly.tables_used());
  return prediction;
}

}  // namespace orrery
