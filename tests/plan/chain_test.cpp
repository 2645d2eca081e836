// Plans run several times in a row, each time with weights of their own.

#include "sim/plan/chain.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orrery {
namespace {

// x -> a (stream 0) -> h, x -> b (stream 1) -> y, with a weight each.
Plan two_streams() {
  Plan plan;
  const GroupId ranks = plan.add_group({0});
  const auto tensor = [&](const std::string& name, TensorRole role) {
    return plan.add_tensor({.name = name,
                            .dtype = DType::kBf16,
                            .axes = {{.name = "tokens", .size = 4}, {.name = "hidden", .size = 8}},
                            .role = role,
                            .ranks = ranks});
  };
  const TensorId x = tensor("x", TensorRole::kInput);
  const TensorId a = tensor("a.weight", TensorRole::kWeight);
  const TensorId b = tensor("b.weight", TensorRole::kWeight);
  const TensorId h = tensor("h", TensorRole::kActivation);
  const TensorId y = tensor("y", TensorRole::kOutput);
  plan.add_op({.name = "a",
               .body = KernelOp{.kernel = "gemm", .dtype = DType::kBf16},
               .ranks = ranks,
               .reads = {x, a},
               .writes = {h}});
  plan.add_op({.name = "b",
               .body = KernelOp{.kernel = "gemm", .dtype = DType::kBf16},
               .ranks = ranks,
               .stream = 1,
               .reads = {x, b},
               .writes = {y}});
  return plan;
}

TEST(Chain, EachLayerHasWeightsOfItsOwnAndTheSameInput) {
  const Plan chain = chained(two_streams(), 3);
  int inputs = 0;
  std::vector<std::string> weights;
  for (const Tensor& tensor : chain.tensors()) {
    if (tensor.role == TensorRole::kInput) ++inputs;
    if (tensor.role == TensorRole::kWeight) weights.push_back(tensor.name);
  }
  EXPECT_EQ(inputs, 1);
  EXPECT_EQ(weights, (std::vector<std::string>{"a.weight#0", "a.weight#1", "a.weight#2",
                                               "b.weight#0", "b.weight#1", "b.weight#2"}));
  EXPECT_EQ(chained_name("y", 2, 3), "y#2");
  EXPECT_EQ(chained_name("y", 0, 1), "y");
}

// Ops are a#0 b#0 a#1 b#1 a#2 b#2: the first of each stream waits for the last of the layer ahead.
TEST(Chain, ALayerBeginsWhenTheOneAheadHasEndedOnEveryStream) {
  const Plan chain = chained(two_streams(), 3);
  ASSERT_EQ(chain.ops().size(), 6U);
  EXPECT_TRUE(chain.ops()[0].after.empty() && chain.ops()[1].after.empty());
  for (std::size_t i = 2; i < 6; ++i) {
    const OpId last_ahead = i < 4 ? 1 : 3;
    EXPECT_EQ(chain.ops()[i].after, std::vector<OpId>{last_ahead}) << chain.ops()[i].name;
  }
}

TEST(Chain, OneLayerStaysAsItIs) { EXPECT_EQ(chained(two_streams(), 1), two_streams()); }

TEST(Chain, ItsTextIsReadBack) {
  const Plan chain = chained(two_streams(), 2);
  EXPECT_EQ(parse_plan(to_text(chain)), chain);
}

}  // namespace
}  // namespace orrery
