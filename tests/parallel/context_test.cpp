// Context parallelism: what each rank computes, keeps and sends, and what it cannot split.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/parallel/context_rows.h"
#include "sim/parallel/parallel.h"
#include "tests/model/small_models.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

using testing::bytes_on_rank_0;
using testing::comm_named;
using testing::flops_by_op;
using testing::kDecode;
using testing::kPrefill;
using testing::op_named;
using testing::placed;
using testing::total_weights;

constexpr CpWeights kWhole = CpWeights::kReplicated;
constexpr CpPrefill kRing = CpPrefill::kRing;

const Batch kMixedChunks{
    .prefill = {{512, 1024}, {512, 1024}}, .num_decodes = 8, .decode_context = 8192};

// Ranks with rows of their own and one page table.
Mesh dealt(int cp, int ep = 1) {
  return {.cp = cp, .ep = ep, .cp_weights = kWhole, .cp_decodes = CpDecodes::kDealt};
}

ModelConfig llama() { return testing::shipped_model("meta-llama--Meta-Llama-3.1-8B"); }
ModelConfig deepseek() { return testing::shipped_model("deepseek-ai--DeepSeek-V2-Lite"); }

std::int64_t dim_of(const Plan& plan, std::string_view op, std::string_view name) {
  return dim(std::get<KernelOp>(op_named(plan, op).body).dims, name);
}

TEST(Context, PlansOfEveryMeshVerify) {
  const std::vector<Mesh> of_both{{.cp = 2},
                                  {.tp = 2, .cp = 2},
                                  {.dp = 2, .cp = 4},
                                  {.tp = 2, .cp = 4, .pp = 2, .num_micro_batches = 2},
                                  {.cp = 2, .cp_weights = kWhole}};
  const std::vector<Mesh> of_llama{{.tp = 2, .cp = 2, .cp_weights = kWhole},
                                   {.dp = 2, .tp = 2, .cp = 2, .cp_weights = kWhole},
                                   {.cp = 4, .cp_prefill = kRing},
                                   dealt(2),
                                   dealt(3),
                                   {.tp = 2, .cp = 4, .cp_weights = kWhole, .cp_prefill = kRing}};
  const std::vector<Mesh> of_deepseek{{.cp = 2, .ep = 2},
                                      {.dp = 2, .cp = 2, .ep = 4},
                                      dealt(2, 2),
                                      dealt(4, 4),
                                      {.tp = 2, .cp = 4, .ep = 4},
                                      {.tp = 2, .cp = 2, .ep = 4, .lm_head = LmHead::kReplicated}};
  for (const ModelConfig& model : {llama(), deepseek()}) {
    std::vector<Mesh> meshes = of_both;
    const auto& more = model.kv_lora_rank > 0 ? of_deepseek : of_llama;
    meshes.insert(meshes.end(), more.begin(), more.end());
    for (const Mesh& mesh : meshes) {
      for (const Batch& batch : {kDecode, kPrefill, kMixedChunks}) {
        for (const bool is_fp8 : {false, true}) {
          LoweringOptions options;
          if (is_fp8) options.precision = testing::kFp8Precision;
          const Plan plan = placed(model, batch, mesh, options);
          EXPECT_EQ(parse_plan(to_text(plan)), plan);
        }
      }
    }
  }
}

// Attention of all ranks is that of one: 64 decodes of 1,000 tokens are 64 times 250 on each of 4
// ranks, and a zig-zag share of a prompt has its share of the pairs.
TEST(Context, AttentionOfAllRanksIsThatOfOne) {
  for (const ModelConfig& model : {llama(), deepseek()}) {
    const bool is_mla = model.kv_lora_rank > 0;
    const std::string decode = is_mla ? "layers.1.mla_decode" : "layers.0.attn_decode";
    const std::string prefill = is_mla ? "layers.1.mla_prefill" : "layers.0.attn_prefill";
    for (const Mesh& mesh : {Mesh{.cp = 4}, Mesh{.tp = 2, .cp = 4}}) {
      EXPECT_DOUBLE_EQ(flops_by_op(placed(model, kDecode, mesh)).at(decode),
                       flops_by_op(placed(model, kDecode, {})).at(decode));
      EXPECT_DOUBLE_EQ(flops_by_op(placed(model, kPrefill, mesh)).at(prefill),
                       flops_by_op(placed(model, kPrefill, {})).at(prefill));
    }
  }
}

// In each of 4 rounds a rank computes the causal pairs of 256 queries and keys: 4 * 4 * 256 * 257 /
// 2 of all, for 1024 * 1025 / 2 of the prompt, so each diagonal but one is counted once too often.
TEST(Context, RoundsOfARingAreAsMuchWorkAsThePrompt) {
  const Plan plan = placed(llama(), kPrefill, {.cp = 4, .cp_prefill = kRing});
  const auto flops = flops_by_op(plan);
  double total = 0;
  for (int round = 0; round < 4; ++round) {
    const std::string name = "layers.0.attn_prefill.round" + std::to_string(round);
    EXPECT_EQ(dim_of(plan, name, "query"), 256);
    EXPECT_DOUBLE_EQ(flops.at(name), flops.at("layers.0.attn_prefill.round0"));
    total += flops.at(name);
  }
  const double whole = flops_by_op(placed(llama(), kPrefill, {})).at("layers.0.attn_prefill");
  EXPECT_DOUBLE_EQ(total / whole, 4.0 * 4 * 256 * 257 / (1024 * 1025));
}

// 4 ranks, all pairs of which meet once: 3 rounds of 2 pairs.
TEST(Context, EveryPairOfARingMeetsOnce) {
  const Plan plan = placed(llama(), kPrefill, {.cp = 4, .cp_prefill = kRing});
  std::vector<std::vector<int>> pairs;
  for (const Op& op : plan.ops()) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || comm->kind != CollectiveKind::kSendRecv) continue;
    // Keys and values of 256 tokens of each of 4 prompts, 8 heads of 128 in bf16.
    EXPECT_EQ(comm->bytes_per_rank.value(), 4.0 * 256 * 2 * 8 * 128 * 2);
    pairs.emplace_back(plan.ranks(op.ranks).begin(), plan.ranks(op.ranks).end());
  }
  std::ranges::sort(pairs);
  EXPECT_EQ(pairs, (std::vector<std::vector<int>>{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}));
}

// Pairs of query and key of rank r in a prompt of n tokens: the sum of position + 1 over its
// queries. Ranks differ by the blocks that are not whole, so by less than a block of queries over
// all keys.
TEST(Context, CausalWorkOfRanksDiffersByLessThanABlock) {
  for (const int cp : {2, 3, 4, 8}) {
    const Place place = Place().add({.ways = cp, .stride = 1});
    for (const std::int64_t tokens : {1024, 1000, 1001, 4097}) {
      const SplitPart part = zigzag_part(tokens, place);
      std::vector<std::int64_t> work;
      for (int rank = 0; rank < cp; ++rank) {
        std::int64_t pairs = 0;
        for (const AxisRange& range : ranges_at(part, rank)) {
          for (std::int64_t i = 0; i < range.count; ++i) pairs += range.global + i + 1;
        }
        work.push_back(pairs);
      }
      const auto [least, most] = std::ranges::minmax(work);
      EXPECT_LE(most - least, part.block * tokens) << cp << " " << tokens;
      EXPECT_EQ(std::accumulate(work.begin(), work.end(), std::int64_t{0}),
                tokens * (tokens + 1) / 2);
      EXPECT_TRUE(most == least || tokens != 1024 || cp == 3) << cp;
    }
  }
}

TEST(Context, ARankKeepsItsShareOfTheCache) {
  for (const ModelConfig& model : {llama(), deepseek()}) {
    const MemoryUse whole = memory_of(placed(model, kDecode, {}), 0);
    for (const int cp : {2, 4}) {
      const Plan plan = placed(model, kDecode, {.cp = cp});
      for (int rank = 0; rank < cp; ++rank) {
        EXPECT_EQ(memory_of(plan, rank).kv_cache, whole.kv_cache / cp);
      }
      EXPECT_EQ(kv_bytes_per_rank(model, {.cp = cp}, DType::kBf16, 4096),
                kv_bytes_per_rank(model, {}, DType::kBf16, 4096) / cp);
      // The token that is one too many lies on one rank.
      EXPECT_EQ(kv_bytes_per_rank(model, {.cp = cp}, DType::kBf16, 4097),
                kv_bytes_per_rank(model, {}, DType::kBf16, 4096 / cp + 1));
    }
  }
}

// Weights of what stands before attention lie on each of the cp ranks, the others once; replicated,
// all do.
TEST(Context, WeightsBehindAttentionLieOnceOrOnEachRank) {
  const ModelConfig model = llama();
  const std::int64_t whole = total_weights(placed(model, kDecode, {}));
  // Per layer: columns of 32 + 2 * 8 heads of 128 and a norm before attention, a norm behind; at
  // the ends one more norm.
  const std::int64_t of_each = 32 * ((32 + 16) * 128 * 4096 + 2 * 4096) + 4096;
  EXPECT_EQ(total_weights(placed(model, kDecode, {.cp = 4})), whole + 3 * of_each);
  EXPECT_EQ(total_weights(placed(model, kDecode, {.cp = 4, .cp_weights = kWhole})), 4 * whole);
}

// Of 64 rows, 32 heads / tp of 128 in bf16 and an fp32 log-sum-exp each, in 32 layers; how long the
// context is does not matter.
TEST(Context, WhatDecodesExchangeDoesNotDependOnTheContext) {
  for (const int tp : {1, 2}) {
    for (const std::int64_t context : {1000, 100'000}) {
      const Batch batch{.num_decodes = 64, .decode_context = 64 * context};
      const double expected = 32.0 * 64 * 32 / tp * (128 * 2 + 4);
      EXPECT_EQ(
          bytes_on_rank_0(placed(llama(), batch, {.tp = tp, .cp = 2}), CollectiveKind::kAllToAll),
          expected);
      EXPECT_EQ(bytes_on_rank_0(placed(llama(), batch, {.cp = 2, .cp_weights = kWhole}),
                                CollectiveKind::kAllGather),
                expected * tp);
    }
  }
}

// 64 decodes of 1,000 tokens on 4 ranks: 16 rows on each in all but attention, of which a rank has
// all rows over 250 tokens.
TEST(Context, DecodesThatAreDealtOutAreAsMuchWorkAsOnOneRank) {
  for (const ModelConfig& model : {llama(), deepseek()}) {
    const bool is_moe = model.num_experts > 0;
    const Plan plan = placed(model, kDecode, dealt(4, is_moe ? 4 : 1));
    const auto flops = flops_by_op(plan);
    const auto expected = flops_by_op(placed(model, kDecode, {}));
    const std::string layer = is_moe ? "layers.1." : "layers.0.";
    const std::string attention = layer + (is_moe ? "mla_decode" : "attn_decode");
    for (const std::string& op : {layer + "o_proj", std::string("lm_head"), attention}) {
      EXPECT_DOUBLE_EQ(flops.at(op), expected.at(op)) << model.name << " " << op;
    }
    EXPECT_EQ(dim_of(plan, layer + "o_proj", "m"), 16);
    EXPECT_EQ(dim_of(plan, "lm_head", "m"), 16);
    EXPECT_EQ(dim_of(plan, attention, "batch"), 64);
    EXPECT_EQ(dim_of(plan, attention, "context"), 250);
  }
}

// Of each rank's rows 32 + 2 * 8 heads of 128 go to all others; of all 64 rows results and
// log-sum-exps of 32 heads go back.
TEST(Context, DecodesThatAreDealtOutSendQueriesKeysAndResults) {
  const Plan plan = placed(llama(), kDecode, dealt(4));
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllGather), 32.0 * 16 * 48 * 128 * 2);
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllToAll), 32.0 * 64 * 32 * (128 * 2 + 4));
  EXPECT_EQ(bytes_on_rank_0(plan, CollectiveKind::kAllReduce), 0);
}

// Five decodes on two ranks are three and two: the sixth row pads, and has no context.
TEST(Context, RowsThatPadHaveNoContext) {
  const Batch five{.num_decodes = 5, .decode_context = 5000};
  const Plan plan = placed(llama(), five, dealt(2));
  EXPECT_EQ(dim_of(plan, "layers.0.o_proj", "m"), 3);
  EXPECT_EQ(dim_of(plan, "layers.0.attn_decode", "batch"), 6);
  EXPECT_EQ(dim_of(plan, "layers.0.attn_decode", "context"), 417);  // 5 * 500 / 6
}

// Chunks of 512 beside 8 decodes: each rank appends its half of the prompts, and half of what all
// decodes give.
TEST(Context, PromptsBesideDealtDecodesAppendTheirOwn) {
  const Plan plan = placed(llama(), kMixedChunks, dealt(2));
  EXPECT_EQ(dim_of(plan, "layers.0.kv_append", "tokens"), 512);
  EXPECT_EQ(dim_of(plan, "layers.0.kv_append.decodes", "tokens"), 4);
  EXPECT_EQ(dim_of(plan, "layers.0.o_proj", "m"), 512 + 4);
  EXPECT_EQ(dim_of(plan, "lm_head", "m"), 2 + 4);
  EXPECT_EQ(comm_named(plan, "layers.0.kv_append.decodes.all_gather").bytes_per_rank.value(),
            4.0 * 48 * 128 * 2);
}

// Prompts of 512 tokens after 1,024: each rank contributes its half of both.
TEST(Context, PromptsGatherTheirKeysAndWhatIsCached) {
  const Plan plan = placed(llama(), kMixedChunks, {.cp = 2});
  EXPECT_EQ(comm_named(plan, "layers.0.attn_prefill.all_gather").bytes_per_rank.value(),
            2.0 * (512 + 1024) / 2 * 2 * 8 * 128 * 2);
  EXPECT_EQ(dim_of(plan, "layers.0.attn_prefill", "query"), 256);
  EXPECT_EQ(dim_of(plan, "layers.0.attn_prefill", "context"), 1024 + 128);
  // With split weights what stands before attention has half of the prompts and all decodes.
  EXPECT_EQ(dim_of(plan, "layers.0.qkv_proj", "m"), 512 + 8);
  EXPECT_EQ(dim_of(plan, "layers.0.o_proj", "m"), 1024 + 8);
  const Plan whole = placed(llama(), kMixedChunks, {.cp = 2, .cp_weights = kWhole});
  EXPECT_EQ(dim_of(whole, "layers.0.o_proj", "m"), 512 + 8);
}

TEST(Context, WhatItCannotSplitIsRefusedWithTheNearestLegalChoice) {
  const auto error = [](const ModelConfig& model, const Mesh& mesh) -> std::string {
    try {
      check_mesh(model, mesh);
    } catch (const std::invalid_argument& found) {
      return found.what();
    }
    return "";
  };
  const auto expect = [&](const ModelConfig& model, const Mesh& mesh, std::string_view part) {
    EXPECT_NE(error(model, mesh).find(part), std::string::npos) << error(model, mesh);
  };
  expect(llama(), {.cp = 3}, "nearest legal cp: 2 or 4; or cp_weights replicated");
  expect(llama(), {.tp = 16, .cp = 4}, "64 ways for the weights behind attention");
  expect(llama(), {.cp_weights = kWhole}, "cp_weights is replicated with cp 1");
  expect(llama(), {.cp_prefill = kRing}, "cp_prefill is ring with cp 1");
  expect(llama(), {.cp = 3, .cp_weights = kWhole, .cp_prefill = kRing},
         "do not pair up; nearest legal cp: 2 or 4; or all_gather");
  expect(llama(), {.tp = 2, .cp = 2, .sp = true}, "expected sp false");
  expect(llama(), {.dp = 2, .cp = 2, .o_proj = OProjection::kSharded}, "expected split");
  expect(deepseek(), {.cp = 2, .cp_prefill = kRing}, "expected all_gather");
  expect(deepseek(), {.tp = 2, .cp = 2, .cp_weights = kWhole}, "or cp_weights split");
  expect(llama(), {.cp_decodes = CpDecodes::kDealt}, "cp_decodes is dealt with cp 1");
  expect(llama(), {.cp = 2, .cp_decodes = CpDecodes::kDealt}, "expected cp_weights replicated");
  Mesh over_tp = dealt(2);
  over_tp.tp = 2;
  expect(llama(), over_tp, "cp_decodes is dealt with tp 2, which is not simulated");
  expect(deepseek(), dealt(4, 3), "nearest legal ep: 2 or 4");
  expect(deepseek(), {.cp = 2, .ep = 4}, "does not divide dp * tp * cp = 2");
  expect(testing::shipped_model("openai--gpt-oss-20b"), {.cp = 2}, "sliding window of 128");
}

// What has all of attention in one op, or a form of it that attends to no part of a context.
TEST(Context, AttentionOfAllSequencesInOneCallIsRefused) {
  const LoweringOptions packed{.attention_form = AttentionForm::kPacked};
  EXPECT_THROW((void)parallelize(lower(llama(), kPrefill, packed), {.cp = 2}),
               std::invalid_argument);
}

TEST(Context, FormsOfMlaWithoutPartsAreRefused) {
  for (const MlaForm form : {MlaForm::kModule, MlaForm::kAbsorbed}) {
    const LoweringOptions options{.mla_form = form};
    EXPECT_THROW((void)parallelize(lower(deepseek(), kPrefill, options), {.cp = 2}),
                 std::invalid_argument);
  }
  const LoweringOptions options{.mla_form = MlaForm::kExpanded};
  EXPECT_THROW((void)parallelize(lower(deepseek(), kDecode, options), {.cp = 2}),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery
