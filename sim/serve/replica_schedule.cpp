// Which sequences a step computes: Replica's decisions, one batch at a time.

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "sim/serve/replica.h"

namespace orrery {

bool Replica::schedule(Seconds now, Seconds known) {
  join_incoming(now, known);
  if (running_.empty() && waiting_.empty()) return false;
  flight_ = Flight{.begin = now};
  promised_tokens_ = 0;
  is_held_back_ = false;
  if (engine_.scheduler_policy == SchedulerPolicy::kPrefillFirst) {
    schedule_prefill(0, now, known);
    if (flight_->chunks.empty()) schedule_decodes();
  } else {
    schedule_decodes();
    schedule_prefill(decodes_.size(), now, known);
  }
  if (flight_->chunks.empty() && flight_->batch.num_decodes == 0) flight_.reset();
  return flight_.has_value();
}

void Replica::schedule_decodes() {
  while (decodes_.blocks(1) > blocks_.num_available()) {
    preempt_last();
    flight_->has_preempted = true;
  }
  flight_->reserved_blocks = decodes_.blocks(1);
  blocks_.allocate(flight_->reserved_blocks);
  flight_->batch.num_decodes = decodes_.size();
  flight_->batch.decode_context = decodes_.positions() + decodes_.size();
}

// Beside `num_decodes` decodes. A chunk runs on one rank, so it fits the budget of that rank.
void Replica::schedule_prefill(std::int64_t num_decodes, Seconds now, Seconds known) {
  std::int64_t budget = engine_.max_num_batched_tokens * num_dp_ranks_ - num_decodes;
  largest_chunk_ =
      engine_.max_num_batched_tokens - (num_decodes + num_dp_ranks_ - 1) / num_dp_ranks_;
  for (const std::int64_t slot : std::exchange(prefilling_, {})) {
    const Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
    const bool is_running = sequence.order >= 0;  // not preempted for one before it
    if (is_running && !continue_prefill(slot, budget)) flight_->has_preempted = true;
  }
  if (!flight_->has_preempted && !holds_back(num_decodes, budget, known)) {
    admit(budget, now, known);
  }
  flight_->held_up_by = held_up_by(budget, known);
}

std::optional<AdmissionLimit> Replica::held_up_by(std::int64_t budget, Seconds known) const {
  const bool waits = !waiting_.empty() && waiting_.front().known <= known;
  if (!waits && unreserved_.empty()) return std::nullopt;
  if (flight_->has_preempted) return AdmissionLimit::kKvBlocks;
  if (!has_seat()) return AdmissionLimit::kSeats;
  const bool has_tokens = budget > 0 && largest_chunk_ > 0 &&
                          static_cast<std::int64_t>(prefilling_.size()) < num_dp_ranks_;
  return waits && !has_tokens ? AdmissionLimit::kTokenBudget : AdmissionLimit::kKvBlocks;
}

void Replica::preempt_last() {
  assert(!running_.empty());
  const auto last = std::prev(running_.end());
  const std::int64_t slot = last->second;
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  Preempted made{.generated = sequence.generated, .last_token = sequence.last_token};
  if (sequence.is_decoding) {
    made.generated += decodes_.step() - sequence.joined_step;
    leave_decodes(sequence, slot);
    made.last_token = sequence.last_token;
  } else {
    std::erase(prefilling_, slot);
  }
  preempted_[sequence.idx] = made;
  outstanding_ += sequence.computed;
  ++records_[static_cast<std::size_t>(sequence.idx)].num_preemptions;
  waiting_.push_front({.idx = sequence.idx, .known = last_step_begin_});
  running_.erase(last);
  release(slot);
}

bool Replica::continue_prefill(std::int64_t slot, std::int64_t& budget) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const std::int64_t query =
      std::min({sequence.target - sequence.computed, budget, largest_chunk_});
  const std::int64_t blocks = blocks_for(sequence.computed + query) - blocks_for(sequence.computed);
  while (blocks > blocks_.num_available()) {
    const std::int64_t last = running_.rbegin()->second;
    if (slots_[static_cast<std::size_t>(last)].is_decoding) break;  // it will end and give back
    preempt_last();
    flight_->has_preempted = true;
    if (last == slot) return false;
  }
  if (blocks > blocks_.num_available() || query == 0) {
    prefilling_.push_back(slot);
    return blocks <= blocks_.num_available();
  }
  blocks_.allocate(blocks);
  budget -= query;
  add_chunk(slot, query);
  return true;
}

void Replica::add_chunk(std::int64_t slot, std::int64_t query) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const std::int64_t computed = sequence.computed + query;
  const bool ends_prompt = computed == sequence.target;
  flight_->chunks.push_back({.slot = slot, .query = query, .ends_prompt = ends_prompt});
  flight_->batch.prefill.push_back(
      {.query = query, .context = sequence.computed, .produces_token = ends_prompt});
  promised_tokens_ += full_length(requests_[static_cast<std::size_t>(sequence.idx)]) - computed;
  publish_units(sequence, computed);
  if (!ends_prompt) prefilling_.push_back(slot);
}

void Replica::admit(std::int64_t& budget, Seconds now, Seconds known) {
  while (!waiting_.empty() && waiting_.front().known <= known && budget > 0 &&
         static_cast<std::int64_t>(prefilling_.size()) < num_dp_ranks_ && has_seat()) {
    if (!admit_front(budget, now)) return;
  }
}

// As TensorRT-LLM counts: tokens of the prompts that the step would take and of its decodes. Those
// that have no seat or no blocks are none.
bool Replica::holds_back(std::int64_t num_decodes, std::int64_t budget, Seconds known) {
  // Data-parallel attention waits in a way of its own, which is left out.
  if (num_dp_ranks_ > 1 || engine_.batch_wait_timeout_iters == 0) return false;
  std::int64_t seats = engine_.max_num_seqs * num_dp_ranks_ -
                       static_cast<std::int64_t>(running_.size() + ended_.size());
  std::int64_t tokens = 0;
  for (const Waiting& waiting : waiting_) {
    const Request& request = requests_[static_cast<std::size_t>(waiting.idx)];
    if (waiting.known > known || seats-- <= 0 || tokens + request.prompt_tokens > budget) break;
    if (tokens == 0 &&
        !has_blocks_for(request, request.prompt_tokens, 0, request.prompt_tokens, {})) {
      break;
    }
    tokens += request.prompt_tokens;
  }
  const double enough = engine_.batch_wait_max_tokens_ratio *
                        static_cast<double>(engine_.max_num_batched_tokens * num_dp_ranks_);
  is_held_back_ = tokens > 0 && num_decodes > 0 &&
                  num_held_back_ < engine_.batch_wait_timeout_iters &&
                  static_cast<double>(tokens + num_decodes) < enough;
  num_held_back_ = is_held_back_ ? num_held_back_ + 1 : 0;
  return is_held_back_;
}

bool Replica::has_seat() const {
  return static_cast<std::int64_t>(running_.size() + ended_.size() + incoming_.size()) +
             num_leaving_ <
         engine_.max_num_seqs * num_dp_ranks_;
}

bool Replica::admit_front(std::int64_t& budget, Seconds now) {
  const std::int64_t idx = waiting_.front().idx;
  const Request& request = requests_[static_cast<std::size_t>(idx)];
  const auto again = preempted_.find(idx);
  const Preempted made = again != preempted_.end() ? again->second : Preempted{};
  const std::int64_t target = request.prompt_tokens + made.generated;
  // At least one token is computed even if all are cached, to have logits to sample from.
  std::int64_t num_units = 0;
  if (blocks_per_unit_ > 0) {
    const std::int64_t limit = std::min(static_cast<std::int64_t>(request.block_hashes.size()),
                                        (target - 1) / (blocks_per_unit_ * engine_.block_size));
    num_units = blocks_.num_cached_units(units_of(request, limit));
  }
  const auto units = units_of(request, num_units);
  const std::int64_t cached = num_units * blocks_per_unit_ * engine_.block_size;
  const std::int64_t remaining = target - cached;
  const std::int64_t query = std::min({remaining, budget, largest_chunk_});
  if (query == 0 || (!engine_.enable_chunked_prefill && query < remaining)) return false;
  if (!has_blocks_for(request, target, cached, query, units)) return false;
  blocks_.acquire_units(units);
  blocks_.allocate(blocks_for(cached + query) - num_units * blocks_per_unit_);
  committed_blocks_ += blocks_for(full_length(request));

  const std::int64_t slot = new_slot();
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  sequence = {.idx = idx,
              .order = next_order_++,
              .target = target,
              .computed = cached,
              .generated = made.generated,
              .num_units = num_units,
              .last_token = made.last_token};
  if (again != preempted_.end()) preempted_.erase(again);
  running_.emplace(sequence.order, slot);
  waiting_.pop_front();
  outstanding_ -= cached;
  RequestRecord& record = records_[static_cast<std::size_t>(idx)];
  if (record.num_preemptions == 0) {
    record.first_scheduled = now;
    record.cached_tokens = cached;
  }
  budget -= query;
  add_chunk(slot, query);
  return true;
}

bool Replica::has_blocks_for(const Request& request, std::int64_t target, std::int64_t cached,
                             std::int64_t query, std::span<const std::uint64_t> units) const {
  const std::int64_t full = blocks_for(full_length(request));
  std::int64_t needed = 0;
  switch (engine_.kv_admission) {
    case KvAdmission::kPrompt:
      needed = blocks_for(engine_.scheduler_reserve_full_isl ? target : cached + query);
      break;
    case KvAdmission::kFullLength:
      return committed_blocks_ + full <= blocks_.num_blocks();
    case KvAdmission::kEstimated: {
      std::int64_t tokens_left = decodes_.tokens_left() - tokens_in_flight();
      for (const Incoming& incoming : incoming_) {
        tokens_left += requests_[static_cast<std::size_t>(incoming.handover.idx)].output_tokens - 1;
      }
      const double left = static_cast<double>(tokens_left);
      needed = full + blocks_for(promised_tokens_ + std::llround(engine_.new_token_ratio * left));
      break;
    }
  }
  const auto num_units = static_cast<std::int64_t>(units.size());
  return needed - num_units * blocks_per_unit_ <=
         blocks_.num_available() - blocks_in_flight() -
             blocks_.num_idle_units(units) * blocks_per_unit_;
}

std::int64_t Replica::new_slot() {
  if (free_slots_.empty()) {
    slots_.emplace_back();
    return static_cast<std::int64_t>(slots_.size()) - 1;
  }
  const std::int64_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// Units are published when their tokens are scheduled, as vLLM does. A unit that another request
// published meanwhile is shared and the private copy dropped.
void Replica::publish_units(Sequence& sequence, std::int64_t computed) {
  if (blocks_per_unit_ == 0) return;
  const Request& request = requests_[static_cast<std::size_t>(sequence.idx)];
  const std::int64_t unit_tokens = blocks_per_unit_ * engine_.block_size;
  const std::int64_t full =
      std::min(computed / unit_tokens, static_cast<std::int64_t>(request.block_hashes.size()));
  for (; sequence.num_units < full; ++sequence.num_units) {
    const auto next =
        std::span(request.block_hashes).subspan(static_cast<std::size_t>(sequence.num_units), 1);
    if (!blocks_.publish_unit(next.front())) {
      blocks_.acquire_units(next);
      blocks_.free(blocks_per_unit_);
    }
  }
}

}  // namespace orrery
