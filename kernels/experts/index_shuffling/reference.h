#pragma once

// index_shuffling on the CPU: the choice in float as the kernel makes it, the weights in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/experts/index_shuffling/choice.h"

namespace orrery::reference {

struct IndexShuffling {
  std::vector<std::int32_t> counts;      // [experts]
  std::vector<std::int32_t> row_token;   // [rows]
  std::vector<double> row_weight;        // [rows]
  std::vector<std::int32_t> token_rows;  // [tokens, topk], -1: the expert is elsewhere, or none
  // [tokens, topk], of all experts (or slots), best first; -1: none that is taken
  std::vector<std::int32_t> chosen;
};

// scores [tokens, experts_total], correction_bias [experts_total] or empty. What ties, NaN and
// groups do is said in index_shuffling.h, expert_of_slot (of shape.slots) in choice.h. Throws
// std::invalid_argument for a shape out of range or sizes that do not fit it.
IndexShuffling index_shuffling(std::span<const double> scores,
                               std::span<const double> correction_bias,
                               const IndexShufflingShape& shape,
                               std::span<const std::int32_t> expert_of_slot = {});

// The same order as expanded copies of the tokens, as frameworks of other vendors give it.
struct InitRouting {
  std::vector<std::int32_t> expanded_token;       // [rows], whose copy each row is
  std::vector<std::int32_t> expanded_row_idx;     // [tokens * topk]: row of each entry of row_idx
  std::vector<std::int32_t> expanded_expert_idx;  // [rows], ascending
};

// From what index_shuffling gives where all experts are here: token_rows [tokens, topk], row_token
// [rows], counts [experts_total]. row_idx [tokens, topk] numbers the choices, each of 0 ..
// tokens * topk - 1 once. Throws std::invalid_argument for sizes, rows or numbers that do not fit.
InitRouting init_routing(std::span<const std::int32_t> token_rows,
                         std::span<const std::int32_t> row_token,
                         std::span<const std::int32_t> counts,
                         std::span<const std::int32_t> row_idx);

}  // namespace orrery::reference
