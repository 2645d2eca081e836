// Works in closed form on layers of known models.

#include <gtest/gtest.h>

#include "kernels/kernel_spec.h"
#include "tests/kernels/kernel_op.h"

namespace orrery {
namespace {

TEST(GemmWork, OfTheGateUpProjectionOfLlama70B) {
  // x [16, 8192] w [57344, 8192] in fp8, y [16, 57344] in bf16.
  const Work w = work("gemm", DType::kFp8, {16, 57344, 8192});
  EXPECT_EQ(w.flops, Flops(2.0 * 16 * 57344 * 8192));
  EXPECT_EQ(w.bytes_read, Bytes(16 * 8192 + 57344.0 * 8192));
  EXPECT_EQ(w.bytes_written, Bytes(2 * 16 * 57344));
}

TEST(GemmWork, InBf16TakesTwiceTheBytesOfFp8) {
  EXPECT_EQ(work("gemm", DType::kBf16, {1, 64, 64}).bytes_read,
            2 * work("gemm", DType::kFp8, {1, 64, 64}).bytes_read);
}

TEST(GemmWork, FourBitWeightsKeepBf16Activations) {
  // w: 128 elements in 66 bytes; x: 2 bytes each.
  EXPECT_EQ(work("gemm", DType::kInt4, {1, 64, 128}).bytes_read, Bytes(64 * 66 + 2 * 128));
}

TEST(GemmWork, BlockScalesComeWithWeightsAndActivations) {
  // w: one block of 128 x 128 with a float; x: 128 elements with a float.
  EXPECT_EQ(work("gemm", DType::kFp8Block, {1, 128, 128}).bytes_read,
            Bytes(128 * 128 + 4 + 128 + 4));
}

TEST(GemmWork, IsConservedWhenAnyDimIsSplit) {
  const Flops whole = work("gemm", DType::kBf16, {8, 32, 64}).flops;
  EXPECT_EQ(whole, 2 * work("gemm", DType::kBf16, {4, 32, 64}).flops);
  EXPECT_EQ(whole, 2 * work("gemm", DType::kBf16, {8, 16, 64}).flops);
  EXPECT_EQ(whole, 2 * work("gemm", DType::kBf16, {8, 32, 32}).flops);
}

TEST(BatchedGemmWork, IsAGemmForEachBatch) {
  const Work one = work("gemm", DType::kBf16, {3, 5, 7});
  const Work many = work("batched_gemm", DType::kBf16, {11, 3, 5, 7});
  EXPECT_EQ(many.flops, 11 * one.flops);
  EXPECT_EQ(many.bytes_read, 11 * one.bytes_read);
  EXPECT_EQ(many.bytes_written, 11 * one.bytes_written);
}

TEST(MoeWork, OneTokenReadsItsTopkExperts) {
  // DeepSeek-V3, all 256 experts here: 8 experts of 3 x 7168 x 2048 in bf16, and the token.
  const Work w = work("moe", DType::kBf16, {1, 7168, 2048, 8, 256, 256});
  EXPECT_DOUBLE_EQ(w.bytes_read.value(), 2 * (8 * 3 * 7168.0 * 2048 + 7168));
  EXPECT_EQ(w.flops, Flops(2 * 3 * 8 * 7168.0 * 2048));
  EXPECT_EQ(w.bytes_written, Bytes(2 * 7168));
}

TEST(MoeWork, ManyTokensReadEachExpertOnce) {
  // 4096 tokens miss an expert with probability (31/32)^4096 < 1e-56.
  const Work w = work("moe", DType::kFp8, {4096, 64, 32, 8, 256, 256});
  EXPECT_DOUBLE_EQ(w.bytes_read.value(), 256 * 3 * 64 * 32 + 4096 * 64);
}

TEST(MoeWork, TwoTokensMayShareAnExpert) {
  // One of 4 experts each: 4 (1 - (3/4)^2) = 1.75 experts are hit. fp8, hidden = inter = 1.
  const Work w = work("moe", DType::kFp8, {2, 1, 1, 1, 4, 4});
  EXPECT_DOUBLE_EQ(w.bytes_read.value(), 1.75 * 3 + 2);
}

TEST(MoeWork, OfAllExpertParallelRanksIsTheWholeWork) {
  const Work whole = work("moe", DType::kBf16, {64, 128, 32, 4, 64, 64});
  const Work rank = work("moe", DType::kBf16, {64, 128, 32, 4, 8, 64});
  EXPECT_DOUBLE_EQ((8 * rank.flops).value(), whole.flops.value());
}

TEST(ElementwiseWork, OfNormsOnLlama70B) {
  // 3 rows of 8192: x and w in bf16 in, fp8 out.
  const Work norm = work("rms_norm", DType::kFp8, {3, 8192});
  EXPECT_EQ(norm.bytes_read, Bytes(2 * 4 * 8192));
  EXPECT_EQ(norm.bytes_written, Bytes(3 * 8192));
  // With the residual: another row in, and the residual out in bf16.
  const Work fused = work("add_rms_norm", DType::kFp8, {3, 8192});
  EXPECT_EQ(fused.bytes_read, Bytes(2 * 7 * 8192));
  EXPECT_EQ(fused.bytes_written, Bytes(3 * 3 * 8192));
}

TEST(ElementwiseWork, SiluMulReadsTwoColumnsForOne) {
  const Work w = work("silu_mul", DType::kBf16, {5, 100});
  EXPECT_EQ(w.bytes_read, 2 * w.bytes_written);
  EXPECT_EQ(w.bytes_written, Bytes(2 * 5 * 100));
}

TEST(ElementwiseWork, KvAppendConvertsFromBf16) {
  const Work w = work("kv_append", DType::kFp8, {7, 2048});
  EXPECT_EQ(w.bytes_read, Bytes(2 * 7 * 2048));
  EXPECT_EQ(w.bytes_written, Bytes(7 * 2048));
}

TEST(ElementwiseWork, RopeReadsAndWritesInPlace) {
  // 6 heads of 8 in bf16, and 4 cosines and 4 sines per token.
  const Work w = work("rope", DType::kBf16, {2, 6, 8});
  EXPECT_EQ(w.bytes_written, Bytes(2 * 2 * 6 * 8));
  EXPECT_EQ(w.bytes_read, Bytes(2 * 2 * (6 * 8 + 8)));
}

TEST(ElementwiseWork, QuantizeAndResidualAdd) {
  EXPECT_EQ(work("quantize", DType::kFp8, {3, 64}).bytes_written, Bytes(3 * 64));
  EXPECT_EQ(work("quantize", DType::kFp8, {3, 64}).bytes_read, Bytes(2 * 3 * 64));
  const Work add = work("residual_add", DType::kBf16, {3, 64});
  EXPECT_EQ(add.bytes_read, 2 * add.bytes_written);
  EXPECT_EQ(add.flops, Flops(3 * 64));
}

TEST(EmbeddingWork, ReadsNoMoreRowsThanThereAre) {
  // Rows of 64 in bf16, ids of 4 bytes.
  EXPECT_EQ(work("embedding", DType::kBf16, {10, 64, 1000}).bytes_read, Bytes(10 * 128 + 10 * 4));
  EXPECT_EQ(work("embedding", DType::kBf16, {10, 64, 5}).bytes_read, Bytes(5 * 128 + 10 * 4));
}

TEST(SampleWork, ReadsEveryLogitAndWritesAnId) {
  const Work w = work("sample", DType::kBf16, {3, 128256});
  EXPECT_EQ(w.bytes_read, Bytes(2.0 * 3 * 128256));
  EXPECT_EQ(w.bytes_written, Bytes(3 * 4));
}

TEST(MoeRouteWork, ReadsEveryScoreAndWritesWeightAndIdOfEachChoice) {
  const Work w = work("moe_route", DType::kFp32, {3, 256, 8, 8});
  EXPECT_EQ(w.bytes_read, Bytes(4 * 3 * 256));
  EXPECT_EQ(w.bytes_written, Bytes(3 * 8 * 8));
}

TEST(SparseIndexWork, IsAProductPerHeadAndKey) {
  // 2 tokens that see 100 keys, 64 heads of 128 in fp8; the ids of 100 keys for each.
  const Work w = work("sparse_index", DType::kFp8, {2, 100, 64, 128});
  EXPECT_EQ(w.flops, Flops(2.0 * 2 * 100 * 64 * 129));
  EXPECT_EQ(w.bytes_read, Bytes(2 * 64 * 128 + 2 * 100 * 128));
  EXPECT_EQ(w.bytes_written, Bytes(2 * 100 * 4));
}

}  // namespace
}  // namespace orrery
