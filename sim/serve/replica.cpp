#include "sim/serve/replica.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "sim/serve/leap_time.h"

namespace orrery {
namespace {

std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return (a % b + b) % b; }

}  // namespace

Replica::Replica(int index, const ServiceConfig& config, std::int64_t blocks_per_unit,
                 std::span<const Request> requests, std::span<RequestRecord> records,
                 std::unique_ptr<StepBackend> backend)
    : index_(index),
      engine_(config.engine),
      record_steps_(config.record_steps),
      blocks_per_unit_(config.engine.enable_prefix_caching ? blocks_per_unit : 0),
      requests_(requests),
      records_(records),
      backend_(std::move(backend)),
      blocks_(config.num_kv_blocks, blocks_per_unit_),
      residues_(static_cast<std::size_t>(config.engine.block_size), 0) {}

std::int64_t Replica::position(const Sequence& sequence) const {
  return sequence.computed + (sequence.is_decoding ? step_ - sequence.joined_step : 0);
}

std::int64_t Replica::blocks_for(std::int64_t tokens) const {
  return (tokens + engine_.block_size - 1) / engine_.block_size;
}

std::int64_t Replica::decode_blocks(std::int64_t num_steps) const {
  // A sequence takes a block in the step that begins with its position a multiple of the block
  // size: once in each block_size steps, in the step given by its residue.
  std::int64_t blocks = num_steps / engine_.block_size * num_decodes_;
  for (std::int64_t i = 0; i < num_steps % engine_.block_size; ++i) {
    blocks += residues_[static_cast<std::size_t>(floor_mod(-(step_ + i), engine_.block_size))];
  }
  return blocks;
}

std::int64_t Replica::steps_before_full(std::int64_t available, std::int64_t limit) const {
  if (num_decodes_ == 0) return limit;
  const std::int64_t cycles = available / num_decodes_;
  if (cycles >= limit / engine_.block_size + 1) return limit;
  available -= cycles * num_decodes_;
  std::int64_t steps = cycles * engine_.block_size;
  while (steps < limit) {
    available -=
        residues_[static_cast<std::size_t>(floor_mod(-(step_ + steps), engine_.block_size))];
    if (available < 0) break;
    ++steps;
  }
  return std::min(steps, limit);
}

std::span<const std::uint64_t> Replica::units_of(const Request& request, std::int64_t count) const {
  return std::span(request.block_hashes).first(static_cast<std::size_t>(count));
}

std::int64_t Replica::num_cached_units(const Request& request) const {
  return blocks_per_unit_ > 0 ? blocks_.num_cached_units(request.block_hashes) : 0;
}

std::int64_t Replica::outstanding_tokens(Seconds now) const {
  if (!flight_ || !flight_->is_leap || now <= flight_->begin) return outstanding_;
  const std::int64_t done = steps_to_reach(flight_->time, now - flight_->begin) - 1;
  return outstanding_ - done * num_decodes_;
}

bool Replica::is_drained() const {
  return waiting_.empty() && running_.empty() && !flight_ && blocks_.num_used() == 0;
}

void Replica::submit(Seconds now, std::int64_t idx) {
  const Request& request = requests_[static_cast<std::size_t>(idx)];
  RequestRecord& record = records_[static_cast<std::size_t>(idx)];
  record.replica = index_;
  record.arrival = now;
  outstanding_ += request.prompt_tokens + request.output_tokens - 1;
  // Behind a request that could not be admitted this one cannot either, so the leap goes on.
  if (waiting_.empty() && could_admit()) cut_flight(now);
  waiting_.push_back(idx);
}

bool Replica::could_admit() const {
  return static_cast<std::int64_t>(running_.size()) < engine_.max_num_seqs &&
         num_decodes_ < engine_.max_num_batched_tokens;
}

void Replica::cut_flight(Seconds now) {
  if (!flight_ || !flight_->is_leap) return;
  Flight& flight = *flight_;
  const std::int64_t steps = steps_to_reach(flight.time, now - flight.begin);
  if (steps >= flight.time.num_steps) return;
  const Seconds duration = leap_duration(flight.time, steps);
  flight.time.basis = scaled(flight.time.basis, duration / (flight.end - flight.begin));
  flight.time.num_steps = steps;
  flight.end = flight.begin + duration;
}

void Replica::start(Seconds now) {
  if (flight_ || (running_.empty() && waiting_.empty())) return;
  bool has_preempted = preempt_until_decodes_fit();
  Flight flight;
  flight.begin = now;
  flight_ = std::move(flight);

  std::int64_t budget = engine_.max_num_batched_tokens - num_decodes_;
  const std::int64_t blocks_of_one_step = decode_blocks(1);
  blocks_.allocate(blocks_of_one_step);
  if (prefilling_ >= 0 && !continue_prefill(budget)) has_preempted = true;
  if (!has_preempted) admit(budget, now);

  Batch& batch = flight_->batch;
  batch.num_decodes = num_decodes_;
  batch.decode_context = decode_positions_ + num_decodes_;
  if (batch.prefill.empty() && num_decodes_ == 0) {
    // Nothing could run; REQUIRES that each request fits into the empty cache (checked by serve).
    flight_.reset();
    return;
  }
  if (batch.prefill.empty()) {
    while (true) {
      const Finish& next = finishes_.top();
      const Sequence& sequence = slots_[static_cast<std::size_t>(next.slot)];
      if (sequence.order == next.order && sequence.is_decoding) break;
      finishes_.pop();
    }
    const std::int64_t limit = has_preempted ? 1 : finishes_.top().step - step_;
    flight_->is_leap = true;
    // The others of the leap are taken when it is known how long it was.
    flight_->reserved_blocks = blocks_of_one_step;
    flight_->blocks_before = blocks_.num_used() - blocks_of_one_step;
    flight_->time = backend_->leap(
        batch, steps_before_full(blocks_.num_available() + blocks_of_one_step, limit));
  } else {
    flight_->blocks_before = blocks_.num_used();
    const StepTime time = backend_->run(batch);
    flight_->time = {
        .num_steps = 1, .first = time.duration, .slope = Seconds(0), .basis = time.basis};
  }
  flight_->end = now + leap_duration(flight_->time, flight_->time.num_steps);
}

bool Replica::preempt_until_decodes_fit() {
  bool has_preempted = false;
  while (decode_blocks(1) > blocks_.num_available()) {
    preempt_last();
    has_preempted = true;
  }
  return has_preempted;
}

void Replica::preempt_last() {
  assert(!running_.empty());
  const auto last = std::prev(running_.end());
  const std::int64_t slot = last->second;
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const auto idx = static_cast<std::size_t>(sequence.idx);
  const std::int64_t computed = position(sequence);
  outstanding_ += computed;
  if (sequence.is_decoding) {
    preempted_[sequence.idx] = {.generated = sequence.generated + step_ - sequence.joined_step,
                                .last_token = last_end_};
    leave_decodes(sequence);
  } else {
    preempted_[sequence.idx] = {.generated = sequence.generated, .last_token = sequence.last_token};
    prefilling_ = -1;
  }
  release(sequence, computed);
  ++records_[idx].num_preemptions;
  waiting_.push_front(sequence.idx);
  sequence = Sequence{.order = -1};
  free_slots_.push_back(slot);
  running_.erase(last);
}

bool Replica::continue_prefill(std::int64_t& budget) {
  const std::int64_t slot = prefilling_;
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  const std::int64_t remaining = sequence.target - sequence.computed;
  const std::int64_t query = std::min(remaining, budget);
  if (query == 0) return true;
  const std::int64_t blocks = blocks_for(sequence.computed + query) - blocks_for(sequence.computed);
  if (blocks > blocks_.num_available()) {
    preempt_last();  // it is the last one itself
    return false;
  }
  blocks_.allocate(blocks);
  budget -= query;
  flight_->chunks.push_back({.slot = slot, .query = query, .ends_prompt = query == remaining});
  flight_->batch.prefill.push_back(
      {.query = query, .context = sequence.computed, .produces_token = query == remaining});
  publish_units(sequence, sequence.computed + query);
  if (query == remaining) prefilling_ = -1;
  return true;
}

void Replica::admit(std::int64_t& budget, Seconds now) {
  while (!waiting_.empty() && budget > 0 && prefilling_ < 0 &&
         static_cast<std::int64_t>(running_.size()) < engine_.max_num_seqs) {
    if (!admit_front(budget, now)) return;
  }
}

bool Replica::admit_front(std::int64_t& budget, Seconds now) {
  const std::int64_t idx = waiting_.front();
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
  if (!engine_.enable_chunked_prefill && remaining > budget) return false;
  const std::int64_t query = std::min(remaining, budget);
  const std::int64_t blocks = blocks_for(cached + query) - num_units * blocks_per_unit_;
  const std::int64_t must_fit =
      blocks_for(engine_.scheduler_reserve_full_isl ? target : cached + query) -
      num_units * blocks_per_unit_;
  if (must_fit > blocks_.num_available() - blocks_.num_idle_units(units) * blocks_per_unit_) {
    return false;
  }
  blocks_.acquire_units(units);
  blocks_.allocate(blocks);

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
  flight_->chunks.push_back({.slot = slot, .query = query, .ends_prompt = query == remaining});
  flight_->batch.prefill.push_back(
      {.query = query, .context = cached, .produces_token = query == remaining});
  publish_units(sequence, cached + query);
  if (query < remaining) prefilling_ = slot;
  return true;
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

void Replica::release(const Sequence& sequence, std::int64_t computed) {
  const Request& request = requests_[static_cast<std::size_t>(sequence.idx)];
  blocks_.free(blocks_for(computed) - sequence.num_units * blocks_per_unit_);
  blocks_.release_units(units_of(request, sequence.num_units));
}

void Replica::join_decodes(std::int64_t slot) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  sequence.is_decoding = true;
  sequence.joined_step = step_;
  ++num_decodes_;
  decode_positions_ += sequence.computed;
  ++residues_[static_cast<std::size_t>(floor_mod(sequence.computed - step_, engine_.block_size))];
  const std::int64_t left =
      requests_[static_cast<std::size_t>(sequence.idx)].output_tokens - sequence.generated;
  finishes_.push({.step = step_ + left, .order = sequence.order, .slot = slot});
}

void Replica::leave_decodes(const Sequence& sequence) {
  --num_decodes_;
  decode_positions_ -= position(sequence);
  --residues_[static_cast<std::size_t>(
      floor_mod(sequence.computed - sequence.joined_step, engine_.block_size))];
}

void Replica::complete_step(std::vector<std::int64_t>& finished) {
  const Flight flight = *std::exchange(flight_, std::nullopt);
  const std::int64_t steps = flight.time.num_steps;
  if (flight.is_leap) blocks_.allocate(decode_blocks(steps) - flight.reserved_blocks);
  account(flight);
  last_end_ = flight.end;
  if (num_decodes_ > 0) {
    totals_.itl.add_linear(flight.time.first, flight.time.slope, steps, num_decodes_);
    step_ += steps;
    decode_positions_ += steps * num_decodes_;
    outstanding_ -= steps * num_decodes_;
  }
  while (!finishes_.empty() && finishes_.top().step <= step_) {
    const Finish finish = finishes_.top();
    finishes_.pop();
    const Sequence& sequence = slots_[static_cast<std::size_t>(finish.slot)];
    if (sequence.order != finish.order || !sequence.is_decoding) continue;  // preempted meanwhile
    leave_decodes(sequence);
    finish_sequence(finish.slot, flight.end, finished);
  }
  for (const Chunk& chunk : flight.chunks) {
    Sequence& sequence = slots_[static_cast<std::size_t>(chunk.slot)];
    sequence.computed += chunk.query;
    outstanding_ -= chunk.query;
    if (!chunk.ends_prompt) continue;
    const auto idx = static_cast<std::size_t>(sequence.idx);
    if (sequence.generated == 0) {
      records_[idx].first_token = flight.end;
    } else {
      totals_.itl.add(flight.end - sequence.last_token);
    }
    ++sequence.generated;
    if (sequence.generated == requests_[idx].output_tokens) {
      finish_sequence(chunk.slot, flight.end, finished);
    } else {
      join_decodes(chunk.slot);
    }
  }
}

void Replica::finish_sequence(std::int64_t slot, Seconds now, std::vector<std::int64_t>& finished) {
  Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  release(sequence, position(sequence));
  records_[static_cast<std::size_t>(sequence.idx)].finish = now;
  finished.push_back(sequence.idx);
  running_.erase({sequence.order, slot});
  sequence = Sequence{.order = -1};
  free_slots_.push_back(slot);
}

void Replica::account(const Flight& flight) {
  const Seconds duration = flight.end - flight.begin;
  const std::int64_t steps = flight.time.num_steps;
  const auto total = static_cast<double>(blocks_.num_blocks());
  const double before = static_cast<double>(flight.blocks_before) / total;
  const double after = static_cast<double>(blocks_.num_used()) / total;
  totals_.busy += duration;
  totals_.basis = sum(totals_.basis, flight.time.basis);
  totals_.kv_utilisation_seconds += duration.value() * (before + after) / 2;
  totals_.kv_utilisation_max = std::max(totals_.kv_utilisation_max, after);
  totals_.num_steps += steps;
  totals_.batch_steps += static_cast<double>(
      steps * (flight.batch.num_decodes + static_cast<std::int64_t>(flight.chunks.size())));
  if (!record_steps_) return;
  std::int64_t prefill_tokens = 0;
  for (const Chunk& chunk : flight.chunks) prefill_tokens += chunk.query;
  steps_.push_back({.replica = index_,
                    .start = flight.begin,
                    .duration = duration,
                    .num_steps = steps,
                    .prefill_tokens = prefill_tokens,
                    .num_prefills = static_cast<std::int64_t>(flight.chunks.size()),
                    .num_decodes = flight.batch.num_decodes,
                    .decode_context = flight.batch.decode_context,
                    .num_waiting = static_cast<std::int64_t>(waiting_.size()),
                    .kv_blocks_used = blocks_.num_used()});
}

}  // namespace orrery
