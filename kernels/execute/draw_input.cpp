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

// All blocks of the cache in random order, given out from the front.
class BlockDeck {
 public:
  BlockDeck(std::int64_t num_blocks, std::mt19937_64& random)
      : blocks_(static_cast<std::size_t>(num_blocks)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (std::size_t i = blocks_.size(); i > 1; --i) {  // std::shuffle differs between libraries
      std::swap(blocks_[i - 1], blocks_[random() % i]);
    }
  }
  std::vector<std::int32_t> take(std::int64_t count) {
    const auto begin = blocks_.begin() + taken_;
    taken_ += count;
    return {begin, begin + count};
  }

 private:
  std::vector<std::int32_t> blocks_;
  std::int64_t taken_ = 0;
};

}  // namespace

StepInput draw_input(const Batch& batch, std::int64_t vocab, std::int64_t num_blocks,
                     std::int32_t block_size, std::uint64_t seed) {
  const std::int64_t needed = kv_blocks(batch, block_size);
  if (needed > num_blocks) {
    throw std::invalid_argument("the step's sequences take " + std::to_string(needed) +
                                " KV blocks; the cache has " + std::to_string(num_blocks));
  }
  std::mt19937_64 random(seed);
  BlockDeck deck(num_blocks, random);
  const auto draw = [&](const PrefillChunk& chunk) {
    SequenceTokens sequence{.context = chunk.context, .produces_token = chunk.produces_token};
    sequence.tokens.resize(static_cast<std::size_t>(chunk.query));
    for (std::int32_t& token : sequence.tokens) {
      token = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
    }
    sequence.blocks = deck.take(blocks_of(chunk.context + chunk.query, block_size));
    return sequence;
  };
  StepInput input;
  for (const PrefillChunk& chunk : batch.prefill) input.prefill.push_back(draw(chunk));
  const PrefillChunk decode{.query = 1, .context = mean_context(batch) - 1};
  for (std::int64_t i = 0; i < batch.num_decodes; ++i) input.decodes.push_back(draw(decode));
  return input;
}

}  // namespace orrery
