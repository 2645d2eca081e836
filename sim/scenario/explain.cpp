#include "sim/scenario/explain.h"

#include <variant>

#include "sim/des/simulate.h"
#include "sim/parallel/output_projection.h"
#include "sim/scenario/assembly.h"
#include "sim/serve/megakernel_step.h"
#include "sim/serve/step_time.h"

namespace orrery {
namespace {

std::string call_of(const Op& op) {
  if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
    std::string text = kernel->kernel + " " + std::string(to_text(kernel->dtype));
    for (const Dim& dim : kernel->dims) text += " " + dim.name + "=" + std::to_string(dim.size);
    return text;
  }
  if (const auto* comm = std::get_if<CommOp>(&op.body)) {
    return std::string(to_text(comm->kind)) + " " + std::string(to_text(comm->dtype)) + " " +
           to_text(comm->bytes_per_rank) + (comm->is_copied ? " copied" : "");
  }
  return std::string(to_text(std::get<HostOp>(op.body).kind));
}

}  // namespace

StepExplanation explain_step(const Scenario& scenario, const Batch& batch, KnownToHost known) {
  const Assembly assembly(scenario);
  const std::vector<std::int64_t> sizes = graph_batch_sizes(scenario);
  const Plan plan = at_key(scenario, "model", [&] {
    return step_plan(scenario.model_config, executed_shape(batch, scenario.mesh, sizes),
                     lowering_options(scenario), scenario.mesh);
  });
  StepExplanation explanation;
  explanation.mode = launch_mode(scenario, batch);
  const CostModel& cost = assembly.cost(explanation.mode);
  const int rank = plan.ranks(plan.ops().front().ranks).front();
  const int first_ffn = scenario.mesh.ffn_instances > 0
                            ? num_ranks(scenario.mesh) - num_ffn_ranks(scenario.mesh)
                            : rank;
  explanation.weights = memory_of(plan, rank).weights;
  explanation.output_projections = output_projection_bytes(plan, rank);
  at_key(scenario, "provider", [&] {
    StepTimes times(steps_config(scenario, assembly, false));
    explanation.plans_attention = times.plans_attention();
    explanation.prepares = times.prepares();
    explanation.corrections = times.explain(batch, nullptr, known);
    explanation.duration = times.step(batch, nullptr, known).duration;
    explanation.device = times.device_time(batch).duration;
    explanation.deviations = times.deviations(batch);
    if (explanation.mode == LaunchMode::kMegakernel) {
      const std::string name(to_text(explanation.mode));
      explanation.ops.push_back(
          {.name = name,
           .call = "one kernel, " + std::to_string(batch.num_decodes) + " decodes at " +
                   std::to_string(mean_context(batch)),
           .price = {.price = {.time = explanation.device,
                               .basis = Basis::kRoofline,
                               .spread = kMegakernelSpread},
                     .rows = "its program, run by the model of the machine"}});
      return;
    }
    for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
      const Op& op = plan.ops()[static_cast<std::size_t>(id)];
      if (!plan.contains(op.ranks, rank) && !plan.contains(op.ranks, first_ffn)) continue;
      explanation.ops.push_back({.name = printed_name(op),
                                 .call = call_of(op),
                                 .copies = plan.multiplicity(id),
                                 .price = cost.explain(plan, op)});
    }
    if (scenario.mesh.ffn_instances > 0) {
      const Timeline timeline = simulate(price(plan, cost), assembly.machine(), cost,
                                         {.level = StepLevel::kRepresentative});
      explanation.sides = step_sides(plan, timeline, scenario.mesh);
    }
  });
  return explanation;
}

}  // namespace orrery
