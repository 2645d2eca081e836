#include "sim/serve/replica.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

#include "sim/serve/fast_forward.h"
#include "sim/serve/step_store.h"

namespace orrery {

Replica::Replica(int index, const ServiceConfig& config, std::int64_t blocks_per_unit,
                 std::span<const Request> requests, std::span<RequestRecord> records,
                 std::unique_ptr<StepBackend> backend, ReplicaRole role, SharedTiers* shared_tiers)
    : index_(index),
      record_steps_(config.record_steps),
      wants_sequences_(backend->wants_sequences()),
      engine_(config.engine),
      tiers_(config.kv_tiers),
      front_end_(config.front_end),
      step_store_(config.step_store),
      requests_(requests),
      records_(records),
      backend_(std::move(backend)),
      front_end_free_(config.front_end.cold_start),
      stream_(config.front_end.per_output_token /
                  static_cast<double>(std::max<std::int64_t>(config.engine.stream_interval, 1)),
              config.front_end.stream_latency) {
  const bool has_prefix_cache = engine_.enable_prefix_caching && role != ReplicaRole::kDecode;
  Rank::Setup setup{.role = role,
                    .engine = engine_,
                    .num_kv_blocks = config.num_kv_blocks / config.num_dp_ranks,
                    .state_blocks = config.state_blocks,
                    .blocks_per_unit = has_prefix_cache ? blocks_per_unit : 0,
                    .tiers = shared_tiers == nullptr ? nullptr : &tiers_,
                    .shared_tiers = shared_tiers,
                    .num_ranks = config.num_dp_ranks,
                    .requests = requests,
                    .records = records,
                    .released = wants_sequences_ ? backend_.get() : nullptr,
                    .units = has_prefix_cache ? backend_->kv_units() : nullptr};
  for (setup.index = 0; setup.index < config.num_dp_ranks; ++setup.index) {
    ranks_.emplace_back(setup, config.num_dp_ranks == 1);
  }
  if (ranks_.size() > 1) totals_.rank_busy.resize(ranks_.size());
  if (ranks_.front().state.tiers() != nullptr) {
    totals_.tiers.resize(tiers_.tiers.size());
    totals_.tier_units.resize(tiers_.tiers.size());
  }
}

std::int64_t Replica::num_cached_units(const Request& request) const {
  std::int64_t most = 0;
  for (const RankOfReplica& rank : ranks_) {
    if (rank.state.tokens_per_unit() == 0) return 0;
    most = std::max(most, rank.state.num_cached_units(request.block_hashes));
  }
  return most;
}

bool Replica::has_cached(std::span<const std::uint64_t> units) const {
  return std::ranges::any_of(ranks_, [&](const RankOfReplica& rank) {
    return rank.state.num_cached_units(units) == std::ssize(units);
  });
}

void Replica::tell_prefixes(PrefixHolders& holders, std::int32_t replica) {
  for (RankOfReplica& rank : ranks_) {
    rank.state.blocks().tell(holders, replica);
    if (rank.state.tiers() != nullptr) rank.state.tiers()->tell(holders, replica);
  }
}

std::int64_t Replica::num_decodes() const {
  std::int64_t sum = 0;
  for (const RankOfReplica& rank : ranks_) sum += rank.state.decodes().size();
  return sum;
}

std::int64_t Replica::outstanding_tokens(Seconds now) const {
  std::int64_t tokens = outstanding_in_front_;
  for (const RankOfReplica& rank : ranks_) tokens += rank.state.outstanding();
  const std::int64_t done = steps_done(now);
  return done == 0 ? tokens : tokens - done * num_decodes();
}

std::int64_t Replica::steps_done(Seconds now) const {
  if (!flight_ || !flight_->is_fast_forward || now <= flight_->begin) return 0;
  return steps_to_reach(flight_->time, now - flight_->begin) - 1;
}

LoadBound Replica::outstanding_bound(Seconds now, std::int64_t slack) const {
  const std::int64_t load = outstanding_tokens(now);
  if (!flight_ || !flight_->is_fast_forward) return {.tokens = load, .until = kNever};
  const FastForward& time = flight_->time;
  const std::int64_t size = std::max<std::int64_t>(num_decodes(), 1);  // never none here
  const std::int64_t all = outstanding_tokens(flight_->begin);
  const std::int64_t steps = std::min((all - load + slack) / size, time.num_steps - 1);
  // A little early, so that rounding in outstanding_tokens cannot come first.
  const Seconds until = (flight_->begin + fast_forward_duration(time, steps + 1)) * (1 - 1e-15);
  return {.tokens = all - steps * size, .until = steps + 1 == time.num_steps ? kNever : until};
}

std::int64_t Replica::num_running() const {
  std::int64_t running = 0;
  for (const RankOfReplica& rank : ranks_) running += rank.state.num_running();
  return running;
}

std::int64_t Replica::num_queued() const {
  auto queued = static_cast<std::int64_t>(arriving_.size());
  for (const RankOfReplica& rank : ranks_) queued += rank.state.num_waiting();
  return queued;
}

double Replica::kv_utilisation(Seconds now) const {
  const std::int64_t done = steps_done(now);
  std::int64_t used = 0;
  std::int64_t all = 0;
  for (const RankOfReplica& rank : ranks_) {
    used += rank.state.blocks().num_used();
    all += rank.state.blocks().num_blocks();
    // Those of the first step of a fast-forward are taken already.
    if (done > 0) {
      used += rank.state.decodes().blocks(done + 1) - rank.state.step().reserved_blocks;
    }
  }
  return static_cast<double>(used) / static_cast<double>(all);
}

double Replica::scaling_metric(ScalingMetric metric, Seconds now) const {
  switch (metric) {
    case ScalingMetric::kQueuedRequests:
      return static_cast<double>(num_queued());
    case ScalingMetric::kRunningRequests:
      return static_cast<double>(num_running());
    case ScalingMetric::kInFlightRequests:
      return static_cast<double>(num_queued() + num_running());
    case ScalingMetric::kKvUtilisation:
      break;
  }
  return kv_utilisation(now);
}

bool Replica::is_drained() const {
  return arriving_.empty() && !flight_ &&
         std::ranges::all_of(ranks_, [](const auto& rank) { return rank.state.is_drained(); });
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
  outstanding_in_front_ += ranks_.front().state.full_length(request);
  front_end_free_ = std::max(front_end_free_, now) + front_end_.per_request +
                    front_end_.per_prompt_token * static_cast<double>(request.prompt_tokens);
  arriving_.push_back({.idx = idx, .known = front_end_free_});
  deliver(now);
}

void Replica::advance(Seconds now, std::vector<std::int64_t>& finished) {
  deliver(now);
  if (flight_ && flight_->end <= now) complete_step(finished);
}

std::size_t Replica::choose_rank(Seconds now) {
  if (ranks_.size() == 1) return 0;
  const auto fewest = [this](auto load) {
    return static_cast<std::size_t>(std::ranges::min_element(ranks_, {}, load) - ranks_.begin());
  };
  switch (engine_.dp_router) {
    case DpRouter::kRoundRobin:
      break;
    case DpRouter::kLeastTokens:
      return fewest([done = steps_done(now)](const RankOfReplica& rank) {
        return rank.state.outstanding() - done * rank.state.decodes().size();
      });
    case DpRouter::kLeastRequests:
      return fewest([](const RankOfReplica& rank) {
        constexpr std::int64_t kWaiting = 4;  // vLLM v1, core_client.py: waiting * 4 + running
        return rank.state.num_waiting() * kWaiting + rank.state.num_running();
      });
  }
  return static_cast<std::size_t>(num_delivered_++) % ranks_.size();
}

void Replica::deliver(Seconds now) {
  while (!arriving_.empty() && arriving_.front().known <= now) {
    const Waiting& request = arriving_.front();
    const std::size_t index = choose_rank(request.known);
    Rank& rank = ranks_[index].state;
    // Behind a request that could not be admitted this one cannot either, so the fast-forward goes
    // on.
    if (rank.waiting().empty() && rank.could_admit()) {
      cut_flight(request.known, engine_.async_scheduling);
    }
    const std::int64_t tokens = rank.full_length(requests_[static_cast<std::size_t>(request.idx)]);
    records_[static_cast<std::size_t>(request.idx)].dp_rank = static_cast<int>(index);
    outstanding_in_front_ -= tokens;
    rank.add_outstanding(tokens);
    rank.enqueue(request);
    arriving_.pop_front();
  }
}

void Replica::cut_flight(Seconds known, bool is_next_fixed) {
  if (!flight_ || !flight_->is_fast_forward) return;
  Flight& flight = *flight_;
  std::int64_t steps = steps_to_reach(flight.time, known - flight.begin);
  if (is_next_fixed && known > flight.begin) ++steps;
  if (steps >= flight.time.num_steps) return;
  const Seconds duration = fast_forward_duration(flight.time, steps);
  const double share = duration / (flight.end - flight.begin);
  flight.time.basis = scaled(flight.time.basis, share);
  flight.time.energy = flight.time.energy * share;
  for (Seconds& busy : flight.time.ranks) busy = busy * share;
  flight.time.draft = flight.time.draft * share;
  flight.time.num_steps = steps;
  flight.end = flight.begin + duration;
  for (RankOfReplica& rank : ranks_) rank.state.set_steps_in_flight(steps);
}

bool Replica::schedule(Seconds now, Seconds known) {
  const bool prompts = lets_prompts(known);
  bool has_work = false;
  for (RankOfReplica& rank : ranks_) {
    has_work = rank.scheduler.schedule(now, known, prompts) || has_work;
  }
  return has_work;
}

// As TensorRT-LLM's attention-DP balance (py_executor.py, _balance_adp_requests): prompts wait
// until all ranks have some, and then for more of them, while all ranks have decodes to go on with.
// So no wait is without end.
bool Replica::lets_prompts(Seconds known) {
  if (ranks_.size() == 1 || engine_.dp_balance_timeout_iters == 0) return true;
  const bool all_decode = std::ranges::all_of(
      ranks_, [](const RankOfReplica& rank) { return rank.state.decodes().size() > 0; });
  std::size_t with_prompts = 0;
  for (const RankOfReplica& rank : ranks_) {
    with_prompts += rank.scheduler.could_prefill(known) ? 1 : 0;
  }
  may_wait_ = with_prompts > 0;
  if (!may_wait_) return true;
  bool waits = all_decode;
  if (with_prompts == ranks_.size()) {
    num_waits_ = 0;
    waits = waits && num_batching_waits_ < engine_.dp_balance_batching_wait_iters;
    num_batching_waits_ = waits ? num_batching_waits_ + 1 : 0;
    return !waits;
  }
  waits = waits && num_waits_ + 1 < engine_.dp_balance_timeout_iters;
  num_waits_ = waits ? num_waits_ + 1 : 0;
  return !waits;
}

bool Replica::form_step(Seconds now) {
  if (flight_) return false;
  const Seconds known = engine_.async_scheduling ? last_step_begin_ : now;
  const bool has_work = schedule(now, known);
  bool is_single = may_wait_ || engine_.speculation.num_tokens > 0;
  for (const RankOfReplica& rank : ranks_) {
    is_single = is_single || (has_work && !rank.scheduler.is_next_known(known));
  }
  for (RankOfReplica& rank : ranks_) rank.state.release_ended();
  // Nothing to run ahead with: the engine is idle and takes up all that there is by now.
  const bool has_step = has_work || schedule(now, now);
  for (RankOfReplica& rank : ranks_) {
    rank.scheduler.reserve_incoming(now, has_step);
    const ScheduledStep& step = rank.state.step();
    is_single =
        is_single || step.has_preempted || step.is_held_back || rank.scheduler.may_let_in_soon();
  }
  if (has_step) begin_flight(now, is_single);
  return has_step;
}

std::int64_t Replica::most_steps() const {
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const RankOfReplica& rank : ranks_) {
    const DecodeBatch& decodes = rank.state.decodes();
    if (decodes.size() == 0) continue;
    const std::int64_t blocks =
        rank.state.blocks().num_available() + rank.state.step().reserved_blocks;
    most = std::min(most, decodes.steps_before_full(blocks, decodes.steps_to_finish()));
  }
  return most;
}

std::span<const Batch> Replica::batches() {
  if (ranks_.size() == 1) return {&ranks_.front().state.step().batch, 1};
  batches_.resize(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) batches_[i] = ranks_[i].state.step().batch;
  return batches_;
}

void Replica::begin_flight(Seconds now, bool is_single) {
  flight_ = Flight{.begin = now, .end = kNever, .is_fast_forward = true};
  Flight& flight = *flight_;
  flight.time.num_steps = 1;  // what others see while the backend computes
  for (const RankOfReplica& rank : ranks_) {
    if (!rank.state.step().chunks.empty()) flight.is_fast_forward = false;
  }
  backend_->starts(now);
  if (wants_sequences_) announce_sequences();
  for (RankOfReplica& rank : ranks_) {
    ScheduledStep& step = rank.state.step();
    // The others of the fast-forward are taken when it is known how long it was.
    step.blocks_before =
        rank.state.blocks().num_used() - (flight.is_fast_forward ? step.reserved_blocks : 0);
    if (flight.is_fast_forward) rank.state.set_steps_in_flight(1);
  }
  if (flight.is_fast_forward && !is_single && !wants_sequences_) flight.most_steps = most_steps();
}

void Replica::compute_step() {
  Flight& flight = *flight_;
  if (flight.is_fast_forward) {
    flight.time = backend_->fast_forward(batches(), flight.most_steps);
    flight.exposed_blocks = flight.time.waited;
    for (RankOfReplica& rank : ranks_) rank.state.set_steps_in_flight(flight.time.num_steps);
  } else {
    StepTime time = backend_->run(batches());
    for (const RankOfReplica& rank : ranks_) {
      const KvTiers* const tiers = rank.state.tiers();
      if (tiers == nullptr || time.waited) continue;
      flight.exposed_blocks = std::max(flight.exposed_blocks, tiers->exposed(time.duration));
    }
    flight.time = {.num_steps = 1,
                   .first = time.duration + flight.exposed_blocks,
                   .slope = Seconds(0),
                   .basis = time.basis,
                   .energy = time.energy,
                   .ranks = std::move(time.ranks),
                   .draft = time.draft};
    if (time.waited) flight.exposed_blocks = *time.waited;
  }
  flight.end = flight.begin + fast_forward_duration(flight.time, flight.time.num_steps);
  for (RankOfReplica& rank : ranks_) {
    // The next step is formed at the end of the first one, whether the fast-forward goes on or not.
    rank.state.incoming().next_step(flight.begin,
                                    flight.begin + fast_forward_duration(flight.time, 1));
  }
}

void Replica::announce_sequences() {
  prefill_sequences_.clear();
  decode_sequences_.clear();
  for (const RankOfReplica& rank : ranks_) {
    rank.state.list_prefill(prefill_sequences_);
    rank.state.list_decodes(decode_sequences_);
  }
  backend_->begin(flight_->begin, prefill_sequences_, decode_sequences_);
}

void Replica::complete_step(std::vector<std::int64_t>& finished) {
  const Flight flight = *std::exchange(flight_, std::nullopt);
  const std::int64_t steps = flight.time.num_steps;
  backend_->ends(steps);
  std::int64_t tokens = 0;
  for (RankOfReplica& rank : ranks_) {
    rank.state.at(flight.end);
    if (flight.is_fast_forward) rank.state.take_blocks(steps);
    const ScheduledStep& step = rank.state.step();
    tokens += step.batch.num_decodes + rank.state.accept_drafts() +
              std::ranges::count_if(step.chunks, &ScheduledStep::Chunk::ends_prompt);
  }
  account(flight);
  if (record_steps_) record(flight);
  last_step_begin_ = flight.begin + fast_forward_duration(flight.time, steps - 1);
  const Seconds first_end = flight.begin + fast_forward_duration(flight.time, 1);
  const StepEnd end{.begin = flight.begin,
                    .end = flight.end,
                    .time = flight.time,
                    .at_client = stream_.arrival(first_end, flight.end, steps, tokens)};
  stream_.deliver(first_end, flight.end, steps, tokens);
  totals_.verified = {};
  for (RankOfReplica& rank : ranks_) {
    rank.state.complete(end, totals_.itl, finished);
    totals_.verified.num_verifications += rank.state.verified().num_verifications;
    totals_.verified.num_tokens += rank.state.verified().num_tokens;
  }
}

void Replica::account(const Flight& flight) {
  const bool is_measured = std::ranges::any_of(
      ranks_, [](const RankOfReplica& rank) { return rank.state.computes_measured(); });
  if (!totals_.tiers.empty()) account_tiers(flight, is_measured);
  if (!is_measured) return;
  const Seconds duration = flight.end - flight.begin;
  const std::int64_t steps = flight.time.num_steps;
  std::int64_t all = 0;
  std::int64_t before_blocks = 0;
  std::int64_t after_blocks = 0;
  std::int64_t sequences = 0;
  for (const RankOfReplica& rank : ranks_) {
    const ScheduledStep& step = rank.state.step();
    all += rank.state.blocks().num_blocks();
    before_blocks += step.blocks_before;
    after_blocks += rank.state.blocks().num_used();
    sequences += step.batch.num_decodes + static_cast<std::int64_t>(step.chunks.size());
    if (!step.held_up_by) continue;
    totals_.held_up[static_cast<std::size_t>(*step.held_up_by)] +=
        duration / static_cast<double>(ranks_.size());
  }
  const double before = static_cast<double>(before_blocks) / static_cast<double>(all);
  const double after = static_cast<double>(after_blocks) / static_cast<double>(all);
  totals_.busy += duration;
  totals_.basis = sum(totals_.basis, flight.time.basis);
  totals_.energy += flight.time.energy;
  totals_.draft += flight.time.draft;
  totals_.kv_utilisation_seconds += duration.value() * (before + after) / 2;
  totals_.kv_utilisation_max = std::max({totals_.kv_utilisation_max, before, after});
  totals_.num_steps += steps;
  totals_.batch_steps += static_cast<double>(steps * sequences);
  for (std::size_t i = 0; i < flight.time.ranks.size(); ++i) {
    totals_.rank_busy[i] += flight.time.ranks[i];
  }
}

void Replica::account_tiers(const Flight& flight, bool is_measured) {
  if (is_measured) totals_.exposed_blocks += flight.exposed_blocks;
  for (RankOfReplica& rank : ranks_) {
    KvTiers& tiers = *rank.state.tiers();
    for (std::size_t i = 0; i < totals_.tiers.size(); ++i) {
      const TierCounts& step = tiers.counts()[i];
      totals_.tier_units[i] += step.num_written - step.num_evicted;
      if (is_measured) totals_.tiers[i] = sum(totals_.tiers[i], step);
    }
    if (is_measured) totals_.recomputed_tokens += tiers.recomputed_tokens();
    tiers.end_step();
  }
}

void Replica::record(const Flight& flight) {
  StepRecord record{.replica = index_,
                    .start = flight.begin,
                    .duration = flight.end - flight.begin,
                    .num_steps = flight.time.num_steps};
  std::int64_t most = 0;  // tokens of a rank
  for (const RankOfReplica& rank : ranks_) {
    const ScheduledStep& step = rank.state.step();
    std::int64_t tokens = step.batch.num_decodes;
    for (const ScheduledStep::Chunk& chunk : step.chunks) tokens += chunk.query;
    most = std::max(most, tokens);
    record.prefill_tokens += tokens - step.batch.num_decodes;
    record.num_prefills += static_cast<std::int64_t>(step.chunks.size());
    record.num_decodes += step.batch.num_decodes;
    record.decode_context += step.batch.decode_context;
    record.num_waiting += rank.state.num_waiting();
    record.kv_blocks_used += rank.state.blocks().num_used();
  }
  if (most > 0) {
    record.token_balance = static_cast<double>(record.prefill_tokens + record.num_decodes) /
                           static_cast<double>(most * std::ssize(ranks_));
  }
  const std::vector<Seconds>& ranks = flight.time.ranks;
  if (!ranks.empty()) {
    const Seconds mean =
        std::accumulate(ranks.begin(), ranks.end(), Seconds(0)) / static_cast<double>(ranks.size());
    // Rounding may leave less than none.
    record.mean_wait = std::max(record.duration - mean, Seconds(0));
    record.longest_wait = std::max(record.duration - std::ranges::min(ranks), Seconds(0));
    if (record.duration > Seconds(0)) {
      record.time_balance = std::min(mean / record.duration, 1.0);
    }
    record.rank_wait.reserve(ranks.size());
    for (const Seconds& busy : ranks) {
      record.rank_wait.push_back(std::max(record.duration - busy, Seconds(0)));
    }
  }
  if (step_store_) {
    step_store_->append(record);
  } else {
    steps_.push_back(std::move(record));
  }
}

std::vector<Handover> Replica::take_handovers() {
  std::vector<Handover> all = ranks_.front().state.take_handovers();
  for (std::size_t i = 1; i < ranks_.size(); ++i) {
    const std::vector<Handover> more = ranks_[i].state.take_handovers();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::vector<Handover> Replica::ending_prompts() const {
  std::vector<Handover> all;
  for (const RankOfReplica& rank : ranks_) rank.state.list_ending_prompts(flight_->end, all);
  return all;
}

void Replica::release_handed_over(std::int64_t idx) {
  const int rank = records_[static_cast<std::size_t>(idx)].dp_rank;
  ranks_[static_cast<std::size_t>(rank)].state.release_handed_over(idx);
}

void Replica::receive(Seconds now, const Handover& handover) {
  RequestRecord& record = records_[static_cast<std::size_t>(handover.idx)];
  const std::size_t index = choose_rank(now);
  record.decode_replica = index_;
  record.decode_dp_rank = static_cast<int>(index);
  Rank& rank = ranks_[index].state;
  rank.add_outstanding(requests_[static_cast<std::size_t>(handover.idx)].output_tokens - 1);
  // Behind a request that has no blocks this one has none either, so the fast-forward goes on.
  const bool is_next =
      rank.waiting().empty() && rank.incoming().next() == nullptr && rank.has_seat();
  rank.incoming().receive(handover);
  if (!is_next) return;
  cut_flight(now, false);
  ranks_[index].scheduler.reserve_incoming(now, flight_.has_value());
}

std::vector<std::int64_t> Replica::take_reserved() {
  std::vector<std::int64_t> all = ranks_.front().state.incoming().take_reserved();
  for (std::size_t i = 1; i < ranks_.size(); ++i) {
    const std::vector<std::int64_t> more = ranks_[i].state.incoming().take_reserved();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void Replica::first_token(Seconds now, std::int64_t idx) {
  const int rank = records_[static_cast<std::size_t>(idx)].decode_dp_rank;
  Incoming& incoming = ranks_[static_cast<std::size_t>(rank)].state.incoming();
  // The next step could take it up, had its KV cache come at once.
  if (incoming.first_token(now, idx, flight_.has_value())) cut_flight(now, false);
}

void Replica::complete_transfer(Seconds now, std::int64_t idx) {
  const int rank = records_[static_cast<std::size_t>(idx)].decode_dp_rank;
  ranks_[static_cast<std::size_t>(rank)].state.incoming().complete_transfer(now, idx);
  cut_flight(now, engine_.async_scheduling);
}

}  // namespace orrery
