#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "sim/plan/plan.h"
#include "tests/plan/example_plan.h"

namespace orrery {
namespace {

// Parses a plan and expects that verify rejects it with a message that contains `part`.
void expect_rejected(const std::string& text, const std::string& part) {
  const Plan plan = parse_plan(text);
  try {
    verify(plan);
    FAIL() << "verified, expected an error with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

void expect_verified(const std::string& text) {
  try {
    verify(parse_plan(text));
  } catch (const std::invalid_argument& error) {
    FAIL() << error.what();
  }
}

const std::string kGroups = "group g0 0\ngroup g1 0,1\ngroup g2 1\ngroup g3 0-2\n";

TEST(Verify, AcceptsTheExampleAndTheEmptyPlan) {
  EXPECT_NO_THROW(verify(example_plan().plan));
  EXPECT_NO_THROW(verify(Plan()));
}

TEST(Verify, RejectsAnUnknownKernelWithTheNearest) {
  expect_rejected(kGroups + "op o0 qkv kernel gem bf16 m=1 n=1 k=1 g0 s0",
                  "op 0 \"qkv\": unknown kernel \"gem\", nearest is \"gemm\"");
}

TEST(Verify, RejectsDimsThatAreNotThoseOfTheKernel) {
  const std::string expected = "expected m n k";
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 m=1 n=1 g0 s0", expected);
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 m=1 n=1 k=1 l=1 g0 s0", expected);
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 m=1 k=1 n=1 g0 s0", expected);
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 g0 s0", "has dims none");
}

TEST(Verify, RejectsDimsBelowOne) {
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 m=0 n=1 k=1 g0 s0", "m = 0");
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 m=1 n=-4 k=1 g0 s0", "n = -4");
}

TEST(Verify, RejectsSmsLeftByKernelsThatCannotAndFewerThanNone) {
  expect_rejected(kGroups + "op o0 x kernel gemm bf16 m=1 n=1 k=1 leaves 24 g0 s0",
                  "gemm leaves 24 SMs, expected none");
  expect_rejected(kGroups +
                      "op o0 x kernel grouped_gemm bf16 rows=8 n=64 k=64 groups=1 active=1 "
                      "leaves -1 g0 s0",
                  "grouped_gemm leaves -1 SMs, expected 0 or more");
}

TEST(Verify, AcceptsAPrefillWithoutCachedContext) {
  const std::string op = kGroups +
                         "tensor t0 qkv input bf16 [tokens=8,qkv=128] g0\n"
                         "tensor t1 kv kv_cache bf16 [tokens=8,kv_heads=64] g0\n"
                         "tensor t2 out output bf16 [tokens=8,heads=64] g0\n"
                         "op o0 x kernel attention_prefill bf16 batch=1 query=8 ";
  const std::string rest =
      " heads=4 kv_heads=2 head_dim=16 window=1073741824 g0 s0 reads t0,t1 writes t2";
  expect_verified(op + "context=0" + rest);
  expect_rejected(op + "context=-1" + rest, "context = -1, expected at least 0");
}

TEST(Verify, RejectsDimsThatContradictEachOther) {
  expect_rejected(kGroups +
                      "op o0 x kernel moe bf16 tokens=1 hidden=8 inter=8 topk=2 experts=16 "
                      "experts_total=8 g0 s0",
                  "experts of at most experts_total");
}

TEST(Verify, RejectsACollectiveOfOneRank) {
  expect_rejected(kGroups + "op o0 x comm all_reduce bf16 8B g0 s0", "expected at least two");
}

TEST(Verify, RejectsASendOfThreeRanks) {
  expect_rejected(kGroups + "op o0 x comm send_recv bf16 8B g3 s0", "has 3 ranks, expected two");
}

TEST(Verify, RejectsACollectiveThatMovesNothing) {
  expect_rejected(kGroups + "op o0 x comm all_reduce bf16 0B g1 s0", "expected more than none");
  expect_rejected(kGroups + "op o0 x comm all_reduce bf16 -8B g1 s0", "expected more than none");
  expect_rejected(kGroups + "op o0 x comm all_reduce bf16 infB g1 s0", "expected more than none");
  expect_rejected(kGroups + "op o0 x comm all_reduce bf16 nanB g1 s0", "expected more than none");
}

TEST(Verify, RejectsTensorsThatAreNotOnTheRanksOfTheOp) {
  expect_rejected(kGroups +
                      "tensor t0 w weight bf16 [hidden=1] g0\n"
                      "op o0 x host scheduler g1 s0 reads t0",
                  "reads tensor 0 \"w\", which is on ranks 0, but the op runs on ranks 0,1");
  expect_rejected(kGroups +
                      "tensor t0 a activation bf16 [hidden=1] g2\n"
                      "op o0 x host scheduler g0 s0 writes t0",
                  "writes tensor 0 \"a\"");
}

TEST(Verify, AcceptsATensorOnMoreRanksThanTheOp) {
  expect_verified(kGroups +
                  "tensor t0 w weight bf16 [hidden=1] g1\n"
                  "op o0 x host scheduler g0 s0 reads t0");
}

TEST(Verify, ASendReadsOnOneRankAndWritesOnTheOther) {
  const std::string tensors = kGroups +
                              "tensor t0 a activation bf16 [hidden=1] g0\n"
                              "tensor t1 b activation bf16 [hidden=1] g2\n"
                              "op o0 make host scheduler g0 s0 writes t0\n";
  expect_verified(tensors + "op o1 send comm send_recv bf16 2B g1 s0 reads t0 writes t1\n" +
                  "op o2 use host scheduler g2 s0 reads t1");
  // An all-reduce needs both sides.
  expect_rejected(tensors + "op o1 sum comm all_reduce bf16 2B g1 s0 reads t0",
                  "expected all of them to have it");
}

TEST(Verify, RejectsReadingAnActivationThatNobodyWrote) {
  expect_rejected(kGroups +
                      "tensor t0 a activation bf16 [hidden=1] g0\n"
                      "op o0 x host scheduler g0 s0 reads t0 writes t0",
                  "reads activation 0 \"a\" on rank 0, where no earlier op writes it");
}

TEST(Verify, RejectsReadingOnARankWhereNobodyWrote) {
  const std::string tensors = kGroups + "tensor t0 a activation bf16 [hidden=1] g1\n";
  const std::string write0 = "op o0 x host scheduler g0 s0 writes t0\n";
  expect_rejected(tensors + write0 + "op o1 y host scheduler g1 s0 reads t0", "on rank 1");
  expect_verified(tensors + write0 +
                  "op o1 z host scheduler g2 s0 writes t0\n"
                  "op o2 y host scheduler g1 s0 reads t0");
}

TEST(Verify, RejectsWritingAWeight) {
  expect_rejected(kGroups +
                      "tensor t0 w weight bf16 [hidden=1] g0\n"
                      "op o0 x host scheduler g0 s0 writes t0",
                  "writes weight 0 \"w\"");
}

TEST(Verify, RejectsEmptyTensorsButForTheCache) {
  expect_rejected(kGroups + "tensor t0 w weight bf16 [hidden=0] g0", "axis hidden has size 0");
  expect_verified(kGroups + "tensor t0 kv kv_cache bf16 [context=0] g0");
  expect_rejected(kGroups + "tensor t0 kv kv_cache bf16 [context=-1] g0", "expected at least 0");
}

const std::string kOver4 = "plan 2\ngroup g0 0-3\ngroup g1 0,2\n";

TEST(Verify, AcceptsSplitsOfWhichAllRanksHaveTheWhole) {
  expect_verified(kOver4 + "split p0 41/11 by 4x1\ntensor t0 w weight bf16 [vocab=11/p0] g0");
  expect_verified(kOver4 + "split p0 8/4 by 2x2\ntensor t0 w weight bf16 [heads=4/p0] g0");
  expect_verified(kOver4 +
                  "split p0 80/10 by 4x1 zigzag\n"
                  "tensor t0 kv kv_cache bf16 [context=20/p0,hidden=8] g0");
  expect_verified(kOver4 +
                  "split p0 64/4 by 4x1,4xm\n"
                  "tensor t0 x activation bf16 [tokens=4/p0] g0 stage 0 micro_batch 2");
}

TEST(Verify, RejectsAShareOfAnotherSizeThanItsSplitSays) {
  expect_rejected(kOver4 + "split p0 16/4 by 4x1\ntensor t0 w weight bf16 [ffn=8/p0] g0",
                  "tensor 0 \"w\": axis ffn has size 8 on each rank, expected 4, its share of 16");
}

// Ranks 0 and 2 have shares 0 and 2 of 4; strides of two over neighbours give the first half twice.
TEST(Verify, RejectsElementsThatNoRankHas) {
  expect_rejected(kOver4 + "split p0 16/4 by 4x1\ntensor t0 w weight bf16 [ffn=4/p0] g1",
                  "axis ffn: no rank has 8 of 16 elements");
  expect_rejected(kOver4 + "split p0 16/8 by 2x4\ntensor t0 w weight bf16 [ffn=8/p0] g0",
                  "axis ffn: no rank has 8 of 16 elements");
}

// Both axes over tp: each by itself is whole, but of the four quarters two are nowhere.
TEST(Verify, RejectsTwoAxesOverTheSameRanks) {
  expect_rejected(kOver4 +
                      "split p0 16/8 by 2x1\nsplit p1 4/2 by 2x1\n"
                      "tensor t0 w weight bf16 [experts=2/p1,ffn=8/p0] g0",
                  "its ranks have 2 of 4 combinations of shares along its axes");
  expect_verified(kOver4 +
                  "split p0 16/8 by 2x1\nsplit p1 4/2 by 2x2\n"
                  "tensor t0 w weight bf16 [experts=2/p1,ffn=8/p0] g0");
}

const std::string kNorm = kGroups +
                          "tensor t0 x input bf16 [tokens=4,hidden=16] g0\n"
                          "tensor t1 gain weight bf16 [hidden=16] g0\n"
                          "tensor t2 y output bf16 [tokens=4,hidden=16] g0\n"
                          "tensor t3 z output bf16 [tokens=3,hidden=16] g0\n"
                          "tensor t4 residual input bf16 [tokens=4,hidden=16] g0\n"
                          "op o0 norm kernel add_rms_norm bf16 tokens=4 hidden=16 g0 s0 ";

TEST(Verify, RejectsOperandsThatAreNotThoseOfTheKernel) {
  expect_verified(kNorm + "reads t0,t4,t1 writes t2,t4");
  expect_rejected(kNorm + "writes t2,t4", "op 0 \"norm\": kernel add_rms_norm bf16: reads no x");
  expect_rejected(kNorm + "reads t0,t4 writes t2,t4", "reads no gain, expected weight bf16");
  expect_rejected(kNorm + "reads t0,t4,t1,t1 writes t2,t4", "for which it has no slot");
  expect_rejected(
      kNorm + "reads t0,t1,t4 writes t2,t4",
      "reads \"gain\" (weight bf16 [16]) as residual, expected activation bf16 [tokens, "
      "hidden] with tokens=4 hidden=16");
  expect_rejected(kNorm + "reads t0,t4,t1 writes t3,t4", "writes \"z\" (output bf16 [3, 16]) as y");
  expect_rejected(kNorm + "reads t0,t4,t1 writes t2,t0",
                  "writes \"x\" (input bf16 [4, 16]) as sum, which it reads as x");
}

// Columns of x on a rank are not those of the weight's rows that it has.
TEST(Verify, RejectsAnOpWhoseOperandsAreSplitInTwoWays) {
  expect_rejected(kOver4 +
                      "split p0 16/8 by 2x1\nsplit p1 16/8 by 2x2\n"
                      "tensor t0 x input bf16 [tokens=4,heads=8/p0] g0\n"
                      "tensor t1 w weight bf16 [hidden=4,heads=8/p1] g0\n"
                      "tensor t2 y output bf16 [tokens=4,hidden=4] g0\n"
                      "op o0 o_proj kernel gemm bf16 m=4:tokens n=4:hidden k=8:heads g0 s0 "
                      "reads t0,t1 writes t2",
                  "op 0 \"o_proj\": its tensors have axis heads split over ranks in two ways");
}

TEST(Verify, RejectsColumnsThatATensorHasNot) {
  const std::string tensors = kOver4 +
                              "tensor t0 x input bf16 [tokens=4,latent=24] g0\n"
                              "tensor t1 w weight bf16 [latent=16] g0\n"
                              "tensor t2 y output bf16 [tokens=4,latent=16] g0\n"
                              "op o0 norm kernel rms_norm bf16 tokens=4:tokens hidden=16:latent "
                              "g0 s0 ";
  expect_verified(tensors + "reads t0[8:24],t1 writes t2");
  expect_rejected(tensors + "reads t0[9:25],t1 writes t2",
                  "uses columns 9 to 25 of tensor 0 \"x\", which has 24");
}

TEST(Verify, RejectsRowsThatATensorHasNot) {
  const std::string tensors = kOver4 +
                              "tensor t0 x input bf16 [tokens=9,latent=16] g0\n"
                              "tensor t1 w weight bf16 [latent=16] g0\n"
                              "tensor t2 y output bf16 [tokens=4,latent=16] g0\n"
                              "op o0 norm kernel rms_norm bf16 tokens=4:tokens hidden=16:latent "
                              "g0 s0 ";
  expect_verified(tensors + "reads t0[5:9,:],t1 writes t2");
  expect_rejected(tensors + "reads t0[6:10,:],t1 writes t2",
                  "uses rows 6 to 10 of tensor 0 \"x\", which has 9");
  expect_rejected(tensors + "reads t0[4:9,:],t1 writes t2", "reads \"x\"");
}

}  // namespace
}  // namespace orrery
