#include "kernels/harness/small_calls.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery {
namespace {

using Places = std::vector<std::size_t>;

TEST(SmallCalls, AreTheLeastOfEachSignatureAndTheMostWithinTheBound) {
  const std::vector<CallCandidate> calls = {{50, "a"}, {2, "a"}, {9, "a"},
                                            {7, "b"},  {8, "a"}, {200, "b"}};
  EXPECT_EQ(small_calls(calls, 10), (Places{1, 2, 3}));
}

TEST(SmallCalls, HaveEachSignatureEvenWhereAllItsCallsAreBeyondTheBound) {
  const std::vector<CallCandidate> calls = {{90, "a"}, {70, "a"}, {1, "b"}};
  EXPECT_EQ(small_calls(calls, 10), (Places{1, 2}));
}

TEST(SmallCalls, OfEqualWorkAreTheFirst) {
  const std::vector<CallCandidate> calls = {{3, "a"}, {3, "a"}, {3, "a"}};
  EXPECT_EQ(small_calls(calls, 10), (Places{0}));
  EXPECT_TRUE(small_calls({}, 10).empty());
}

TEST(CallForm, TellsVariantsApartButNotSizes) {
  const auto op = [](std::int64_t tokens, Dims more = {}) {
    KernelOp made{.kernel = "silu_mul",
                  .dtype = DType::kBf16,
                  .dims = {{.name = "tokens", .size = tokens}, {.name = "ffn", .size = 64}}};
    made.dims.insert(made.dims.end(), more.begin(), more.end());
    return made;
  };
  EXPECT_EQ(call_form(op(1)), call_form(op(70)));
  EXPECT_NE(call_form(op(1)), call_form(op(1, {{.name = "slack", .size = 3}})));
  // Two reads and a write of bf16 for each of 64 columns, and some FLOPs.
  EXPECT_GE(call_work(op(1)), 3 * 2 * 64);
  EXPECT_DOUBLE_EQ(call_work(op(70)), 70 * call_work(op(1)));
}

}  // namespace
}  // namespace orrery
