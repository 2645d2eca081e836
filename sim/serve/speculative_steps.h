#pragma once

// Steps that verify drafts and draft the next ones, in virtual time. As engines run them (vLLM:
// v1/spec_decode/eagle.py; SGLang likewise), one after the other:
//
//   target   [ prompts' chunks, K + 1 tokens of each decode ]
//   draft 1  [ the same tokens, so that the draft's KV cache has them; one is sampled ]
//   draft 2                                                  [ 1 token of each ]
//   ...
//   draft K                                                                     [ 1 token of each ]
//
// What drafts is a model of its own, or one layer that begins with the target's hidden states
// (ModelConfig::joins_hidden). Host times are the target's.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/serve/simulated_steps.h"
#include "sim/serve/step_backend.h"

namespace orrery {

class SpeculativeSteps : public TimedSteps {
 public:
  // `target` and `draft` outlive it. REQUIRES: num_tokens >= 1, and batches with decode_query
  // num_tokens + 1.
  SpeculativeSteps(StepTimes& target, StepTimes& draft, std::int64_t num_tokens);
  // Of the target.
  void use(StepTimes& times) override { target_.use(times); }
  void starts(Seconds now) override { target_.starts(now); }
  StepTime run(std::span<const Batch> ranks) override;
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) override;

 private:
  // All passes that draft beside a step of the target.
  StepTime drafting(std::span<const Batch> ranks);

  SimulatedSteps target_;
  StepTimes& draft_;
  std::int64_t num_tokens_;
  std::vector<Batch> batches_;  // kept for their memory
};

}  // namespace orrery
