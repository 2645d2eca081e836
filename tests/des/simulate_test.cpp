// The public interface with a real cost model (roofline only: no provider).

#include "sim/des/simulate.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/des/network_simgrid.h"
#include "tests/des/step_builder.h"

namespace orrery::test {
namespace {

Machine h200_like(int num_gpus) {
  MachineSpec spec = nvswitch_machine(num_gpus, 132).spec;
  spec.device.hbm_bandwidth = BytesPerSecond(4.8e12);
  spec.device.dense_flops = {{DType::kBf16, FlopsPerSecond(989e12)}};
  return make_machine(spec);
}

CostModel roofline(const Machine& machine, LaunchMode mode) {
  CostOptions options;
  options.launch_mode = mode;
  options.host.eager_launch = Seconds(5e-6);
  options.host.graph_node = Seconds(1e-6);
  return {machine, nullptr, nullptr, options};
}

// Tensor-parallel layers: GEMM, all-reduce, norm.
Plan layers_on(const std::vector<int>& ranks, int layers) {
  Plan plan;
  const GroupId group = plan.add_group(ranks);
  const auto tensor = [&](const std::string& name, TensorRole role, std::vector<Axis> axes) {
    return plan.add_tensor({.name = name,
                            .dtype = DType::kBf16,
                            .axes = std::move(axes),
                            .role = role,
                            .ranks = group});
  };
  const std::vector<Axis> rows{{"tokens", 64}, {"hidden", 4096}};
  const TensorId w = tensor("w", TensorRole::kWeight, {{"hidden", 4096}, {"heads", 4096}});
  const TensorId gain = tensor("gain", TensorRole::kWeight, {{"hidden", 4096}});
  const TensorId x = tensor("x", TensorRole::kInput, rows);
  const TensorId y = tensor("y", TensorRole::kActivation, rows);
  const OpId first = plan.add_op(
      {.name = "gemm",
       .body = KernelOp{"gemm", DType::kBf16, {{"m", 64, ""}, {"n", 4096, ""}, {"k", 4096, ""}}},
       .ranks = group,
       .reads = {x, w},
       .writes = {y}});
  plan.add_op({.name = "reduce",
               .body = CommOp{CollectiveKind::kAllReduce, DType::kBf16, Bytes(64 * 4096 * 2)},
               .ranks = group,
               .reads = {y},
               .writes = {y}});
  plan.add_op(
      {.name = "norm",
       .body = KernelOp{"rms_norm", DType::kBf16, {{"tokens", 64, ""}, {"hidden", 4096, ""}}},
       .ranks = group,
       .reads = {y, gain},
       .writes = {x}});
  plan.add_repeat({first, static_cast<OpId>(plan.ops().size()), layers});
  return plan;
}

TEST(Simulate, AllLevelsAgreeOnTensorParallelLayers) {
  const Machine machine = h200_like(8);
  const Plan plan = layers_on(range(0, 8), 12);
  for (const LaunchMode mode : {LaunchMode::kGraph, LaunchMode::kEager}) {
    const CostModel cost = roofline(machine, mode);
    const PricedPlan priced = price(plan, cost);
    ASSERT_TRUE(priced.is_chain) << priced.why_not_chain;
    const double expected = closed_form(priced, cost).value();
    EXPECT_GT(expected, 0);
    for (const StepLevel level : {StepLevel::kClosedForm, StepLevel::kHeap,
                                  StepLevel::kRepresentative, StepLevel::kAllRanks}) {
      if (!des::has_simgrid() && level >= StepLevel::kRepresentative) continue;
      const Timeline timeline = simulate(plan, machine, cost, {.level = level});
      EXPECT_NEAR(makespan(timeline).value(), expected, 1e-9 * expected) << to_text(level);
    }
  }
}

TEST(Simulate, TimesAreThoseOfTheCostModel) {
  const Machine machine = h200_like(8);
  const Plan plan = layers_on(range(0, 8), 1);
  const CostModel cost = roofline(machine, LaunchMode::kGraph);
  const PricedPlan priced = price(plan, cost);
  for (std::size_t i = 0; i < plan.ops().size(); ++i) {
    EXPECT_EQ(priced.times[i].time, cost.price(plan, plan.ops()[i]).time) << i;
  }
}

TEST(Simulate, APlanThatDoesNotVerifyIsAnError) {
  const Machine machine = h200_like(2);
  Plan plan;
  plan.add_op({.name = "bad",
               .body = KernelOp{"gemm", DType::kBf16, {{"m", 64, ""}}},
               .ranks = plan.add_group({0})});
  const CostModel cost = roofline(machine, LaunchMode::kGraph);
  EXPECT_THROW((void)simulate(plan, machine, cost), std::invalid_argument);
}

TEST(Simulate, PricingAPlanLargerThanTheMachineIsAnError) {
  const Machine machine = h200_like(2);
  const CostModel cost = roofline(machine, LaunchMode::kGraph);
  EXPECT_THROW((void)price(layers_on(range(0, 4), 1), cost), std::invalid_argument);
}

}  // namespace
}  // namespace orrery::test
