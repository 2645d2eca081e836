// Each change makes one part a quarter larger, or host times a fifth shorter.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "sim/explore/evaluate.h"

namespace orrery {

namespace {

constexpr double kMore = 1.25;

std::int64_t more(std::int64_t value) { return std::llround(static_cast<double>(value) * kMore); }

// Tables were measured on the device as it is: their times move to the one that it has become.
void move_tables(Scenario& scenario) {
  for (KernelDirectory& tables : scenario.kernel_tables) {
    tables.origin =
        origin(scenario.provider, scenario.machine_spec.device, tables.provider, tables.device);
  }
}

void more_bandwidth(Scenario& scenario) {
  Device& device = scenario.machine_spec.device;
  device.hbm_bandwidth = device.hbm_bandwidth * kMore;
  device.sharing.hbm_rate = device.sharing.hbm_rate * kMore;
  move_tables(scenario);
}

void more_flops(Scenario& scenario) {
  for (auto& [dtype, rate] : scenario.machine_spec.device.dense_flops) rate = rate * kMore;
  move_tables(scenario);
}

void more_memory(Scenario& scenario) {
  Device& device = scenario.machine_spec.device;
  device.hbm_capacity = device.hbm_capacity * kMore;
}

void more_links(Scenario& scenario) {
  MachineSpec& machine = scenario.machine_spec;
  machine.nvlink_rate = machine.nvlink_rate * kMore;
  machine.nic_rate = machine.nic_rate * kMore;
}

void more_seats(Scenario& scenario) {
  EngineConfig& engine = scenario.engine;
  engine.max_num_seqs = more(engine.max_num_seqs);
  engine.max_num_batched_tokens = std::max(engine.max_num_batched_tokens, engine.max_num_seqs);
  if (!scenario.disaggregation) return;
  for (SidePlacement* side :
       {&scenario.disaggregation->prefill, &scenario.disaggregation->decode}) {
    if (side->max_num_seqs) side->max_num_seqs = more(*side->max_num_seqs);
    if (side->max_num_batched_tokens && side->max_num_seqs) {
      side->max_num_batched_tokens = std::max(*side->max_num_batched_tokens, *side->max_num_seqs);
    }
  }
}

void more_tokens(Scenario& scenario) {
  scenario.engine.max_num_batched_tokens = more(scenario.engine.max_num_batched_tokens);
  if (!scenario.disaggregation) return;
  for (SidePlacement* side :
       {&scenario.disaggregation->prefill, &scenario.disaggregation->decode}) {
    if (side->max_num_batched_tokens) {
      side->max_num_batched_tokens = more(*side->max_num_batched_tokens);
    }
  }
}

void faster_host(Scenario& scenario) {
  EngineProfile& profile = scenario.engine_profile;
  for (Seconds* time :
       {&profile.scheduler_base, &profile.scheduler_per_sequence, &profile.serve_base,
        &profile.serve_per_sequence, &profile.prefill_base, &profile.new_rows,
        &profile.new_attention, &profile.front_end.per_request, &profile.front_end.per_prompt_token,
        &profile.front_end.per_output_token, &profile.host.eager_launch, &profile.host.d2h_sync}) {
    *time = *time / kMore;
  }
}

}  // namespace

std::span<const Change> changes() {
  static constexpr std::array kChanges{
      Change{"hbm_bandwidth", "25 % more HBM bandwidth", more_bandwidth},
      Change{"flops", "25 % more FLOP/s", more_flops},
      Change{"hbm_capacity", "25 % more HBM (KV cache)", more_memory},
      Change{"links", "25 % faster links", more_links},
      Change{"max_num_seqs", "25 % more seats (max_num_seqs)", more_seats},
      Change{"max_num_batched_tokens", "25 % more tokens a step (max_num_batched_tokens)",
             more_tokens},
      Change{"host", "20 % less host time", faster_host},
  };
  return kChanges;
}

Scenario changed(Scenario scenario, const Change& change) {
  change.apply(scenario);
  scenario.name += " with " + std::string(change.what);
  return scenario;
}

}  // namespace orrery
