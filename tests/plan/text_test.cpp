#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "sim/plan/plan.h"
#include "tests/golden/golden.h"
#include "tests/plan/example_plan.h"

namespace orrery {
namespace {

std::string group_text(std::vector<int> ranks) {
  Plan plan;
  plan.add_group(std::move(ranks));
  return to_text(plan);
}

void expect_error(const std::string& text, const std::string& part) {
  try {
    parse_plan(text);
    FAIL() << "no error, expected one with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(PlanText, OfTheExampleIsTheGoldenFile) {
  expect_golden("example.plan", to_text(example_plan().plan));
}

TEST(PlanText, ReadsBackAsAnEqualPlan) {
  const Plan plan = example_plan().plan;
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  const Plan unrolled = unroll(plan);
  EXPECT_EQ(parse_plan(to_text(unrolled)), unrolled);
}

TEST(PlanText, OfAnEmptyPlanIsEmpty) {
  EXPECT_EQ(to_text(Plan()), "");
  EXPECT_EQ(parse_plan(""), Plan());
}

TEST(PlanText, RankSetsAreRangesListsAndStrides) {
  EXPECT_EQ(group_text({5}), "group g0 5\n");
  EXPECT_EQ(group_text({0, 4}), "group g0 0,4\n");
  EXPECT_EQ(group_text({0, 1, 2, 3}), "group g0 0-3\n");
  EXPECT_EQ(group_text({0, 4, 8, 12}), "group g0 0-12/4\n");
  EXPECT_EQ(group_text({0, 1, 2, 8, 9, 10, 20}), "group g0 0-2,8-10,20\n");
}

TEST(PlanText, AnyRankSetReadsBack) {
  // Subsets of 0..9 by the bits of a number.
  for (int bits = 1; bits < 1024; ++bits) {
    std::vector<int> ranks;
    for (int rank = 0; rank < 10; ++rank) {
      if ((bits >> rank & 1) != 0) ranks.push_back(rank);
    }
    Plan plan;
    plan.add_group(ranks);
    ASSERT_EQ(parse_plan(to_text(plan)), plan) << to_text(plan);
  }
}

TEST(PlanText, NamesOfAnyCharactersReadBack) {
  for (const std::string name : {"", " ", "a b", "say \"x\"", "back\\slash", "two\nlines", "a=b",
                                 "x,y", "[z]", "q:r", "layers.0/attn-q#1", "\xc3\xa9t\xc3\xa9"}) {
    Plan plan;
    const GroupId group = plan.add_group({0});
    const TensorId tensor = plan.add_tensor({name, DType::kBf16, {{name, 3}}, {}, group});
    plan.add_op({name, KernelOp{name, DType::kFp8, {{name, 2, name}}}, group, 0, {tensor}, {}, {}});
    EXPECT_EQ(parse_plan(to_text(plan)), plan) << to_text(plan);
  }
}

TEST(PlanText, BytesReadBackExactly) {
  for (const double bytes : {1.0 / 3, 1e300, 1048576.0, 0.1}) {
    Plan plan;
    const GroupId group = plan.add_group({0, 1});
    plan.add_op({"x", CommOp{{}, DType::kBf16, Bytes(bytes)}, group, 0, {}, {}, {}});
    EXPECT_EQ(parse_plan(to_text(plan)), plan);
  }
}

TEST(PlanText, EmptyLinesCommentsAndLineEndsDoNotMatter) {
  EXPECT_EQ(parse_plan("\n# ranks\n  group g0 0-3\r\n\n"), parse_plan("group g0 0,1,2,3"));
}

TEST(PlanText, ErrorsNameTheLine) { expect_error("group g0 0\n\nnonsense\n", "line 3: "); }

TEST(PlanText, UnknownWordsFindTheNearest) {
  expect_error("tensr t0 x", "found \"tensr\"");
  expect_error("tensr t0 x", "nearest is \"tensor\"");
  expect_error("group g0 0\nop o0 x kernle gemm", "expected kernel, comm or host");
  expect_error("group g0 0\nop o0 x kernel gemm bf17 g0 s0", "unknown dtype \"bf17\"");
  expect_error("group g0 0\nop o0 x comm reduce bf16 1B g0 s0", "unknown collective");
  expect_error("group g0 0\ntensor t0 x weigt bf16 [] g0", "nearest is \"weight\"");
}

TEST(PlanText, BrokenLinesSayWhatIsExpected) {
  expect_error("group", "expected \"g\"");
  expect_error("group g0", "expected a rank");
  expect_error("group g1 0", "group number 1, expected 0");
  expect_error("group g0 0-", "the last rank of a range");
  expect_error("group g0 4-0", "first <= last");
  expect_error("group g0 0-4/0", "stride of at least 1");
  expect_error("group g0 0-2000000000", "last <= 1000000");
  expect_error("group g0 0,0", "rank 0 twice");
  expect_error("group g0 0\ngroup g1 0", "same ranks");
  expect_error("group g0 0 and more", "expected the end of the line");
  expect_error("group g0 0\ntensor t0 \"x weight bf16 [] g0", "expected \"\"\"");
  expect_error("group g0 0\ntensor t0 x weight bf16 [a=] g0", "the size of axis a");
  expect_error("group g0 0\ntensor t0 x weight bf16 [a=1 g0", "expected \"]\"");
  expect_error("group g0 0\ntensor t0 x weight bf16 [a=1] g3", "refers to group 3");
  expect_error("group g0 0\nop o0 x host scheduler g0", "expected \"s\"");
  expect_error("group g0 0\nop o0 x host scheduler g0 s0 reads t5", "refers to tensor 5");
  expect_error("group g0 0\nop o0 x comm all_reduce bf16 12 g0 s0", "expected \"B\"");
  expect_error("group g0 0\nop o0 x kernel gemm bf16 m=1", "expected a name");
  expect_error("group g0 0\nop o0 x kernel gemm bf16 m=1 g0x s0", "the end of the group's number");
  expect_error("repeat o0-o1 x2", "the number of ops so far");
  expect_error("repeat o0-o2147483647 x2", "a smaller number");
  expect_error("group g99999999999 0", "a number after \"g\"");
}

TEST(PlanText, EveryPrefixOfAPlanParsesOrIsAnError) {
  // Cut anywhere, the text never crashes the parser.
  const std::string text = to_text(example_plan().plan);
  for (std::size_t length = 0; length < text.size(); ++length) {
    try {
      parse_plan(text.substr(0, length));
    } catch (const std::invalid_argument& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("line ")) << error.what();
    }
  }
}

}  // namespace
}  // namespace orrery
