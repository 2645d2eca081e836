#include "sim/plan/plan.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/plan/example_plan.h"

namespace orrery {
namespace {

template <typename Call>
void expect_error(const Call& call, const std::string& part) {
  try {
    call();
    FAIL() << "no error, expected one with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

Op host_op(GroupId ranks) { return {"h", HostOp{}, ranks, 0, {}, {}, {}}; }

TEST(Plan, GroupsAreInternedWhateverTheOrderOfRanks) {
  Plan plan;
  const GroupId group = plan.add_group({3, 1, 2});
  EXPECT_EQ(plan.add_group({1, 2, 3}), group);
  EXPECT_NE(plan.add_group({1, 2}), group);
  EXPECT_EQ(plan.num_groups(), 2);
  EXPECT_EQ(plan.ranks(group).front(), 1);
  EXPECT_EQ(plan.num_ranks(), 4);
  EXPECT_TRUE(plan.contains(group, 3));
  EXPECT_FALSE(plan.contains(group, 0));
}

TEST(Plan, GroupsNeedDistinctRanksFromZero) {
  Plan plan;
  expect_error([&] { plan.add_group({}); }, "no ranks");
  expect_error([&] { plan.add_group({0, -1}); }, "rank -1");
  expect_error([&] { plan.add_group({2, 0, 2}); }, "rank 2 twice");
  EXPECT_EQ(plan.num_groups(), 0);
}

TEST(Plan, WhatIsNotAddedYetCannotBeReferredTo) {
  Plan plan;
  expect_error([&] { plan.add_tensor({"t", DType::kBf16, {}, TensorRole::kInput, 0}); },
               "\"t\" refers to group 0");
  expect_error([&] { plan.add_op(host_op(0)); }, "\"h\" refers to group 0");
  const GroupId group = plan.add_group({0});
  Op op = host_op(group);
  op.reads = {0};
  expect_error([&] { plan.add_op(op); }, "tensor 0, expected one that was added before");
  op.reads = {};
  op.writes = {-1};
  expect_error([&] { plan.add_op(op); }, "tensor -1");
  op.writes = {};
  op.after = {0};  // itself
  expect_error([&] { plan.add_op(op); }, "op 0");
  plan.add_op(host_op(group));
  EXPECT_EQ(plan.add_op(op), 1);
  op.after = {7};
  expect_error([&] { plan.add_op(op); }, "one of the 2 added before it, 0 to 1");
}

TEST(Plan, StreamsCountFromZero) {
  Plan plan;
  Op op = host_op(plan.add_group({0}));
  op.stream = -1;
  expect_error([&] { plan.add_op(op); }, "stream -1");
}

TEST(Plan, RepeatsAreRunsOfOpsThatDoNotOverlap) {
  Plan plan;
  const GroupId group = plan.add_group({0});
  for (int i = 0; i < 10; ++i) plan.add_op(host_op(group));
  plan.add_repeat({4, 6, 3});
  plan.add_repeat({6, 8, 2});  // touching is not overlapping
  plan.add_repeat({0, 4, 5});
  expect_error([&] { plan.add_repeat({7, 9, 2}); }, "overlaps the run [6, 8)");
  expect_error([&] { plan.add_repeat({3, 5, 2}); }, "overlaps");
  expect_error([&] { plan.add_repeat({1, 2, 2}); }, "overlaps the run [0, 4)");
  expect_error([&] { plan.add_repeat({8, 11, 2}); }, "last <= 10");
  expect_error([&] { plan.add_repeat({8, 8, 2}); }, "first < last");
  expect_error([&] { plan.add_repeat({-1, 1, 2}); }, "0 <= first");
  expect_error([&] { plan.add_repeat({8, 9, 0}); }, "count 0");
  ASSERT_EQ(plan.repeats().size(), 3U);
  EXPECT_EQ(plan.repeats().front().first, 0);  // kept by first
}

TEST(Plan, MultiplicityIsTheCountOfTheRunAnOpIsIn) {
  const ExamplePlan e = example_plan();
  EXPECT_EQ(e.plan.multiplicity(e.embed), 1);
  EXPECT_EQ(e.plan.multiplicity(e.norm), kLayers);
  EXPECT_EQ(e.plan.multiplicity(e.add), kLayers);
  EXPECT_EQ(e.plan.multiplicity(e.head), 1);
  expect_error([&] { (void)e.plan.multiplicity(-1); }, "op -1");
  expect_error([&] { (void)e.plan.multiplicity(1000); }, "op 1000");
}

TEST(Plan, BytesOfATensorAreElementsTimesFormat) {
  const Tensor tensor{
      .name = "w", .dtype = DType::kFp8Block, .axes = {{"ffn", 256}, {"hidden", 128}}};
  EXPECT_EQ(num_elements(tensor), 256 * 128);
  // Two blocks of 128 x 128: 32768 bytes and two floats.
  EXPECT_EQ(bytes_of(tensor), Bytes(32768 + 8));
}

TEST(Plan, AScalarTensorHasOneElement) { EXPECT_EQ(num_elements(Tensor{}), 1); }

TEST(Plan, ElementsBeyond64BitsOverflowed) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 32;
  const Tensor tensor{.name = "x", .axes = {{"tokens", kHalf}, {"hidden", kHalf}}};
  EXPECT_THROW((void)num_elements(tensor), std::invalid_argument);
}

TEST(Dim, IsFoundByNameOrAnErrorListsTheNames) {
  const Dims dims{{"m", 3, ""}, {"n", 5, ""}};
  EXPECT_EQ(dim(dims, "n"), 5);
  expect_error([&] { dim(dims, "k"); }, "no dim \"k\", found m n");
  expect_error([&] { dim({}, "k"); }, "found none");
}

}  // namespace
}  // namespace orrery
