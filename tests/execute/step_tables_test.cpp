#include "kernels/execute/step_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace orrery {
namespace {

const CacheShape kCache{.num_blocks = 10, .block_size = 16, .max_model_len = 64};

SequenceTokens chunk(std::vector<std::int32_t> tokens, std::int64_t context,
                     std::vector<std::int32_t> blocks, bool produces_token = true) {
  return {.tokens = std::move(tokens),
          .context = context,
          .blocks = std::move(blocks),
          .produces_token = produces_token};
}

// One chunk of three tokens after 15 cached, one that samples nothing, and two decodes.
StepInput mixed_step() {
  return {.prefill = {chunk({5, 6, 7}, 15, {4, 2}), chunk({8}, 0, {9}, false)},
          .decodes = {chunk({1}, 31, {3, 5}), chunk({2}, 32, {6, 7, 8})}};
}
const StepRows kMixed{.tokens = 8, .prefill = 4, .decodes = 3, .seqs = 4};

template <typename T>
std::vector<T> table(const std::vector<std::byte>& bytes, std::int64_t offset, std::size_t size) {
  std::vector<T> values(size);
  std::memcpy(values.data(), bytes.data() + offset, size * sizeof(T));
  return values;
}

struct Filled {
  TableLayout layout;
  std::vector<std::byte> bytes;
};
Filled fill(const StepInput& input, const StepRows& rows, std::int32_t first_vocab_row = 0) {
  const std::vector<StepPart> parts = split_step(input, 1);
  check_part(parts[0], rows, kCache);
  Filled filled{
      .layout = table_layout(rows, static_cast<std::int64_t>(parts[0].prefill.size()), kCache, 0)};
  filled.bytes.resize(static_cast<std::size_t>(filled.layout.end), std::byte{0xEE});
  fill_tables(parts[0], filled.layout, kCache, first_vocab_row, filled.bytes);
  return filled;
}

TEST(StepTables, RowsAreChunksThenDecodesThenPadding) {
  const Filled filled = fill(mixed_step(), kMixed);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.token_ids, 8),
            (std::vector<std::int32_t>{5, 6, 7, 8, 1, 2, 0, 0}));
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.positions, 8),
            (std::vector<std::int32_t>{15, 16, 17, 0, 31, 32, 0, 0}));
}

TEST(StepTables, SlotsFollowTheBlockTable) {
  const Filled filled = fill(mixed_step(), kMixed);
  // Position 15 is the last row of block 4; 16 and 17 are in block 2; 31 in block 5; 32 in block 8.
  EXPECT_EQ(table<std::int64_t>(filled.bytes, filled.layout.slots, 8),
            (std::vector<std::int64_t>{4 * 16 + 15, 2 * 16, 2 * 16 + 1, 9 * 16, 5 * 16 + 15, 8 * 16,
                                       -1, -1}));
}

TEST(StepTables, SampledAreTheLastRowsOfChunksThatProduceAndTheDecodes) {
  const Filled filled = fill(mixed_step(), kMixed);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.sampled_rows, 4),
            (std::vector<std::int32_t>{2, 4, 5, 0}));
}

TEST(StepTables, DecodesHaveLengthsWithTheNewTokenAndPaddingNone) {
  const Filled filled = fill(mixed_step(), kMixed);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.decode_lengths, 3),
            (std::vector<std::int32_t>{32, 33, 0}));
}

TEST(StepTables, BlockTablesHaveARowForEachSequence) {
  const Filled filled = fill(mixed_step(), kMixed);
  const auto decodes = table<std::int32_t>(filled.bytes, filled.layout.decode_blocks, 8);
  EXPECT_EQ((std::vector<std::int32_t>(decodes.begin(), decodes.begin() + 2)),
            (std::vector<std::int32_t>{3, 5}));
  EXPECT_EQ((std::vector<std::int32_t>(decodes.begin() + 4, decodes.begin() + 7)),
            (std::vector<std::int32_t>{6, 7, 8}));
  const auto chunks = table<std::int32_t>(filled.bytes, filled.layout.prefill_blocks, 5);
  EXPECT_EQ(chunks[0], 4);
  EXPECT_EQ(chunks[1], 2);
  EXPECT_EQ(chunks[4], 9);
}

TEST(StepTables, TokensAreCountedFromTheRanksFirstVocabularyRow) {
  const Filled filled = fill(mixed_step(), kMixed, 500);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.token_ids, 8),
            (std::vector<std::int32_t>{-495, -494, -493, -492, -499, -498, -500, -500}));
}

TEST(StepTables, ADecodeStepSamplesEveryRow) {
  const StepRows rows{.tokens = 4, .prefill = 0, .decodes = 4, .seqs = 4};
  EXPECT_TRUE(samples_all_rows(rows));
  EXPECT_FALSE(samples_all_rows(kMixed));
  const Filled filled = fill({.prefill = {}, .decodes = {chunk({1}, 3, {0})}}, rows);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.sampled_rows, 4),
            (std::vector<std::int32_t>{0, 1, 2, 3}));
}

// A plan of six rows of prefill, four of which have tokens here.
TEST(StepTables, DecodesBeginBehindThePlansRowsOfPrefill) {
  const StepRows rows{.tokens = 9, .prefill = 6, .decodes = 3, .seqs = 4};
  const Filled filled = fill(mixed_step(), rows);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.token_ids, 9),
            (std::vector<std::int32_t>{5, 6, 7, 8, 0, 0, 1, 2, 0}));
  EXPECT_EQ(table<std::int64_t>(filled.bytes, filled.layout.slots, 9),
            (std::vector<std::int64_t>{4 * 16 + 15, 2 * 16, 2 * 16 + 1, 9 * 16, -1, -1, 5 * 16 + 15,
                                       8 * 16, -1}));
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.sampled_rows, 4),
            (std::vector<std::int32_t>{2, 6, 7, 0}));
}

// 15 + 3 tokens of the first chunk's sequence, then one of the second's.
TEST(StepTables, KeysOfChunksFollowEachOther) {
  const Filled filled = fill(mixed_step(), kMixed);
  EXPECT_EQ(table<std::int32_t>(filled.bytes, filled.layout.prefill_key_starts, 3),
            (std::vector<std::int32_t>{0, 18, 19}));
}

TEST(StepTables, TablesDoNotOverlap) {
  const TableLayout layout = table_layout(kMixed, 2, kCache, 256);
  EXPECT_EQ(layout.token_ids, 256);
  const std::vector<std::int64_t> offsets = {
      layout.token_ids,      layout.positions,          layout.slots,
      layout.sampled_rows,   layout.decode_lengths,     layout.decode_blocks,
      layout.prefill_blocks, layout.prefill_key_starts, layout.end};
  // Elements of 4 bytes but for slots; four columns of blocks.
  const std::vector<std::int64_t> bytes = {8 * 4, 8 * 4,  8 * 8,  4 * 4,
                                           3 * 4, 3 * 16, 2 * 16, 3 * 4};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_GE(offsets[i + 1], offsets[i] + bytes[i]);
    EXPECT_EQ(offsets[i] % 256, 0);
  }
}

TEST(SplitStep, SequencesAreDealtOutInOrder) {
  StepInput input;
  for (int i = 0; i < 3; ++i) input.prefill.push_back(chunk({1}, 0, {0}, i != 1));
  for (int i = 0; i < 5; ++i) input.decodes.push_back(chunk({1}, 0, {0}));
  const std::vector<StepPart> parts = split_step(input, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].prefill.size(), 2U);
  EXPECT_EQ(parts[0].decodes.size(), 3U);
  EXPECT_EQ(parts[1].prefill.size(), 1U);
  EXPECT_EQ(parts[1].decodes.size(), 2U);
  EXPECT_EQ(parts[1].decodes[0], &input.decodes[3]);
  // Sampled of the whole step: chunk 0, chunk 2, then five decodes.
  EXPECT_EQ(parts[0].sampled, (std::vector<std::int64_t>{0, 2, 3, 4}));
  EXPECT_EQ(parts[1].sampled, (std::vector<std::int64_t>{1, 5, 6}));
}

TEST(SplitStep, AStepWithoutSequencesIsRefused) {
  EXPECT_THROW(split_step({}, 1), std::invalid_argument);
}

TEST(SplitStep, ADecodeOfTwoTokensIsRefused) {
  EXPECT_THROW(split_step({.prefill = {}, .decodes = {chunk({1, 2}, 0, {0})}}, 1),
               std::invalid_argument);
}

void expect_refused(const StepInput& input, const StepRows& rows) {
  const std::vector<StepPart> parts = split_step(input, 1);
  EXPECT_THROW(check_part(parts[0], rows, kCache), std::invalid_argument);
}

TEST(CheckPart, MoreThanThePlanHasIsRefused) {
  expect_refused(mixed_step(), {.tokens = 8, .prefill = 3, .decodes = 3, .seqs = 4});
  expect_refused(mixed_step(), {.tokens = 8, .prefill = 4, .decodes = 1, .seqs = 4});
  expect_refused(mixed_step(), {.tokens = 8, .prefill = 4, .decodes = 3, .seqs = 2});
}

TEST(CheckPart, FewerPrefillRowsAreTakenWhereNothingFollows) {
  const StepInput input{.prefill = {chunk({1, 2}, 0, {0})}, .decodes = {}};
  const std::vector<StepPart> parts = split_step(input, 1);
  EXPECT_NO_THROW(
      check_part(parts[0], {.tokens = 5, .prefill = 5, .decodes = 0, .seqs = 1}, kCache));
}

TEST(CheckPart, BlocksMustCoverTheSequenceAndBeOfTheCache) {
  const StepRows rows{.tokens = 1, .prefill = 0, .decodes = 1, .seqs = 1};
  expect_refused({.prefill = {}, .decodes = {chunk({1}, 16, {0})}}, rows);             // 17 tokens
  expect_refused({.prefill = {}, .decodes = {chunk({1}, 0, {10})}}, rows);             // of 10
  expect_refused({.prefill = {}, .decodes = {chunk({1}, 0, {-1})}}, rows);             //
  expect_refused({.prefill = {}, .decodes = {chunk({1}, 0, {0, 1, 2, 3, 4})}}, rows);  // 4 at most
  expect_refused({.prefill = {}, .decodes = {chunk({1}, 64, {0, 1, 2, 3})}}, rows);    // 65 tokens
}

// Two ranks share contexts: a block number stands for 16 tokens on each.
CacheShape shared_cache(int rank) {
  CacheShape cache = kCache;
  cache.cp = 2;
  cache.cp_rank = rank;
  return cache;
}

TEST(StepTables, RanksThatShareAContextHaveItsTokensInTurn) {
  const std::vector<std::int32_t> blocks{7, 3};
  for (std::int64_t position = 0; position < 64; ++position) {
    const std::int64_t even = shared_cache(0).slot(position, blocks);
    const std::int64_t odd = shared_cache(1).slot(position, blocks);
    EXPECT_NE(even < 0, odd < 0) << position;
    EXPECT_EQ(even < 0, position % 2 == 1) << position;
    // Token 32 begins the second block on rank 0, token 33 on rank 1.
    const std::int64_t expected = (position < 32 ? 7 : 3) * std::int64_t{16} + position % 32 / 2;
    EXPECT_EQ(std::max(even, odd), expected) << position;
  }
}

TEST(StepTables, WhatRanksHaveOfAContextAddsUpToIt) {
  EXPECT_EQ(shared_cache(1).stored(1), 0);  // the first token is on rank 0
  for (std::int64_t tokens = 0; tokens < 40; ++tokens) {
    const std::int64_t even = shared_cache(0).stored(tokens);
    const std::int64_t odd = shared_cache(1).stored(tokens);
    EXPECT_EQ(even + odd, tokens);
    EXPECT_TRUE(even == odd || even == odd + 1) << tokens;
  }
}

TEST(StepTables, ADecodeIsAppendedOnOneRankAndAttendedOnAll) {
  const StepInput step{.decodes = {chunk({1}, 0, {3}), chunk({2}, 33, {6, 7})}};
  const StepRows rows{.tokens = 3, .decodes = 3, .seqs = 3};
  const std::vector<StepPart> parts = split_step(step, 1);
  const auto filled = [&](int rank) {
    check_part(parts[0], rows, shared_cache(rank));
    Filled result{.layout = table_layout(rows, 0, shared_cache(rank), 0)};
    result.bytes.resize(static_cast<std::size_t>(result.layout.end), std::byte{0});
    fill_tables(parts[0], result.layout, shared_cache(rank), 0, result.bytes);
    return result;
  };
  const Filled even = filled(0);
  const Filled odd = filled(1);
  // Position 0 is on rank 0, 33 the first of the second block on rank 1; the last row is padding.
  EXPECT_EQ(table<std::int64_t>(even.bytes, even.layout.slots, 3),
            (std::vector<std::int64_t>{3 * 16, -1, -1}));
  EXPECT_EQ(table<std::int64_t>(odd.bytes, odd.layout.slots, 3),
            (std::vector<std::int64_t>{-1, 7 * 16, -1}));
  // Of 34 tokens each has 17; of one token rank 1 has none.
  EXPECT_EQ(table<std::int32_t>(even.bytes, even.layout.decode_lengths, 3),
            (std::vector<std::int32_t>{1, 17, 0}));
  EXPECT_EQ(table<std::int32_t>(odd.bytes, odd.layout.decode_lengths, 3),
            (std::vector<std::int32_t>{0, 17, 0}));
  for (const Filled& rank : {even, odd}) {
    EXPECT_EQ(table<std::int32_t>(rank.bytes, rank.layout.decode_blocks, 4),
              (std::vector<std::int32_t>{3, 0, 6, 7}));
  }
}

}  // namespace
}  // namespace orrery
