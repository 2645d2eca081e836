#pragma once

// What a rank computes next. Decides as vLLM v1's scheduler does (and in the ways of other engines
// that SchedulerPolicy and KvAdmission name):
//
//   1. running requests in order of admission: one token for each that decodes, then the next chunk
//      of a prompt that is not finished;
//   2. if nothing was preempted, waiting requests in order while max_num_seqs, the token budget
//      and KV blocks allow; a prompt longer than the budget left is cut (chunked prefill).
//   When a decoding request needs a block and there is none, the request admitted last gives up its
//   blocks and returns to the head of the queue (preemption by recomputation).
//
// With asynchronous scheduling the batch of a step knows what was known when the step before began:
//
//   step       |    k    |   k+1   |   k+2   |
//   arrives        ^                [ runs
//   ends                 ]         [ its seat and its blocks are taken again
//
// Not thread safe.

#include <cstdint>
#include <optional>
#include <span>

#include "sim/serve/rank.h"

namespace orrery {

class Scheduler {
 public:
  // `rank` outlives it. `is_alone`: the replica has no other rank.
  Scheduler(Rank& rank, bool is_alone) : rank_(rank), is_alone_(is_alone) {}

  // Forms the step of `rank` from what is known since `known` or earlier; false when it would be
  // empty. `lets_prompts`: whether prompts may be part of it.
  bool schedule(Seconds now, Seconds known, bool lets_prompts = true);
  // Sets blocks aside for requests handed over, in order, while there are seats and blocks; a step
  // `is_running` or about to.
  void reserve_incoming(Seconds now, bool is_running);

  // Whether the next batch is that of the step just formed, one token further: nothing that waits
  // can take the places of what ended, came too late for this one, or has a seat that an estimate
  // of what runs may come to let in.
  [[nodiscard]] bool is_next_known(Seconds known) const;
  // Whether a request may come to be let in after the step now formed, though nothing ends with it
  // and none comes.
  [[nodiscard]] bool may_let_in_soon() const;
  // Whether it has, or could take in, prompts that are known since `known`.
  [[nodiscard]] bool could_prefill(Seconds known) const;

 private:
  void schedule_decodes();
  void schedule_prefill(std::int64_t num_decodes, Seconds now, Seconds known);
  // The next chunk of a prompt that was cut; false when it could not have the blocks.
  bool continue_prefill(std::int64_t slot, std::int64_t& budget);
  void admit(std::int64_t& budget, Seconds now, Seconds known);
  bool admit_front(std::int64_t& budget, Seconds now);
  // Whether the prompts of the step leave no room for `tokens` more (max_prefill_tokens).
  [[nodiscard]] bool is_over_prefill_limit(std::int64_t tokens) const;
  // Whether prompts that could join `num_decodes` decodes wait for more to come (batch_wait_*).
  bool holds_back(std::int64_t num_decodes, std::int64_t budget, Seconds known);
  // Whether KvAdmission lets in a request of `target` tokens to prefill, of which `cached` are,
  // that computes `query` now.
  [[nodiscard]] bool has_blocks_for(const Request& request, std::int64_t target, std::int64_t query,
                                    const CachedPrefix& cached = {}) const;
  // Why the first request that waits is not in the batch just formed, which leaves `budget` tokens.
  [[nodiscard]] std::optional<AdmissionLimit> held_up_by(std::int64_t budget, Seconds known) const;

  Rank& rank_;
  bool is_alone_;
  std::int64_t num_held_back_ = 0;   // steps in a row for which prompts were held back
  bool is_prefill_limited_ = false;  // max_prefill_tokens kept the first that waits out of the step
};

}  // namespace orrery
