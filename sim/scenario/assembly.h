#pragma once

// The rooms of one scenario put together: machine, measured tables, cost model. Neither copied nor
// moved, because the parts refer to each other.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/des/simulate.h"
#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/scenario/scenario.h"
#include "sim/serve/capacity.h"
#include "sim/serve/simulated_steps.h"

namespace orrery {

struct StepResult;  // sim/scenario/run.h

// Kernels that one provider's table of one device answered (some calls of).
struct TableUse {
  std::string provider;
  std::string device;
  Origin origin = Origin::kOwn;
  std::vector<std::string> kernels;  // ascending
};
// "gemm, moe from vllm-0.24.0 on h200-sxm".
std::string to_text(const TableUse& use);

class Assembly {
 public:
  // Throws ScenarioError when a table is malformed or the machine cannot be built.
  explicit Assembly(const Scenario& scenario);
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  [[nodiscard]] const Machine& machine() const { return machine_; }
  // Kernels as nodes of a replayed CUDA graph, and launched eagerly. Of a step that is one kernel
  // `cost` has the work of its ops, as those of a graph.
  [[nodiscard]] const CostModel& graph_cost() const { return cost(LaunchMode::kGraph); }
  [[nodiscard]] const CostModel& eager_cost() const { return cost(LaunchMode::kEager); }
  [[nodiscard]] const CostModel& cost(LaunchMode mode) const {
    return costs_[mode == LaunchMode::kEager ? 0 : 1];
  }
  // Of steps that replay pieces, null where the engine has none: eager_launch is the host's time of
  // a layer's launches between them.
  [[nodiscard]] const CostModel* mixed_piece_cost() const { return mixed_pieces_.get(); }
  [[nodiscard]] const CostModel* decode_piece_cost() const { return decode_pieces_.get(); }
  // The kernel tables that answered so far, in the order in which they are asked.
  [[nodiscard]] std::vector<TableUse> tables_used() const;
  // As of CostModel, of all of them.
  [[nodiscard]] std::vector<CollectiveKind> unmeasured_collectives() const;
  // Of FFNs on a machine of their own; else null.
  [[nodiscard]] const Assembly* ffn() const { return ffn_.get(); }

 private:
  std::unique_ptr<Assembly> ffn_;
  Machine machine_;
  std::vector<KernelDirectory> kernel_directories_;
  std::string moe_backend_;  // of design fused, as the scenario chose it; "": none
  // Shared with the other runs of the process (sim/cost/cost.h).
  std::vector<std::shared_ptr<const Provider>> providers_;
  std::vector<std::shared_ptr<const CollectiveTables>> collectives_;
  std::array<CostModel, 2> costs_;  // by launch mode
  std::unique_ptr<CostModel> mixed_pieces_;
  std::unique_ptr<CostModel> decode_pieces_;
  [[nodiscard]] std::vector<const CostModel*> all_costs() const;
};

// FFNs on a machine of their own as a scenario by itself, on that machine. REQUIRES: scenario.ffn.
Scenario ffn_alone(const Scenario& scenario);

// The machine as far as anything of the scenario is simulated on it; where FFNs are on one of their
// own, as far as attention is.
MachineSpec simulated_part(const Scenario& scenario);

// What a GPU of the scenario's holds. Throws ScenarioError when the model does not fit.
MemoryBudget memory_budget(const Scenario& scenario);

// `plan` run again and again: times between those at the full clock and those at the power limit.
// A GPU of a pipeline pauses while the other stages have the step.
PricedPlan price_repeated(const Assembly& assembly, const Scenario& scenario, const Plan& plan,
                          LaunchMode mode);

// What a service takes for its steps. `contexts_differ`: decodes of a batch have different ones.
SimulatedStepsConfig steps_config(const Scenario& scenario, const Assembly& assembly,
                                  bool contexts_differ);

// What the passes take that draft tokens. REQUIRES: scenario.speculative.
SimulatedStepsConfig draft_config(const Scenario& scenario, const Assembly& assembly,
                                  bool contexts_differ);

// As in run.h, on rooms that are put together already.
StepResult simulate_step(const Assembly& assembly, const Scenario& scenario, const Batch& batch,
                         StepLevel level);

// Decode batch sizes that the engine captured, ascending; none when it launches everything eagerly.
std::vector<std::int64_t> graph_batch_sizes(const Scenario& scenario);

// Of these, those that run as one kernel where the engine's launch_mode is megakernel: sizes that
// the kernel takes, as long as they fit. Throws ScenarioError at `engine` when there are none,
// with the megakernel's own reason.
std::vector<std::int64_t> megakernel_batch_sizes(const Scenario& scenario);

// Throws std::invalid_argument unless the engine has a megakernel, on this device, and it runs
// steps of so many decodes.
void require_megakernel(const Scenario& scenario, std::int64_t num_decodes);

// The engine's on the scenario's device; for scenarios that require_megakernel() takes.
megakernel::MachineTimes megakernel_times(const Scenario& scenario);

// How a step of `batch` is launched.
LaunchMode launch_mode(const Scenario& scenario, const Batch& batch);

LoweringOptions lowering_options(const Scenario& scenario);

// Runs `part`; a std::invalid_argument from it becomes a ScenarioError at the top-level key `key`,
// at "disaggregation" one that names the side.
template <typename Part>
auto at_key(const Scenario& scenario, std::string_view key, Part part) {
  try {
    return part();
  } catch (const ScenarioError&) {
    throw;
  } catch (const std::invalid_argument& error) {
    const auto found = scenario.where.find(std::string(key));
    const Location& where =
        found != scenario.where.end() ? found->second : scenario.where.at(std::string());
    const bool is_of_side = key == "disaggregation" && !scenario.side.empty();
    fail_at(where,
            std::string(key) + (is_of_side ? "." + scenario.side : "") + ": " + error.what());
  }
}

}  // namespace orrery
