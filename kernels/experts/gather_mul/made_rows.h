#pragma once

// Tokens made up as sorted by expert, for the checks and timings of what works on such rows.

#include <cstdint>
#include <vector>

namespace orrery {

struct MadeRows {
  std::vector<std::int32_t> row_token;   // [rows], by expert, then token
  std::vector<std::int32_t> token_rows;  // [tokens, topk], -1: not on this rank
  std::vector<std::int32_t> counts;      // [experts]
  std::int64_t topk = 0;
};

struct RowSizes {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;     // chosen on this rank, of tokens * topk
  std::int64_t experts = 0;  // at least rows / tokens, rounded up: topk
  bool one_expert = false;   // all rows go to the last; a topk of 1
};

// Each token goes to topk experts that follow from the seed, of whose choices `rows`, spread
// evenly, are on this rank. Throws std::invalid_argument when there are fewer experts than choices.
MadeRows make_rows(const RowSizes& sizes, std::uint64_t seed);

}  // namespace orrery
