#include "sim/serve/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace orrery {

bool Scheduler::schedule(Seconds now, Seconds known, bool lets_prompts) {
  rank_.at(now);
  rank_.join_incoming(now, known);
  ScheduledStep& step = rank_.new_step();
  if (rank_.num_running() == 0 && rank_.waiting().empty()) return false;
  if (!lets_prompts) {
    step.is_held_back = true;
    schedule_decodes();
  } else if (rank_.engine().scheduler_policy == SchedulerPolicy::kPrefillFirst) {
    schedule_prefill(0, now, known);
    if (step.chunks.empty()) schedule_decodes();
  } else {
    schedule_decodes();
    schedule_prefill(rank_.decodes().size(), now, known);
  }
  if (!step.is_empty()) return true;
  rank_.new_step();
  return false;
}

void Scheduler::schedule_decodes() {
  while (rank_.decodes().blocks(rank_.decode_query()) > rank_.blocks().num_available())
    rank_.preempt_last();
  rank_.reserve_decodes();
}

// Beside `num_decodes` decodes.
void Scheduler::schedule_prefill(std::int64_t num_decodes, Seconds now, Seconds known) {
  ScheduledStep& step = rank_.step();
  is_prefill_limited_ = false;
  std::int64_t budget = rank_.engine().max_num_batched_tokens - num_decodes * rank_.decode_query();
  for (const std::int64_t slot : std::exchange(rank_.prefilling(), {})) {
    const bool is_running = rank_.sequence(slot).order >= 0;  // not preempted for one before it
    if (is_running && !continue_prefill(slot, budget)) step.has_preempted = true;
  }
  if (!step.has_preempted && !holds_back(num_decodes, budget, known)) admit(budget, now, known);
  step.held_up_by = held_up_by(budget, known);
}

std::optional<AdmissionLimit> Scheduler::held_up_by(std::int64_t budget, Seconds known) const {
  const bool waits = !rank_.waiting().empty() && rank_.waiting().front().known <= known;
  if (!waits && rank_.incoming().next() == nullptr) return std::nullopt;
  if (rank_.step().has_preempted) return AdmissionLimit::kKvBlocks;
  if (!rank_.has_seat()) return AdmissionLimit::kSeats;
  const bool has_tokens = budget > 0 && rank_.prefilling().empty() && !is_prefill_limited_;
  return waits && !has_tokens ? AdmissionLimit::kTokenBudget : AdmissionLimit::kKvBlocks;
}

bool Scheduler::continue_prefill(std::int64_t slot, std::int64_t& budget) {
  const Sequence& sequence = rank_.sequence(slot);
  const std::int64_t query = std::min(sequence.target - sequence.computed, budget);
  const std::int64_t blocks =
      rank_.blocks_for(sequence.computed + query) - rank_.blocks_for(sequence.computed);
  while (blocks > rank_.blocks().num_available()) {
    const std::int64_t last = rank_.last_admitted();
    if (rank_.sequence(last).is_decoding) break;  // it will end and give back
    rank_.preempt_last();
    if (last == slot) return false;
  }
  if (blocks > rank_.blocks().num_available() || query == 0) {
    rank_.prefilling().push_back(slot);
    return blocks <= rank_.blocks().num_available();
  }
  rank_.blocks().allocate(blocks);
  budget -= query;
  rank_.add_chunk(slot, query);
  return true;
}

void Scheduler::admit(std::int64_t& budget, Seconds now, Seconds known) {
  while (!rank_.waiting().empty() && rank_.waiting().front().known <= known && budget > 0 &&
         rank_.prefilling().empty() && rank_.has_seat()) {
    if (!admit_front(budget, now)) return;
  }
}

bool Scheduler::admit_front(std::int64_t& budget, Seconds now) {
  const std::int64_t idx = rank_.waiting().front().idx;
  const Request& request = rank_.request(idx);
  const std::int64_t target = request.prompt_tokens + rank_.generated_before(idx);
  const CachedPrefix cached = rank_.cached_prefix(request, target);
  const std::int64_t remaining = target - cached.num_units * rank_.tokens_per_unit();
  is_prefill_limited_ = is_over_prefill_limit(remaining);
  if (is_prefill_limited_) return false;
  const std::int64_t query = std::min(remaining, budget);
  if (query == 0 || (!rank_.engine().enable_chunked_prefill && query < remaining)) return false;
  if (!has_blocks_for(request, target, query, cached)) return false;
  rank_.admit_front(now, cached, query);
  budget -= query;
  return true;
}

bool Scheduler::is_over_prefill_limit(std::int64_t tokens) const {
  const ScheduledStep& step = rank_.step();
  const std::int64_t limit = rank_.engine().max_prefill_tokens;
  if (limit == 0 || step.chunks.empty()) return false;
  std::int64_t left = limit - step.batch.num_decodes * rank_.decode_query();
  for (const ScheduledStep::Chunk& chunk : step.chunks) left -= chunk.query;
  return tokens >= left;
}

// As TensorRT-LLM counts: tokens of the prompts that the step would take and of its decodes. Those
// that have no seat or no blocks are none.
bool Scheduler::holds_back(std::int64_t num_decodes, std::int64_t budget, Seconds known) {
  const EngineConfig& engine = rank_.engine();
  // Ranks beside each other wait in a way of their own (dp_balance_*).
  if (!is_alone_ || engine.batch_wait_timeout_iters == 0) return false;
  std::int64_t seats = engine.max_num_seqs - rank_.num_seated();
  std::int64_t tokens = 0;
  for (const Waiting& waiting : rank_.waiting()) {
    const Request& request = rank_.request(waiting.idx);
    if (waiting.known > known || seats-- <= 0 || tokens + request.prompt_tokens > budget) break;
    if (tokens == 0 && !has_blocks_for(request, request.prompt_tokens, request.prompt_tokens)) {
      break;
    }
    tokens += request.prompt_tokens;
  }
  const double enough =
      engine.batch_wait_max_tokens_ratio * static_cast<double>(engine.max_num_batched_tokens);
  const bool waits = tokens > 0 && num_decodes > 0 &&
                     num_held_back_ < engine.batch_wait_timeout_iters &&
                     static_cast<double>(tokens + num_decodes * rank_.decode_query()) < enough;
  num_held_back_ = waits ? num_held_back_ + 1 : 0;
  rank_.step().is_held_back = waits;
  return waits;
}

bool Scheduler::has_blocks_for(const Request& request, std::int64_t target, std::int64_t query,
                               const CachedPrefix& cached) const {
  const EngineConfig& engine = rank_.engine();
  const std::int64_t full = rank_.most_blocks(request);
  std::int64_t needed = 0;
  switch (engine.kv_admission) {
    case KvAdmission::kPrompt:
      needed = rank_.blocks_for(engine.scheduler_reserve_full_isl
                                    ? target
                                    : cached.num_units * rank_.tokens_per_unit() + query);
      break;
    case KvAdmission::kFullLength:
      return rank_.committed_blocks() + full <= rank_.blocks().num_blocks();
    case KvAdmission::kEstimated: {
      std::int64_t tokens_left = rank_.decodes().tokens_left() - rank_.tokens_in_flight();
      for (const Incoming::Item& item : rank_.incoming().items()) {
        tokens_left += rank_.request(item.handover.idx).output_tokens - 1;
      }
      const double left = static_cast<double>(tokens_left);
      needed = full + rank_.blocks_for(rank_.promised_tokens() +
                                       std::llround(engine.new_token_ratio * left));
      break;
    }
  }
  return needed - cached.num_on_gpu * rank_.blocks_per_unit() <=
         rank_.blocks().num_available() - rank_.blocks_in_flight() -
             cached.num_idle * rank_.blocks_per_unit();
}

void Scheduler::reserve_incoming(Seconds now, bool is_running) {
  // Preempted requests come first.
  while (const Handover* next = rank_.incoming().next()) {
    if (!rank_.waiting().empty() || !rank_.has_seat()) return;
    const Request& request = rank_.request(next->idx);
    if (!has_blocks_for(request, request.prompt_tokens, request.prompt_tokens)) return;
    rank_.reserve_next(now, is_running);
  }
}

bool Scheduler::is_next_known(Seconds known) const {
  if (rank_.waiting().empty()) return true;
  return !rank_.has_ended() && rank_.waiting().front().known <= known &&
         (rank_.engine().kv_admission != KvAdmission::kEstimated || !rank_.could_admit());
}

// Since it came too late for this step, as estimates of what runs change, or as tiers lose or come
// to have blocks of the first that waits: the fewer it would load, the fewer it takes at once.
bool Scheduler::may_let_in_soon() const {
  const EngineConfig& engine = rank_.engine();
  const bool takes_by_chunks = !engine.scheduler_reserve_full_isl || !engine.enable_chunked_prefill;
  if (rank_.tiers() != nullptr && takes_by_chunks && !rank_.waiting().empty() && rank_.has_seat()) {
    return true;
  }
  return rank_.incoming().has_ready() ||
         (rank_.incoming().next() != nullptr &&
          rank_.engine().kv_admission == KvAdmission::kEstimated && rank_.has_seat());
}

bool Scheduler::could_prefill(Seconds known) const {
  if (!rank_.prefilling().empty()) return true;
  if (rank_.waiting().empty() || rank_.waiting().front().known > known || !rank_.has_seat()) {
    return false;
  }
  const std::int64_t idx = rank_.waiting().front().idx;
  const std::int64_t target = rank_.request(idx).prompt_tokens + rank_.generated_before(idx);
  return has_blocks_for(rank_.request(idx), target, target);
}

}  // namespace orrery
