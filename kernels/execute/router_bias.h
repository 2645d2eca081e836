#pragma once

// Loads of experts imposed on a router of random weights, whose tokens choose all experts alike
// otherwise. No CUDA.

#include <cstdint>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/experts/index_shuffling/choice.h"
#include "sim/model/expert_load.h"

namespace orrery {

// How a token's experts are chosen from its scores.
struct ExpertRouter {
  RoutingScore score = RoutingScore::kSoftmax;
  std::int64_t experts = 1;
  std::int64_t topk = 1;
  std::int64_t groups = 1;
  std::int64_t topk_groups = 1;
  GroupScore group_score = GroupScore::kBest;
};

// What is added to the logits, one for each expert and rounded to bf16, so that tokens choose
// experts as often as choice_probabilities(load, ...) says; empty for an empty load. The logits of
// random weights are independent and normal, of variance 1 (weights.h): biases are found for
// 16,384 such tokens, each moved by how far the share of tokens that chose its expert is from the
// one wanted, both as quantiles of the normal distribution. An expert without a share is not
// chosen. Throws std::invalid_argument as choice_probabilities() does, and for groups that do not
// divide the experts or hold too few of them.
std::vector<float> router_bias(const ExpertLoad& load, const ExpertRouter& router);

}  // namespace orrery
