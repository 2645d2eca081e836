#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "sim/plan/plan.h"
#include "tests/plan/example_plan.h"

namespace orrery {
namespace {

const Op& op_named(const Plan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.ops(), name, &Op::name);
  if (found == plan.ops().end()) throw std::invalid_argument("no op " + name);
  return *found;
}

OpId id_of(const Plan& plan, const std::string& name) {
  return static_cast<OpId>(&op_named(plan, name) - plan.ops().data());
}

std::int64_t copies_of(const ExamplePlan& e, TensorId tensor) {
  return num_copies(e.plan)[static_cast<std::size_t>(tensor)];
}

TEST(NumCopies, WeightsOfALayerHaveOnePerLayer) {
  const ExamplePlan e = example_plan();
  EXPECT_EQ(copies_of(e, e.weight), kLayers);
  EXPECT_EQ(copies_of(e, e.norm_weight), kLayers);
}

TEST(NumCopies, ATiedWeightUsedTwiceOutsideTheLayersIsOne) {
  const ExamplePlan e = example_plan();
  EXPECT_EQ(copies_of(e, e.table), 1);
}

TEST(NumCopies, AWeightUsedInsideAndOutsideOfTheLayersIsShared) {
  ExamplePlan e = example_plan();
  e.plan.add_op({"again", HostOp{}, 0, 0, {e.weight}, {}, {}});
  EXPECT_EQ(copies_of(e, e.weight), 1);
}

TEST(NumCopies, RunsOfEqualCountShareTheWeightsOfEachLayer) {
  // Two micro-batches through the same layers: copy i of both runs uses weight i.
  Plan plan;
  const GroupId group = plan.add_group({0});
  const TensorId weight = plan.add_tensor({"w", DType::kBf16, {}, TensorRole::kWeight, group});
  for (int i = 0; i < 2; ++i) plan.add_op({"layer", HostOp{}, group, 0, {weight}, {}, {}});
  plan.add_repeat({0, 1, 5});
  plan.add_repeat({1, 2, 5});
  EXPECT_EQ(num_copies(plan).front(), 5);
  const Plan unrolled = unroll(plan);
  EXPECT_EQ(unrolled.tensors().size(), 5U);
  EXPECT_EQ(unrolled.ops()[3].reads, unrolled.ops()[8].reads);
}

TEST(NumCopies, ActivationsCarriedFromCopyToCopyAreOne) {
  const ExamplePlan e = example_plan();
  EXPECT_EQ(copies_of(e, e.residual), 1);
  EXPECT_EQ(copies_of(e, e.normed), kLayers);
}

TEST(NumCopies, AnActivationReadAfterTheRunIsOne) {
  ExamplePlan e = example_plan();
  e.plan.add_op({"probe", HostOp{}, 0, 0, {e.normed}, {}, {}});
  EXPECT_EQ(copies_of(e, e.normed), 1);
}

TEST(NumCopies, AnInputThatEveryLayerReadsIsOne) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  const TensorId positions = plan.add_tensor({"pos", DType::kInt32, {}, TensorRole::kInput, group});
  plan.add_op({"rope", HostOp{}, group, 0, {positions}, {}, {}});
  plan.add_repeat({0, 1, 5});
  EXPECT_EQ(num_copies(plan).front(), 1);
}

TEST(Unroll, WritesEachRunOutCountTimes) {
  const ExamplePlan e = example_plan();
  const Plan unrolled = unroll(e.plan);
  std::int64_t expected = 0;
  for (OpId id = 0; static_cast<std::size_t>(id) < e.plan.ops().size(); ++id) {
    expected += e.plan.multiplicity(id);
  }
  EXPECT_EQ(static_cast<std::int64_t>(unrolled.ops().size()), expected);
  EXPECT_TRUE(unrolled.repeats().empty());
  EXPECT_EQ(unrolled.num_ranks(), e.plan.num_ranks());
  EXPECT_NO_THROW(verify(unrolled));
}

TEST(Unroll, CopiesFollowEachOtherInOrder) {
  const Plan unrolled = unroll(example_plan().plan);
  EXPECT_LT(id_of(unrolled, "embed"), id_of(unrolled, "norm#0"));
  EXPECT_EQ(id_of(unrolled, "norm#1"), id_of(unrolled, "add#0") + 1);
  EXPECT_LT(id_of(unrolled, "add#2"), id_of(unrolled, "lm_head"));
}

TEST(Unroll, EachCopyHasItsOwnWeightsAndPrivateActivations) {
  const Plan unrolled = unroll(example_plan().plan);
  const Op& gemm0 = op_named(unrolled, "proj#0");
  const Op& gemm1 = op_named(unrolled, "proj#1");
  EXPECT_NE(gemm0.reads, gemm1.reads);
  EXPECT_EQ(unrolled.tensors()[static_cast<std::size_t>(gemm1.reads[1])].name, "proj.weight#1");
  // Each copy reads what its own norm wrote.
  EXPECT_EQ(gemm1.reads[0], op_named(unrolled, "norm#1").writes[0]);
}

TEST(Unroll, TheResidualIsOneTensorThroughAllCopies) {
  const Plan unrolled = unroll(example_plan().plan);
  const TensorId residual = op_named(unrolled, "embed").writes[0];
  EXPECT_EQ(op_named(unrolled, "add#0").writes[0], residual);
  EXPECT_EQ(op_named(unrolled, "norm#2").reads[0], residual);
  EXPECT_EQ(op_named(unrolled, "lm_head").reads[0], residual);
}

TEST(Unroll, AfterAnOpOfARunMeansItsLastCopy) {
  const Plan unrolled = unroll(example_plan().plan);
  EXPECT_EQ(op_named(unrolled, "sample").after,
            std::vector<OpId>{id_of(unrolled, "proj.all_reduce#2")});
}

TEST(Unroll, AfterInsideARunStaysInTheCopy) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  plan.add_op({"a", HostOp{}, group, 0, {}, {}, {}});
  plan.add_op({"b", HostOp{}, group, 1, {}, {}, {0}});
  plan.add_repeat({0, 2, 3});
  const Plan unrolled = unroll(plan);
  for (OpId copy = 0; copy < 3; ++copy) {
    EXPECT_EQ(unrolled.ops()[static_cast<std::size_t>(2 * copy + 1)].after,
              std::vector<OpId>{2 * copy});
  }
}

TEST(Unroll, LeavesAPlanWithoutRepeatsAsItIs) {
  const Plan unrolled = unroll(example_plan().plan);
  EXPECT_EQ(unroll(unrolled), unrolled);
}

TEST(Unroll, KeepsMemoryAndWeights) {
  // A law: repeats are a short form, so what is counted on them is what is counted unrolled.
  const Plan plan = example_plan().plan;
  const Plan unrolled = unroll(plan);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(num_weight_elements(plan, rank), num_weight_elements(unrolled, rank));
    EXPECT_EQ(memory_of(plan, rank).weights, memory_of(unrolled, rank).weights);
    EXPECT_EQ(memory_of(plan, rank).activations, memory_of(unrolled, rank).activations);
  }
}

}  // namespace
}  // namespace orrery
