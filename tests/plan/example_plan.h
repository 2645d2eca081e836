#pragma once

// A small decode step with one of everything, for tests: embedding, three equal tensor-parallel
// layers (norm, gemm, all-reduce on stream 1, residual), logits and sampling on the first rank.

#include "sim/plan/plan.h"

namespace orrery {

inline constexpr std::int64_t kTokens = 4;
inline constexpr std::int64_t kHidden = 64;
inline constexpr std::int64_t kVocab = 96;
inline constexpr std::int64_t kLayers = 3;

// Ids of what the tests ask for.
struct ExamplePlan {
  Plan plan;
  TensorId ids, table, residual, norm_weight, normed, weight, partial, reduced, logits, tokens;
  OpId embed, norm, gemm, reduce, add, head, sample;
};
ExamplePlan example_plan();

}  // namespace orrery
