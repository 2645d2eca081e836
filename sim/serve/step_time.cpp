#include "sim/serve/step_time.h"

#include <algorithm>

#include "sim/parallel/rank_rows.h"
#include "sim/plan/sides.h"
#include "sim/serve/megakernel_step.h"

namespace orrery {
namespace {

// Whether halves of a step overlap: micro-batches, but not those of a pipeline.
bool has_micro_batches_beside(const Plan& plan) {
  return std::ranges::any_of(plan.ops(),
                             [](const Op& op) { return op.micro_batch >= 0 && op.stage < 0; });
}

// Of a plan without a closed form: kernels of two streams share the GPU, and collectives take SMs
// from kernels beside them or wait for theirs, which the heap leaves out. What goes one way, as
// between stages of a pipeline, or is copied takes none.
StepLevel level_of(const Plan& plan) {
  const auto is_beside = [&](const Op& op) {
    if (op.stream == 0) return false;
    if (std::holds_alternative<KernelOp>(op.body)) return true;
    return std::holds_alternative<CommOp>(op.body) && !moves_by_copies(plan, op);
  };
  const bool shares = std::ranges::any_of(plan.ops(), is_beside) || has_micro_batches_beside(plan);
  return shares ? StepLevel::kRepresentative : StepLevel::kHeap;
}

// The kernel, or the kind of a collective or host op.
std::string name_of(const Op& op) {
  if (const auto* kernel = std::get_if<KernelOp>(&op.body)) return kernel->kernel;
  if (const auto* comm = std::get_if<CommOp>(&op.body)) return std::string(to_text(comm->kind));
  return std::string(to_text(std::get<HostOp>(op.body).kind));
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
  const std::int64_t of_rank = (batch.num_decodes + dp - 1) / dp * batch.decode_query;
  const auto size = std::ranges::lower_bound(captured, of_rank);
  if (size == captured.end()) return std::nullopt;
  return *size * dp;
}

StepShape executed_shape(const Batch& batch, const Mesh& mesh,
                         std::span<const std::int64_t> captured) {
  StepShape shape = dealt_shape(batch, mesh);
  if (const std::optional<std::int64_t> rows = graph_rows(batch, mesh.dp, captured)) {
    shape.tokens = *rows;
    shape.seqs = sampled_rows(*rows, batch);
    shape.decode_rows = *rows;
  }
  set_padding(shape, mesh, num_tokens(batch));
  return shape;
}

DeviceTime step_time(const StepSetup& setup, const StepShape& shape) {
  if (setup.megakernel != nullptr) {
    return megakernel_time(
        setup, step_plan(setup.model, megakernel_shape(shape), setup.lowering, setup.mesh));
  }
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

std::map<std::string, Seconds> step_deviations(const StepSetup& setup, const StepShape& shape) {
  if (setup.megakernel != nullptr) {
    return {{std::string(to_text(LaunchMode::kMegakernel)),
             step_time(setup, shape).duration * kMegakernelSpread}};
  }
  constexpr double kPart = 0.1;  // of a standard deviation: small enough to be linear
  const Plan plan = step_plan(setup.model, shape, setup.lowering, setup.mesh);
  const PricedPlan priced = price(plan, *setup.cost);
  const int rank = plan.ranks(plan.ops().front().ranks).front();
  const bool overlaps = has_micro_batches_beside(plan);
  std::map<std::string, Seconds> deviations;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const auto i = static_cast<std::size_t>(id);
    if (!overlaps && !plan.contains(plan.ops()[i].ranks, rank)) continue;
    const auto copies = static_cast<double>(plan.multiplicity(id));
    deviations[name_of(plan.ops()[i])] += priced.times[i].time * priced.times[i].spread * copies;
  }
  if (!overlaps) return deviations;
  const Seconds expected = makespan_of(setup, priced);
  for (auto& [name, deviation] : deviations) {
    PricedPlan moved = priced;
    for (std::size_t i = 0; i < plan.ops().size(); ++i) {
      if (name_of(plan.ops()[i]) == name) {
        moved.times[i].time = moved.times[i].time * (1 + kPart * moved.times[i].spread);
      }
    }
    deviation = (makespan_of(setup, moved) - expected) / kPart;
  }
  return deviations;
}

DeviceTime step_time(const StepSetup& setup, const Batch& batch) {
  return step_time(setup, dealt_shape(batch, setup.mesh));
}

}  // namespace orrery
