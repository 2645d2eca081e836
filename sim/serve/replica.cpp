#include "sim/serve/replica.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "sim/serve/fast_forward.h"
#include "sim/serve/service_loop.h"
#include "sim/serve/step_store.h"

namespace orrery {
Replica::Replica(int index, const ServiceConfig& config, std::int64_t blocks_per_unit,
                 std::span<const Request> requests, std::span<RequestRecord> records,
                 std::unique_ptr<StepBackend> backend, ReplicaRole role)
    : index_(index),
      role_(role),
      num_dp_ranks_(config.num_dp_ranks),
      engine_(config.engine),
      front_end_(config.front_end),
      record_steps_(config.record_steps),
      step_store_(config.step_store),
      blocks_per_unit_(config.engine.enable_prefix_caching && role != ReplicaRole::kDecode
                           ? blocks_per_unit
                           : 0),
      requests_(requests),
      records_(records),
      backend_(std::move(backend)),
      wants_sequences_(backend_->wants_sequences()),
      state_blocks_(config.state_blocks),
      blocks_(config.num_kv_blocks, blocks_per_unit_),
      front_end_free_(config.front_end.cold_start),
      stream_(config.front_end.per_output_token /
                  static_cast<double>(std::max<std::int64_t>(config.engine.stream_interval, 1)),
              config.front_end.stream_latency),
      decodes_(config.engine.block_size) {}

std::int64_t Replica::position(const Sequence& sequence) const {
  return sequence.computed + (sequence.is_decoding ? decodes_.step() - sequence.joined_step : 0);
}

std::int64_t Replica::blocks_for(std::int64_t tokens) const {
  return (tokens + engine_.block_size - 1) / engine_.block_size + (tokens > 0 ? state_blocks_ : 0);
}

// Tokens in the KV cache when the last output token, which is never computed, is made; those of the
// prompt where another replica decodes.
std::int64_t Replica::full_length(const Request& request) const {
  return request.prompt_tokens + (role_ == ReplicaRole::kPrefill ? 0 : request.output_tokens - 1);
}

std::span<const std::uint64_t> Replica::units_of(const Request& request, std::int64_t count) const {
  return std::span(request.block_hashes).first(static_cast<std::size_t>(count));
}

std::int64_t Replica::num_cached_units(const Request& request) const {
  return blocks_per_unit_ > 0 ? blocks_.num_cached_units(request.block_hashes) : 0;
}

bool Replica::has_cached(std::span<const std::uint64_t> units) const {
  return blocks_.num_cached_units(units) == static_cast<std::int64_t>(units.size());
}

std::int64_t Replica::outstanding_tokens(Seconds now) const {
  if (!flight_ || !flight_->is_fast_forward || now <= flight_->begin) return outstanding_;
  const std::int64_t done = steps_to_reach(flight_->time, now - flight_->begin) - 1;
  return outstanding_ - done * decodes_.size();
}

LoadBound Replica::outstanding_bound(Seconds now, std::int64_t slack) const {
  const std::int64_t load = outstanding_tokens(now);
  if (!flight_ || !flight_->is_fast_forward) return {.tokens = load, .until = kNever};
  const FastForward& time = flight_->time;
  const std::int64_t size = decodes_.size();
  const std::int64_t steps = std::min((outstanding_ - load + slack) / size, time.num_steps - 1);
  // A little early, so that rounding in outstanding_tokens cannot come first.
  const Seconds until = (flight_->begin + fast_forward_duration(time, steps + 1)) * (1 - 1e-15);
  return {.tokens = outstanding_ - steps * size,
          .until = steps + 1 == time.num_steps ? kNever : until};
}

bool Replica::is_drained() const {
  return arriving_.empty() && waiting_.empty() && running_.empty() && ended_.empty() && !flight_ &&
         retained_.empty() && unreserved_.empty() && incoming_.empty() && blocks_.num_used() == 0;
}

std::optional<Seconds> Replica::next_event() const {
  if (arriving_.empty()) return flight_ ? std::optional(flight_->end) : std::nullopt;
  return flight_ ? std::min(flight_->end, arriving_.front().known) : arriving_.front().known;
}

void Replica::submit(Seconds now, std::int64_t idx) {
  const Request& request = requests_[static_cast<std::size_t>(idx)];
  RequestRecord& record = records_[static_cast<std::size_t>(idx)];
  record.replica = index_;
  record.arrival = now;
  outstanding_ += full_length(request);
  front_end_free_ = std::max(front_end_free_, now) + front_end_.per_request +
                    front_end_.per_prompt_token * static_cast<double>(request.prompt_tokens);
  arriving_.push_back({.idx = idx, .known = front_end_free_});
  deliver(now);
}

void Replica::advance(Seconds now, std::vector<std::int64_t>& finished) {
  deliver(now);
  if (flight_ && flight_->end <= now) complete_step(finished);
}

void Replica::deliver(Seconds now) {
  while (!arriving_.empty() && arriving_.front().known <= now) {
    // Behind a request that could not be admitted this one cannot either, so the fast-forward goes
    // on.
    if (waiting_.empty() && could_admit()) {
      cut_flight(arriving_.front().known, engine_.async_scheduling);
    }
    waiting_.push_back(arriving_.front());
    arriving_.pop_front();
  }
}

bool Replica::could_admit() const {
  return static_cast<std::int64_t>(running_.size()) < engine_.max_num_seqs * num_dp_ranks_ &&
         decodes_.size() < engine_.max_num_batched_tokens * num_dp_ranks_;
}

void Replica::cut_flight(Seconds known, bool is_next_fixed) {
  if (!flight_ || !flight_->is_fast_forward) return;
  Flight& flight = *flight_;
  std::int64_t steps = steps_to_reach(flight.time, known - flight.begin);
  if (is_next_fixed && known > flight.begin) ++steps;
  if (steps >= flight.time.num_steps) return;
  const Seconds duration = fast_forward_duration(flight.time, steps);
  flight.time.basis = scaled(flight.time.basis, duration / (flight.end - flight.begin));
  flight.time.energy = flight.time.energy * (duration / (flight.end - flight.begin));
  flight.time.num_steps = steps;
  flight.end = flight.begin + duration;
}

void Replica::start(Seconds now) {
  if (flight_) return;
  const Seconds known = engine_.async_scheduling ? last_step_begin_ : now;
  if (!schedule(now, known)) {
    // Nothing to run ahead with: the engine is idle and takes up all that there is by now.
    release_ended();
    const bool has_work = schedule(now, now);
    reserve_incoming(now);
    if (has_work) time_flight(flight_->has_preempted || is_held_back_ || may_let_in_soon());
    return;
  }
  // The next batch may take the places of what ended, or requests that came too late for this one.
  // An estimate of what runs may come to let in one that has a seat.
  const bool is_next_known =
      waiting_.empty() || (ended_.empty() && waiting_.front().known <= known &&
                           (engine_.kv_admission != KvAdmission::kEstimated || !could_admit()));
  release_ended();
  reserve_incoming(now);
  time_flight(flight_->has_preempted || is_held_back_ || !is_next_known || may_let_in_soon());
}

void Replica::time_flight(bool is_single) {
  Flight& flight = *flight_;
  flight.time.num_steps = 1;  // what others see while a backend computes
  backend_->starts(flight.begin);
  if (wants_sequences_) announce_sequences();
  if (flight.batch.prefill.empty()) {
    flight.is_fast_forward = true;
    // The others of the fast-forward are taken when it is known how long it was.
    flight.blocks_before = blocks_.num_used() - flight.reserved_blocks;
    const std::int64_t limit = is_single || wants_sequences_ ? 1 : decodes_.steps_to_finish();
    flight.time = backend_->fast_forward(
        flight.batch,
        decodes_.steps_before_full(blocks_.num_available() + flight.reserved_blocks, limit));
  } else {
    flight.blocks_before = blocks_.num_used();
    const StepTime time = backend_->run(flight.batch);
    flight.time = {.num_steps = 1,
                   .first = time.duration,
                   .slope = Seconds(0),
                   .basis = time.basis,
                   .energy = time.energy};
  }
  flight.end = flight.begin + fast_forward_duration(flight.time, flight.time.num_steps);
  for (Incoming& incoming : incoming_) {
    // The next step is formed at the end of the first one, whether the fast-forward goes on or not.
    if (!incoming.without_delay) {
      incoming.without_delay = flight.begin + fast_forward_duration(flight.time, 1);
    }
  }
}

void Replica::announce_sequences() {
  prefill_sequences_.clear();
  for (const Chunk& chunk : flight_->chunks) {
    const Sequence& sequence = slots_[static_cast<std::size_t>(chunk.slot)];
    prefill_sequences_.push_back({.request = sequence.idx,
                                  .query = chunk.query,
                                  .context = sequence.computed,
                                  .produces_token = chunk.ends_prompt});
  }
  decode_sequences_.clear();
  if (flight_->batch.num_decodes > 0) {
    for (const auto& [order, slot] : running_) {
      const Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
      if (!sequence.is_decoding) continue;
      decode_sequences_.push_back(
          {.request = sequence.idx, .query = 1, .context = position(sequence)});
    }
  }
  backend_->begin(flight_->begin, prefill_sequences_, decode_sequences_);
}

void Replica::join_decodes(std::int64_t slot) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const std::int64_t left =
      requests_[static_cast<std::size_t>(sequence.idx)].output_tokens - sequence.generated;
  sequence.is_decoding = true;
  sequence.joined_step = decodes_.step();
  sequence.finish_step = sequence.joined_step + left;
  if (last_tokens_.empty() || last_tokens_.back().time != sequence.last_token) {
    last_tokens_.push_back({.time = sequence.last_token});
  }
  const int measured = is_measured(sequence) ? 1 : 0;
  ++last_tokens_.back().count;
  last_tokens_.back().num_measured += measured;
  num_measured_decodes_ += measured;
  decodes_.join(sequence.computed,
                {.step = sequence.finish_step, .order = sequence.order, .slot = slot});
}

void Replica::leave_decodes(Sequence& sequence, std::int64_t slot) {
  sequence.computed = position(sequence);
  sequence.is_decoding = false;
  if (decodes_.step() > sequence.joined_step) sequence.last_token = last_decode_end_;
  const auto last = std::ranges::find(last_tokens_, sequence.last_token, &LastToken::time);
  const int measured = is_measured(sequence) ? 1 : 0;
  last->num_measured -= measured;
  num_measured_decodes_ -= measured;
  if (--last->count == 0) last_tokens_.erase(last);
  decodes_.leave(sequence.computed,
                 {.step = sequence.finish_step, .order = sequence.order, .slot = slot});
}

void Replica::complete_step(std::vector<std::int64_t>& finished) {
  const Flight flight = *std::exchange(flight_, std::nullopt);
  const std::int64_t steps = flight.time.num_steps;
  if (flight.is_fast_forward) blocks_.allocate(decodes_.blocks(steps) - flight.reserved_blocks);
  account(flight);
  last_step_begin_ = flight.begin + fast_forward_duration(flight.time, steps - 1);
  const std::int64_t tokens =
      flight.batch.num_decodes + std::ranges::count_if(flight.chunks, &Chunk::ends_prompt);
  const Seconds first_end = flight.begin + fast_forward_duration(flight.time, 1);
  const Seconds at_client = stream_.arrival(first_end, flight.end, steps, tokens);
  if (flight.batch.num_decodes > 0) {
    add_latencies(flight);
    outstanding_ -= steps * decodes_.size();
    decodes_.advance(steps);
    record_second_tokens(first_end);
  }
  stream_.deliver(first_end, flight.end, steps, tokens);
  while (const std::optional<std::int64_t> slot = decodes_.finished()) {
    leave_decodes(slots_[static_cast<std::size_t>(*slot)], *slot);
    finish_sequence(*slot, at_client, finished);
  }
  for (const Chunk& chunk : flight.chunks) {
    Sequence& sequence = slots_[static_cast<std::size_t>(chunk.slot)];
    sequence.computed += chunk.query;
    outstanding_ -= chunk.query;
    if (!chunk.ends_prompt) continue;
    const auto idx = static_cast<std::size_t>(sequence.idx);
    if (sequence.generated > 0 && is_measured(sequence)) {
      totals_.itl.add(flight.end - sequence.last_token);
    }
    sequence.last_token = flight.end;
    if (sequence.generated == 0) records_[idx].first_token = at_client;
    ++sequence.generated;
    if (role_ == ReplicaRole::kDecode && sequence.generated == 2) {
      records_[idx].second_token = flight.end;
    }
    if (sequence.generated == requests_[idx].output_tokens) {
      finish_sequence(chunk.slot, at_client, finished);
    } else if (role_ == ReplicaRole::kPrefill) {
      hand_over(chunk.slot, flight.end);
    } else {
      join_decodes(chunk.slot);
    }
  }
}

// Times between tokens of the decodes. Steps that only prefill may lie before the first of them.
void Replica::add_latencies(const Flight& flight) {
  const FastForward& time = flight.time;
  for (const LastToken& last : last_tokens_) {
    totals_.itl.add(time.first + (flight.begin - last.time), last.num_measured);
  }
  totals_.itl.add_linear(time.first + time.slope, time.slope, time.num_steps - 1,
                         num_measured_decodes_);
  last_decode_end_ = flight.end;
  last_tokens_.assign(
      1, {.time = flight.end, .count = decodes_.size(), .num_measured = num_measured_decodes_});
}

void Replica::finish_sequence(std::int64_t slot, Seconds at_client,
                              std::vector<std::int64_t>& finished) {
  const Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  RequestRecord& record = records_[static_cast<std::size_t>(sequence.idx)];
  record.finish = at_client;
  finished.push_back(sequence.idx);
  running_.erase({sequence.order, slot});
  ended_.push_back(slot);
  if (!engine_.async_scheduling) release_ended();
}

void Replica::release(std::int64_t slot) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const Request& request = requests_[static_cast<std::size_t>(sequence.idx)];
  blocks_.free(blocks_for(sequence.computed) - sequence.num_units * blocks_per_unit_);
  blocks_.release_units(units_of(request, sequence.num_units));
  committed_blocks_ -= blocks_for(full_length(request));
  if (wants_sequences_) backend_->release(sequence.idx);
  sequence = Sequence{.order = -1};
  free_slots_.push_back(slot);
}

void Replica::release_ended() {
  for (const std::int64_t slot : ended_) release(slot);
  ended_.clear();
  num_leaving_ = 0;
}

bool Replica::is_measured(const Sequence& sequence) const {
  return records_[static_cast<std::size_t>(sequence.idx)].is_measured;
}

bool Replica::is_measured(const Flight& flight) const {
  return (flight.batch.num_decodes > 0 && num_measured_decodes_ > 0) ||
         std::ranges::any_of(flight.chunks, [this](const Chunk& chunk) {
           return is_measured(slots_[static_cast<std::size_t>(chunk.slot)]);
         });
}

void Replica::account(const Flight& flight) {
  const Seconds duration = flight.end - flight.begin;
  const std::int64_t steps = flight.time.num_steps;
  if (is_measured(flight)) {
    const auto total = static_cast<double>(blocks_.num_blocks());
    const double before = static_cast<double>(flight.blocks_before) / total;
    const double after = static_cast<double>(blocks_.num_used()) / total;
    totals_.busy += duration;
    totals_.basis = sum(totals_.basis, flight.time.basis);
    totals_.energy += flight.time.energy;
    totals_.kv_utilisation_seconds += duration.value() * (before + after) / 2;
    totals_.kv_utilisation_max = std::max({totals_.kv_utilisation_max, before, after});
    totals_.num_steps += steps;
    if (flight.held_up_by) {
      totals_.held_up[static_cast<std::size_t>(*flight.held_up_by)] += duration;
    }
    totals_.batch_steps += static_cast<double>(
        steps * (flight.batch.num_decodes + static_cast<std::int64_t>(flight.chunks.size())));
  }
  if (!record_steps_) return;
  std::int64_t prefill_tokens = 0;
  for (const Chunk& chunk : flight.chunks) prefill_tokens += chunk.query;
  const StepRecord step{.replica = index_,
                        .start = flight.begin,
                        .duration = duration,
                        .num_steps = steps,
                        .prefill_tokens = prefill_tokens,
                        .num_prefills = static_cast<std::int64_t>(flight.chunks.size()),
                        .num_decodes = flight.batch.num_decodes,
                        .decode_context = flight.batch.decode_context,
                        .num_waiting = static_cast<std::int64_t>(
                            waiting_.size() + unreserved_.size() + incoming_.size()),
                        .kv_blocks_used = blocks_.num_used()};
  if (step_store_) {
    step_store_->append(step);
  } else {
    steps_.push_back(step);
  }
}

}  // namespace orrery
