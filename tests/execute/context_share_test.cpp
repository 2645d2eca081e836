#include "kernels/execute/context_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::TestSequence;
using testing::tiny_deepseek;
using testing::tiny_llama;

constexpr std::int32_t kBlockSize = 4;  // on each rank
constexpr std::int64_t kNoToken = -1;

// Tokens [first, last) of sequence `index`, in blocks for `cp` ranks; token p of it is named
// 1000 index + p.
SequenceTokens tokens_of(int index, std::int64_t first, std::int64_t last, int cp) {
  SequenceTokens sequence{.context = first};
  for (std::int64_t p = first; p < last; ++p) {
    sequence.tokens.push_back(static_cast<std::int32_t>(1000 * index + p));
  }
  for (std::int64_t i = 0; i * kBlockSize * cp < last; ++i) {
    sequence.blocks.push_back(static_cast<std::int32_t>(index + 8 * i));
  }
  return sequence;
}

const LoweringOptions kShuffling{.moe_design = MoeDesign::kShuffling};

// What a rank gives of a step, and keeps of all steps: names of tokens in place of keys.
struct SharingRank {
  CacheShape cache;
  std::vector<std::int64_t> stored;
  ContextShare share;
  ContextLayout context;
  TableLayout layout;
  std::vector<std::byte> bytes;
  std::vector<PrefillPiece> pieces;
  std::vector<RankKeys> keys_of_ranks;
  std::vector<std::int64_t> sampled;

  template <typename T>
  [[nodiscard]] std::vector<T> table(std::int64_t offset, std::int64_t size) const {
    std::vector<T> values(static_cast<std::size_t>(size));
    const auto from = std::span(bytes).subspan(static_cast<std::size_t>(offset));
    std::ranges::copy(from.first(values.size() * sizeof(T)),
                      std::as_writable_bytes(std::span(values)).begin());
    return values;
  }
  [[nodiscard]] std::vector<std::int32_t> own_rows() const {
    return table<std::int32_t>(context.own_rows, share.own().room + layout.rows.decodes);
  }
  [[nodiscard]] std::vector<std::int64_t> slots() const {
    return table<std::int64_t>(layout.slots, share.own().room + layout.rows.decodes);
  }
};

// Steps of a small model on one group of ranks, as the executor runs their KV ops.
class SharingRanks {
 public:
  explicit SharingRanks(const Mesh& mesh, ModelConfig model = tiny_llama())
      : mesh_(mesh), model_(std::move(model)), ranks_(static_cast<std::size_t>(mesh.cp)) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].cache = {.num_blocks = 64,
                         .block_size = kBlockSize,
                         .max_model_len = 256,
                         .cp = mesh.cp,
                         .cp_rank = static_cast<int>(i)};
      ranks_[i].stored.assign(std::size_t{64} * kBlockSize, kNoToken);
    }
  }

  void run(const StepInput& input) {
    const Plan plan = parallelize(lower(model_, batch_of(input), kShuffling), mesh_);
    const std::vector<StepPart> parts = split_step(input, 1);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      fill(ranks_[i], plan, static_cast<int>(i), parts[0]);
    }
    const std::vector<std::int64_t> names = names_of(parts[0]);
    std::vector<std::int64_t> given;
    for (const SharingRank& rank : ranks_) give(rank, names, given);
    for (SharingRank& rank : ranks_) {
      if (rank.share.is_ring) {
        expect_each_key_once(rank, given, parts[0]);
      } else {
        expect_whole_keys(rank, given, parts[0]);
        expect_pieces(rank, parts[0]);
      }
    }
    expect_each_row_once(names);
    for (const SharingRank& rank : ranks_) expect_tables(rank, parts[0], names);
    for (const SequenceTokens* decode : parts[0].decodes) {
      for (SharingRank& rank : ranks_) store_decode(rank, *decode);
    }
    for (const StepPart* part : {&parts[0]}) expect_stored(*part);
  }
  [[nodiscard]] const SharingRank& rank(std::size_t i) const { return ranks_[i]; }

 private:
  static std::vector<std::int64_t> names_of(const StepPart& part) {
    std::vector<std::int64_t> names;
    for (const SequenceTokens* chunk : part.prefill) {
      names.insert(names.end(), chunk->tokens.begin(), chunk->tokens.end());
    }
    return names;
  }

  void fill(SharingRank& rank, const Plan& plan, int number, const StepPart& part) const {
    const RankGrid grid{.tp = mesh_.tp, .cp = mesh_.cp};
    rank.share = context_share(plan, grid, number, 0);
    ASSERT_TRUE(rank.share.has_prompts());
    StepRows rows = step_rows(plan, number, 0);
    rows.prefill = rank.share.own().of_step;
    rows.tokens = rows.prefill + rows.decodes;
    if (rank.share.decodes.room > 0) rows.seqs += rows.decodes - rank.share.decodes.room;
    check_part(part, rows, rank.cache);
    std::vector<PrefillChunk> chunks;
    for (const SequenceTokens* chunk : part.prefill) chunks.push_back(chunk_of(*chunk));
    rank.layout = table_layout(rows, std::ssize(chunks), rank.cache, 0);
    rank.context = context_layout(rank.share, chunks, rows.decodes, rank.layout.end);
    rank.bytes.assign(static_cast<std::size_t>(rank.context.end), std::byte{0});
    fill_tables(part, rank.layout, rank.cache, 0, rank.bytes);
    fill_context_tables(part, rank.share, rank.layout, rank.context, rank.cache, rank.bytes);
    rank.pieces = prefill_pieces(rank.share, chunks);
    if (rank.share.is_ring) rank.keys_of_ranks = keys_of_ranks(rank.share, chunks);
    rank.sampled = sampled_rows(part, rank.share);
  }

  // Keys, then values: the same names negated. Latents alone.
  static void give(const SharingRank& rank, const std::vector<std::int64_t>& names,
                   std::vector<std::int64_t>& given) {
    const std::int64_t room = rank.share.own().room;
    std::vector<std::int64_t> own(static_cast<std::size_t>(room), kNoToken);
    const std::vector<std::int64_t> slots = rank.slots();
    const std::vector<std::int32_t> rows = rank.own_rows();
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (slots[i] < 0) continue;
      own.at(static_cast<std::size_t>(slots[i])) = names[static_cast<std::size_t>(rows[i])];
    }
    for (const std::int32_t slot :
         rank.table<std::int32_t>(rank.context.cached_slots, rank.context.cached_rows)) {
      own.push_back(rank.stored[static_cast<std::size_t>(slot)]);
    }
    given.insert(given.end(), own.begin(), own.end());
    if (rank.share.is_latent) return;
    for (const std::int64_t name : own) given.push_back(-name);
  }

  static void expect_whole_keys(SharingRank& rank, const std::vector<std::int64_t>& given,
                                const StepPart& part) {
    std::vector<std::int64_t> expected;
    for (const SequenceTokens* chunk : part.prefill) {
      const std::int64_t first = chunk->tokens.front() - chunk->context;
      for (std::int64_t p = 0; p < chunk->context + std::ssize(chunk->tokens); ++p) {
        expected.push_back(first + p);
      }
    }
    const auto sources = rank.table<std::int32_t>(rank.context.key_sources, rank.context.num_keys);
    const auto slots = rank.table<std::int64_t>(rank.context.key_slots, rank.context.num_keys);
    const std::int64_t given_rows = rank.share.own().room + rank.context.cached_rows;
    ASSERT_EQ(sources.size(), expected.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(given.at(static_cast<std::size_t>(sources[i])), expected[i]);
      if (!rank.share.is_latent) {
        EXPECT_EQ(given.at(static_cast<std::size_t>(sources[i] + given_rows)), -expected[i]);
      }
      if (slots[i] >= 0) rank.stored.at(static_cast<std::size_t>(slots[i])) = expected[i];
    }
  }

  // In a ring: over the keys of all ranks together, each row sees the tokens up to its own, once.
  static void expect_each_key_once(SharingRank& rank, const std::vector<std::int64_t>& given,
                                   const StepPart& part) {
    const auto sources = rank.table<std::int32_t>(rank.context.key_sources, rank.context.num_keys);
    const auto slots = rank.table<std::int64_t>(rank.context.key_slots, rank.context.num_keys);
    const std::vector<std::int32_t> rows = rank.own_rows();
    std::map<std::int64_t, std::vector<std::int64_t>> seen;  // by own row
    std::int64_t first = 0;
    for (const RankKeys& keys : rank.keys_of_ranks) {
      EXPECT_EQ(keys.first, first);
      first += keys.count;
      for (const PrefillPiece& piece : keys.pieces) {
        for (std::int64_t i = 0; i < piece.query; ++i) {
          const std::int64_t last =
              std::min(piece.position + i + 1, piece.keys.value_or(rank.context.num_keys));
          for (std::int64_t key = 0; key < last; ++key) {
            const auto at = static_cast<std::size_t>(keys.first + piece.key_row + key);
            seen[piece.query_row + i].push_back(given.at(static_cast<std::size_t>(sources.at(at))));
          }
        }
      }
    }
    EXPECT_EQ(first, rank.context.num_keys);
    std::vector<std::int64_t> names;
    std::vector<std::int64_t> starts;
    for (const SequenceTokens* chunk : part.prefill) {
      names.insert(names.end(), chunk->tokens.begin(), chunk->tokens.end());
      starts.resize(names.size(), chunk->tokens.front() - chunk->context);
    }
    std::size_t held = 0;
    for (const AxisRange& range : rank.share.own().ranges) {
      held += static_cast<std::size_t>(range.count);
    }
    EXPECT_EQ(seen.size(), held);
    for (auto& [row, keys] : seen) {
      const auto of_step = static_cast<std::size_t>(rows.at(static_cast<std::size_t>(row)));
      std::vector<std::int64_t> expected(
          static_cast<std::size_t>(names.at(of_step) - starts.at(of_step) + 1));
      std::iota(expected.begin(), expected.end(), starts.at(of_step));
      std::ranges::sort(keys);
      EXPECT_EQ(keys, expected);
    }
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::int64_t name = given.at(static_cast<std::size_t>(sources[i]));
      if (slots[i] >= 0) rank.stored.at(static_cast<std::size_t>(slots[i])) = name;
    }
  }

  // Each piece has rows of its own rank, in order, of one sequence.
  static void expect_pieces(const SharingRank& rank, const StepPart& part) {
    const std::vector<std::int32_t> rows = rank.own_rows();
    std::int64_t covered = 0;
    for (const PrefillPiece& piece : rank.pieces) {
      std::int64_t row = 0;
      std::int64_t key_row = 0;
      for (std::int64_t s = 0; s < piece.sequence; ++s) {
        const SequenceTokens& chunk = *part.prefill[static_cast<std::size_t>(s)];
        row += std::ssize(chunk.tokens);
        key_row += chunk.context + std::ssize(chunk.tokens);
      }
      const std::int64_t context = part.prefill[static_cast<std::size_t>(piece.sequence)]->context;
      EXPECT_EQ(piece.key_row, key_row);
      for (std::int64_t i = 0; i < piece.query; ++i) {
        EXPECT_EQ(rows.at(static_cast<std::size_t>(piece.query_row + i)),
                  row + piece.position + i - context);
      }
      covered += piece.query;
    }
    std::int64_t held = 0;
    for (const AxisRange& range : rank.share.own().ranges) held += range.count;
    EXPECT_EQ(covered, held);
  }

  // Rows of the step as an exchange finds them.
  void expect_each_row_once(const std::vector<std::int64_t>& names) const {
    std::vector<std::int64_t> rows;
    for (const SharingRank& rank : ranks_) {
      const std::vector<std::int32_t> own = rank.own_rows();
      rows.insert(rows.end(), own.begin(), own.begin() + rank.share.own().room);
    }
    const auto sources =
        ranks_[0].table<std::int32_t>(ranks_[0].context.row_sources, ranks_[0].share.own().of_step);
    ASSERT_EQ(sources.size(), names.size());
    for (std::size_t row = 0; row < sources.size(); ++row) {
      EXPECT_EQ(rows.at(static_cast<std::size_t>(sources[row])), static_cast<std::int64_t>(row));
    }
  }

  void expect_tables(const SharingRank& rank, const StepPart& part,
                     const std::vector<std::int64_t>& names) const {
    const std::vector<std::int32_t> rows = rank.own_rows();
    const auto room = static_cast<std::size_t>(rank.share.own().room);
    const auto positions = rank.table<std::int32_t>(rank.layout.positions, std::ssize(rows));
    const auto ids = rank.table<std::int32_t>(rank.layout.token_ids, rank.layout.rows.tokens);
    const bool is_whole = mesh_.cp_weights == CpWeights::kReplicated;
    EXPECT_EQ(rank.share.is_of_model, is_whole);
    const DealtDecodes& dealt = rank.share.decodes;
    const std::size_t num_decodes =
        dealt.room > 0 ? static_cast<std::size_t>(dealt.count) : part.decodes.size();
    for (std::size_t i = 0; i < room + num_decodes; ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      const std::size_t decode = i - room + static_cast<std::size_t>(dealt.first);
      const std::int64_t name = i < room ? names[row] : part.decodes[decode]->tokens.front();
      EXPECT_EQ(positions[i], name % 1000);
      EXPECT_EQ(ids[is_whole ? i : row], name);
    }
    expect_sampled(rank, part, ids);
  }

  // Where the rank says it has a sampled row, it has the token.
  void expect_sampled(const SharingRank& rank, const StepPart& part,
                      const std::vector<std::int32_t>& ids) const {
    const auto own = rank.table<std::int32_t>(rank.layout.sampled_rows, rank.layout.rows.seqs);
    std::size_t at = 0;
    const auto expect = [&](const SequenceTokens& sequence) {
      if (!sequence.produces_token) return;
      const std::int64_t row = rank.sampled.at(at++);
      if (row >= 0) {
        EXPECT_EQ(ids.at(static_cast<std::size_t>(own.at(static_cast<std::size_t>(row)))),
                  sequence.tokens.back());
      }
    };
    for (const SequenceTokens* chunk : part.prefill) expect(*chunk);
    for (const SequenceTokens* decode : part.decodes) expect(*decode);
  }

  static void store_decode(SharingRank& rank, const SequenceTokens& decode) {
    const std::vector<std::int64_t> slots = rank.slots();
    const std::int64_t slot = rank.cache.slot(decode.context, decode.blocks);
    if (slot < 0) return;
    EXPECT_NE(std::find(slots.begin() + rank.share.own().room, slots.end(), slot), slots.end());
    rank.stored.at(static_cast<std::size_t>(slot)) = decode.tokens.front();
  }

  // Token p of each sequence of the step is where a decode looks for it.
  void expect_stored(const StepPart& part) const {
    for (const auto* sequences : {&part.prefill, &part.decodes}) {
      for (const SequenceTokens* sequence : *sequences) {
        const std::int64_t first = sequence->tokens.front() - sequence->context;
        for (std::int64_t p = 0; p < sequence->context + std::ssize(sequence->tokens); ++p) {
          const SharingRank& rank = ranks_[static_cast<std::size_t>(p % mesh_.cp)];
          const std::int64_t slot = rank.cache.slot(p, sequence->blocks);
          EXPECT_EQ(rank.stored.at(static_cast<std::size_t>(slot)), first + p) << p;
        }
      }
    }
  }

  Mesh mesh_;
  ModelConfig model_;
  std::vector<SharingRank> ranks_;
};

std::vector<Mesh> meshes() {
  return {{.cp = 2},
          testing::dealt_mesh(2),
          testing::dealt_mesh(3),
          {.cp = 4},
          {.cp = 2, .cp_weights = CpWeights::kReplicated},
          {.cp = 3, .cp_weights = CpWeights::kReplicated},
          {.cp = 2, .cp_prefill = CpPrefill::kRing},
          {.cp = 4, .cp_weights = CpWeights::kReplicated, .cp_prefill = CpPrefill::kRing}};
}

TEST(ContextShare, ChunksOfUnequalPromptsAreWholeOnEachRankAndStoredInTurn) {
  for (const Mesh& mesh : meshes()) {
    SCOPED_TRACE("cp " + std::to_string(mesh.cp));
    SharingRanks ranks(mesh);
    const auto of = [&](int index, std::int64_t first, std::int64_t last) {
      return tokens_of(index, first, last, mesh.cp);
    };
    ranks.run({.prefill = {of(0, 0, 33), of(1, 0, 7), of(2, 0, 12)}, .decodes = {}});
    ranks.run({.prefill = {of(0, 33, 46), of(2, 12, 13)}, .decodes = {of(1, 7, 8)}});
    ranks.run({.prefill = {of(3, 0, 20)}, .decodes = {of(0, 46, 47), of(1, 8, 9), of(2, 13, 14)}});
  }
}

TEST(ContextShare, EqualPromptsAreDealtOutEach) {
  for (const Mesh& mesh : meshes()) {
    SCOPED_TRACE("cp " + std::to_string(mesh.cp));
    SharingRanks ranks(mesh);
    ranks.run(
        {.prefill = {tokens_of(0, 0, 10, mesh.cp), tokens_of(1, 0, 10, mesh.cp)}, .decodes = {}});
    ranks.run(
        {.prefill = {tokens_of(0, 10, 13, mesh.cp), tokens_of(1, 10, 13, mesh.cp)}, .decodes = {}});
  }
}

// One token is on one rank; the other ranks compute a row of padding.
TEST(ContextShare, APromptMayHaveFewerTokensThanRanks) {
  for (const Mesh& mesh : meshes()) {
    SCOPED_TRACE("cp " + std::to_string(mesh.cp));
    for (std::int64_t length = 1; length < 2 * mesh.cp + 2; ++length) {
      SharingRanks ranks(mesh);
      ranks.run({.prefill = {tokens_of(0, 0, length, mesh.cp)}, .decodes = {}});
      ranks.run({.prefill = {tokens_of(0, length, length + 1, mesh.cp)}, .decodes = {}});
    }
  }
}

TEST(ContextShare, OneRankHasThePromptsLastRow) {
  SharingRanks whole({.cp = 2, .cp_weights = CpWeights::kReplicated});
  const StepInput step{.prefill = {tokens_of(0, 0, 3, 2)}, .decodes = {}};
  whole.run(step);
  // Blocks of one token: the third is the second rank's, its second row.
  EXPECT_EQ(whole.rank(0).sampled[0], -1);
  EXPECT_EQ(whole.rank(1).sampled[0], 0);
  EXPECT_EQ(whole.rank(1).table<std::int32_t>(whole.rank(1).layout.sampled_rows, 1)[0], 1);
  SharingRanks split({.cp = 2});
  split.run(step);
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(split.rank(rank).sampled[0], 0);
    EXPECT_EQ(split.rank(rank).table<std::int32_t>(split.rank(rank).layout.sampled_rows, 1)[0], 2);
  }
}

// Five decodes on three ranks: two, two and one, whose second row pads; slots are those of all.
TEST(ContextShare, DecodesAreDealtOutInBlocks) {
  StepInput step;
  for (int i = 0; i < 5; ++i) step.decodes.push_back(tokens_of(i, 10 + i, 11 + i, 3));
  const Plan plan = parallelize(lower(tiny_llama(), batch_of(step), {}), testing::dealt_mesh(3));
  const StepPart part = split_step(step, 1)[0];
  for (int number = 0; number < 3; ++number) {
    const CacheShape cache{.num_blocks = 64,
                           .block_size = kBlockSize,
                           .max_model_len = 256,
                           .cp = 3,
                           .cp_rank = number};
    const ContextShare share = context_share(plan, {.cp = 3}, number, 0);
    const std::int64_t count = number < 2 ? 2 : 1;
    EXPECT_EQ(share.decodes.first, 2 * number);
    EXPECT_EQ(share.decodes.count, count);
    StepRows rows = step_rows(plan, number, 0);
    EXPECT_EQ(rows.seqs, 2);
    EXPECT_EQ(rows.decodes, 6);
    rows.seqs = rows.decodes;
    SharingRank rank{.cache = cache, .layout = table_layout(rows, 0, cache, 0)};
    rank.bytes.assign(static_cast<std::size_t>(rank.layout.end), std::byte{0});
    fill_tables(part, rank.layout, cache, 0, rank.bytes);
    deal_decodes(part, share, rank.layout, rank.bytes);
    const auto ids = rank.table<std::int32_t>(rank.layout.token_ids, 2);
    const auto positions = rank.table<std::int32_t>(rank.layout.positions, 2);
    const auto slots = rank.table<std::int64_t>(rank.layout.slots, 6);
    const std::vector<std::int64_t> sampled = sampled_rows(part, share);
    for (std::int64_t i = 0; i < 5; ++i) {
      const SequenceTokens& decode = step.decodes[static_cast<std::size_t>(i)];
      const std::int64_t own = i - share.decodes.first;
      const bool is_here = own >= 0 && own < count;
      EXPECT_EQ(sampled[static_cast<std::size_t>(i)], is_here ? own : -1);
      EXPECT_EQ(slots[static_cast<std::size_t>(i)], cache.slot(decode.context, decode.blocks));
      if (!is_here) continue;
      EXPECT_EQ(ids[static_cast<std::size_t>(own)], decode.tokens.front());
      EXPECT_EQ(positions[static_cast<std::size_t>(own)], decode.context);
    }
  }
}

TEST(ContextShare, OfLatentsThereAreNoValues) {
  for (const Mesh& mesh :
       {Mesh{.cp = 2}, Mesh{.cp = 4}, Mesh{.tp = 2, .cp = 2}, testing::dealt_mesh(2, 2)}) {
    SharingRanks ranks(mesh, tiny_deepseek());
    const auto of = [&](int index, std::int64_t first, std::int64_t last) {
      return tokens_of(index, first, last, mesh.cp);
    };
    ranks.run({.prefill = {of(0, 0, 33), of(1, 0, 7)}, .decodes = {}});
    EXPECT_TRUE(ranks.rank(0).share.is_latent);
    ranks.run({.prefill = {of(0, 33, 46), of(2, 0, 1)}, .decodes = {of(1, 7, 8)}});
  }
}

}  // namespace
}  // namespace orrery
