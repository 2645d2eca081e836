#include "sim/scenario/assembly.h"

#include <algorithm>

namespace orrery {

namespace {

Provider load_provider(const Scenario& scenario) {
  return scenario.provider_directory.empty() ? Provider()
                                             : Provider::load(scenario.provider_directory);
}

CollectiveTables load_collectives(const Scenario& scenario) {
  return scenario.collectives_directory.empty()
             ? CollectiveTables()
             : CollectiveTables::load(scenario.collectives_directory);
}

CostModel make_cost(const Scenario& scenario, const Machine& machine, const Provider& provider,
                    const CollectiveTables& collectives, LaunchMode mode) {
  CostOptions options;
  options.launch_mode = mode;
  options.host = scenario.engine_profile.host;
  options.all_reduce_implementation = scenario.engine_profile.all_reduce_implementation;
  return at_key(scenario, "provider", [&] {
    return CostModel(machine, scenario.provider_directory.empty() ? nullptr : &provider,
                     scenario.collectives_directory.empty() ? nullptr : &collectives, options);
  });
}

}  // namespace

Assembly::Assembly(const Scenario& scenario)
    : machine_(at_key(scenario, "machine", [&] { return make_machine(scenario.machine_spec); })),
      provider_(at_key(scenario, "provider", [&] { return load_provider(scenario); })),
      collectives_(at_key(scenario, "machine", [&] { return load_collectives(scenario); })),
      graph_cost_(make_cost(scenario, machine_, provider_, collectives_, LaunchMode::kGraph)),
      eager_cost_(make_cost(scenario, machine_, provider_, collectives_, LaunchMode::kEager)) {}

std::vector<std::int64_t> graph_batch_sizes(const Scenario& scenario) {
  const EngineProfile& profile = scenario.engine_profile;
  std::vector<std::int64_t> sizes;
  if (profile.launch_mode == LaunchMode::kGraph) {
    sizes = profile.graph_batch_sizes;
    // Larger batches than max_num_seqs never run, so the engine captures none above the next size.
    const auto first_unused = std::ranges::lower_bound(sizes, scenario.engine.max_num_seqs);
    if (first_unused != sizes.end()) {
      sizes.erase(first_unused + 1, sizes.end());
    }
  }
  return sizes;
}

LoweringOptions lowering_options(const Scenario& scenario) {
  LoweringOptions options;
  options.precision = scenario.precision;
  options.mla_form = scenario.engine_profile.mla_form;
  return options;
}

}  // namespace orrery
