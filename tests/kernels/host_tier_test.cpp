// The host's memory behind a paged cache, on streams that need no GPU.

#include "kernels/serve/host_tier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/comm/kv_transfer/host_copies.h"
#include "kernels/serve/live.h"
#include "tests/kernels/fake_cuda.h"
#include "tests/kernels/fake_runner.h"
#include "tests/kernels/tiered_service.h"

namespace orrery {
namespace {

using testing::enqueue_call;
using testing::kPromptSeed;
using testing::kUnitTokens;
using testing::kVocabulary;
using testing::set_stream_timing;
using testing::StreamTiming;

constexpr std::int64_t kLayers = 3;

// A row of one head of two bf16 has room for a token.
KvShape shape_of(std::int64_t num_blocks) {
  return {
      .layers = kLayers, .num_blocks = num_blocks, .block_size = 4, .kv_heads = 1, .head_dim = 2};
}

// Steps that keep their tokens as keys and values of every layer, on a stream.
class StreamRunner : public StepRunner {
 public:
  StreamRunner(std::int64_t num_blocks, const HostTierConfig& config)
      : pool_(shape_of(num_blocks)), tier_(config) {
    const KvPool* const pools[] = {&pool_};
    const int devices[] = {0};
    tier_.open(pools, devices);
  }
  void capture(std::int64_t /*rows*/) override {}
  [[nodiscard]] Seconds waited() const override { return tier_.waited(); }

  std::vector<std::int32_t> run(const StepInput& input, std::int64_t /*graph_rows*/,
                                const KvMoves& moves) override {
    num_loads += std::ssize(moves.loads);
    std::vector<SequenceTokens> all = input.prefill;
    all.insert(all.end(), input.decodes.begin(), input.decodes.end());
    std::vector<std::vector<std::int32_t>> histories(all.size());
    const bool by_layers = !input.prefill.empty();
    tier_.set(moves);
    tier_.begin_step(0, stream_, by_layers);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      if (by_layers) tier_.begin_layer(0, layer, stream_);
      enqueue_call(stream_.get(), [&, layer] { compute(layer, all, histories); });
    }
    tier_.end_step(0, stream_);
    stream_.synchronize();
    std::vector<std::int32_t> next;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].produces_token) next.push_back(testing::next_token(histories[i]));
    }
    if (moves.is_empty()) {
      EXPECT_EQ(waited(), Seconds(0));
    }
    return next;
  }

  std::int64_t num_loads = 0;

 private:
  std::byte* row(std::byte* pool, const SequenceTokens& of, std::int64_t position) const {
    const std::int32_t block = of.blocks.at(static_cast<std::size_t>(position / 4));
    return pool + (std::int64_t{block} * 4 + position % 4) * 4;
  }
  // All rows are written before one is read; a token that keys, values and layers do not agree on
  // is none.
  void compute(std::int64_t layer, const std::vector<SequenceTokens>& sequences,
               std::vector<std::vector<std::int32_t>>& histories) const {
    const auto pools = {pool_.keys(layer), pool_.values(layer)};
    for (const SequenceTokens& of : sequences) {
      for (std::size_t i = 0; i < of.tokens.size(); ++i) {
        for (std::byte* const pool : pools) {
          std::memcpy(row(pool, of, of.context + static_cast<std::int64_t>(i)), &of.tokens[i], 4);
        }
      }
    }
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto end = sequences[s].context + std::ssize(sequences[s].tokens);
      std::vector<std::int32_t>& history = histories[s];
      for (std::int64_t position = 0; position < end; ++position) {
        for (std::byte* const pool : pools) {
          std::int32_t token = 0;
          std::memcpy(&token, row(pool, sequences[s], position), 4);
          if (std::ssize(history) == position) history.push_back(token);
          if (history[static_cast<std::size_t>(position)] != token) {
            history[static_cast<std::size_t>(position)] = -1;
          }
        }
      }
    }
  }

  KvPool pool_;
  HostTier tier_;
  cuda::Stream stream_;
};

// Of a service of which every request gets the tokens that it would get alone.
LiveResult expect_own_tokens(const Workload& workload, const ServiceConfig& config,
                             StreamRunner& runner) {
  LiveClock clock;
  const LiveResult result =
      serve_live(workload,
                 {.first = {.service = config,
                            .steps = {.num_kv_blocks = config.num_kv_blocks,
                                      .block_size = config.engine.block_size,
                                      .vocab_size = kVocabulary,
                                      .seed = kPromptSeed,
                                      .hash_block_tokens = workload.hash_block_tokens,
                                      .caches_prefixes = true},
                            .runners = {&runner}}},
                 {}, clock);
  if (result.error) std::rethrow_exception(result.error);
  for (const Request& request : workload.requests) {
    EXPECT_EQ(result.tokens[static_cast<std::size_t>(request.id)],
              testing::whole_history(kPromptSeed, request, kUnitTokens))
        << "request " << request.id;
  }
  return result;
}

TEST(HostTier, BlocksThatWentAndCameLeaveEveryTokenAsItWas) {
  for (const StreamTiming timing :
       {StreamTiming::kEager, StreamTiming::kLazy, StreamTiming::kRandom}) {
    for (const TierOverlap overlap : {TierOverlap::kLayers, TierOverlap::kNone}) {
      for (const TierWrite write : {TierWrite::kEviction, TierWrite::kThrough}) {
        set_stream_timing(timing);
        ServiceConfig config = testing::tiered(50, 60, write);
        config.kv_tiers.overlap = overlap;
        StreamRunner runner(50, {.num_slots = 60, .blocks_per_unit = 2, .overlap = overlap});
        expect_own_tokens(testing::shared_prompts(60, 2, 1e6), config, runner);
        EXPECT_GT(runner.num_loads, 0);
      }
    }
  }
}

// Slots beyond those allocated ahead, and requests that are preempted.
TEST(HostTier, SoDoesAHostOfHardlyOnePrompt) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    set_stream_timing(StreamTiming::kRandom);
    StreamRunner runner(32, {.num_slots = 1, .blocks_per_unit = 2});
    expect_own_tokens(testing::shared_prompts(60, seed, 1e6), testing::tiered(32, 13), runner);
    EXPECT_GT(runner.num_loads, 0);
  }
}

TEST(HostTier, NeighboursAreOneCopyAndOthersOneEach) {
  set_stream_timing(StreamTiming::kEager);
  const KvPool pool(shape_of(16));
  std::vector<std::byte> slot(static_cast<std::size_t>(host_slot_bytes(pool.shape(), 4)));
  const auto num_copies = [&](const std::vector<std::int32_t>& blocks) {
    HostCopies copies;
    copies.add(pool, blocks, slot.data(), 1, 2, /*to_host=*/true);
    return copies.size();
  };
  EXPECT_EQ(num_copies({4, 5, 6, 7}), 2 * 2);  // keys and values of two layers
  EXPECT_EQ(num_copies({4, 5, 9, 10}), 2 * 2 * 2);
  EXPECT_EQ(num_copies({7, 6, 5, 4}), 2 * 2 * 4);
}

TEST(HostTier, MemoryThatTheHostHasNotIsAnError) {
  const KvPool pool(shape_of(16));
  const KvPool* const pools[] = {&pool};
  const int devices[] = {0};
  HostTier tier({.num_slots = 10'000'000, .blocks_per_unit = 2});
  try {
    tier.open(pools, devices);
    FAIL();
  } catch (const std::runtime_error& error) {
    // 2 blocks of 4 tokens of 4 bytes, keys and values of 3 layers: 192 bytes.
    EXPECT_EQ(std::string(error.what()),
              "the host has no 1.79 GiB to lock for the tier of a rank; expected a smaller "
              "capacity");
  }
}

}  // namespace
}  // namespace orrery
