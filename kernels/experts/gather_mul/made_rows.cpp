#include "kernels/experts/gather_mul/made_rows.h"

#include <algorithm>
#include <random>
#include <stdexcept>

namespace orrery {

MadeRows make_rows(const RowSizes& sizes, std::uint64_t seed) {
  MadeRows made;
  made.topk = std::max<std::int64_t>((sizes.rows + sizes.tokens - 1) / sizes.tokens, 1);
  if (made.topk > (sizes.one_expert ? 1 : sizes.experts)) {
    throw std::invalid_argument("expected at least as many experts as rows for each token");
  }
  std::mt19937_64 random(seed);
  const std::int64_t choices = sizes.tokens * made.topk;
  // By expert: choices (token * topk + k), in the order of tokens.
  std::vector<std::vector<std::int64_t>> chosen(static_cast<std::size_t>(sizes.experts));
  for (std::int64_t choice = 0; choice < choices; ++choice) {
    const bool here = (choice + 1) * sizes.rows / choices > choice * sizes.rows / choices;
    // Different experts for a token: a start that follows from the token, then the next ones.
    if (choice % made.topk == 0) seed = random();
    const auto any = static_cast<std::int64_t>(seed >> 1) % sizes.experts + choice % made.topk;
    const std::int64_t expert = sizes.one_expert ? sizes.experts - 1 : any % sizes.experts;
    if (here) chosen[static_cast<std::size_t>(expert)].push_back(choice);
  }
  made.token_rows.assign(static_cast<std::size_t>(choices), -1);
  for (const auto& of_expert : chosen) {
    made.counts.push_back(static_cast<std::int32_t>(of_expert.size()));
    for (const std::int64_t choice : of_expert) {
      made.token_rows[static_cast<std::size_t>(choice)] =
          static_cast<std::int32_t>(made.row_token.size());
      made.row_token.push_back(static_cast<std::int32_t>(choice / made.topk));
    }
  }
  return made;
}

}  // namespace orrery
