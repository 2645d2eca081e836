#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
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

Plan golden_plan(const std::string& name) {
  std::ifstream in(std::string(ORRERY_SOURCE_DIR) + "/tests/golden/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return parse_plan(text.str());
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

TEST(PlanText, SmsThatAKernelLeavesStandBehindItsDims) {
  Plan plan;
  KernelOp kernel{.kernel = "grouped_gemm", .dims = {{.name = "rows", .size = 8}}, .free_sms = 24};
  const GroupId both = plan.add_group({0, 1});
  plan.add_op({.name = "down", .body = kernel, .ranks = both});
  kernel.dims.clear();
  plan.add_op({.name = "leaves", .body = kernel, .ranks = both});
  EXPECT_NE(to_text(plan).find("grouped_gemm bf16 rows=8 leaves 24 g0 s0"), std::string::npos);
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  EXPECT_EQ(unroll(plan), plan);
  expect_error("group g0 0\nop o0 x kernel grouped_gemm bf16 leaves many g0 s0\n",
               "the SMs that are left");
}

TEST(PlanText, OfAnEmptyPlanIsItsFirstLine) {
  EXPECT_EQ(to_text(Plan()), "plan 2\n");
  EXPECT_EQ(parse_plan(""), Plan());
}

TEST(PlanText, RankSetsAreRangesListsAndStrides) {
  EXPECT_EQ(group_text({5}), "plan 2\ngroup g0 5\n");
  EXPECT_EQ(group_text({0, 4}), "plan 2\ngroup g0 0,4\n");
  EXPECT_EQ(group_text({0, 1, 2, 3}), "plan 2\ngroup g0 0-3\n");
  EXPECT_EQ(group_text({0, 4, 8, 12}), "plan 2\ngroup g0 0-12/4\n");
  EXPECT_EQ(group_text({0, 1, 2, 8, 9, 10, 20}), "plan 2\ngroup g0 0-2,8-10,20\n");
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

// A plan whose tensor has every kind of split, a view, and a place in a pipeline.
Plan plan_of_everything() {
  Plan plan;
  const GroupId all = plan.add_group({0, 1, 2, 3, 4, 5, 6, 7});
  const Place grid = Place().add({.ways = 2, .stride = 4}).add({.ways = 4, .stride = 1});
  const Place rows =
      Place().add({.ways = 2, .stride = 4}).add({.ways = 3, .stride = kOfMicroBatch});
  const SplitId halves = plan.add_split({.parts = {divided(whole_part(64), grid), whole_part(16)}});
  const SplitId tokens = plan.add_split({.parts = {divided(whole_part(30), rows)}});
  const SplitId zigzag =
      plan.add_split({.parts = {{.size = 160, .block = 10, .place = grid, .is_zigzag = true}}});
  const SplitId uneven = plan.add_split(
      {.parts = {{.size = 50, .block = 30, .place = Place().add({2, 4}), .starts = {0, 30}}}});
  const TensorId tensor = plan.add_tensor({.name = "kv",
                                           .axes = {{"seqs", 5, tokens},
                                                    {"context", 20, zigzag},
                                                    {"rows", 30, uneven},
                                                    {"ffn", 24, halves},
                                                    {"old", 3, kUnknownSplit}},
                                           .role = TensorRole::kState,
                                           .ranks = all,
                                           .stage = 1,
                                           .micro_batch = 2,
                                           .first_copy = 40});
  plan.add_op({.name = "norm",
               .body = HostOp{},
               .ranks = all,
               .reads = {TensorView(tensor, 8, 16), tensor},
               .writes = {TensorView(tensor, 0, 8)},
               .stage = 1,
               .micro_batch = 2});
  return plan;
}

TEST(PlanText, SplitsViewsAndPlacesInAPipelineReadBack) {
  const Plan plan = plan_of_everything();
  EXPECT_EQ(parse_plan(to_text(plan)), plan) << to_text(plan);
  EXPECT_EQ(printed_name(plan.ops()[0]), "s1.m2.norm");
}

// Texts of tests/golden as they were before splits, views and stages were fields: the same ops,
// views and tensors under the names that are printed.
TEST(PlanText, TheFirstFormIsStillRead) {
  for (const std::string name : {"example", "model_small_llama_tp2_sp_pp2",
                                 "model_small_deepseek_dp2_tp2_ep4", "moe_layer_dp2_tp2_dedup"}) {
    const Plan old = golden_plan("first_form/" + name + ".plan");
    const Plan plan = golden_plan(name + ".plan");
    ASSERT_EQ(old.ops().size(), plan.ops().size()) << name;
    ASSERT_EQ(old.tensors().size(), plan.tensors().size()) << name;
    for (std::size_t i = 0; i < plan.ops().size(); ++i) {
      const Op& op = plan.ops()[i];
      EXPECT_EQ(old.ops()[i].name, op.name);
      EXPECT_EQ(printed_name(old.ops()[i]), printed_name(op));
      EXPECT_EQ(old.ops()[i].stage, op.stage);
      EXPECT_EQ(old.ops()[i].micro_batch, op.micro_batch);
      EXPECT_EQ(old.ops()[i].body, op.body);
      EXPECT_EQ(old.ops()[i].reads, op.reads) << op.name;
      EXPECT_EQ(old.ops()[i].writes, op.writes) << op.name;
    }
    for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
      const Tensor& tensor = plan.tensors()[i];
      EXPECT_EQ(printed_name(old.tensors()[i]), printed_name(tensor));
      for (std::size_t axis = 0; axis < tensor.axes.size(); ++axis) {
        EXPECT_EQ(old.tensors()[i].axes[axis].size, tensor.axes[axis].size);
        EXPECT_EQ(old.tensors()[i].axes[axis].split,
                  plan.num_ranks() > 1 ? kUnknownSplit : kNoSplit);
      }
    }
    EXPECT_NO_THROW(verify(old)) << name;
    EXPECT_EQ(parse_plan(to_text(old)), old) << name;
  }
}

const std::string kGemm =
    "plan 2\ngroup g0 0\n"
    "tensor t0 a input bf16 [tokens=8,hidden=32] g0\n"
    "tensor t1 b input bf16 [tokens=8,hidden=32] g0\n"
    "tensor t2 proj.weight weight bf16 [ffn=16,hidden=32] g0\n"
    "tensor t3 y output bf16 [tokens=16,ffn=16] g0\n"
    "op o0 proj kernel gemm bf16 m=16 n=16 k=32 g0 s0 ";

TEST(PlanText, OperandsOfKernelsStandByTheNamesOfTheirSlots) {
  const Plan plan = parse_plan(kGemm + "reads t0,t1,t2 writes t3");
  EXPECT_NE(to_text(plan).find(" s0 x=t0,t1 w=t2 -> y=t3\n"), std::string::npos) << to_text(plan);
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  EXPECT_EQ(parse_plan(kGemm + "w=t2 x=t0,t1 -> y=t3"), plan);  // names bind, not the order
}

TEST(PlanText, OperandsThatAreNotThoseOfTheSlotsStandByPosition) {
  const Plan plan = parse_plan(kGemm + "reads t2,t0 writes t3");
  EXPECT_NE(to_text(plan).find(" s0 reads t2,t0 writes t3\n"), std::string::npos) << to_text(plan);
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
}

TEST(PlanText, NamesThatAreNotThoseOfTheSlotsAreRefused) {
  expect_error(kGemm + "x=t0,t1 weight=t2 -> y=t3",
               "line 7: kernel gemm has no operand \"weight\", expected x, w, bias");
  expect_error(kGemm + "x=t0,t1 w=t2 -> out=t3", "has no result \"out\", expected y");
  expect_error(kGemm + "x=t0 w=t2 x=t1 -> y=t3", "operand x twice");
  expect_error(kGemm + "x=t0,t1 w=t2", "expected \"->\"");
  expect_error(kGemm + "x=t2 w=t0 -> y=t3", "as x, expected activation");
}

// A name that only looks like a stage is kept.
TEST(PlanText, StagesOfTheFirstFormAreWholeWords) {
  const auto op_of = [](const std::string& name) {
    return parse_plan("group g0 0\nop o0 " + name + " host scheduler g0 s0").ops()[0];
  };
  EXPECT_EQ(op_of("s12.m10.lm_head"),
            (Op{.name = "lm_head", .body = HostOp{}, .stage = 12, .micro_batch = 10}));
  EXPECT_EQ(op_of("s1.mlp.gate"), (Op{.name = "mlp.gate", .body = HostOp{}, .stage = 1}));
  EXPECT_EQ(op_of("s1.m2"), (Op{.name = "m2", .body = HostOp{}, .stage = 1}));
  EXPECT_EQ(op_of("scan.1"), (Op{.name = "scan.1", .body = HostOp{}}));
}

TEST(PlanText, OpsOfTheFirstFormThatLackOperandsAreReadAsTheyAre) {
  for (const std::string call :
       {"rms_norm bf16 tokens=4 hidden=8", "rope bf16", "kv_append bf16"}) {
    const Plan plan = parse_plan("group g0 0\nop o0 x kernel " + call + " g0 s0");
    EXPECT_TRUE(plan.ops()[0].reads.empty()) << call;
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
