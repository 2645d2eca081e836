#include "sim/scenario/step_timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "sim/scenario/assembly.h"

namespace orrery {
namespace {

Seconds now() {
  return Seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace

StepTiming time_step(const Scenario& scenario, const Batch& batch, StepLevel level, int repeats) {
  const Assembly assembly(scenario);
  const CostModel& cost = assembly.graph_cost();
  StepTiming timing;
  const Seconds begin = now();
  const Plan plan = at_key(scenario, "model", [&] {
    return step_plan(scenario.model_config, batch, lowering_options(scenario), scenario.mesh);
  });
  const PricedPlan priced =
      at_key(scenario, "provider", [&] { return price(plan, cost, Clock::kLimited); });
  timing.lower = now() - begin;
  timing.num_ranks = plan.num_ranks();
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    timing.num_ops += plan.multiplicity(static_cast<OpId>(i));
  }
  std::vector<Seconds> walls;
  for (int i = 0; i < std::max(repeats, 1); ++i) {
    const Seconds start = now();
    timing.makespan = level == StepLevel::kClosedForm
                          ? closed_form(priced, cost)
                          : makespan(simulate(priced, assembly.machine(), cost,
                                              {.level = level, .record_links = false}));
    walls.push_back(now() - start);
  }
  std::ranges::nth_element(walls, walls.begin() + static_cast<std::ptrdiff_t>(walls.size() / 2));
  timing.wall = walls[walls.size() / 2];
  return timing;
}

}  // namespace orrery
