// Data-parallel ranks with batches of their own: which rows a plan has for them, and that the
// reference computes of them what one rank computes.

#include "kernels/execute/rank_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "kernels/execute/rank_program.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/halves.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

SequenceTokens of_rank(int rank, std::size_t query, std::int64_t context = 0,
                       bool produces_token = true) {
  return {.tokens = std::vector<std::int32_t>(query, 1),
          .context = context,
          .produces_token = produces_token,
          .dp_rank = rank};
}

// Rank 0: chunks of 5 and 2, the second goes on; a decode. Rank 1: three decodes. Rank 2: nothing.
StepInput unlike() {
  return {.prefill = {of_rank(0, 5), of_rank(0, 2, 3, false)},
          .decodes = {of_rank(0, 1, 7), of_rank(1, 1, 9), of_rank(1, 1, 2), of_rank(1, 1, 4)}};
}

TEST(RankBatches, SequencesGoToTheRanksThatTheyName) {
  const StepInput input = unlike();
  const std::vector<StepPart> parts = split_step(input, 3);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].prefill.size(), 2U);
  EXPECT_EQ(parts[0].decodes.size(), 1U);
  EXPECT_EQ(parts[1].decodes.size(), 3U);
  EXPECT_EQ(parts[1].decodes[0], &input.decodes[1]);
  EXPECT_TRUE(parts[2].prefill.empty() && parts[2].decodes.empty());
  // Sampled of the whole step: the first chunk, then four decodes.
  EXPECT_EQ(parts[0].sampled, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(parts[1].sampled, (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_TRUE(parts[2].sampled.empty());
}

TEST(RankBatches, ARankThatIsNotThereIsRefused) {
  EXPECT_THROW(split_step(unlike(), 1), std::invalid_argument);
  StepInput input = unlike();
  input.decodes.back().dp_rank = -1;
  EXPECT_THROW(split_step(input, 3), std::invalid_argument);
}

// 8, 3 and 0 tokens: (8 + 3 + 0) / (3 * 8).
TEST(RankBatches, BalanceIsTheMeanOverTheMost) {
  EXPECT_DOUBLE_EQ(balance(unlike(), 3), 11.0 / 24);
}

// Seven rows of chunks and the token that one of them makes from rank 0, three decodes from rank 1.
TEST(RankBatches, PlansHaveTheMostRowsOfAnyRank) {
  const Mesh mesh{.dp = 3};
  const Plan plan =
      step_plan(testing::tiny_llama(), alike_shape(fullest_batch(unlike(), 3), mesh), {}, mesh);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(step_rows(plan, rank, 0),
              (StepRows{.tokens = 10, .prefill = 7, .decodes = 3, .seqs = 4}));
  }
}

TEST(RankBatches, StepsThatDecodeAloneSampleEveryRow) {
  const StepInput input{.decodes = {of_rank(1, 1, 9), of_rank(1, 1, 2)}};
  const Mesh mesh{.dp = 2};
  const Plan plan =
      step_plan(testing::tiny_llama(), alike_shape(fullest_batch(input, 2), mesh), {}, mesh);
  EXPECT_EQ(step_rows(plan, 0, 0), (StepRows{.tokens = 2, .prefill = 0, .decodes = 2, .seqs = 2}));
  EXPECT_TRUE(samples_all_rows(step_rows(plan, 0, 0)));
}

// Three sequences on two ranks, in steps that no dealing in order would make: a prompt of 5 tokens
// alone, on rank 1; a prompt of 3 on rank 0 beside the decode of rank 1; a prompt of 4 on rank 1
// beside both decodes; decodes of one and two, padded to three rows on each rank; a chunk behind
// cached tokens, which a prompt of rank 1 has none of.
std::vector<StepInput> unlike_steps() {
  using testing::TestSequence;
  const TestSequence a(0, 12);
  const TestSequence b(1, 12);
  const TestSequence c(2, 12);
  const TestSequence d(3, 12);
  const auto on = [](int rank, SequenceTokens tokens) {
    tokens.dp_rank = rank;
    return tokens;
  };
  return {
      {.prefill = {on(1, a.chunk(0, 5))}},
      {.prefill = {on(0, b.chunk(0, 3))}, .decodes = {on(1, a.chunk(5, 6))}},
      {.prefill = {on(1, c.chunk(0, 4))}, .decodes = {on(0, b.chunk(3, 4)), on(1, a.chunk(6, 7))}},
      {.decodes = {on(0, b.chunk(4, 5)), on(1, a.chunk(7, 8)), on(1, c.chunk(4, 5))}},
      {.decodes = {on(1, a.chunk(8, 9))}},
      {.prefill = {on(0, b.chunk(5, 8)), on(1, d.chunk(0, 5))}, .decodes = {on(1, c.chunk(5, 6))}}};
}

StepInput on_one_rank(StepInput input) {
  for (auto* sequences : {&input.prefill, &input.decodes}) {
    for (SequenceTokens& sequence : *sequences) sequence.dp_rank = -1;
  }
  return input;
}

void expect_logits_of_one_rank(const ModelConfig& model, const LoweringOptions& options,
                               const Mesh& mesh) {
  const auto make = [&](const RankGrid& grid) {
    return reference::Model({.grid = grid,
                             .numbers = {.head_dim = model.rotary_dim(),
                                         .max_positions = 64,
                                         .routing = testing::routing_of(model)},
                             .num_kv_blocks = testing::kNumBlocks,
                             .block_size = testing::kBlockSize});
  };
  reference::Model one = make({});
  reference::Model several = make({.dp = mesh.dp});
  for (const StepInput& input : unlike_steps()) {
    const StepInput alone = on_one_rank(input);
    const auto expected = one.run(lower(model, batch_of(alone), options), alone);
    const DealtInput dealt(input, mesh.dp, mesh.two_batch_overlap);
    Mesh parts = mesh;
    if (dealt.is_halved()) parts.num_micro_batches = kNumHalves;
    const auto found = several.run(
        step_plan(model, alike_shape(dealt.fullest(), parts), options, parts), dealt.input());
    EXPECT_LT(testing::relative_difference(found.logits, expected.logits), 1e-9);
    EXPECT_EQ(found.next_tokens, expected.next_tokens);
  }
}

TEST(RankBatches, UnlikeBatchesGiveTheLogitsOfOneRank) {
  expect_logits_of_one_rank(testing::tiny_llama(), {}, {.dp = 2});
}

TEST(RankBatches, SoDoLatentsOfWhichRanksHaveOtherNumbersOfKeys) {
  const Mesh mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph};
  expect_logits_of_one_rank(testing::tiny_deepseek(), {.moe_design = MoeDesign::kShuffling}, mesh);
}

// Steps of a service, whose sequences say their ranks.
TEST(RankBatches, HalvesOfEachRankGiveTheLogitsOfOneRank) {
  Mesh mesh{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph, .two_batch_overlap = true};
  expect_logits_of_one_rank(testing::tiny_deepseek(), {.moe_design = MoeDesign::kShuffling}, mesh);
  mesh.ep = 1;
  expect_logits_of_one_rank(testing::tiny_llama(), {}, mesh);
}

TEST(RankBatches, SoDoExpertsThatTheRanksShare) {
  ConfigFields fields = testing::tiny_llama_fields();
  fields["model_type"] = std::string("qwen3_moe");
  fields["num_hidden_layers"] = std::int64_t{2};
  fields["num_experts"] = std::int64_t{8};
  fields["num_experts_per_tok"] = std::int64_t{3};
  fields["moe_intermediate_size"] = std::int64_t{16};
  fields["norm_topk_prob"] = true;
  const ModelConfig model = model_config("tiny", fields);
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kCopies}) {
    Mesh mesh{.dp = 2, .ep = 2};
    mesh.expert_comm = comm;
    expect_logits_of_one_rank(model, {.moe_design = MoeDesign::kShuffling}, mesh);
    for (const int chunks : {2, 3}) {
      mesh.moe_chunks = chunks;
      expect_logits_of_one_rank(model, {.moe_design = MoeDesign::kShuffling}, mesh);
    }
  }
}

// 5 + 9 tokens of the first rank: half of them, 7, end inside the second chunk.
TEST(Halves, CutAChunkWhereHalfOfARanksTokensEnd) {
  const std::vector<std::int64_t> lengths{5, 9, 4};
  const std::vector<ChunkPiece> expected{{.chunk = 0, .count = 5, .part = 0},
                                         {.chunk = 1, .count = 2, .part = 0},
                                         {.chunk = 1, .first = 2, .count = 7, .part = 1},
                                         {.chunk = 2, .count = 2, .part = 2},
                                         {.chunk = 2, .first = 2, .count = 2, .part = 3}};
  EXPECT_EQ(halved_chunks(lengths, 2), expected);
}

TEST(Halves, OfDecodesAreWholeAndTheFirstIsNoSmaller) {
  EXPECT_EQ(halved_decodes(5, 2), (std::vector<int>{0, 0, 1, 2, 3}));
  EXPECT_EQ(halved_decodes(1, 2), std::vector<int>{0});
}

// A step of which no rank has two sequences, nor a prompt to cut, runs whole.
TEST(Halves, StayOnTheRankThatASequenceNames) {
  const StepInput step{
      .prefill = {{.tokens = {1, 2, 3}, .dp_rank = 1}, {.tokens = {4}, .dp_rank = 0}},
      .decodes = {{.tokens = {5}, .dp_rank = 1}, {.tokens = {6}, .dp_rank = 1}}};
  const StepInput halves = in_halves(step, 2);
  const auto parts_of = [](const std::vector<SequenceTokens>& sequences) {
    std::vector<int> parts(sequences.size());
    std::ranges::transform(sequences, parts.begin(), &SequenceTokens::dp_rank);
    return parts;
  };
  EXPECT_EQ(parts_of(halves.prefill), (std::vector<int>{2, 3, 0}));
  EXPECT_EQ(parts_of(halves.decodes), (std::vector<int>{2, 3}));
  EXPECT_TRUE(has_two_halves(step, 2));
  const StepInput single{.prefill = {{.tokens = {4}, .dp_rank = 0}},
                         .decodes = {{.tokens = {5}, .dp_rank = 1}}};
  EXPECT_FALSE(has_two_halves(single, 2));
  EXPECT_EQ(DealtInput(single, 2, true).fullest(), fullest_batch(single, 2));
}

TEST(Halves, OfAChunkShareItsBlocksAndSampleOnce) {
  const StepInput step{.prefill = {{.tokens = {7, 8, 9}, .context = 4, .blocks = {2, 1}}}};
  const StepInput halves = in_halves(step, 1);
  ASSERT_EQ(halves.prefill.size(), 2u);
  EXPECT_EQ(halves.prefill[0].tokens, (std::vector<std::int32_t>{7, 8}));
  EXPECT_EQ(halves.prefill[1].tokens, std::vector<std::int32_t>{9});
  EXPECT_EQ(halves.prefill[1].context, 6);
  EXPECT_EQ(halves.prefill[1].blocks, step.prefill[0].blocks);
  EXPECT_FALSE(halves.prefill[0].produces_token);
  EXPECT_TRUE(halves.prefill[1].produces_token);
}

}  // namespace
}  // namespace orrery
