#pragma once

// A scenario as a simulated service: puts the rooms together and keeps everything the outputs need.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/des/simulate.h"
#include "sim/model/model.h"
#include "sim/plan/plan.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/service.h"
#include "sim/scenario/step_sides.h"
#include "sim/serve/capacity.h"
#include "sim/serve/serve.h"
#include "sim/timeline/timeline.h"
#include "sim/units/units.h"

namespace orrery {

// One op of the chosen step, its repeats together, the mean over ranks.
struct StepShare {
  std::string op;
  SpanKind kind = SpanKind::kKernel;
  Seconds time;
  double share = 0;                // of the summed time of all ops
  Basis basis = Basis::kMeasured;  // the one most of its time stands on
};

// One engine step simulated in detail.
struct StepResult {
  Batch batch;
  StepLevel level = StepLevel::kRepresentative;
  Plan plan;
  Timeline timeline;
  std::vector<StepShare> shares;  // longest first
  std::vector<StepSide> sides;    // of a placement with FFNs apart
};

// Of FFNs on a machine of their own and attention on another.
struct AttentionFfnRun {
  std::vector<TableUse> attention_tables;
  std::vector<TableUse> ffn_tables;
};

struct RunResult {
  Scenario scenario;
  ServiceResult service;
  StepResult step;
  MemoryBudget memory;
  KvTiersConfig kv_tiers;  // ScenarioService
  std::optional<DisaggregatedRun> disaggregated;
  std::optional<AttentionFfnRun> with_ffn;
  int num_gpus = 0;
  std::vector<std::string> warnings;
  std::vector<TableUse> tables_used;
};

// Throws ScenarioError where the scenario asks for something impossible (a model that does not fit,
// a request longer than the KV cache, a malformed trace).
// Where `spill` names a directory, steps are kept in an unnamed file there instead of in memory
// (ServiceResult::step_store), as a long run needs it.
RunResult run_scenario(const Scenario& scenario, const Progress& progress = {},
                       const std::filesystem::path& spill = {});

// One step of `batch` on one replica. Throws ScenarioError or std::invalid_argument.
StepResult simulate_step(const Scenario& scenario, const Batch& batch, StepLevel level);

// A step that a replica took.
struct ReplicaStep {
  int replica = 0;  // prefill and decode apart: those of prefill first
  Seconds start;
  Batch batch;
};
// What the scenario's simulated replicas would have taken for each of `steps`, which lie in order
// of time: what a replica did before counts (power, steps prepared). Throws ScenarioError, and
// std::invalid_argument for an empty batch or a replica that there is none of.
std::vector<Seconds> replayed_durations(const Scenario& scenario,
                                        std::span<const ReplicaStep> steps);

// The decode-only step of median duration, each step of a fast-forward counting once; the most
// common kind of step where the run has none. Exposed for tests.
Batch median_decode_step(const ServiceResult& service);

}  // namespace orrery
