#include "sim/serve/rank.h"

#include <algorithm>
#include <cassert>

namespace orrery {

Rank::Rank(const Setup& setup)
    : setup_(setup),
      blocks_(setup.num_kv_blocks, setup.blocks_per_unit),
      decodes_(setup.engine.block_size) {
  if (setup.units != nullptr) blocks_.tell(*setup.units);
  if (setup.tiers == nullptr || setup.tiers->tiers.empty() || setup.blocks_per_unit == 0) return;
  tiers_.emplace(*setup_.tiers, setup_.blocks_per_unit, tokens_per_unit(), setup_.num_ranks,
                 *setup_.shared_tiers);
  blocks_.tell(*tiers_);
  if (setup.units != nullptr) tiers_->tell(*setup.units);
}

std::int64_t Rank::position(const Sequence& sequence) const {
  return sequence.computed + (sequence.is_decoding ? decodes_.step() - sequence.joined_step : 0);
}

std::int64_t Rank::blocks_for(std::int64_t tokens) const {
  const std::int64_t size = setup_.engine.block_size;
  return (tokens + size - 1) / size + (tokens > 0 ? setup_.state_blocks : 0);
}

std::int64_t Rank::full_length(const Request& request) const {
  return request.prompt_tokens +
         (setup_.role == ReplicaRole::kPrefill ? 0 : request.output_tokens - 1);
}

std::int64_t Rank::most_blocks(const Request& request) const {
  return blocks_for(full_length(request) + setup_.engine.speculation.num_tokens);
}

std::span<const std::uint64_t> Rank::units_of(const Request& request, std::int64_t count) const {
  return std::span(request.block_hashes).first(static_cast<std::size_t>(count));
}

CachedPrefix Rank::cached_prefix(const Request& request, std::int64_t target) const {
  CachedPrefix cached;
  if (tokens_per_unit() == 0) return cached;
  const auto units =
      units_of(request, std::min(static_cast<std::int64_t>(request.block_hashes.size()),
                                 (target - 1) / tokens_per_unit()));
  if (!tiers_) {
    cached.num_units = cached.num_on_gpu = blocks_.num_cached_units(units);
    cached.num_idle = blocks_.num_idle_units(units_of(request, cached.num_units));
    return cached;
  }
  for (const std::uint64_t unit : units) {
    const int place = blocks_.is_cached(unit) ? KvTiers::kOnGpu : tiers_->find(unit);
    if (place == KvTiers::kNowhere) break;
    cached.places.push_back(place);
  }
  cached.num_units = tiers_->num_worth_taking(cached.places, target);
  cached.num_recomputed = std::ssize(cached.places) - cached.num_units;
  cached.places.resize(static_cast<std::size_t>(cached.num_units));
  for (std::size_t i = 0; i < cached.places.size(); ++i) {
    if (cached.places[i] != KvTiers::kOnGpu) continue;
    ++cached.num_on_gpu;
    cached.num_idle += blocks_.num_idle_units(units.subspan(i, 1));
  }
  return cached;
}

std::int64_t Rank::num_cached_units(std::span<const std::uint64_t> units) const {
  if (!tiers_) return blocks_.num_cached_units(units);
  const auto first_missing = std::ranges::find_if(units, [this](std::uint64_t unit) {
    return !blocks_.is_cached(unit) && tiers_->find(unit) == KvTiers::kNowhere;
  });
  return first_missing - units.begin();
}

std::int64_t Rank::generated_before(std::int64_t idx) const {
  const auto again = preempted_.find(idx);
  return again == preempted_.end() ? 0 : again->second.generated;
}

std::int64_t Rank::blocks_in_flight() const {
  return steps_in_flight_ == 0
             ? 0
             : decodes_.blocks(steps_in_flight_ * decode_query()) - step_.reserved_blocks;
}

// Of the steps before the one in progress, the last of the fast-forward.
std::int64_t Rank::tokens_in_flight() const {
  return steps_in_flight_ == 0 ? 0 : (steps_in_flight_ - 1) * decodes_.size();
}

std::int64_t Rank::num_seated() const {
  return static_cast<std::int64_t>(running_.size() + ended_.size()) + incoming_.num_reserved() +
         num_leaving_;
}

bool Rank::could_admit() const {
  return num_running() < setup_.engine.max_num_seqs &&
         decodes_.size() * decode_query() < setup_.engine.max_num_batched_tokens;
}

bool Rank::computes_measured() const {
  return (step_.batch.num_decodes > 0 && intervals_.num_measured() > 0) ||
         std::ranges::any_of(step_.chunks, [this](const ScheduledStep::Chunk& chunk) {
           return is_measured(sequence(chunk.slot));
         });
}

std::int64_t Rank::num_waiting() const {
  return static_cast<std::int64_t>(waiting_.size()) + incoming_.num_unreserved() +
         incoming_.num_reserved();
}

bool Rank::is_drained() const {
  return waiting_.empty() && running_.empty() && ended_.empty() && retained_.empty() &&
         incoming_.num_unreserved() == 0 && incoming_.num_reserved() == 0 &&
         blocks_.num_used() == 0;
}

void Rank::list_prefill(std::vector<StepSequence>& sequences) const {
  for (const ScheduledStep::Chunk& chunk : step_.chunks) {
    sequences.push_back({.request = sequence(chunk.slot).idx,
                         .rank = setup_.index,
                         .query = chunk.query,
                         .context = sequence(chunk.slot).computed,
                         .produces_token = chunk.ends_prompt});
  }
}

void Rank::list_decodes(std::vector<StepSequence>& sequences) const {
  if (step_.batch.num_decodes == 0) return;
  for (const auto& [order, slot] : running_) {
    const Sequence& decoding = sequence(slot);
    if (!decoding.is_decoding) continue;
    sequences.push_back({.request = decoding.idx,
                         .rank = setup_.index,
                         .query = decode_query(),
                         .context = position(decoding)});
  }
}

ScheduledStep& Rank::new_step() {
  step_ = ScheduledStep{};
  promised_tokens_ = 0;
  return step_;
}

void Rank::reserve_decodes() {
  step_.reserved_blocks = decodes_.blocks(decode_query());
  blocks_.allocate(step_.reserved_blocks);
  step_.batch.num_decodes = decodes_.size();
  step_.batch.decode_query = decode_query();
  step_.batch.decode_context = decodes_.positions() + decodes_.size() * decode_query();
}

void Rank::preempt_last() {
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
  ++record(sequence.idx).num_preemptions;
  waiting_.push_front({.idx = sequence.idx, .known = last_step_begin_});
  running_.erase(last);
  release(slot);
  step_.has_preempted = true;
}

// A slot for it, which runs from now on.
std::int64_t Rank::seat(const Sequence& sequence) {
  std::int64_t slot = static_cast<std::int64_t>(slots_.size());
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  Sequence& seated = slots_[static_cast<std::size_t>(slot)] = sequence;
  seated.order = next_order_++;
  running_.emplace(seated.order, slot);
  return slot;
}

void Rank::take_units(const Request& request, const CachedPrefix& cached, std::int64_t num_blocks,
                      bool is_hit) {
  const auto units = units_of(request, cached.num_units);
  const std::int64_t others = num_blocks - cached.num_on_gpu * setup_.blocks_per_unit;
  if (!tiers_) {
    blocks_.acquire_units(units);
    blocks_.allocate(others);
    for (const std::uint64_t unit : units) {
      if (setup_.units != nullptr) setup_.units->shares(request.id, unit, /*computes=*/false);
    }
    return;
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (cached.places[i] == KvTiers::kOnGpu) blocks_.acquire_units(units.subspan(i, 1));
  }
  tiers_->touch(units);
  tiers_->recompute(cached.num_recomputed * tokens_per_unit());
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (cached.places[i] != KvTiers::kOnGpu) tiers_->load(cached.places[i], units[i], is_hit);
  }
  blocks_.allocate(others);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool comes = cached.places[i] != KvTiers::kOnGpu && publish_unit(units.subspan(i, 1));
    if (setup_.units == nullptr) continue;
    comes ? setup_.units->receives(request.id, units[i])
          : setup_.units->shares(request.id, units[i], /*computes=*/false);
  }
}

void Rank::admit_front(Seconds now, const CachedPrefix& prefix, std::int64_t query) {
  const std::int64_t idx = waiting_.front().idx;
  const Request& admitted = request(idx);
  const auto again = preempted_.find(idx);
  const Preempted made = again != preempted_.end() ? again->second : Preempted{};
  const std::int64_t cached = prefix.num_units * tokens_per_unit();
  const bool is_first = record(idx).num_preemptions == 0;
  take_units(admitted, prefix, blocks_for(cached + query), is_first && record(idx).is_measured);
  committed_blocks_ += most_blocks(admitted);
  const std::int64_t slot = seat({.idx = idx,
                                  .target = admitted.prompt_tokens + made.generated,
                                  .computed = cached,
                                  .generated = made.generated,
                                  .num_units = prefix.num_units,
                                  .last_token = made.last_token});
  if (again != preempted_.end()) preempted_.erase(again);
  waiting_.pop_front();
  outstanding_ -= cached;
  if (is_first) {
    record(idx).first_scheduled = now;
    record(idx).cached_tokens = cached;
    record(idx).loaded_tokens = (prefix.num_units - prefix.num_on_gpu) * tokens_per_unit();
  }
  add_chunk(slot, query);
}

void Rank::add_chunk(std::int64_t slot, std::int64_t query) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const std::int64_t computed = sequence.computed + query;
  const bool ends_prompt = computed == sequence.target;
  step_.chunks.push_back({.slot = slot, .query = query, .ends_prompt = ends_prompt});
  step_.batch.prefill.push_back(
      {.query = query, .context = sequence.computed, .produces_token = ends_prompt});
  promised_tokens_ += full_length(request(sequence.idx)) - computed;
  publish_units(sequence, computed);
  if (!ends_prompt) prefilling_.push_back(slot);
}

// Units are published when their tokens are scheduled, as vLLM does. A unit that another request
// published meanwhile is shared and the private copy dropped.
void Rank::publish_units(Sequence& sequence, std::int64_t computed) {
  if (setup_.blocks_per_unit == 0) return;
  const Request& owner = request(sequence.idx);
  const std::int64_t full =
      std::min(computed / tokens_per_unit(), static_cast<std::int64_t>(owner.block_hashes.size()));
  for (; sequence.num_units < full; ++sequence.num_units) {
    const auto unit =
        std::span(owner.block_hashes).subspan(static_cast<std::size_t>(sequence.num_units), 1);
    const bool is_new = publish_unit(unit);
    if (setup_.units == nullptr) continue;
    is_new ? setup_.units->publishes(owner.id, unit.front())
           : setup_.units->shares(owner.id, unit.front(), /*computes=*/true);
  }
}

bool Rank::publish_unit(std::span<const std::uint64_t> unit) {
  if (blocks_.publish_unit(unit.front())) return true;
  blocks_.acquire_units(unit);
  blocks_.free(setup_.blocks_per_unit);
  return false;
}

void Rank::join_decodes(std::int64_t slot) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const std::int64_t left = request(sequence.idx).output_tokens - sequence.generated;
  sequence.is_decoding = true;
  sequence.joined_step = decodes_.step();
  sequence.finish_step = sequence.joined_step + left;
  intervals_.join(sequence.last_token, is_measured(sequence));
  decodes_.join(sequence.computed,
                {.step = sequence.finish_step, .order = sequence.order, .slot = slot});
}

void Rank::leave_decodes(Sequence& sequence, std::int64_t slot) {
  sequence.computed = position(sequence);
  publish_units(sequence, sequence.computed);  // of generated tokens, for the session's next turn
  sequence.is_decoding = false;
  if (decodes_.step() > sequence.joined_step) sequence.last_token = intervals_.last_end();
  intervals_.leave(sequence.last_token, is_measured(sequence));
  decodes_.leave(sequence.computed,
                 {.step = sequence.finish_step, .order = sequence.order, .slot = slot});
}

void Rank::take_blocks(std::int64_t num_steps) {
  blocks_.allocate(decodes_.blocks(num_steps * decode_query()) - step_.reserved_blocks);
}

std::int64_t Rank::accept_drafts() {
  const Speculation& speculation = setup_.engine.speculation;
  if (speculation.num_tokens == 0 || step_.batch.num_decodes == 0) return 0;
  std::int64_t sum = 0;
  for (const auto& [order, slot] : running_) {
    const Sequence& decoding = sequence(slot);
    if (!decoding.is_decoding) continue;
    const std::int64_t steps = decodes_.step() - decoding.joined_step;
    const std::int64_t left = decoding.finish_step - decodes_.step() - 1;  // behind the next token
    const std::int64_t accepted =
        std::min(left, num_accepted(speculation, decoding.idx, decoding.generated + steps));
    step_.accepted.push_back(accepted);
    sum += accepted;
  }
  return sum;
}

// After the step in which each decode made the token that needs no draft.
void Rank::take_accepted(LatencyHistogram& itl, const std::vector<std::int64_t>& accepted,
                         std::int64_t reserved_blocks) {
  auto drafts = accepted.begin();
  std::int64_t num_measured = 0;
  std::int64_t unused_blocks = reserved_blocks;
  for (const auto& [order, slot] : running_) {
    Sequence& decoding = slots_[static_cast<std::size_t>(slot)];
    if (!decoding.is_decoding) continue;
    const std::int64_t more = *drafts++;
    const std::int64_t at = position(decoding);
    unused_blocks -= blocks_for(at + more) - blocks_for(at - 1);
    outstanding_ -= more;
    if (is_measured(decoding)) {
      num_measured += more;
      ++verified_.num_verifications;
      verified_.num_tokens += 1 + more;
    }
    if (more == 0) continue;
    decodes_.leave(at, {.step = decoding.finish_step, .order = order, .slot = slot});
    decoding.computed += more;
    decoding.generated += more;
    decoding.finish_step -= more;
    decodes_.join(at + more, {.step = decoding.finish_step, .order = order, .slot = slot});
  }
  blocks_.free(unused_blocks);
  itl.add(Seconds(0), num_measured);  // clients get them with the first
}

void Rank::complete(const StepEnd& end, LatencyHistogram& itl,
                    std::vector<std::int64_t>& finished) {
  const ScheduledStep step = std::exchange(step_, ScheduledStep{});
  steps_in_flight_ = 0;
  promised_tokens_ = 0;
  const std::int64_t num_steps = end.time.num_steps;
  last_step_begin_ = end.begin + fast_forward_duration(end.time, num_steps - 1);
  if (step.batch.num_decodes > 0) {
    intervals_.advance(end.begin, end.end, end.time, decodes_.size(), itl);
    outstanding_ -= num_steps * decodes_.size();
    decodes_.advance(num_steps);
    if (decode_query() > 1) take_accepted(itl, step.accepted, step.reserved_blocks);
    record_second_tokens(end.first_end());
  }
  while (const std::optional<std::int64_t> slot = decodes_.finished()) {
    leave_decodes(slots_[static_cast<std::size_t>(*slot)], *slot);
    finish_sequence(*slot, end.at_client, finished);
  }
  for (const ScheduledStep::Chunk& chunk : step.chunks) end_chunk(chunk, end, itl, finished);
}

void Rank::end_chunk(const ScheduledStep::Chunk& chunk, const StepEnd& end, LatencyHistogram& itl,
                     std::vector<std::int64_t>& finished) {
  Sequence& sequence = slots_[static_cast<std::size_t>(chunk.slot)];
  sequence.computed += chunk.query;
  outstanding_ -= chunk.query;
  if (!chunk.ends_prompt) return;
  if (sequence.generated > 0 && is_measured(sequence)) itl.add(end.end - sequence.last_token);
  sequence.last_token = end.end;
  if (sequence.generated == 0) record(sequence.idx).first_token = end.at_client;
  ++sequence.generated;
  if (setup_.role == ReplicaRole::kDecode && sequence.generated == 2) {
    record(sequence.idx).second_token = end.end;
  }
  if (sequence.generated == request(sequence.idx).output_tokens) {
    finish_sequence(chunk.slot, end.at_client, finished);
  } else if (setup_.role == ReplicaRole::kPrefill) {
    hand_over(chunk.slot, end.end);
  } else {
    join_decodes(chunk.slot);
  }
}

void Rank::finish_sequence(std::int64_t slot, Seconds at_client,
                           std::vector<std::int64_t>& finished) {
  const Sequence& ended = sequence(slot);
  record(ended.idx).finish = at_client;
  finished.push_back(ended.idx);
  running_.erase({ended.order, slot});
  ended_.push_back(slot);
  if (!setup_.engine.async_scheduling) release_ended();
}

void Rank::release(std::int64_t slot) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const Request& owner = request(sequence.idx);
  blocks_.free(blocks_for(sequence.computed) - sequence.num_units * setup_.blocks_per_unit);
  blocks_.release_units(units_of(owner, sequence.num_units));
  committed_blocks_ -= most_blocks(owner);
  if (setup_.released != nullptr) setup_.released->release(sequence.idx);
  sequence = Sequence{.order = -1};
  free_slots_.push_back(slot);
}

void Rank::release_ended() {
  for (const std::int64_t slot : ended_) release(slot);
  ended_.clear();
  num_leaving_ = 0;
}

void Rank::hand_over(std::int64_t slot, Seconds now) {
  const Sequence& handed = sequence(slot);
  running_.erase({handed.order, slot});
  retained_.emplace(handed.idx, slot);
  if (setup_.engine.async_scheduling) ++num_leaving_;
  record(handed.idx).prefill_end = now;
  handovers_.push_back({.idx = handed.idx, .time = now});
}

void Rank::list_ending_prompts(Seconds end, std::vector<Handover>& ending) const {
  for (const ScheduledStep::Chunk& chunk : step_.chunks) {
    const std::int64_t idx = sequence(chunk.slot).idx;
    if (!chunk.ends_prompt || request(idx).output_tokens == 1) continue;
    ending.push_back({.idx = idx, .time = end});
  }
}

void Rank::release_handed_over(std::int64_t idx) {
  const auto retained = retained_.find(idx);
  assert(retained != retained_.end());
  release(retained->second);
  retained_.erase(retained);
}

void Rank::reserve_next(Seconds now, bool is_running) {
  const Request& next = request(incoming_.next()->idx);
  blocks_.allocate(blocks_for(next.prompt_tokens));
  committed_blocks_ += most_blocks(next);
  incoming_.reserve_next(now, is_running);
}

void Rank::join_incoming(Seconds now, Seconds known) {
  for (const Incoming::Item& item : incoming_.take_ready(now, known)) {
    const std::int64_t idx = item.handover.idx;
    const std::int64_t prompt = request(idx).prompt_tokens;
    const std::int64_t slot = seat({.idx = idx,
                                    .target = prompt,
                                    .computed = prompt,
                                    .generated = 1,
                                    .last_token = item.handover.time});
    join_decodes(slot);
    joined_.emplace_back(sequence(slot).order, slot);
    record(idx).decode_start = now;
    record(idx).exposed_transfer = now - *item.without_delay;
  }
}

void Rank::record_second_tokens(Seconds made) {
  for (const auto& [order, slot] : joined_) {
    if (sequence(slot).order != order) continue;  // preempted before it began
    record(sequence(slot).idx).second_token = made;
  }
  joined_.clear();
}

}  // namespace orrery
