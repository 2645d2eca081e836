#include "kernels/execute/step_tables.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/execute/rank_batches.h"

namespace orrery {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t num_tokens(const SequenceTokens& sequence) {
  return static_cast<std::int64_t>(sequence.tokens.size());
}

void check_sequences(const StepInput& input) {
  if (input.prefill.empty() && input.decodes.empty()) {
    throw std::invalid_argument("a step without sequences, expected at least one");
  }
  for (const SequenceTokens& chunk : input.prefill) {
    if (chunk.tokens.empty()) throw std::invalid_argument("a prefill chunk has no tokens");
  }
  for (const SequenceTokens& decode : input.decodes) {
    if (decode.tokens.size() != 1) {
      throw std::invalid_argument("a decode has " + std::to_string(decode.tokens.size()) +
                                  " tokens, expected one");
    }
  }
}

void check_at_most(std::string_view what, std::int64_t found, std::int64_t most) {
  if (found <= most) return;
  throw std::invalid_argument("a step has " + std::to_string(found) + " " + std::string(what) +
                              " on a rank, the plan has " + std::to_string(most));
}

void check_cache(const SequenceTokens& sequence, const CacheShape& cache) {
  const std::int64_t length = sequence.context + num_tokens(sequence);
  if (sequence.context < 0 || length > cache.max_model_len) {
    throw std::invalid_argument("a sequence has " + std::to_string(sequence.context) +
                                " cached and " + std::to_string(num_tokens(sequence)) +
                                " new tokens, expected at most max_model_len, " +
                                std::to_string(cache.max_model_len));
  }
  const auto num_blocks = static_cast<std::int64_t>(sequence.blocks.size());
  if (num_blocks < ceil_div(length, cache.block_tokens()) ||
      num_blocks > cache.blocks_per_sequence()) {
    throw std::invalid_argument("a sequence of " + std::to_string(length) + " tokens has " +
                                std::to_string(num_blocks) + " blocks of " +
                                std::to_string(cache.block_tokens()) + ", expected " +
                                std::to_string(ceil_div(length, cache.block_tokens())) + " to " +
                                std::to_string(cache.blocks_per_sequence()));
  }
  for (const std::int32_t block : sequence.blocks) {
    if (block < 0 || block >= cache.num_blocks) {
      throw std::invalid_argument("a sequence has block " + std::to_string(block) +
                                  ", expected one of the " + std::to_string(cache.num_blocks) +
                                  " of the cache");
    }
  }
}

class Tables {
 public:
  Tables(const TableLayout& layout, const CacheShape& cache, std::int32_t first_vocab_row,
         std::span<std::byte> bytes)
      : cache_(cache),
        first_vocab_row_(first_vocab_row),
        token_ids_(table_in<std::int32_t>(bytes, layout.token_ids, layout.rows.tokens)),
        positions_(table_in<std::int32_t>(bytes, layout.positions, layout.rows.tokens)),
        slots_(table_in<std::int64_t>(bytes, layout.slots, layout.rows.tokens)) {
    std::ranges::fill(token_ids_, -first_vocab_row);
    std::ranges::fill(positions_, 0);
    std::ranges::fill(slots_, -1);
  }

  void add(const SequenceTokens& sequence, std::size_t row) {
    std::int64_t position = sequence.context;
    for (const std::int32_t token : sequence.tokens) {
      token_ids_[row] = token - first_vocab_row_;
      positions_[row] = static_cast<std::int32_t>(position);
      slots_[row] = cache_.slot(position, sequence.blocks);
      ++row;
      ++position;
    }
  }

 private:
  const CacheShape& cache_;
  std::int32_t first_vocab_row_;
  std::span<std::int32_t> token_ids_;
  std::span<std::int32_t> positions_;
  std::span<std::int64_t> slots_;
};

void add_blocks(const SequenceTokens& sequence, std::span<std::int32_t> row) {
  std::ranges::copy(sequence.blocks, row.begin());
}

}  // namespace

std::int64_t CacheShape::slot(std::int64_t position, std::span<const std::int32_t> blocks) const {
  if (position % cp != cp_rank) return -1;
  const std::int64_t number = position / cp;
  const std::int64_t block = blocks[static_cast<std::size_t>(number / block_size)];
  return block * block_size + number % block_size;
}

std::vector<StepPart> split_step(const StepInput& input, int ways) {
  check_sequences(input);
  if (names_ranks(input)) return split_by_rank(input, ways);
  const auto num_ways = static_cast<std::size_t>(ways);
  std::vector<StepPart> parts(num_ways);
  std::int64_t sampled = 0;
  const std::size_t chunks_each = (input.prefill.size() + num_ways - 1) / num_ways;
  for (std::size_t i = 0; i < input.prefill.size(); ++i) {
    StepPart& part = parts[i / chunks_each];
    part.prefill.push_back(&input.prefill[i]);
    if (input.prefill[i].produces_token) part.sampled.push_back(sampled++);
  }
  const std::size_t decodes_each = (input.decodes.size() + num_ways - 1) / num_ways;
  for (std::size_t i = 0; i < input.decodes.size(); ++i) {
    StepPart& part = parts[i / decodes_each];
    part.decodes.push_back(&input.decodes[i]);
    part.sampled.push_back(sampled++);
  }
  return parts;
}

TableLayout table_layout(const StepRows& rows, std::int64_t num_prefill, const CacheShape& cache,
                         std::int64_t begin) {
  constexpr std::int64_t kAlignment = 256;
  TableLayout layout{.rows = rows, .num_prefill = num_prefill};
  std::int64_t end = begin;
  const auto place = [&](std::int64_t count, std::size_t element) {
    end = ceil_div(end, kAlignment) * kAlignment;
    const std::int64_t offset = end;
    end += count * static_cast<std::int64_t>(element);
    return offset;
  };
  layout.token_ids = place(rows.tokens, sizeof(std::int32_t));
  layout.positions = place(rows.tokens, sizeof(std::int32_t));
  layout.slots = place(rows.tokens, sizeof(std::int64_t));
  layout.sampled_rows = place(rows.seqs, sizeof(std::int32_t));
  layout.decode_lengths = place(rows.decodes, sizeof(std::int32_t));
  const std::int64_t columns = cache.blocks_per_sequence();
  layout.decode_blocks = place(rows.decodes * columns, sizeof(std::int32_t));
  layout.prefill_blocks = place(num_prefill * columns, sizeof(std::int32_t));
  layout.prefill_key_starts = place(num_prefill + 1, sizeof(std::int32_t));
  layout.end = end;
  return layout;
}

bool samples_all_rows(const StepRows& rows) {
  return rows.prefill == 0 && rows.seqs == rows.tokens;
}

void check_part(const StepPart& part, const StepRows& rows, const CacheShape& cache) {
  std::int64_t prefill_rows = 0;
  for (const SequenceTokens* chunk : part.prefill) {
    check_cache(*chunk, cache);
    prefill_rows += num_tokens(*chunk);
  }
  for (const SequenceTokens* decode : part.decodes) check_cache(*decode, cache);
  check_at_most("new tokens of prefill chunks", prefill_rows, rows.prefill);
  check_at_most("decodes", static_cast<std::int64_t>(part.decodes.size()), rows.decodes);
  check_at_most("sampled rows", static_cast<std::int64_t>(part.sampled.size()), rows.seqs);
}

void fill_tables(const StepPart& part, const TableLayout& layout, const CacheShape& cache,
                 std::int32_t first_vocab_row, std::span<std::byte> bytes) {
  Tables tables(layout, cache, first_vocab_row, bytes);
  const std::int64_t columns = cache.blocks_per_sequence();
  const auto decodes =
      table_in<std::int32_t>(bytes, layout.decode_blocks, layout.rows.decodes * columns);
  const auto chunks =
      table_in<std::int32_t>(bytes, layout.prefill_blocks, layout.num_prefill * columns);
  const auto starts =
      table_in<std::int32_t>(bytes, layout.prefill_key_starts, layout.num_prefill + 1);
  const auto lengths = table_in<std::int32_t>(bytes, layout.decode_lengths, layout.rows.decodes);
  const auto sampled = table_in<std::int32_t>(bytes, layout.sampled_rows, layout.rows.seqs);
  const auto width = static_cast<std::size_t>(columns);
  std::size_t row = 0;
  std::size_t num_sampled = 0;
  starts[0] = 0;
  for (std::size_t i = 0; i < part.prefill.size(); ++i) {
    starts[i + 1] = starts[i] + static_cast<std::int32_t>(part.prefill[i]->context +
                                                          num_tokens(*part.prefill[i]));
    tables.add(*part.prefill[i], row);
    row += part.prefill[i]->tokens.size();
    if (part.prefill[i]->produces_token) {
      sampled[num_sampled++] = static_cast<std::int32_t>(row) - 1;
    }
    add_blocks(*part.prefill[i], chunks.subspan(i * width, width));
  }
  std::ranges::fill(lengths, 0);
  row = static_cast<std::size_t>(layout.rows.prefill);
  for (std::size_t i = 0; i < part.decodes.size(); ++i) {
    tables.add(*part.decodes[i], row);
    sampled[num_sampled++] = static_cast<std::int32_t>(row++);
    lengths[i] = static_cast<std::int32_t>(cache.stored(part.decodes[i]->context + 1));
    add_blocks(*part.decodes[i], decodes.subspan(i * width, width));
  }
  for (; num_sampled < sampled.size(); ++num_sampled) {
    sampled[num_sampled] =
        samples_all_rows(layout.rows) ? static_cast<std::int32_t>(num_sampled) : 0;
  }
}

}  // namespace orrery
