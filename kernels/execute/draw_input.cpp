#include "kernels/execute/draw_input.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace orrery {
namespace {

std::int64_t blocks_of(std::int64_t tokens, std::int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

// Of sequence `index` of `count`.
std::size_t rank_of(std::int64_t index, std::int64_t count, int dp) {
  return static_cast<std::size_t>(index / ((count + dp - 1) / dp));
}

// visit(chunk, rank) of each sequence of the step.
template <typename Visit>
void for_each_sequence(const Batch& batch, int dp, const Visit& visit) {
  const std::int64_t prompts = std::ssize(batch.prefill);
  for (std::int64_t i = 0; i < prompts; ++i) {
    visit(batch.prefill[static_cast<std::size_t>(i)], rank_of(i, prompts, dp));
  }
  const PrefillChunk decode{.query = 1, .context = mean_context(batch) - 1};
  for (std::int64_t i = 0; i < batch.num_decodes; ++i) {
    visit(decode, rank_of(i, batch.num_decodes, dp));
  }
}

// All blocks of the cache in random order, given out from the front to sequences of each rank.
class BlockDeck {
 public:
  BlockDeck(std::int64_t num_blocks, int num_ranks, std::mt19937_64& random)
      : blocks_(static_cast<std::size_t>(num_blocks)), taken_(static_cast<std::size_t>(num_ranks)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (std::size_t i = blocks_.size(); i > 1; --i) {  // std::shuffle differs between libraries
      std::swap(blocks_[i - 1], blocks_[random() % i]);
    }
  }
  std::vector<std::int32_t> take(std::int64_t count, std::size_t rank) {
    const auto begin = blocks_.begin() + taken_[rank];
    taken_[rank] += count;
    return {begin, begin + count};
  }

 private:
  std::vector<std::int32_t> blocks_;
  std::vector<std::int64_t> taken_;  // by rank
};

}  // namespace

std::int64_t blocks_of_fullest(const Batch& batch, std::int32_t block_size, int dp) {
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(dp));
  for_each_sequence(batch, dp, [&](const PrefillChunk& chunk, std::size_t rank) {
    blocks[rank] += blocks_of(chunk.context + chunk.query, block_size);
  });
  return std::ranges::max(blocks);
}

StepInput draw_input(const Batch& batch, std::int64_t vocab, std::int64_t num_blocks,
                     std::int32_t block_size, std::uint64_t seed, int dp) {
  const std::int64_t needed = blocks_of_fullest(batch, block_size, dp);
  if (needed > num_blocks) {
    throw std::invalid_argument("the step's sequences take " + std::to_string(needed) +
                                " KV blocks; the cache has " + std::to_string(num_blocks));
  }
  std::mt19937_64 random(seed);
  BlockDeck deck(num_blocks, dp, random);
  StepInput input;
  for_each_sequence(batch, dp, [&](const PrefillChunk& chunk, std::size_t rank) {
    SequenceTokens sequence{.context = chunk.context, .produces_token = chunk.produces_token};
    sequence.tokens.resize(static_cast<std::size_t>(chunk.query));
    for (std::int32_t& token : sequence.tokens) {
      token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
    }
    sequence.blocks = deck.take(blocks_of(chunk.context + chunk.query, block_size), rank);
    const bool is_prompt = input.prefill.size() < batch.prefill.size();
    (is_prompt ? input.prefill : input.decodes).push_back(std::move(sequence));
  });
  return input;
}

}  // namespace orrery
