// Times of single operations on the quickstart scenario: lowering, pricing, closed form, step
// times.
//     build/tests/bench/hot_paths

#include <benchmark/benchmark.h>

#include <filesystem>

#include "sim/scenario/assembly.h"
#include "sim/serve/step_templates.h"

namespace orrery {
namespace {

const Scenario& quickstart() {
  static const Scenario scenario =
      load_scenario(std::filesystem::path(ORRERY_SOURCE_DIR) / "scenarios/quickstart.yaml",
                    {ORRERY_SOURCE_DIR}, {});
  return scenario;
}

const Assembly& assembly() {
  static const Assembly made(quickstart());
  return made;
}

const Batch& mixed_batch() {
  static const Batch batch{
      .prefill = {{.query = 1155, .context = 0}}, .num_decodes = 32, .decode_context = 32 * 1300};
  return batch;
}

Plan quickstart_plan() {
  return parallelize(
      lower(quickstart().model_config, mixed_batch(), lowering_options(quickstart())),
      quickstart().mesh);
}

void lower_and_parallelize(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(quickstart_plan());
}
BENCHMARK(lower_and_parallelize);

void price_a_plan(benchmark::State& state) {
  const Plan plan = quickstart_plan();
  for (auto _ : state) benchmark::DoNotOptimize(price(plan, assembly().eager_cost()));
}
BENCHMARK(price_a_plan);

void closed_form_of_a_priced_plan(benchmark::State& state) {
  const Plan plan = quickstart_plan();
  const PricedPlan priced = price(plan, assembly().eager_cost());
  for (auto _ : state) benchmark::DoNotOptimize(closed_form(priced, assembly().eager_cost()));
}
BENCHMARK(closed_form_of_a_priced_plan);

void kernel_asked_for_again(benchmark::State& state) {
  const Plan plan = quickstart_plan();
  const auto& op = std::get<KernelOp>(plan.ops().at(1).body);
  for (auto _ : state) benchmark::DoNotOptimize(assembly().eager_cost().kernel(op));
}
BENCHMARK(kernel_asked_for_again);

void verify_a_plan(benchmark::State& state) {
  const Plan plan = quickstart_plan();
  for (auto _ : state) verify(plan);
}
BENCHMARK(verify_a_plan);

}  // namespace
}  // namespace orrery
