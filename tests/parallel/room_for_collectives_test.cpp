// Which kernels leave SMs to collectives of other streams: those that neither end before the
// collective begins nor begin after its end.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Kernels and collectives on two ranks, each writing a tensor of its own.
class Step {
 public:
  TensorId kernel(const std::string& kernel, int stream, const TensorViews& reads = {}) {
    return add(KernelOp{.kernel = kernel}, stream, reads, kMiB);
  }
  TensorId comm(int stream, const TensorViews& reads, std::int64_t bytes = kMiB,
                CollectiveKind kind = CollectiveKind::kAllGather) {
    return add(CommOp{.kind = kind, .bytes_per_rank = Bytes(static_cast<double>(bytes))}, stream,
               reads, bytes);
  }
  void repeat(std::int64_t count) {
    plan_.add_repeat({.first = 0, .last = static_cast<OpId>(plan_.ops().size()), .count = count});
  }
  // By op: the SMs that it leaves; -1 of collectives.
  [[nodiscard]] std::vector<int> left() const {
    std::vector<int> left;
    const bool applies = room_for_collectives_applies(plan_, {});
    const Plan plan = applies ? room_for_collectives_pass(plan_, {}) : plan_;
    for (const Op& op : plan.ops()) {
      const auto* const kernel = std::get_if<KernelOp>(&op.body);
      left.push_back(kernel == nullptr ? -1 : kernel->free_sms);
    }
    return left;
  }

 private:
  TensorId add(OpBody body, int stream, const TensorViews& reads, std::int64_t bytes) {
    const std::string name = "t" + std::to_string(plan_.tensors().size());
    const TensorId result = plan_.add_tensor({.name = name,
                                              .dtype = DType::kInt8,
                                              .axes = {{.name = "x", .size = bytes}},
                                              .ranks = both_});
    plan_.add_op({.name = name,
                  .body = std::move(body),
                  .ranks = both_,
                  .stream = stream,
                  .reads = reads,
                  .writes = {result}});
    return result;
  }

  Plan plan_;
  GroupId both_ = plan_.add_group({0, 1});
};

constexpr const char* kFills = "grouped_gemm";

TEST(RoomForCollectives, WhatNeitherWaitsForNorIsWaitedForByACollective) {
  Step step;
  const TensorId first = step.kernel(kFills, 0);
  const TensorId gathered = step.comm(2, {first});
  const TensorId beside = step.kernel(kFills, 0);
  step.kernel("attention_decode", 0, {beside});
  step.kernel(kFills, 0, {gathered});
  EXPECT_EQ(step.left(), (std::vector<int>{0, -1, 24, 24, 0}));
}

TEST(RoomForCollectives, AKernelThatCameBeforeAndIsNotWaitedFor) {
  Step step;
  const TensorId first = step.kernel(kFills, 0);
  step.kernel(kFills, 0);
  step.comm(2, {first});
  EXPECT_EQ(step.left(), (std::vector<int>{0, 24, -1}));
}

TEST(RoomForCollectives, OnlyKernelsThatCanLeaveSomeDo) {
  Step step;
  const TensorId first = step.kernel(kFills, 0);
  step.comm(2, {first});
  step.kernel("rms_norm", 0);
  step.kernel("index_shuffling", 0);
  EXPECT_EQ(step.left(), (std::vector<int>{0, -1, 0, 24}));
}

TEST(RoomForCollectives, NoneForFewBytesForCopiesOrOnTheSameStream) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kSendRecv}) {
    Step step;
    const TensorId first = step.kernel(kFills, 0);
    step.comm(2, {}, kind == CollectiveKind::kSendRecv ? kMiB : kMiB - 1, kind);
    step.comm(0, {first});
    step.kernel(kFills, 0);
    EXPECT_EQ(step.left(), (std::vector<int>{0, -1, -1, 0}));
  }
}

// By stream order the collective has ended with what came behind it.
TEST(RoomForCollectives, WhatWaitsForALaterOpOfTheStream) {
  Step step;
  step.comm(2, {});
  const TensorId behind = step.kernel("rms_norm", 2);
  const TensorId between = step.kernel(kFills, 1, {behind});
  step.kernel(kFills, 0, {between});
  EXPECT_EQ(step.left(), (std::vector<int>{-1, 0, 0, 0}));
}

// In the next copy of the run the first kernel is beside the collective of the copy before.
TEST(RoomForCollectives, FromCopyToCopyOfARun) {
  for (const std::int64_t count : {1, 2, 48}) {
    Step step;
    const TensorId first = step.kernel(kFills, 0);
    step.comm(2, {first});
    step.repeat(count);
    EXPECT_EQ(step.left(), (std::vector<int>{count == 1 ? 0 : 24, -1}));
  }
}

}  // namespace
}  // namespace orrery
