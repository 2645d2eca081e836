#include <gtest/gtest.h>

#include <stdexcept>

#include "sim/plan/plan.h"
#include "tests/plan/example_plan.h"

namespace orrery {
namespace {

constexpr double kWide = 2.0 * kTokens * kHidden;  // bytes of a bf16 [tokens, hidden]

// Tensors of `axes` bytes each on rank 0, used by host ops, to test lifetimes by themselves.
struct MemoryBench {
  Plan plan;
  GroupId group = plan.add_group({0});

  TensorId tensor(std::int64_t bytes, TensorRole role = TensorRole::kActivation) {
    return plan.add_tensor({"t", DType::kFp8, {{"hidden", bytes}}, role, group});
  }
  OpId op(TensorViews reads, TensorViews writes) {
    return plan.add_op({"op", HostOp{}, group, 0, std::move(reads), std::move(writes), {}});
  }
  [[nodiscard]] Bytes peak() const { return memory_of(plan, 0).activations; }
};

TEST(MemoryOf, WeightsCountEachLayer) {
  // Table 96 x 64 in bf16 once; three times a norm of 64 in bf16 and 64 x 64 in fp8.
  const double expected = 2 * 96 * 64 + 3 * (2 * 64 + 64 * 64);
  EXPECT_EQ(memory_of(example_plan().plan, 0).weights, Bytes(expected));
  EXPECT_EQ(num_weight_elements(example_plan().plan, 1), 96 * 64 + 3 * (64 + 64 * 64));
}

TEST(MemoryOf, ActivationsPeakWhereMostAreAlive) {
  // The residual lives through all layers. On rank 1, at the all-reduce: residual, partial and
  // reduced. The ids die with the embedding, the normed (half of a wide one) with the gemm.
  EXPECT_EQ(memory_of(example_plan().plan, 1).activations, Bytes(3 * kWide));
}

// Four sequences of 1,000 bytes in three layers, whether they have one token or many.
TEST(MemoryOf, StatesCountOncePerSequenceAndLayer) {
  MemoryBench b;
  const TensorId state = b.plan.add_tensor(
      {"state", DType::kFp8, {{"seqs", 4}, {"state", 1000}}, TensorRole::kState, b.group});
  const OpId op = b.op({state}, {state});
  b.plan.add_repeat({op, op + 1, 3});
  const MemoryUse use = memory_of(b.plan, 0);
  EXPECT_EQ(use.states, Bytes(3 * 4 * 1000));
  EXPECT_EQ(use.kv_cache + use.activations + use.weights, Bytes());
  EXPECT_EQ(unroll(b.plan).tensors().size(), 3U);
}

TEST(MemoryOf, ARankWithoutTensorsHasNone) {
  const MemoryUse use = memory_of(example_plan().plan, 5);
  EXPECT_EQ(use.weights, Bytes());
  EXPECT_EQ(use.activations, Bytes());
}

TEST(MemoryOf, ANegativeRankIsAnError) {
  EXPECT_THROW(memory_of(Plan(), -1), std::invalid_argument);
  EXPECT_THROW(num_weight_elements(Plan(), -1), std::invalid_argument);
}

TEST(MemoryOf, AChainHoldsTwoNeighboursAtATime) {
  MemoryBench b;
  const TensorId first = b.tensor(10);
  const TensorId second = b.tensor(20);
  const TensorId third = b.tensor(40);
  b.op({}, {first});
  b.op({first}, {second});
  b.op({second}, {third});
  EXPECT_EQ(b.peak(), Bytes(20 + 40));
}

TEST(MemoryOf, InputsLiveFromTheStartAndOutputsToTheEnd) {
  MemoryBench b;
  const TensorId input = b.tensor(10, TensorRole::kInput);
  const TensorId output = b.tensor(20, TensorRole::kOutput);
  const TensorId early = b.tensor(100);
  b.op({}, {early});  // the input waits here
  b.op({early, input}, {output});
  EXPECT_EQ(b.peak(), Bytes(10 + 20 + 100));
  const TensorId late = b.tensor(1000);
  b.op({}, {late});  // the output waits here
  EXPECT_EQ(b.peak(), Bytes(20 + 1000));
}

TEST(MemoryOf, WhatARunReadsBeforeWritingLivesThroughTheRun) {
  // `carried` is read at the start of a copy and written at its end: it is alive beside `big` in
  // the middle, though within one copy it is dead there. Without the repeat it is not.
  for (const std::int64_t count : {1, 2}) {
    MemoryBench b;
    const TensorId carried = b.tensor(10);
    const TensorId big = b.tensor(100);
    const TensorId small = b.tensor(1);
    b.op({}, {carried});
    const OpId first = b.op({carried}, {small});
    b.op({small}, {big});
    const OpId last = b.op({big}, {});
    b.plan.add_repeat({first, last + 1, count});
    EXPECT_EQ(b.peak(), Bytes(count == 1 ? 101 : 111));
  }
}

TEST(MemoryOf, KvCacheCountsEachLayerAndNoActivation) {
  MemoryBench b;
  const TensorId cache = b.tensor(10, TensorRole::kKvCache);
  b.op({cache}, {cache});
  b.plan.add_repeat({0, 1, 7});
  EXPECT_EQ(memory_of(b.plan, 0).kv_cache, Bytes(70));
  EXPECT_EQ(b.peak(), Bytes());
}

}  // namespace
}  // namespace orrery
