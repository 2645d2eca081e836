#pragma once

// A short conversation of a small model, step by step as the double-precision reference computes
// it, for checks of what runs on GPUs. No CUDA.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/reference/model.h"
#include "sim/plan/plan.h"

namespace orrery {

// A step of a plan, split over ranks, and before that.
struct StepPlans {
  Plan whole;
  Plan plan;
};

struct CheckedDeployment {
  std::string name;
  RankGrid grid;
  ModelNumbers numbers;
  std::int64_t vocab = 0;
  std::uint64_t seed = 1;
  // The plans of a step with that input, for `num_decodes` decodes (at least the input's).
  std::function<StepPlans(const StepInput& input, std::int64_t num_decodes)> lower;
};

inline constexpr std::int32_t kConversationBlockSize = 64;
inline constexpr std::int64_t kConversationBlocks = 16;  // of the cache
inline constexpr std::int64_t kConversationBlocksPerSequence = 4;
inline constexpr std::int64_t kConversationSequences = 4;

// One step of a conversation and what the reference says of it.
struct CheckedStep {
  StepInput input;
  bool is_decode = false;  // decodes alone
  std::vector<double> logits;
  std::vector<std::int32_t> next_tokens;
};

// Four prompts of unequal lengths, two of them in two chunks, the second of which runs beside the
// decodes of the others; then `num_decode_steps` decodes of all. Each decode's token is the one
// that the reference found last. The deployment is that of one rank.
std::vector<CheckedStep> reference_conversation(const CheckedDeployment& deployment,
                                                int num_decode_steps);

// The same sequences by decodes alone, which take the prompts token by token: sequence i begins at
// step 3 i, so that parts of a context over several ranks are empty at first. Steps end behind
// position num_steps - 1 of the first.
std::vector<CheckedStep> decoded_conversation(const CheckedDeployment& deployment, int num_steps);

// The same steps where the last sequence is on the first of two data-parallel ranks and the others
// are on the second: the first one decodes beside prompts of the other.
std::vector<CheckedStep> on_unlike_ranks(std::vector<CheckedStep> steps);

// The same steps in two halves on each of `dp` ranks (rank_batches.h).
std::vector<CheckedStep> in_halves(std::vector<CheckedStep> steps, int dp);

struct ExecutedConversation {
  std::vector<std::vector<float>> logits;  // by step
  std::vector<std::vector<std::int32_t>> next_tokens;
  std::vector<reference::GivenScores> scores;  // of experts, where they were recorded
};

// What the reference says of steps with these inputs in another deployment, whose experts are
// chosen by the scores that were found there (routing_scores). Decode steps have
// `decode_rows` rows.
struct RepeatedConversation {
  std::vector<std::vector<double>> logits;  // by step
  std::vector<std::vector<std::int32_t>> next_tokens;
  double score_difference = 0;  // the largest of all steps
};
RepeatedConversation repeat_conversation(const CheckedDeployment& deployment,
                                         const std::vector<CheckedStep>& steps,
                                         std::int64_t decode_rows,
                                         const std::vector<reference::GivenScores>& scores);

struct ConversationDifference {
  // Of all steps, the largest |logit - expected| over the largest |expected| of the step.
  double logits = 0;
  // Tokens that are not the first of the largest found logits, or other than the expected where the
  // expected logits of the two differ by more than twice the bound; and other than the expected
  // where they do not, so that either may be right.
  int wrong_tokens = 0;
  int near_ties = 0;
  int num_tokens = 0;
};
// `found` beside `expected` (logits [rows, vocab] each). Throws std::runtime_error where they have
// other numbers of rows.
ConversationDifference compare_conversations(
    const ExecutedConversation& found, const std::vector<std::vector<double>>& expected_logits,
    const std::vector<std::vector<std::int32_t>>& expected_tokens, double bound);

}  // namespace orrery
