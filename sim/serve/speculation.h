#pragma once

// Speculative decoding as the scheduler sees it: a decoding sequence computes its next token and
// `num_tokens` drafts behind it in one step (Leviathan, Kalman, Matias, arXiv 2211.17192), which
// makes 1 + a tokens, a the drafts up to the first that is rejected:
//
//   tokens      t0 t1 t2 | d1 d2 d3         K = 3, d1 and d2 accepted
//   verified               √  √  x
//   after       t0 t1 t2 t3 t4 t5 |         3 tokens: d1, d2, and the target's own in place of d3
//
// How long drafting takes is a StepBackend's business (sim/serve/speculative_steps.h).

#include <cstdint>
#include <vector>

namespace orrery {

inline constexpr std::int64_t kMostSpeculativeTokens = 64;

struct Speculation {
  std::int64_t num_tokens = 0;  // drafts of a step, K; 0: none
  // Of the i-th draft, given that those before it were accepted; K of them, in [0, 1].
  std::vector<double> acceptance;
  std::uint64_t seed = 1;
  bool operator==(const Speculation&) const = default;
};

// Drafts that are accepted when `request` has made `generated` tokens: a draw of the seed and these
// two alone, so it is the same whatever else runs and however often the request was preempted.
std::int64_t num_accepted(const Speculation& speculation, std::int64_t request,
                          std::int64_t generated);

// Tokens that a step makes on average: 1 + a1 + a1 a2 + ... + a1 ... aK.
double expected_tokens(const Speculation& speculation);

}  // namespace orrery
