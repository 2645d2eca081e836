#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"
#include "tests/kernels/kernel_op.h"

namespace orrery {
namespace {

constexpr std::int64_t kFull = 1 << 30;

// batch, query, context, window with the heads of Llama-3.1-70B on one of 4 ranks.
Work prefill(std::int64_t batch, std::int64_t query, std::int64_t context,
             std::int64_t window = kFull) {
  return work("attention_prefill", DType::kFp8, {batch, query, context, 16, 2, 128, window});
}
Work decode(std::int64_t batch, std::int64_t context, std::int64_t window = kFull) {
  return work("attention_decode", DType::kFp8, {batch, context, 16, 2, 128, window});
}

TEST(CausalPairs, CountsWhatEachTokenSees) {
  for (int query = 1; query < 8; ++query) {
    for (int context = 0; context < 8; ++context) {
      for (int window = 1; window < 20; ++window) {
        // Token i of the query sees itself and the context + i - 1 before it, at most the window.
        int pairs = 0;
        for (int i = 1; i <= query; ++i) pairs += std::min(context + i, window);
        // The first sees back to position context + 1 - window + 1, the last itself.
        const int first = std::max(1, context + 2 - window);
        const int keys = context + query - first + 1;
        EXPECT_EQ(causal_pairs(query, context, window), pairs);
        EXPECT_EQ(causal_keys(query, context, window), keys);
      }
    }
  }
}

TEST(AttentionPrefillWork, OfAPromptIsHalfTheSquareAndItsDiagonal) {
  const double q = 2048;
  EXPECT_EQ(prefill(1, 2048, 0).flops, Flops(4.0 * 16 * 128 * q * (q + 1) / 2));
  // q in bf16, k and v of 2 heads in fp8.
  EXPECT_EQ(prefill(1, 2048, 0).bytes_read, Bytes(2 * q * 16 * 128 + 2 * q * 2 * 128));
  EXPECT_EQ(prefill(1, 2048, 0).bytes_written, Bytes(2 * q * 16 * 128));
}

TEST(AttentionPrefillWork, OfChunksAddsUpToThatOfThePrompt) {
  EXPECT_EQ(prefill(1, 512, 0).flops + prefill(1, 1536, 512).flops, prefill(1, 2048, 0).flops);
  EXPECT_EQ(prefill(1, 512, 0, 100).flops + prefill(1, 1536, 512, 100).flops,
            prefill(1, 2048, 0, 100).flops);
}

TEST(AttentionPrefillWork, OfOneTokenIsADecode) {
  // context counts the new token in decode and not in prefill.
  for (const std::int64_t window : {kFull, std::int64_t{64}, std::int64_t{1000}}) {
    const Work p = prefill(3, 1, 999, window);
    const Work d = decode(3, 1000, window);
    EXPECT_EQ(p.flops, d.flops);
    EXPECT_EQ(p.bytes_read, d.bytes_read);
    EXPECT_EQ(p.bytes_written, d.bytes_written);
  }
}

TEST(AttentionPrefillWork, OfABatchIsThatOfEachSequence) {
  EXPECT_EQ(prefill(5, 100, 30).flops, 5 * prefill(1, 100, 30).flops);
  EXPECT_EQ(prefill(5, 100, 30).bytes_read, 5 * prefill(1, 100, 30).bytes_read);
}

TEST(AttentionDecodeWork, ReadsTheCacheOnceForAllQueryHeads) {
  // 64 sequences of 1000 tokens, k and v of 2 x 128 in fp8; q of 16 x 128 in bf16.
  EXPECT_EQ(decode(64, 1000).bytes_read, Bytes(64.0 * (1000 * 2 * 2 * 128 + 2 * 16 * 128)));
  EXPECT_EQ(decode(64, 1000).flops, Flops(4.0 * 64 * 16 * 128 * 1000));
}

TEST(AttentionDecodeWork, BeyondTheWindowDoesNotGrow) {
  EXPECT_EQ(decode(1, 500, 128).bytes_read, decode(1, 128, 128).bytes_read);
  EXPECT_EQ(decode(1, 500, 128).flops, decode(1, 128).flops);
}

TEST(MlaDecodeWork, ReadsOneLatentForAllHeads) {
  // DeepSeek-V3: latent 512 and rope 64, bf16 cache: 1152 bytes per token whatever the heads.
  const Work few = work("mla_decode", DType::kBf16, {1, 4096, 16, 512, 64});
  EXPECT_EQ(few.bytes_read, Bytes(4096.0 * 1152 + 2 * 16 * 576));
  EXPECT_EQ(few.flops, Flops(2.0 * 16 * 4096 * (576 + 512)));
  EXPECT_EQ(few.bytes_written, Bytes(2 * 16 * 512));
}

TEST(MlaPrefillWork, IsThatOfAttentionWhereKeysAndValuesAreEqual) {
  // With one kv head per head and v as long as qk, both kernels do the same.
  const Work mla = work("mla_prefill", DType::kBf16, {2, 64, 32, 8, 128, 128});
  const Work mha = work("attention_prefill", DType::kBf16, {2, 64, 32, 8, 8, 128, kFull});
  EXPECT_EQ(mla.flops, mha.flops);
  EXPECT_EQ(mla.bytes_read, mha.bytes_read);
  EXPECT_EQ(mla.bytes_written, mha.bytes_written);
}

// Of one token of each sequence, it is a decode's.
TEST(VerifyWork, OfNoDraftsIsThatOfADecode) {
  for (const std::int64_t window : {std::int64_t{1} << 30, std::int64_t{512}}) {
    const Work one = work("attention_verify", DType::kFp8, {8, 1, 3000, 32, 4, 128, window});
    const Work decode = work("attention_decode", DType::kFp8, {8, 3000, 32, 4, 128, window});
    EXPECT_DOUBLE_EQ(one.flops.value(), decode.flops.value());
    EXPECT_DOUBLE_EQ(one.bytes_read.value(), decode.bytes_read.value());
    EXPECT_DOUBLE_EQ(one.bytes_written.value(), decode.bytes_written.value());
  }
  const Work one = work("mla_verify", DType::kBf16, {8, 1, 3000, 16, 512, 64});
  const Work decode = work("mla_decode", DType::kBf16, {8, 3000, 16, 512, 64});
  EXPECT_EQ(one.flops, decode.flops);
  EXPECT_EQ(one.bytes_read, decode.bytes_read);
}

// Four tokens of a sequence see 3000 keys each, which are read once.
TEST(VerifyWork, KeysAreReadOnceForAllTokensOfASequence) {
  const std::int64_t all = std::int64_t{1} << 30;
  const Work four = work("attention_verify", DType::kBf16, {1, 4, 3000, 32, 4, 128, all});
  EXPECT_DOUBLE_EQ(four.flops.value(), 4.0 * 32 * 128 * 4 * 3000);
  EXPECT_DOUBLE_EQ(four.bytes_read.value(), 2.0 * 4 * 32 * 128 + 2.0 * 3000 * 4 * 128 * 2);
}

// DeepSeek-V3 on one of 8 ranks.
constexpr std::int64_t kHeads = 16, kHidden = 7168, kQLora = 1536, kKvLora = 512, kNope = 128,
                       kRope = 64, kV = 128;

Flops gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return work("gemm", DType::kBf16, {m, n, k}).flops;
}

TEST(MlaModuleWork, OfDecodeIsThatOfItsParts) {
  const std::int64_t batch = 32;
  const std::int64_t context = 4096;
  const Work module =
      work("mla_decode_module", DType::kBf16,
           {batch, context, kHeads, kHidden, kQLora, kKvLora, kNope, kRope, kV, 16});
  const Flops parts =
      gemm_flops(batch, kQLora + kKvLora + kRope, kHidden) +
      gemm_flops(batch, kHeads * (kNope + kRope), kQLora) +
      work("batched_gemm", DType::kBf16, {kHeads, batch, kKvLora, kNope}).flops +
      work("mla_decode", DType::kBf16, {batch, context, kHeads, kKvLora, kRope}).flops +
      work("batched_gemm", DType::kBf16, {kHeads, batch, kV, kKvLora}).flops +
      gemm_flops(batch, kHidden, kHeads * kV);
  EXPECT_DOUBLE_EQ(module.flops.value(), parts.value());
}

TEST(MlaModuleWork, OfPrefillIsThatOfItsParts) {
  const std::int64_t query = 256;
  const std::int64_t context = 128;
  const Work module =
      work("mla_prefill_module", DType::kBf16,
           {1, query, context, kHeads, kHidden, kQLora, kKvLora, kNope, kRope, kV, 16});
  const Flops parts =
      gemm_flops(query, kQLora + kKvLora + kRope, kHidden) +
      gemm_flops(query, kHeads * (kNope + kRope), kQLora) +
      gemm_flops(query + context, kHeads * (kNope + kV), kKvLora) +
      work("mla_prefill", DType::kBf16, {1, query, context, kHeads, kNope + kRope, kV}).flops +
      gemm_flops(query, kHidden, kHeads * kV);
  EXPECT_DOUBLE_EQ(module.flops.value(), parts.value());
}

TEST(MlaModuleWork, ReadsWeightsInputAndCacheOnce) {
  const std::int64_t weights = kQLora * (kHidden + kHeads * (kNope + kRope)) +
                               kHidden * (kKvLora + kRope) + kKvLora * kHeads * (kNope + kV) +
                               kHeads * kV * kHidden;
  // Batch of 2 at context 101, 8-bit cache: 100 cached tokens each; fp8 weights, bf16 stream.
  const Work module = work("mla_decode_module", DType::kFp8,
                           {2, 101, kHeads, kHidden, kQLora, kKvLora, kNope, kRope, kV, 8});
  EXPECT_EQ(module.bytes_read,
            Bytes(static_cast<double>(weights) + 2.0 * 2 * kHidden + 2.0 * 100 * 576));
  EXPECT_EQ(module.bytes_written, Bytes(2 * (2 * kHidden + 576)));
}

TEST(MlaModuleWork, WithoutQLoraProjectsQueriesDirectly) {
  // DeepSeek-V2-Lite has no q latent: hidden x heads (nope + rope) instead.
  const auto flops = [](std::int64_t q_lora) {
    return work("mla_decode_module", DType::kBf16,
                {1, 1, kHeads, kHidden, q_lora, kKvLora, kNope, kRope, kV, 16})
        .flops.value();
  };
  const double direct = 2.0 * kHidden * kHeads * (kNope + kRope);
  const double through = 2.0 * kQLora * (kHidden + kHeads * (kNope + kRope));
  EXPECT_DOUBLE_EQ(flops(0) - flops(kQLora), direct - through);
}

}  // namespace
}  // namespace orrery
