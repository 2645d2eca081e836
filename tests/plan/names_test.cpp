#include <gtest/gtest.h>

#include <stdexcept>

#include "sim/plan/plan.h"

namespace orrery {
namespace {

TEST(Names, EveryEnumeratorReadsBackFromItsText) {
  for (int i = 0; i <= static_cast<int>(DType::kInt32); ++i) {
    EXPECT_EQ(parse_dtype(to_text(static_cast<DType>(i))), static_cast<DType>(i));
  }
  for (int i = 0; i <= static_cast<int>(TensorRole::kOutput); ++i) {
    EXPECT_EQ(parse_tensor_role(to_text(static_cast<TensorRole>(i))), static_cast<TensorRole>(i));
  }
  for (int i = 0; i <= static_cast<int>(CollectiveKind::kBroadcast); ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    EXPECT_EQ(parse_collective_kind(to_text(kind)), kind);
  }
  for (int i = 0; i <= static_cast<int>(HostKind::kSampling); ++i) {
    EXPECT_EQ(parse_host_kind(to_text(static_cast<HostKind>(i))), static_cast<HostKind>(i));
  }
}

TEST(Names, AreTheFieldsWords) {
  EXPECT_EQ(to_text(DType::kFp8Block), "fp8_block");
  EXPECT_EQ(to_text(TensorRole::kKvCache), "kv_cache");
  EXPECT_EQ(to_text(CollectiveKind::kReduceScatter), "reduce_scatter");
  EXPECT_EQ(to_text(HostKind::kD2hSync), "d2h_sync");
}

TEST(Names, AnUnknownDTypeIsAnErrorWithTheNearestAndAllKnown) {
  try {
    parse_dtype("bf_16");
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "unknown dtype \"bf_16\", nearest is \"bf16\"; expected one of fp32 bf16 fp16 fp8 "
                 "fp8_block mxfp4 nvfp4 int4 int8 int32");
  }
}

TEST(Names, OtherUnknownWordsAreErrorsToo) {
  EXPECT_THROW(parse_tensor_role("weights"), std::invalid_argument);
  EXPECT_THROW(parse_collective_kind("allreduce"), std::invalid_argument);
  EXPECT_THROW(parse_host_kind(""), std::invalid_argument);
}

TEST(BytesPerElement, IncludesTheScalesOfBlockFormats) {
  EXPECT_EQ(bytes_per_element(DType::kBf16), 2);
  EXPECT_EQ(bytes_per_element(DType::kFp8), 1);
  // A 128 x 128 block has 16384 bytes and one float.
  EXPECT_EQ(bytes_per_element(DType::kFp8Block) * 16384, 16388);
  // 32 elements take 16 bytes and one for the shared exponent.
  EXPECT_EQ(bytes_per_element(DType::kMxfp4) * 32, 17);
  // 128 elements take 64 bytes and a bf16 scale.
  EXPECT_EQ(bytes_per_element(DType::kInt4) * 128, 66);
}

}  // namespace
}  // namespace orrery
