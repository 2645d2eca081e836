#include "sim/serve/step_time.h"

#include <algorithm>

#include "sim/parallel/rank_rows.h"

namespace orrery {
namespace {

// Of a plan without a closed form: kernels of two streams share the GPU, which the heap leaves out.
StepLevel level_of(const Plan& plan) {
  const auto is_beside = [](const Op& op) {
    return op.stream != 0 && std::holds_alternative<KernelOp>(op.body);
  };
  return std::ranges::any_of(plan.ops(), is_beside) ? StepLevel::kRepresentative : StepLevel::kHeap;
}

Seconds makespan_of(const StepSetup& setup, const PricedPlan& priced) {
  const bool is_closed = setup.level == StepLevel::kClosedForm;
  if (is_closed && priced.is_chain) return closed_form(priced, *setup.cost);
  return makespan(
      simulate(priced, *setup.machine, *setup.cost,
               {.level = is_closed ? level_of(*priced.plan) : setup.level, .record_links = false}));
}

}  // namespace

std::optional<std::int64_t> graph_rows(const Batch& batch, int dp,
                                       std::span<const std::int64_t> captured) {
  if (!batch.prefill.empty()) return std::nullopt;
  const std::int64_t of_rank = (batch.num_decodes + dp - 1) / dp;
  const auto size = std::ranges::lower_bound(captured, of_rank);
  if (size == captured.end()) return std::nullopt;
  return *size * dp;
}

StepShape executed_shape(const Batch& batch, const Mesh& mesh,
                         std::span<const std::int64_t> captured) {
  StepShape shape = dealt_shape(batch, mesh);
  if (const std::optional<std::int64_t> rows = graph_rows(batch, mesh.dp, captured)) {
    shape.tokens = *rows;
    shape.seqs = *rows;
    shape.decode_rows = *rows;
  }
  return shape;
}

DeviceTime step_time(const StepSetup& setup, const StepShape& shape) {
  const Plan plan = step_plan(setup.model, shape, setup.lowering, setup.mesh);
  const PricedPlan priced = price(plan, *setup.cost);
  DeviceTime time{.duration = makespan_of(setup, priced),
                  .basis = priced.basis,
                  .arithmetic = priced.arithmetic,
                  .energy = priced.energy};
  time.limited = setup.cost->options().power.acts()
                     ? makespan_of(setup, price(plan, *setup.cost, Clock::kLimited))
                     : time.duration;
  return time;
}

DeviceTime step_time(const StepSetup& setup, const Batch& batch) {
  return step_time(setup, dealt_shape(batch, setup.mesh));
}

}  // namespace orrery
