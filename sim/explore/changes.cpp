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

// On all machines that the scenario has: both sides' of a disaggregated service, that of FFNs.
template <void (*change)(MachineSetting&)>
void on_all(Scenario& scenario) {
  change(scenario);
  if (scenario.disaggregation && scenario.disaggregation->prefill_setting) {
    change(*scenario.disaggregation->prefill_setting);
  }
  if (scenario.ffn) change(scenario.ffn->setting);
}

// Tables were measured on the device as it is: their times move to the one that it has become.
void move_tables(MachineSetting& setting) {
  for (KernelDirectory& tables : setting.kernel_tables) {
    tables.origin =
        origin(setting.provider, setting.machine_spec.device, tables.provider, tables.device);
  }
}

void more_bandwidth(MachineSetting& setting) {
  Device& device = setting.machine_spec.device;
  device.hbm_bandwidth = device.hbm_bandwidth * kMore;
  device.sharing.hbm_rate = device.sharing.hbm_rate * kMore;
  move_tables(setting);
}

void more_flops(MachineSetting& setting) {
  for (auto& [dtype, rate] : setting.machine_spec.device.dense_flops) rate = rate * kMore;
  move_tables(setting);
}

void more_memory(MachineSetting& setting) {
  Device& device = setting.machine_spec.device;
  device.hbm_capacity = device.hbm_capacity * kMore;
}

void more_links(MachineSetting& setting) {
  MachineSpec& machine = setting.machine_spec;
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

void faster_host(MachineSetting& setting) {
  EngineProfile& profile = setting.engine_profile;
  for (Seconds* time :
       {&profile.scheduler_base, &profile.scheduler_per_sequence, &profile.serve_base,
        &profile.serve_per_sequence, &profile.prefill_base, &profile.new_rows,
        &profile.new_rows_per_op, &profile.new_attention, &profile.front_end.per_request,
        &profile.front_end.per_prompt_token, &profile.front_end.per_output_token,
        &profile.host.eager_launch, &profile.host.d2h_sync}) {
    *time = *time / kMore;
  }
}

}  // namespace

std::span<const Change> changes() {
  static constexpr std::array kChanges{
      Change{"hbm_bandwidth", "25 % more HBM bandwidth", on_all<more_bandwidth>},
      Change{"flops", "25 % more FLOP/s", on_all<more_flops>},
      Change{"hbm_capacity", "25 % more HBM (KV cache)", on_all<more_memory>},
      Change{"links", "25 % faster links", on_all<more_links>},
      Change{"max_num_seqs", "25 % more seats (max_num_seqs)", more_seats},
      Change{"max_num_batched_tokens", "25 % more tokens a step (max_num_batched_tokens)",
             more_tokens},
      Change{"host", "20 % less host time", on_all<faster_host>},
  };
  return kChanges;
}

Scenario changed(Scenario scenario, const Change& change) {
  change.apply(scenario);
  scenario.name += " with " + std::string(change.what);
  return scenario;
}

}  // namespace orrery
