// What a served request and a served step take from the heap, which tells lost speed on any machine
// and at any load: a workload has millions of requests, a service hundreds of thousands of steps.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "sim/parallel/rank_rows.h"
#include "sim/scenario/assembly.h"
#include "sim/serve/service_checks.h"
#include "sim/serve/step_templates.h"

namespace {

std::atomic<std::int64_t> num_allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++num_allocations;
  if (void* found = std::malloc(size)) return found;
  throw std::bad_alloc();
}
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // it does not see that new is malloc
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace orrery {
namespace {

template <typename Work>
std::int64_t allocations_of(const Work& work) {
  const std::int64_t before = num_allocations;
  work();
  return num_allocations - before;
}

TEST(Allocations, ARequestThatIsNotRefusedTakesNone) {
  const auto checking = [](std::int64_t num_requests) {
    Workload workload;
    for (std::int64_t i = 0; i < num_requests; ++i) {
      workload.requests.push_back({.id = i, .prompt_tokens = 8, .output_tokens = 8});
    }
    const ServiceConfig config{.num_kv_blocks = 100};
    return allocations_of([&] { check_requests(workload, config); });
  };
  EXPECT_EQ(checking(1000), checking(1));
}

// A step whose templates are known took 20 when this was written, its plan 289.
TEST(Allocations, AStepWithPrefillTakesFewAndAPlanManyTimesAsMany) {
  const Scenario scenario =
      load_scenario(std::filesystem::path(ORRERY_SOURCE_DIR) / "scenarios/quickstart.yaml",
                    {ORRERY_SOURCE_DIR}, {});
  const Assembly assembly(scenario);
  const StepSetup setup{.model = scenario.model_config,
                        .mesh = scenario.mesh,
                        .lowering = lowering_options(scenario),
                        .machine = &assembly.machine(),
                        .cost = &assembly.cost(LaunchMode::kEager)};
  const StepShape shape = dealt_shape(
      {.prefill = {{.query = 1155}}, .num_decodes = 32, .decode_context = 32 * 1300}, setup.mesh);
  StepTemplates templates(setup);
  ASSERT_TRUE(templates.apply());
  static_cast<void>(templates.time(shape));
  const std::int64_t of_step = allocations_of([&] { static_cast<void>(templates.time(shape)); });
  const std::int64_t of_plan = allocations_of(
      [&] { static_cast<void>(step_plan(setup.model, shape, setup.lowering, setup.mesh)); });
  EXPECT_LE(of_step, 24);
  EXPECT_LE(10 * of_step, of_plan);
}

}  // namespace
}  // namespace orrery
