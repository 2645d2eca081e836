#pragma once

// A scenario's service: its rooms put together once, to be asked for any number of workloads.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/scenario/assembly.h"
#include "sim/scenario/scenario.h"
#include "sim/serve/capacity.h"
#include "sim/serve/expert_steps.h"
#include "sim/serve/serve.h"
#include "sim/serve/simulated_steps.h"
#include "sim/serve/step_store.h"
#include "sim/serve/transfer.h"

namespace orrery {

// Decodes of one batch have contexts of different lengths where prompts have.
bool contexts_differ(const Workload& workload);

// What a disaggregated run has beside what every run has.
struct DisaggregatedRun {
  MemoryBudget prefill_memory;  // RunResult::memory is the decode side's
  // By side; RunResult::tables_used has them together.
  std::vector<TableUse> prefill_tables;
  std::vector<TableUse> decode_tables;
  std::string transfer_source;  // of the transfers' times
};

// How long the steps of one kind of replica take, whatever the engine's limits, its memory, the
// workload, the SLO and the router are. Thread safe. Neither copied nor moved.
class StepModel {
 public:
  // `side` is not disaggregated (disaggregated_run.h). `contexts_differ` as above, of the workloads
  // that are to be served. Throws ScenarioError.
  StepModel(const Scenario& side, bool contexts_differ);

  // Equal texts, equal models, as long as scenarios that are not as a file says have names of their
  // own.
  static std::string key(const Scenario& side, bool contexts_differ);

  [[nodiscard]] const Assembly& assembly() const { return assembly_; }
  [[nodiscard]] StepTimes& times() { return times_; }
  // Of one replica.
  [[nodiscard]] std::unique_ptr<StepBackend> make_backend();

 private:
  Assembly assembly_;
  StepTimes times_;
  std::unique_ptr<ExpertStepTimes> expert_times_;  // null: load and places of experts stay
  std::unique_ptr<StepTimes> draft_times_;         // null: nothing is drafted
  std::int64_t num_drafts_ = 0;
};

// Gives the model of a side: a new one, or one that others have too.
using StepModels =
    std::function<std::shared_ptr<StepModel>(const Scenario& side, bool contexts_differ)>;

// What GPUs of a service hold, and how long its steps take.
class ServiceModel {
 public:
  // Throws ScenarioError, where the model does not fit too.
  ServiceModel(const Scenario& scenario, bool contexts_differ, const StepModels& steps = {});

  // Of the only side, or of the one that decodes.
  [[nodiscard]] const MemoryBudget& memory() const { return memory_; }
  [[nodiscard]] StepModel& steps() const { return *steps_; }
  // Of a disaggregated service; else null.
  [[nodiscard]] const MemoryBudget* prefill_memory() const {
    return prefill_memory_ ? &*prefill_memory_ : nullptr;
  }
  [[nodiscard]] StepModel* prefill_steps() const { return prefill_steps_.get(); }

 private:
  MemoryBudget memory_;
  std::optional<MemoryBudget> prefill_memory_;
  std::shared_ptr<StepModel> steps_;
  std::shared_ptr<StepModel> prefill_steps_;
};

// GPUs of all instances; with autoscaling of as many as there may be.
int num_gpus(const Scenario& scenario);

struct ServiceOptions {
  bool record_steps = true;
  std::filesystem::path spill;  // steps lie in an unnamed file there, unless empty
  Progress progress;
};

struct ScenarioService {
  ServiceResult result;
  std::string transfer_source;  // of a disaggregated service: of the transfers' times
  KvTiersConfig kv_tiers;       // of a service that is not disaggregated, with sizes of blocks
};

// Serves `workload` as `scenario` says, at the times of `model`, which is one of the same key.
// Throws ScenarioError.
ScenarioService serve_scenario(const Scenario& scenario, const Workload& workload,
                               const ServiceModel& model, const ServiceOptions& options = {});

}  // namespace orrery
