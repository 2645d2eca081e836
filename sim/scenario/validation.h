#pragma once

// What `orrery validate` holds against GPUs: the steps of a scenario predicted one by one, memory
// of each rank and the service, and the directory that the GPU side runs from.
//
//   DIR/scenario.yaml, deployment.txt                   the scenario; what the GPU side needs of it
//   DIR/steps/<name>.step, .plan                        batch, or layers in a row; plan of all
//   ranks
//   DIR/predicted/steps.csv, <name>.spans.csv, memory.csv, calibration.csv, provenance.txt
//   where the scenario serves:
//   DIR/predicted/requests.csv, serve_steps.csv, summary.json
//   DIR/workload.csv, serve.txt                         requests; `open` or `closed_loop N`,
//   warm-up
//   DIR/block_hashes.txt, kv_tiers.txt, predicted/kv_tiers.csv   where prompts share prefixes,
//   where there is a tier (kernels/serve/serve_directory.h, sim/serve/executed_tiers.h)

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/memory/rank_memory.h"
#include "sim/plan/step_file.h"
#include "sim/scenario/run.h"
#include "sim/scenario/scenario.h"
#include "sim/serve/deployment.h"

namespace orrery {

// One step in one mode.
struct StepPrediction {
  std::string name;  // of the step and the mode: "decode64_context4096_graph"
  LaunchMode mode = LaunchMode::kGraph;
  Batch batch;
  // Of validate.layers: plan, timeline and times are of all of them in a row. Then no batch.
  std::optional<LayersOfStep> layers;
  Plan plan;  // simulated here, executed there
  Timeline timeline;
  // Makespan, and the interval that holds it in 80 of 100 cases if times of different kernels err
  // independently and normally, by the spread that the cost model gives each.
  Seconds duration;
  Seconds low;
  Seconds high;
  Seconds host;  // of the engine around the step: scheduler_base + scheduler_per_sequence * n
};

struct ValidationPrediction {
  Scenario scenario;  // steps spelled out
  Deployment deployment;
  std::vector<StepPrediction> steps;  // and layers, behind them
  std::map<int, RankMemory> memory;   // by rank; none where there are layers alone
  std::optional<RunResult> run;       // where the scenario serves
  std::vector<std::string> warnings;
  std::vector<TableUse> tables_used;
};

// Steps that the scenario does not state are the run's median decode step, a prefill of the mean
// prompt, and both together; none where it has layers. Throws ScenarioError for what cannot be run
// on one instance: more than one replica, a step beyond the engine's limits or the KV cache, prefix
// caching over several data-parallel ranks, tiers other than one named host, or a static batch
// where it serves.
ValidationPrediction predict_validation(const Scenario& scenario, const Progress& progress = {});

Deployment deployment_of(const Scenario& scenario, const MemoryBudget& memory);

// Into `directory`, which must exist. Throws std::runtime_error when a file cannot be written.
void write_validation(const ValidationPrediction& prediction,
                      const std::filesystem::path& directory);

}  // namespace orrery
