#include "kernels/execute/even_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/rank_batches.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/wrong_plan.h"
#include "sim/memory/buffers.h"
#include "sim/parallel/halves.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::tiny_deepseek;
using testing::tiny_llama;

const CacheShape kCache{.num_blocks = 8, .block_size = 64, .max_model_len = 512};
constexpr std::int32_t kPadding = -1;

SequenceTokens sequence(int dp_rank, std::int64_t tokens, std::int64_t context, std::int32_t first,
                        bool produces_token = true) {
  SequenceTokens sequence{.context = context,
                          .blocks = std::vector<std::int32_t>(8),
                          .produces_token = produces_token,
                          .dp_rank = dp_rank};
  sequence.tokens.resize(static_cast<std::size_t>(tokens));
  std::iota(sequence.tokens.begin(), sequence.tokens.end(), first);
  return sequence;
}

// Lengths of a step: new tokens of each chunk, and decodes.
struct RankLengths {
  std::vector<std::int64_t> chunks;
  std::int64_t decodes = 0;
};
// Tokens are numbered through; every third chunk does not end its prompt.
StepInput step_of(const std::vector<RankLengths>& ranks) {
  StepInput step;
  std::int32_t token = 100;
  const auto add = [&](std::vector<SequenceTokens>& to, std::size_t rank, std::int64_t tokens) {
    const bool ends = &to == &step.decodes || step.prefill.size() % 3 != 2;
    to.push_back(sequence(static_cast<int>(rank), tokens, 7 * std::ssize(to), token, ends));
    token += static_cast<std::int32_t>(tokens);
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::int64_t tokens : ranks[rank].chunks) add(step.prefill, rank, tokens);
    for (std::int64_t i = 0; i < ranks[rank].decodes; ++i) add(step.decodes, rank, 1);
  }
  return step;
}

// All ranks of a step as they upload it, and rows of theirs that are names of tokens.
struct EvenRanks {
  StepInput input;
  std::vector<StepPart> parts;
  StepRows own;
  std::int64_t rows = 0;
  EvenParts even;
  EvenLayout layout;
  std::vector<std::vector<std::byte>> bytes;      // by rank, even tables
  std::vector<std::vector<std::int32_t>> tokens;  // by rank, of own rows; padding: -1
  std::vector<std::vector<std::int32_t>> sampled;

  // `padding` rows besides, of prompts, decodes and even parts.
  EvenRanks(const std::vector<RankLengths>& ranks, std::int64_t padding)
      : input(step_of(ranks)),
        parts(split_step(input, static_cast<int>(ranks.size()))),
        own(rows_of(ranks, padding)),
        rows(even_rows(ranks) + padding),
        even(parts, own, rows),
        layout(even_layout(own, rows, 256)) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      bytes.emplace_back(static_cast<std::size_t>(layout.end), std::byte{0xEE});
      even.fill(static_cast<int>(rank), layout, 0, bytes.back());
      fill_own(parts[rank]);
    }
  }
  static StepRows rows_of(const std::vector<RankLengths>& ranks, std::int64_t padding) {
    StepRows rows;
    for (const RankLengths& rank : ranks) {
      rows.prefill = std::max(
          rows.prefill, std::accumulate(rank.chunks.begin(), rank.chunks.end(), std::int64_t{0}));
      rows.decodes = std::max(rows.decodes, rank.decodes);
      rows.seqs = std::max(rows.seqs, rank.decodes + std::ssize(rank.chunks));
    }
    rows.prefill += padding;
    rows.decodes += padding;
    rows.tokens = rows.prefill + rows.decodes;
    rows.seqs += padding;
    return rows;
  }
  static std::int64_t even_rows(const std::vector<RankLengths>& ranks) {
    std::int64_t tokens = 0;
    for (const RankLengths& rank : ranks) {
      tokens +=
          rank.decodes + std::accumulate(rank.chunks.begin(), rank.chunks.end(), std::int64_t{0});
    }
    return (tokens + std::ssize(ranks) - 1) / std::ssize(ranks);
  }
  void fill_own(const StepPart& part) {
    const TableLayout own_layout = table_layout(own, std::ssize(part.prefill), kCache, 0);
    std::vector<std::byte> own_bytes(static_cast<std::size_t>(own_layout.end));
    fill_tables(part, own_layout, kCache, 0, own_bytes);
    const auto ids = table_in<std::int32_t>(own_bytes, own_layout.token_ids, own.tokens);
    auto& names = tokens.emplace_back(ids.begin(), ids.end());
    for (std::int32_t& name : names) {
      if (name == 0) name = kPadding;  // tokens are numbered from 100
    }
    const auto picked = table_in<std::int32_t>(own_bytes, own_layout.sampled_rows, own.seqs);
    auto& names_sampled = sampled.emplace_back(static_cast<std::size_t>(own.seqs), kPadding);
    for (std::size_t i = 0; i < part.sampled.size(); ++i) {
      names_sampled[i] = names[static_cast<std::size_t>(picked[i])];
    }
  }
  [[nodiscard]] std::vector<std::int32_t> table(std::size_t rank, std::int64_t offset,
                                                std::int64_t size) {
    const auto values = table_in<std::int32_t>(bytes[rank], offset, size);
    return {values.begin(), values.end()};
  }
  // Even parts by their token ids.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> even_tokens() {
    std::vector<std::vector<std::int32_t>> result;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      result.push_back(table(rank, layout.token_ids, rows));
      std::ranges::replace(result.back(), 0, kPadding);
    }
    return result;
  }
};

using Names = std::vector<std::vector<std::int32_t>>;

std::vector<std::int32_t> gathered(const Names& ranks) {
  std::vector<std::int32_t> all;
  for (const auto& rank : ranks) all.insert(all.end(), rank.begin(), rank.end());
  return all;
}
std::vector<std::int32_t> picked(const std::vector<std::int32_t>& all,
                                 const std::vector<std::int32_t>& sources) {
  std::vector<std::int32_t> rows;
  rows.reserve(sources.size());
  for (const std::int32_t source : sources) {
    rows.push_back(source < 0 ? kPadding : all.at(static_cast<std::size_t>(source)));
  }
  return rows;
}

// What ranks have once rows have been sent; each row is written once at most.
Names sent(const std::vector<RowRun>& runs, const Names& from, std::int64_t rows) {
  Names to(from.size(), std::vector<std::int32_t>(static_cast<std::size_t>(rows), kPadding));
  for (const RowRun& run : runs) {
    EXPECT_GT(run.count, 0);
    for (std::int64_t i = 0; i < run.count; ++i) {
      std::int32_t& row =
          to.at(static_cast<std::size_t>(run.to)).at(static_cast<std::size_t>(run.to_row + i));
      EXPECT_EQ(row, kPadding) << "written twice";
      row = from.at(static_cast<std::size_t>(run.from))
                .at(static_cast<std::size_t>(run.from_row + i));
      EXPECT_NE(row, kPadding) << "padding is sent";
    }
  }
  return to;
}

void expect_rows_move(const std::vector<RankLengths>& lengths, std::int64_t padding) {
  EvenRanks ranks(lengths, padding);
  const Names even = ranks.even_tokens();
  // Tokens in order, then padding.
  const std::vector<std::int32_t> all = gathered(even);
  const std::int64_t tokens = std::ranges::count_if(all, [](auto name) { return name >= 0; });
  for (std::int64_t i = 0; i < std::ssize(all); ++i) {
    EXPECT_EQ(all[static_cast<std::size_t>(i)] >= 0, i < tokens);
  }
  const std::vector<std::int32_t> all_own = gathered(ranks.tokens);
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    EXPECT_EQ(picked(all, ranks.table(rank, ranks.layout.own_sources, ranks.own.tokens)),
              ranks.tokens[rank]);
    EXPECT_EQ(picked(all_own, ranks.table(rank, ranks.layout.even_sources, ranks.rows)),
              even[rank]);
    EXPECT_EQ(picked(all, ranks.table(rank, ranks.layout.sampled_sources, ranks.own.seqs)),
              ranks.sampled[rank]);
  }
  const std::vector<RowRun> runs = ranks.even.runs(RowMove::kToEven);
  EXPECT_EQ(sent(runs, ranks.tokens, ranks.rows), even);
  for (const RowRun& run : runs) {
    const bool is_of_prompts = run.from_row < ranks.own.prefill;
    EXPECT_TRUE(!is_of_prompts || run.from_row + run.count <= ranks.own.prefill)
        << "decodes in a run of prompts";
  }
  EXPECT_EQ(sent(ranks.even.runs(RowMove::kToSampled), even, ranks.own.seqs), ranks.sampled);
}

TEST(EvenRows, OfUnequalStepsMoveToWhereTheirTokensAre) {
  for (const std::int64_t padding : {0, 3}) {
    expect_rows_move({{.chunks = {11}}, {.chunks = {2, 3}}}, padding);
    expect_rows_move({{.chunks = {}, .decodes = 1}, {.chunks = {5, 6}, .decodes = 1}}, padding);
    expect_rows_move({{.chunks = {9}, .decodes = 4}, {}, {.chunks = {}, .decodes = 2}}, padding);
    expect_rows_move({{}, {.chunks = {}, .decodes = 5}}, padding);
    expect_rows_move({{.chunks = {1}}, {}, {}, {}}, padding);
  }
}

TEST(EvenRows, OfRandomLengthsMoveToWhereTheirTokensAre) {
  std::mt19937 random(19);
  const auto below = [&](std::uint32_t most) { return static_cast<std::int64_t>(random() % most); };
  for (int i = 0; i < 300; ++i) {
    std::vector<RankLengths> ranks(static_cast<std::size_t>(2 + below(7)));
    for (RankLengths& rank : ranks) {
      for (std::int64_t chunk = below(4); chunk > 0; --chunk) rank.chunks.push_back(1 + below(40));
      rank.decodes = below(6);
    }
    ranks.back().decodes += 1;  // a step has a sequence
    expect_rows_move(ranks, below(3) * 4);
    if (HasFailure()) FAIL() << "step " << i << " of seed 19";
  }
}

// Rows 0 to 10 and 11 to 12, in parts of 7: the last four of the first rank's move.
TEST(EvenRows, ThatMoveAreSentInAsFewRunsAsThereAreRanks) {
  EvenRanks ranks({{.chunks = {11}}, {.chunks = {1}, .decodes = 1}}, 0);
  EXPECT_EQ(ranks.even.runs(RowMove::kToEven),
            (std::vector<RowRun>{{.from = 0, .from_row = 0, .to = 0, .to_row = 0, .count = 7},
                                 {.from = 0, .from_row = 7, .to = 1, .to_row = 0, .count = 4},
                                 {.from = 1, .from_row = 0, .to = 1, .to_row = 4, .count = 1},
                                 {.from = 1, .from_row = 11, .to = 1, .to_row = 5, .count = 1}}));
  EXPECT_EQ(ranks.even.runs(RowMove::kToSampled),
            (std::vector<RowRun>{{.from = 1, .from_row = 3, .to = 0, .to_row = 0, .count = 1},
                                 {.from = 1, .from_row = 4, .to = 1, .to_row = 0, .count = 2}}));
}

TEST(EvenRows, KnowTheTokensAndPositionsOfAPart) {
  EvenRanks ranks({{.chunks = {2}, .decodes = 1}, {.chunks = {2}}}, 0);
  // Contexts are 0 for the first chunk and decode, 7 for the second chunk.
  EXPECT_EQ(ranks.table(0, ranks.layout.token_ids, 3), (std::vector<std::int32_t>{100, 101, 102}));
  EXPECT_EQ(ranks.table(0, ranks.layout.positions, 3), (std::vector<std::int32_t>{0, 1, 0}));
  EXPECT_EQ(ranks.table(1, ranks.layout.token_ids, 3), (std::vector<std::int32_t>{103, 104, 0}));
  EXPECT_EQ(ranks.table(1, ranks.layout.positions, 3), (std::vector<std::int32_t>{7, 8, 0}));
}

TEST(EvenRows, OfARankWithPartOfTheVocabularyCountFromItsFirstRow) {
  EvenRanks ranks({{.chunks = {2}}, {.chunks = {1}}}, 0);
  ranks.even.fill(1, ranks.layout, 60, ranks.bytes[1]);
  // Token 102, and padding, which looks up token 0.
  EXPECT_EQ(ranks.table(1, ranks.layout.token_ids, 2), (std::vector<std::int32_t>{42, -60}));
}

TEST(EvenRows, ThatDoNotHoldAllTokensAreRefused) {
  const StepInput input = step_of({{.chunks = {5}}, {.chunks = {4}}});
  const std::vector<StepPart> parts = split_step(input, 2);
  const StepRows own{.tokens = 5, .prefill = 5, .decodes = 0, .seqs = 1};
  EXPECT_NO_THROW(static_cast<void>(EvenParts(parts, own, 5)));
  try {
    static_cast<void>(EvenParts(parts, own, 4));
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("9 tokens"), std::string::npos) << error.what();
  }
}

Plan balanced_plan(const ModelConfig& model, const Mesh& mesh, const StepInput& input) {
  const Batch fullest = fullest_batch(input, mesh.dp);
  std::int64_t tokens = 0;
  for (const auto* sequences : {&input.prefill, &input.decodes}) {
    for (const SequenceTokens& one : *sequences) tokens += std::ssize(one.tokens);
  }
  return step_plan(model, alike_shape(fullest, mesh, tokens), {}, mesh);
}

// 11 tokens of the fullest, 14 of both: 7 in each even part, on all stages.
TEST(EvenRows, OfAPlanAreAnEvenPartOfAllTokens) {
  const StepInput input = step_of({{.chunks = {11}}, {.chunks = {2}, .decodes = 1}});
  for (const int pp : {1, 2}) {
    const Mesh mesh{.dp = 2, .pp = pp, .dp_rows = DpRows::kBalanced};
    const Plan plan = balanced_plan(tiny_llama(), mesh, input);
    EXPECT_EQ(rows_of_even_part(plan), 7);
    for (int rank = 0; rank < plan.num_ranks(); ++rank) {
      const StepRows own = step_rows(plan, rank, 0);
      EXPECT_EQ(own.prefill, 11);
      EXPECT_EQ(own.decodes, 1);
      EXPECT_EQ(own.tokens, 12);
    }
  }
}

// Rows of the keys that attention to prompts reads on rank 0: of latents cached ones are among
// them.
std::int64_t rows_of_keys(const Plan& plan) {
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || kernel->kernel != "mla_prefill") continue;
    return plan.tensors()[static_cast<std::size_t>(op.reads.back().tensor)].axes.front().size;
  }
  return 0;
}

// As services run them: the plan is that of the fullest rank, with even parts of all tokens.
TEST(EvenRows, OfAServicesStepsHoldWhatEachRankHas) {
  std::mt19937 random(23);
  const auto below = [&](std::uint32_t most) { return static_cast<std::int64_t>(random() % most); };
  for (int i = 0; i < 60; ++i) {
    const int dp = below(2) == 0 ? 2 : 4;
    std::vector<RankLengths> ranks(static_cast<std::size_t>(dp));
    for (RankLengths& rank : ranks) {
      for (std::int64_t chunk = below(3); chunk > 0; --chunk) rank.chunks.push_back(1 + below(30));
      rank.decodes = below(5);
    }
    ranks.front().chunks.push_back(3);
    const StepInput input = step_of(ranks);
    const Plan plan =
        balanced_plan(tiny_deepseek(), {.dp = dp, .dp_rows = DpRows::kBalanced}, input);
    const StepRows own = step_rows(plan, 0, 0);
    const std::vector<StepPart> parts = split_step(input, dp);
    EXPECT_NO_THROW(static_cast<void>(EvenParts(parts, own, rows_of_even_part(plan))))
        << "step " << i << " of seed 23";
    for (const StepPart& part : parts) {
      EXPECT_NO_THROW(check_part(part, own, kCache)) << "step " << i << " of seed 23";
      std::int64_t keys = 0;
      for (const SequenceTokens* chunk : part.prefill) {
        keys += chunk->context + std::ssize(chunk->tokens);
      }
      EXPECT_GE(rows_of_keys(plan), keys) << "step " << i << " of seed 23";
    }
  }
}

// A step dealt out in order: 11 of 14 tokens on the first rank.
TEST(EvenRows, OfAnExecutedPlanAreAnEvenPartOfAllTokens) {
  const Mesh mesh{.dp = 2, .dp_rows = DpRows::kBalanced};
  const Batch batch{.prefill = {{11, 4}, {2, 30}}, .num_decodes = 1, .decode_context = 9};
  const Plan plan = executed_plan(tiny_llama(), batch, {}, mesh);
  EXPECT_EQ(rows_of_even_part(plan), 7);
  EXPECT_EQ(step_rows(plan, 1, 0).prefill, 11);
  EXPECT_EQ(step_rows(plan, 1, 0).decodes, 1);
}

// What is gathered is read by nobody but the collective, and lies beside what it reads and writes.
TEST(EvenRows, AreGatheredIntoMemoryOfTheirOwn) {
  const StepInput input = step_of({{.chunks = {11}}, {.chunks = {2}, .decodes = 1}});
  const StepInput decodes = step_of({{.decodes = 5}, {.decodes = 2}});
  for (const AttentionGather gather : {AttentionGather::kNorm, AttentionGather::kProjected}) {
    const Mesh mesh{.dp = 2, .dp_rows = DpRows::kBalanced, .attention_gather = gather};
    for (const StepInput* const step : {&input, &decodes}) {
      const Plan plan = balanced_plan(tiny_deepseek(), mesh, *step);
      const BufferPlan buffers = plan_buffers(plan, 1);
      const RowMoves rows = row_moves(plan);
      for (std::size_t i = 0; i < plan.ops().size(); ++i) {
        if (rows.moves[i] == RowMove::kNone) continue;
        std::map<std::int64_t, std::int64_t> ranges;  // end by begin
        for (const auto* views : {&plan.ops()[i].reads, &plan.ops()[i].writes}) {
          for (const TensorId id : *views) {
            const auto at = static_cast<std::size_t>(id);
            const auto bytes = static_cast<std::int64_t>(bytes_of(plan.tensors()[at]).value());
            EXPECT_TRUE(ranges.emplace(buffers.offsets[at], buffers.offsets[at] + bytes).second);
          }
        }
        std::int64_t last = 0;
        for (const auto& [begin, end] : ranges) {
          EXPECT_GE(begin, last) << plan.ops()[i].name;
          last = end;
        }
      }
    }
  }
}

// Rows of a plan whose collective was left out are told apart all the same: what appends to a cache
// has the tables of its own rows.
TEST(RowMoves, OfAPlanWithoutItsGatherKeepAttentionOnOwnRows) {
  const StepInput input = step_of({{.chunks = {11}}, {.chunks = {2}, .decodes = 1}});
  for (const ModelConfig& model : {tiny_llama(), tiny_deepseek()}) {
    const Mesh mesh{.dp = 2, .dp_rows = DpRows::kBalanced};
    const Plan plan = balanced_plan(model, mesh, input);
    const RowMoves right = row_moves(plan);
    for (const std::string& name : collective_names(plan)) {
      const RowMoves wrong = row_moves(without_op(plan, name));
      for (std::size_t i = 0; i < right.moves.size(); ++i) {
        const auto* kernel = std::get_if<KernelOp>(&plan.ops()[i].body);
        if (kernel == nullptr || !right.is_on_own[i]) continue;
        const bool is_of_sampled = kernel->kernel == "sample" || kernel->kernel == "rms_norm" ||
                                   plan.ops()[i].name.find("lm_head") != std::string::npos;
        EXPECT_TRUE(wrong.is_on_own[i] || is_of_sampled) << plan.ops()[i].name;
      }
    }
  }
}

}  // namespace
}  // namespace orrery
