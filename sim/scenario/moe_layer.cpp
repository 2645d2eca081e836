#include "sim/scenario/moe_layer.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/kernel_spec.h"
#include "sim/cost/symmetric_layout.h"
#include "sim/scenario/assembly.h"

namespace orrery {

namespace {

void add_work(MoeLayerResult& result) {
  const int rank = result.plan.ranks(result.plan.ops().front().ranks).front();
  for (const Op& op : result.plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !result.plan.contains(op.ranks, rank)) continue;
    const Work work = work_of(*kernel);
    result.bytes_read += work.bytes_read;
    result.bytes_written += work.bytes_written;
  }
}

std::optional<MoeKernel> kernel_of_layer(const Plan& plan, int rank, const MachineSpec& spec,
                                         const CostModel& cost) {
  const Device& device = spec.device;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !plan.contains(op.ranks, rank)) continue;
    if (routed_role(*kernel) != RoutedRole::kLayer) continue;
    const FusedMoeShape shape = fused_moe_shape(kernel->dtype, kernel->dims);
    const int num_sms = std::max(1, device.num_sms);
    return MoeKernel{.shape = shape,
                     .buffers = memory_of(fused_moe_buffers(shape, num_sms)),
                     .symmetric_layout = symmetric_layout_estimate({.tokens = shape.tokens,
                                                                    .hidden = shape.hidden,
                                                                    .experts = shape.experts,
                                                                    .element = Bytes(2)}),
                     .times = moe_tile_times(shape.is_fp8, device.dense_flops.at(kernel->dtype),
                                             device.hbm_bandwidth),
                     .num_sms = num_sms,
                     .choices = cost.options().slot_choices,
                     .network = network_of(spec)};
  }
  return std::nullopt;
}

}  // namespace

void check_layer_mode(LaunchMode mode, const Plan& plan) {
  if (mode == LaunchMode::kEager) return;
  for (const Op& op : plan.ops()) {
    const auto* host = std::get_if<HostOp>(&op.body);
    if (host == nullptr || host->kind != HostKind::kD2hSync) continue;
    throw std::invalid_argument("op \"" + op.name +
                                "\" has the host wait for the device, which no graph can hold; "
                                "expected mode eager, or design shuffling or padding without "
                                "expert_comm eager, copies or dedup");
  }
}

PlanCounts count_ops(const Plan& plan) {
  PlanCounts counts;
  if (plan.ops().empty()) return counts;
  const int rank = plan.ranks(plan.ops().front().ranks).front();
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    const Op& op = plan.ops()[i];
    if (!plan.contains(op.ranks, rank)) continue;
    const std::int64_t times = plan.multiplicity(static_cast<OpId>(i));
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
      counts.kernels += is_launched(*kernel) ? times : 0;
    } else if (const auto* host = std::get_if<HostOp>(&op.body)) {
      counts.syncs += host->kind == HostKind::kD2hSync ? times : 0;
    } else {
      counts.collectives += times;
    }
  }
  return counts;
}

MoeLayerResult simulate_moe_layer(const Scenario& scenario, const MoeLayerRequest& request) {
  const Assembly assembly(scenario);
  MoeLayerResult result{.request = request};
  at_key(scenario, "model", [&] {
    result.whole = moe_layer_plan(scenario.model_config, request.tokens, lowering_options(scenario),
                                  request.imposes_scores);
  });
  at_key(scenario, scenario.disaggregation ? "disaggregation" : "placement",
         [&] { result.plan = parallelize(result.whole, scenario.mesh); });
  check_layer_mode(request.mode, result.plan);
  const CostModel& cost =
      request.mode == LaunchMode::kGraph ? assembly.graph_cost() : assembly.eager_cost();
  at_key(scenario, "provider", [&] {
    verify(result.plan);
    const PricedPlan priced = price(result.plan, cost, Clock::kLimited);
    result.timeline = simulate(priced, assembly.machine(), cost, {.level = request.level});
    result.basis = priced.basis;
  });
  result.duration = makespan(result.timeline);
  const int rank = result.plan.ranks(result.plan.ops().front().ranks).front();
  const MemoryUse memory = memory_of(result.plan, rank);
  result.weights = memory.weights;
  result.activations = memory.activations;
  result.counts = count_ops(result.plan);
  add_work(result);
  result.kernel = kernel_of_layer(result.plan, rank, scenario.machine_spec, cost);
  return result;
}

}  // namespace orrery
