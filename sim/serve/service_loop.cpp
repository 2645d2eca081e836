#include "sim/serve/service_loop.h"

namespace orrery {

void sort_steps(std::vector<StepRecord>& steps) {
  const auto is_before = [](const StepRecord& a, const StepRecord& b) {
    return a.start != b.start ? a.start < b.start : a.replica < b.replica;
  };
  std::vector<std::vector<StepRecord>::iterator> ends{
      steps.begin()};  // of what is in order already
  while (ends.back() != steps.end()) {
    ends.push_back(std::is_sorted_until(ends.back(), steps.end(), is_before));
  }
  const std::size_t num_runs = ends.size() - 1;
  for (std::size_t size = 1; size < num_runs; size *= 2) {
    for (std::size_t i = 0; i + size < num_runs; i += 2 * size) {
      std::inplace_merge(ends[i], ends[i + size], ends[std::min(i + 2 * size, num_runs)],
                         is_before);
    }
  }
}

ServiceLoop::ServiceLoop(const Workload& workload, std::span<RequestRecord> records,
                         Replicas& replicas, RouterKind router, ProgressCounter& progress)
    : workload_(workload),
      records_(records),
      progress_(progress),
      first_(replicas, router, workload.turns),
      clients_(workload),
      has_answers_to_wait_for_(workload.closed_loop_concurrency > 0 || !workload.turns.empty()) {}

ServiceLoop::ServiceLoop(const Workload& workload, std::span<RequestRecord> records,
                         Replicas& prefill, Replicas& decode, const DisaggregatedConfig& config,
                         Transfers& transfers, ProgressCounter& progress)
    : ServiceLoop(workload, records, prefill, config.prefill.router, progress) {
  apart_.emplace(decode, config, transfers);
}

void ServiceLoop::Side::touch(std::size_t index) {
  touched_.push_back(index);
  router_.changed(index);
}

void ServiceLoop::Side::update(std::size_t index) {
  const Seconds event = replicas_[index]->next_event().value_or(kNever);
  Seconds& known = known_[index];
  if (event == known) return;
  if (known != kNever) due_.erase({known, index});
  if (event != kNever) due_.emplace(event, index);
  known = event;
}

std::unique_ptr<Replica> ServiceLoop::Side::replace(std::size_t index,
                                                    std::unique_ptr<Replica> replica) {
  std::swap(replicas_[index], replica);
  router_.replaced(index);
  return replica;
}

std::vector<std::size_t> ServiceLoop::Side::take_touched() {
  std::ranges::sort(touched_);
  const auto repeated = std::ranges::unique(touched_);
  touched_.erase(repeated.begin(), repeated.end());
  return std::exchange(touched_, {});
}

void ServiceLoop::run(std::span<const std::int64_t> arrivals) {
  begin(arrivals);
  for (Seconds now = next(); now != kNever; now = next()) turn(now);
}

void ServiceLoop::begin(std::span<const std::int64_t> arrivals) { clients_.begin(arrivals); }

Seconds ServiceLoop::next() const {
  const Seconds due = std::min(clients_.next(), next_event());
  return fleet_ == nullptr || due == kNever ? due : std::min(due, fleet_->autoscaler.next());
}

void ServiceLoop::turn(Seconds now) {
  if (fleet_ != nullptr) scale(now);
  send_due(now);
  end_steps(first_, now);
  if (apart_) {
    end_transfers(now);
    end_steps(apart_->decode, now);
  }
  send_due(now);  // of clients that have their last token at once
  form_steps(first_, now);
  if (apart_) form_steps(apart_->decode, now);
  if (fleet_ != nullptr) stop_drained(now);
}

void ServiceLoop::scale(Fleet& fleet, int num_ready) {
  fleet_ = &fleet;
  was_used_.resize(first_.size());
  for (std::size_t i = 0; i < first_.size(); ++i) {
    was_used_[i] = i < static_cast<std::size_t>(num_ready);
    if (!was_used_[i]) first_.close(i);
  }
}

void ServiceLoop::scale(Seconds now) {
  const ScalingMetric metric = fleet_->autoscaler.config().metric;
  fleet_->autoscaler.turn(
      now, {.metric = [&](std::size_t i) { return first_[i].scaling_metric(metric, now); },
            .open =
                [&](std::size_t i) {
                  if (was_used_[i]) fleet_->gone.push_back(first_.replace(i, fleet_->make(i)));
                  was_used_[i] = true;
                  first_.open(i);
                },
            .close = [&](std::size_t i) { first_.close(i); }});
}

void ServiceLoop::stop_drained(Seconds now) {
  const std::vector<std::size_t> draining = fleet_->autoscaler.draining();
  for (const std::size_t i : draining) {
    if (first_[i].is_drained()) fleet_->autoscaler.stop(now, i);
  }
}

Seconds ServiceLoop::next_event() const {
  if (!apart_) return first_.next();
  return std::min(
      {first_.next(), apart_->decode.next(), apart_->transfers.next_event().value_or(kNever)});
}

void ServiceLoop::send_due(Seconds now) {
  while (clients_.next() <= now) {
    const std::int64_t count = clients_.num_sent();
    const std::int64_t idx = clients_.send();
    const Request& request = workload_.requests[static_cast<std::size_t>(idx)];
    const std::size_t index = first_.choose(request, count, now);
    first_[index].submit(now, idx);
    first_.touch(index);
  }
}

void ServiceLoop::end_steps(Side& side, Seconds now) {
  while (side.next() <= now) {
    const std::size_t index = side.front();
    Replica& replica = side[index];
    finished_.clear();
    replica.advance(now, finished_);
    side.touch(index);
    side.update(index);
    num_finished_ += static_cast<std::int64_t>(finished_.size());
    progress_.add(static_cast<std::int64_t>(finished_.size()));
    if (has_answers_to_wait_for_) {
      for (const std::int64_t idx : finished_) {
        clients_.answer(idx, records_[static_cast<std::size_t>(idx)].finish);
      }
    }
    for (const Handover& handover : replica.take_handovers()) {
      if (apart_->config.num_moved_layers > 0) {
        end_prompt(handover, now);
      } else {
        hand_over(handover, now);
      }
    }
  }
}

void ServiceLoop::hand_over(const Handover& handover, Seconds now) {
  const Request& request = workload_.requests[static_cast<std::size_t>(handover.idx)];
  const std::size_t index = apart_->decode.choose(request, apart_->num_handovers++, now);
  apart_->decode[index].receive(now, handover);
  begin_transfers(index, now);
  apart_->decode.touch(index);
  apart_->decode.update(index);
}

void ServiceLoop::hand_over_early(std::size_t from, Seconds now) {
  const auto layers = static_cast<double>(apart_->config.num_moved_layers);
  for (const Handover& ending : first_[from].ending_prompts()) {
    apart_->computed[ending.idx] = {
        .first = now + (ending.time - now) / layers, .last = ending.time, .last_part = 1 / layers};
    hand_over(ending, now);
  }
}

void ServiceLoop::end_prompt(const Handover& handover, Seconds now) {
  apart_->computed.erase(handover.idx);
  const int replica = records_[static_cast<std::size_t>(handover.idx)].decode_replica;
  const std::size_t index = static_cast<std::size_t>(replica) - first_.size();
  apart_->decode[index].first_token(now, handover.idx);
  apart_->decode.touch(index);
  apart_->decode.update(index);
}

void ServiceLoop::end_transfers(Seconds now) {
  std::vector<Transfers::Ended> ended;
  while (apart_->transfers.next_event().value_or(kNever) <= now) {
    apart_->transfers.advance(now, ended);
  }
  for (const Transfers::Ended& transfer : ended) {
    RequestRecord& record = records_[static_cast<std::size_t>(transfer.idx)];
    record.transfer_start = transfer.start;
    record.transfer_end = transfer.end;
    const auto from =
        static_cast<std::size_t>(transfer.prefill / apart_->config.prefill.num_dp_ranks);
    const auto to = static_cast<std::size_t>(transfer.decode / apart_->config.decode.num_dp_ranks);
    first_[from].release_handed_over(transfer.idx);
    first_.touch(from);
    apart_->decode[to].complete_transfer(now, transfer.idx);
    apart_->decode.touch(to);
    apart_->decode.update(to);
  }
}

void ServiceLoop::begin_transfers(std::size_t to, Seconds now) {
  const DisaggregatedConfig& config = apart_->config;
  for (const std::int64_t idx : apart_->decode[to].take_reserved()) {
    RequestRecord& record = records_[static_cast<std::size_t>(idx)];
    const auto blocks = static_cast<double>(
        transferred_blocks(config, workload_.requests[static_cast<std::size_t>(idx)]));
    record.transfer_bytes = config.kv_block * blocks;
    const auto computed = apart_->computed.find(idx);
    apart_->transfers.submit(
        now, idx, record.replica * config.prefill.num_dp_ranks + record.dp_rank,
        static_cast<int>(to) * config.decode.num_dp_ranks + record.decode_dp_rank,
        config.kv_block_per_gpu * blocks,
        computed == apart_->computed.end() ? Transfers::Layers{} : computed->second);
  }
}

// Nobody can start to whom nothing happened.
void ServiceLoop::form_steps(Side& side, Seconds now) {
  const bool is_decode = apart_ && &side == &apart_->decode;
  for (const std::size_t index : side.take_touched()) {
    const bool has_step = side[index].form_step(now);
    side.changed(index);
    if (is_decode) begin_transfers(index, now);
    if (has_step && !formed_) side[index].compute_step();
    if (has_step && apart_ && !is_decode && apart_->config.num_moved_layers > 0) {
      hand_over_early(index, now);
    }
    if (has_step && formed_) formed_(index + (is_decode ? first_.size() : 0));
    side.update(index);
  }
}

void ServiceLoop::compute_step(std::size_t replica) {
  Side& side = replica < first_.size() ? first_ : apart_->decode;
  const std::size_t index = replica < first_.size() ? replica : replica - first_.size();
  side[index].compute_step();
  side.changed(index);
  side.update(index);
}

}  // namespace orrery
