#include "sim/serve/speculative_steps.h"

#include <algorithm>
#include <utility>

#include "sim/serve/fast_forward.h"

namespace orrery {
namespace {

// What the passes after the first compute: a token of each decode, and of each prompt that ended.
// Drafts that will be rejected count as context until they are.
Batch next_pass(const Batch& first) {
  Batch next{.num_decodes = first.num_decodes,
             .decode_context = first.decode_context + first.num_decodes};
  for (const PrefillChunk& chunk : first.prefill) {
    if (!chunk.produces_token) continue;
    ++next.num_decodes;
    next.decode_context += chunk.context + chunk.query + 1;
  }
  return next;
}

}  // namespace

SpeculativeSteps::SpeculativeSteps(StepTimes& target, StepTimes& draft, std::int64_t num_tokens)
    : target_(target), draft_(draft), num_tokens_(num_tokens) {}

StepTime SpeculativeSteps::drafting(std::span<const Batch> ranks) {
  batches_.assign(ranks.begin(), ranks.end());
  for (Batch& batch : batches_) batch.samples_last = true;
  StepTime all = draft_.step(batches_);
  for (Batch& batch : batches_) batch = next_pass(batch);
  const bool has_sequences =
      std::ranges::any_of(batches_, [](const Batch& batch) { return batch.num_decodes > 0; });
  for (std::int64_t left = has_sequences ? num_tokens_ - 1 : 0; left > 0;) {
    const FastForward passes = draft_.fast_forward(batches_, left);
    const Seconds duration = fast_forward_duration(passes, passes.num_steps);
    all.duration += duration;
    all.basis = sum(all.basis, passes.basis);
    all.energy += passes.energy;
    for (std::size_t i = 0; i < all.ranks.size(); ++i) all.ranks[i] += passes.ranks[i];
    for (Batch& batch : batches_) batch.decode_context += passes.num_steps * batch.num_decodes;
    left -= passes.num_steps;
  }
  return all;
}

StepTime SpeculativeSteps::run(std::span<const Batch> ranks) {
  StepTime step = target_.run(ranks);
  const StepTime draft = drafting(ranks);
  step.draft = draft.duration;
  step.duration += draft.duration;
  step.basis = sum(step.basis, draft.basis);
  step.energy += draft.energy;
  for (std::size_t i = 0; i < step.ranks.size(); ++i) step.ranks[i] += draft.ranks[i];
  return step;
}

FastForward SpeculativeSteps::fast_forward(std::span<const Batch> ranks,
                                           std::int64_t /*max_steps*/) {
  FastForward step = target_.fast_forward(ranks, 1);
  const StepTime draft = drafting(ranks);
  step.draft = draft.duration;
  step.first += draft.duration;
  step.basis = sum(step.basis, draft.basis);
  step.energy += draft.energy;
  for (std::size_t i = 0; i < step.ranks.size(); ++i) step.ranks[i] += draft.ranks[i];
  return step;
}

}  // namespace orrery
