#include "sim/memory/buffers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace orrery {
namespace {

// Tensors of `bytes` bytes on rank 0, used by gemms (joined) and host ops (not).
struct Bench {
  Plan plan;
  GroupId group = plan.add_group({0});

  TensorId tensor(std::int64_t rows, std::int64_t columns,
                  TensorRole role = TensorRole::kActivation, DType dtype = DType::kBf16) {
    return plan.add_tensor({"t", dtype, {{"tokens", rows}, {"hidden", columns}}, role, group});
  }
  OpId op(TensorViews reads, TensorViews writes) {
    return plan.add_op({"op", HostOp{}, group, 0, std::move(reads), std::move(writes), {}});
  }
  OpId gemm(TensorViews reads, TensorViews writes) {
    return plan.add_op(
        {"gemm", KernelOp{.kernel = "gemm"}, group, 0, std::move(reads), std::move(writes), {}});
  }
  [[nodiscard]] BufferPlan buffers() const { return plan_buffers(plan, 0); }
};

std::int64_t at(const std::vector<std::int64_t>& offsets, TensorId id) {
  return offsets[static_cast<std::size_t>(id)];
}

TEST(PlanBuffers, MemoryOfATensorNoLongerUsedIsTakenAgain) {
  Bench b;
  const TensorId first = b.tensor(64, 64);
  const TensorId second = b.tensor(64, 64);
  const TensorId third = b.tensor(64, 64);
  b.op({}, {first});
  b.op({first}, {second});
  b.op({second}, {third});
  const BufferPlan buffers = b.buffers();
  EXPECT_EQ(at(buffers.offsets, first), at(buffers.offsets, third));
  EXPECT_NE(at(buffers.offsets, first), at(buffers.offsets, second));
  EXPECT_EQ(buffers.arena_bytes, 2 * 64 * 64 * 2);
}

TEST(PlanBuffers, ACollectiveOnAnotherStreamKeepsItsMemoryUntilSomebodyWaitsForIt) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kSendRecv}) {
    Bench b;
    const TensorId rows = b.tensor(64, 64);
    const TensorId received = b.tensor(64, 64);
    const TensorId beside = b.tensor(64, 64);
    const TensorId last = b.tensor(64, 64);
    b.gemm({}, {rows});
    b.plan.add_op({"collective",
                   CommOp{kind, DType::kBf16, Bytes(64 * 64 * 2)},
                   b.group,
                   2,
                   {rows},
                   {received},
                   {}});
    b.gemm({}, {beside});  // runs while rows are sent
    b.gemm({received}, {last});
    b.gemm({beside, last}, {});
    const BufferPlan buffers = b.buffers();
    const bool is_apart = at(buffers.offsets, rows) != at(buffers.offsets, beside);
    EXPECT_EQ(is_apart, kind == CollectiveKind::kAllGather) << to_text(kind);
  }
}

TEST(PlanBuffers, WeightsCachesAndUnusedTensorsHaveNoPlace) {
  Bench b;
  const TensorId weight = b.tensor(8, 8, TensorRole::kWeight);
  const TensorId cache = b.tensor(8, 8, TensorRole::kKvCache);
  const TensorId unused = b.tensor(8, 8);
  const TensorId used = b.tensor(8, 8);
  b.op({weight}, {cache, used});
  const BufferPlan buffers = b.buffers();
  EXPECT_EQ(buffers.offsets, (std::vector<std::int64_t>{-1, -1, -1, 0}));
  EXPECT_EQ(buffers.offsets[static_cast<std::size_t>(unused)], -1);
  EXPECT_EQ(plan_buffers(b.plan, 3).offsets, (std::vector<std::int64_t>{-1, -1, -1, -1}));
}

// 3 rows of 40 columns in bf16 are 240 bytes, no multiple of 256.
TEST(PlanBuffers, PartsThatAGemmReadsAsOneInputFollowEachOther) {
  Bench b;
  const TensorId weight = b.tensor(8, 40, TensorRole::kWeight);
  const TensorId prefill = b.tensor(3, 40);
  const TensorId decode = b.tensor(5, 40);
  const TensorId y = b.tensor(8, 8);
  b.op({}, {decode});
  b.op({}, {prefill});
  b.gemm({prefill, decode, weight}, {y});
  const BufferPlan buffers = b.buffers();
  EXPECT_EQ(at(buffers.offsets, decode), at(buffers.offsets, prefill) + 240);
}

TEST(PlanBuffers, PartsReadInTwoOrdersAreAnError) {
  Bench b;
  const TensorId x = b.tensor(3, 40);
  const TensorId y = b.tensor(5, 40);
  b.op({}, {x, y});
  b.gemm({x, y}, {b.tensor(8, 8)});
  b.gemm({y, x}, {b.tensor(8, 8)});
  EXPECT_THROW((void)b.buffers(), std::invalid_argument);
}

TEST(PlanBuffers, Fp8ActivationsHaveAScaleForEachRow) {
  Bench b;
  const TensorId x = b.tensor(100, 512, TensorRole::kActivation, DType::kFp8);
  const TensorId y = b.tensor(100, 512);
  b.op({}, {x});
  b.op({x}, {y});
  const BufferPlan buffers = b.buffers();
  EXPECT_EQ(at(buffers.scales, y), -1);
  // 100 x 512 bytes, 100 x 1024 bytes, 400 bytes that take 512.
  EXPECT_EQ(buffers.arena_bytes, 51'200 + 102'400 + 512);
  EXPECT_GE(at(buffers.scales, x), 0);
}

// The residual is read in the next copy before it is written there; what a copy writes first is
// free again after its last use.
TEST(PlanBuffers, WhatIsCarriedFromCopyToCopyLivesThroughTheRun) {
  Bench b;
  const TensorId carried = b.tensor(64, 64);
  const TensorId early = b.tensor(64, 64);
  const TensorId late = b.tensor(64, 64);
  b.op({}, {carried});
  const OpId first = b.op({carried}, {early});
  b.op({early}, {carried});
  const OpId last = b.op({}, {late});
  b.op({late}, {});
  b.plan.add_repeat({.first = first, .last = last + 2, .count = 3});
  const BufferPlan buffers = b.buffers();
  EXPECT_EQ(at(buffers.offsets, early), at(buffers.offsets, late));
  EXPECT_NE(at(buffers.offsets, carried), at(buffers.offsets, late));
}

// As micro-batches do: the logits of the first are still there when the second has run.
TEST(PlanBuffers, LogitsAreKeptToTheEnd) {
  Bench b;
  const TensorId logits = b.tensor(64, 64);
  const TensorId token = b.tensor(64, 1);
  const TensorId later = b.tensor(64, 64);
  b.op({}, {logits});
  b.plan.add_op({"sample", KernelOp{.kernel = "sample"}, b.group, 0, {logits}, {token}, {}});
  b.op({}, {later});
  b.op({later}, {});
  const BufferPlan buffers = b.buffers();
  EXPECT_NE(at(buffers.offsets, logits), at(buffers.offsets, later));
}

TEST(PlanBuffers, ANegativeRankIsAnError) {
  EXPECT_THROW((void)plan_buffers(Plan(), -1), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
