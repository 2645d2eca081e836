#pragma once

// Whether steps on GPUs compute what their plans say: the conversation of
// kernels/execute/reference/conversation.h on the executor.

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/execute/executor.h"
#include "kernels/execute/reference/conversation.h"
#include "kernels/execute/weights.h"
#include "sim/plan/plan.h"

namespace orrery {

// Elements (and scales) of one copy of a weight that fill_weight leaves other than stored_weight
// says. On the current device.
std::int64_t num_different_elements(const WeightShard& shard, std::int64_t copy, DType dtype,
                                    std::uint64_t seed);

struct ConversationOptions {
  LaunchMode decode_mode = LaunchMode::kEager;  // of decode steps; others are eager
  // Rows of the decode steps' plan, at least 4; unless they are eager, one step is prepared and
  // runs for all of them.
  std::int64_t decode_rows = 4;
  bool only_nccl = false;                   // no collectives of our own
  bool prepares_first = false;              // all eager steps, before any of them runs
  bool records_scores = false;              // of experts: ExecutedConversation::scores
  std::function<Plan(const Plan&)> change;  // of each step's plan before it runs
  ProcessGroup processes;  // several: a rank each, which make the same call; logits are of it alone
};
// The same steps with the same inputs on the first GPUs of this host. Throws what the executor
// throws.
ExecutedConversation run_conversation(const CheckedDeployment& deployment,
                                      const std::vector<CheckedStep>& steps,
                                      const ConversationOptions& options);

}  // namespace orrery
