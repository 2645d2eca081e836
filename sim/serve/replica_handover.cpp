// Requests on their way from a prefill replica to a decode replica.

#include <algorithm>
#include <cassert>
#include <utility>

#include "sim/serve/fast_forward.h"
#include "sim/serve/replica.h"

namespace orrery {

// Its blocks stay until they have been read; its seat is free for the next batch.
void Replica::hand_over(std::int64_t slot, Seconds now) {
  const Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
  running_.erase({sequence.order, slot});
  retained_.emplace(sequence.idx, slot);
  if (engine_.async_scheduling) ++num_leaving_;
  records_[static_cast<std::size_t>(sequence.idx)].prefill_end = now;
  handovers_.push_back({.idx = sequence.idx, .time = now});
}

std::vector<Handover> Replica::take_handovers() { return std::exchange(handovers_, {}); }

void Replica::release_handed_over(std::int64_t idx) {
  const auto retained = retained_.find(idx);
  assert(retained != retained_.end());
  release(retained->second);
  retained_.erase(retained);
}

void Replica::receive(Seconds now, const Handover& handover) {
  const auto idx = static_cast<std::size_t>(handover.idx);
  records_[idx].decode_replica = index_;
  outstanding_ += requests_[idx].output_tokens - 1;
  // Behind a request that has no blocks this one has none either, so the fast-forward goes on.
  const bool is_next = waiting_.empty() && unreserved_.empty() && has_seat();
  unreserved_.push_back({.handover = handover});
  if (!is_next) return;
  cut_flight(now, false);
  reserve_incoming(now);
}

std::int64_t Replica::blocks_in_flight() const {
  if (!flight_ || !flight_->is_fast_forward) return 0;
  return decodes_.blocks(flight_->time.num_steps) - flight_->reserved_blocks;
}

// Of the steps before the one in progress, the last of the fast-forward.
std::int64_t Replica::tokens_in_flight() const {
  if (!flight_ || !flight_->is_fast_forward) return 0;
  return (flight_->time.num_steps - 1) * decodes_.size();
}

void Replica::reserve_incoming(Seconds now) {
  // Preempted requests come first.
  while (!unreserved_.empty() && waiting_.empty() && has_seat()) {
    Incoming incoming = unreserved_.front();
    const Request& request = requests_[static_cast<std::size_t>(incoming.handover.idx)];
    if (!has_blocks_for(request, request.prompt_tokens, 0, request.prompt_tokens, {})) return;
    blocks_.allocate(blocks_for(request.prompt_tokens));
    committed_blocks_ += blocks_for(full_length(request));
    incoming.reserved = now;
    if (!flight_) incoming.without_delay = now;
    incoming_.push_back(incoming);
    newly_reserved_.push_back(incoming.handover.idx);
    unreserved_.pop_front();
  }
}

// Since it came too late for this step, or as estimates of what runs change.
bool Replica::may_let_in_soon() const {
  if (std::ranges::any_of(incoming_, [](const Incoming& item) { return item.ready.has_value(); })) {
    return true;
  }
  return !unreserved_.empty() && engine_.kv_admission == KvAdmission::kEstimated && has_seat();
}

std::vector<std::int64_t> Replica::take_reserved() { return std::exchange(newly_reserved_, {}); }

void Replica::complete_transfer(Seconds now, std::int64_t idx) {
  const auto incoming =
      std::ranges::find(incoming_, idx, [](const Incoming& item) { return item.handover.idx; });
  assert(incoming != incoming_.end());
  incoming->ready = now;
  cut_flight(now, engine_.async_scheduling);
}

void Replica::join_incoming(Seconds now, Seconds known) {
  std::vector<Incoming> others;
  for (Incoming& incoming : incoming_) {
    if (!incoming.without_delay && incoming.reserved <= known) incoming.without_delay = now;
    if (!incoming.ready || *incoming.ready > known) {
      others.push_back(incoming);
      continue;
    }
    const std::int64_t idx = incoming.handover.idx;
    const std::int64_t prompt = requests_[static_cast<std::size_t>(idx)].prompt_tokens;
    const std::int64_t slot = new_slot();
    slots_[static_cast<std::size_t>(slot)] = {.idx = idx,
                                              .order = next_order_++,
                                              .target = prompt,
                                              .computed = prompt,
                                              .generated = 1,
                                              .last_token = incoming.handover.time};
    const std::int64_t order = slots_[static_cast<std::size_t>(slot)].order;
    running_.emplace(order, slot);
    join_decodes(slot);
    joined_.emplace_back(order, slot);
    RequestRecord& record = records_[static_cast<std::size_t>(idx)];
    record.decode_start = now;
    record.exposed_transfer = now - *incoming.without_delay;
  }
  incoming_ = std::move(others);
}

// Of the sequences that joined since the last step with decodes, `made` at its end.
void Replica::record_second_tokens(Seconds made) {
  for (const auto& [order, slot] : joined_) {
    const Sequence& sequence = slots_[static_cast<std::size_t>(slot)];
    if (sequence.order != order) continue;  // preempted before it began
    records_[static_cast<std::size_t>(sequence.idx)].second_token = made;
  }
  joined_.clear();
}

}  // namespace orrery
