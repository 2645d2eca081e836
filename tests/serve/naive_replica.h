#pragma once

// One replica by the letter of vLLM v1's scheduler (vllm/v1/core/sched/scheduler.py) and of the
// policies of other engines: every request
// is looked at in every step and every KV block has an identity and a place in one free list. Slow
// and plain, to compare the fast replica with. A prefix-cache unit is one block. Times are those of
// FakeSteps.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "sim/serve/kv_tiers.h"
#include "tests/serve/fake_steps.h"

namespace orrery::testing {

// What tiers hold, each a list, oldest first; writing and loading takes no time.
class NaiveTiers {
  using Held = std::vector<std::uint64_t>;

 public:
  explicit NaiveTiers(const ServiceConfig& config) : tiers_(config.kv_tiers.tiers) {
    for (const KvTier& tier : tiers_) {
      capacities_.push_back(tier_units(config.kv_tiers, tier, 1, config.num_dp_ranks));
    }
    held_.resize(tiers_.size());
  }
  [[nodiscard]] bool has(std::uint64_t hash) const {
    return std::ranges::any_of(held_, [hash](const Held& held) { return is_in(held, hash); });
  }
  void use(std::uint64_t hash) {
    for (auto& held : held_) {
      if (std::erase(held, hash) > 0) held.push_back(hash);
    }
  }
  void computed(std::uint64_t hash) {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (tiers_[i].write == TierWrite::kThrough) put(i, hash);
    }
  }
  void evicted(std::uint64_t hash, std::size_t tier = 0) {
    if (tier == held_.size()) return;
    const bool is_written = tiers_[tier].write == TierWrite::kEviction;
    if (is_written || is_in(held_[tier], hash)) put(tier, hash);
  }

 private:
  [[nodiscard]] static bool is_in(const Held& held, std::uint64_t hash) {
    return std::ranges::find(held, hash) != held.end();
  }
  void put(std::size_t tier, std::uint64_t hash) {
    Held& held = held_[tier];
    std::erase(held, hash);
    held.push_back(hash);
    if (static_cast<std::int64_t>(held.size()) <= capacities_[tier]) return;
    const std::uint64_t oldest = held.front();
    held.erase(held.begin());
    evicted(oldest, tier + 1);
  }
  std::vector<KvTier> tiers_;
  std::vector<std::int64_t> capacities_;
  std::vector<Held> held_;
};

// One data-parallel rank.
class NaiveRank {
 public:
  struct State {
    RequestRecord record;
    std::int64_t num_computed = 0;
    std::int64_t num_generated = 0;
    bool is_decoding = false;
    std::vector<std::int64_t> blocks;
    std::size_t num_hashed = 0;  // leading blocks whose content is known to the cache
  };
  using Scheduled = std::vector<std::pair<std::size_t, std::int64_t>>;  // request, tokens

  // `known`: when the engine comes to know of each request.
  NaiveRank(const Workload& workload, const ServiceConfig& config, FakeTimes times,
            std::vector<State>& states, const std::vector<Seconds>& known)
      : workload_(workload),
        config_(config),
        times_(times),
        states_(states),
        known_(known),
        tiers_(config) {
    for (std::int64_t id = 0; id < config.num_kv_blocks / config.num_dp_ranks; ++id) {
      blocks_.push_back({});
      free_.push_back(id);
    }
  }

  void enqueue(std::size_t idx) { waiting_.push_back(idx); }
  [[nodiscard]] std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  void release_ended() {
    for (const std::size_t idx : ended_) release(idx);
    ended_.clear();
  }
  // For the routers of ranks.
  [[nodiscard]] std::int64_t tokens_left() const {
    std::int64_t left = 0;
    for (const std::size_t idx : waiting_) left += full_length(idx);
    for (const std::size_t idx : running_) left += full_length(idx) - states_[idx].num_computed;
    return left;
  }
  [[nodiscard]] std::int64_t queue_length() const {
    return static_cast<std::int64_t>(4 * waiting_.size() + running_.size());
  }
  [[nodiscard]] bool has_decodes() const {
    return std::ranges::any_of(running_, [this](auto idx) { return states_[idx].is_decoding; });
  }
  // Whether it has prompts, or could let one in.
  [[nodiscard]] bool has_prompts(Seconds known) const {
    if (std::ranges::any_of(running_, [this](auto idx) { return !states_[idx].is_decoding; })) {
      return true;
    }
    if (waiting_.empty() || known_[waiting_.front()] > known) return false;
    const std::size_t idx = waiting_.front();
    return static_cast<std::int64_t>(running_.size() + ended_.size()) <
               config_.engine.max_num_seqs &&
           may_admit(idx, workload_.requests[idx].prompt_tokens, 0, 0, {});
  }

  [[nodiscard]] Seconds duration(const Scheduled& scheduled) const {
    std::int64_t prefill = 0;
    std::int64_t contexts = 0;
    for (const auto& [idx, count] : scheduled) {
      if (states_[idx].num_computed + 1 == length(idx) && states_[idx].is_decoding) {
        contexts += length(idx) + num_drafts();
      } else {
        prefill += count;
      }
    }
    return times_.base + times_.per_prefill * static_cast<double>(prefill) +
           times_.per_context * static_cast<double>(contexts);
  }
  [[nodiscard]] std::int64_t num_tokens_of(const Scheduled& scheduled) const {
    std::int64_t sum = 0;
    for (const auto& [idx, count] : scheduled) {
      if (states_[idx].num_computed + count >= length(idx)) sum += num_made(idx);
    }
    return sum;
  }
  // Clients have the tokens at `at_client`. Returns how many requests ended.
  std::size_t apply(const Scheduled& scheduled, Seconds at_client) {
    std::size_t num_ended = 0;
    for (const auto& [idx, count] : scheduled) {
      State& state = states_[idx];
      if (state.num_computed + count < length(idx)) {
        state.num_computed += count;
        continue;
      }
      const std::int64_t made = num_made(idx);
      state.num_computed = length(idx) + made - 1;
      state.num_generated += made;
      while (static_cast<std::int64_t>(state.blocks.size()) > needed(state.num_computed)) {
        give(state.blocks.back());  // of drafts that were rejected
        state.blocks.pop_back();
      }
      if (state.num_generated == 1) state.record.first_token = at_client;
      state.is_decoding = true;
      if (state.num_generated < workload_.requests[idx].output_tokens) continue;
      state.record.finish = at_client;
      std::erase(running_, idx);
      ended_.push_back(idx);
      ++num_ended;
    }
    if (!config_.engine.async_scheduling) release_ended();
    return num_ended;
  }

  // A batch of what is known since `known` or earlier.
  Scheduled schedule(Seconds now, Seconds known, bool lets_prompts) {
    Scheduled scheduled;
    std::int64_t budget = config_.engine.max_num_batched_tokens;
    if (!lets_prompts) {
      schedule_running(scheduled, budget, {.decodes = true});
    } else if (config_.engine.scheduler_policy == SchedulerPolicy::kPrefillFirst) {
      if (schedule_running(scheduled, budget, {.prompts = true})) {
        schedule_waiting(scheduled, budget, now, known);
      }
      if (scheduled.empty()) schedule_running(scheduled, budget, {.decodes = true});
    } else if (schedule_running(scheduled, budget, {.prompts = true, .decodes = true})) {
      schedule_waiting(scheduled, budget, now, known);
    }
    return scheduled;
  }

 private:
  struct Block {
    std::int64_t references = 0;
    bool has_hash = false;
    std::uint64_t hash = 0;
  };
  [[nodiscard]] std::int64_t num_drafts() const { return config_.engine.speculation.num_tokens; }
  // Tokens that a step makes which computes the last that `idx` has; prompts come without drafts.
  [[nodiscard]] std::int64_t num_made(std::size_t idx) const {
    const State& state = states_[idx];
    if (!state.is_decoding || num_drafts() == 0) return 1;
    return std::min(workload_.requests[idx].output_tokens - state.num_generated,
                    1 + num_accepted(config_.engine.speculation, static_cast<std::int64_t>(idx),
                                     state.num_generated));
  }
  [[nodiscard]] std::int64_t length(std::size_t idx) const {
    return workload_.requests[idx].prompt_tokens + states_[idx].num_generated;
  }
  [[nodiscard]] std::int64_t needed(std::int64_t tokens) const {
    return (tokens + config_.engine.block_size - 1) / config_.engine.block_size;
  }
  bool allocate(std::size_t idx, std::int64_t tokens) {
    State& state = states_[idx];
    const std::int64_t count = needed(tokens) - static_cast<std::int64_t>(state.blocks.size());
    if (count > num_free()) return false;
    for (std::int64_t i = 0; i < count; ++i) state.blocks.push_back(take_free());
    if (!config_.engine.enable_prefix_caching) return true;
    const auto& hashes = workload_.requests[idx].block_hashes;
    for (; state.num_hashed < hashes.size() &&
           static_cast<std::int64_t>(state.num_hashed + 1) * config_.engine.block_size <= tokens;
         ++state.num_hashed) {
      Block& block = blocks_[state.blocks[state.num_hashed]];
      if (block.has_hash) continue;
      const auto found = cached_.find(hashes[state.num_hashed]);
      if (found != cached_.end()) {
        // Someone else's copy is shared and this one given back (vLLM keeps both).
        const std::int64_t own = state.blocks[state.num_hashed];
        take(found->second);
        state.blocks[state.num_hashed] = found->second;
        give(own);
        continue;
      }
      name(state.blocks[state.num_hashed], hashes[state.num_hashed]);
    }
    return true;
  }
  std::int64_t take_free() {
    const std::int64_t id = free_.front();
    free_.pop_front();
    Block& block = blocks_[id];
    if (block.has_hash) {
      cached_.erase(block.hash);
      block.has_hash = false;
      tiers_.evicted(block.hash);
    }
    block.references = 1;
    return id;
  }
  void name(std::int64_t id, std::uint64_t hash) {
    blocks_[id].has_hash = true;
    blocks_[id].hash = hash;
    cached_[hash] = id;
    tiers_.computed(hash);
  }
  // The first blocks of `idx`: those of `hits` that are on the GPU, and new ones for what tiers
  // have (kInTier), beside `num_others` new ones behind them.
  void take_hits(std::size_t idx, const std::vector<std::int64_t>& hits, std::int64_t num_others) {
    const auto& hashes = workload_.requests[idx].block_hashes;
    for (const std::int64_t id : hits) {
      if (id != kInTier) take(id);
    }
    for (std::size_t i = hits.size(); i-- > 0;) tiers_.use(hashes[i]);
    std::deque<std::int64_t> fresh;
    for (std::int64_t i = num_others + std::ranges::count(hits, kInTier); i > 0; --i) {
      fresh.push_back(take_free());
    }
    std::vector<std::int64_t>& blocks = states_[idx].blocks;
    blocks = hits;
    for (std::size_t i = 0; i < hits.size(); ++i) {
      if (hits[i] != kInTier) continue;
      blocks[i] = fresh.front();
      fresh.pop_front();
      name(blocks[i], hashes[i]);
    }
    blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  }
  void take(std::int64_t id) {
    if (blocks_[id].references++ == 0) free_.remove(id);
  }
  void give(std::int64_t id) {
    if (--blocks_[id].references == 0) free_.push_back(id);
  }
  void release(std::size_t idx) {
    State& state = states_[idx];
    for (auto id = state.blocks.rbegin(); id != state.blocks.rend(); ++id) give(*id);
    state.blocks.clear();
    state.num_hashed = 0;
  }

  struct Kinds {
    bool prompts = false;
    bool decodes = false;
  };
  // False when a request was preempted.
  bool schedule_running(Scheduled& scheduled, std::int64_t& budget, Kinds kinds) {
    bool has_preempted = false;
    for (std::size_t i = 0; i < running_.size() && budget > 0;) {
      const std::size_t idx = running_[i];
      State& state = states_[idx];
      if (state.is_decoding ? !kinds.decodes : !kinds.prompts) {
        ++i;
        continue;
      }
      const std::int64_t drafts = state.is_decoding ? num_drafts() : 0;
      const std::int64_t count = std::min(length(idx) - state.num_computed + drafts, budget);
      bool is_self = false;
      while (!allocate(idx, state.num_computed + count)) {
        const std::size_t victim = running_.back();
        running_.pop_back();
        State& loser = states_[victim];
        release(victim);
        loser.num_computed = 0;
        loser.is_decoding = false;
        ++loser.record.num_preemptions;
        waiting_.push_front(victim);
        has_preempted = true;
        is_self = victim == idx;
        if (is_self) break;
      }
      if (is_self) break;
      scheduled.emplace_back(idx, count);
      budget -= count;
      ++i;
    }
    return !has_preempted;
  }

  // Blocks when the last output token is made, those of drafts behind it included.
  [[nodiscard]] std::int64_t full_blocks(std::size_t idx) const {
    return needed(full_length(idx) + num_drafts());
  }
  // Tokens in the cache when the last output token is made.
  [[nodiscard]] std::int64_t full_length(std::size_t idx) const {
    return workload_.requests[idx].prompt_tokens + workload_.requests[idx].output_tokens - 1;
  }
  // Whether the policy lets in `idx`, of which `hits` are cached, `num_idle` of them idle and
  // `num_in_tier` not on the GPU, beside what is `scheduled` so far.
  [[nodiscard]] bool may_admit(std::size_t idx, std::int64_t count, std::int64_t hits,
                               std::int64_t num_idle, const Scheduled& scheduled,
                               std::int64_t num_in_tier = 0) const {
    const EngineConfig& engine = config_.engine;
    if (engine.kv_admission == KvAdmission::kFullLength) {
      std::int64_t committed = full_blocks(idx);
      for (const std::size_t other : running_) committed += full_blocks(other);
      for (const std::size_t other : ended_) committed += full_blocks(other);
      return committed <= config_.num_kv_blocks;
    }
    std::int64_t must_fit =
        needed(engine.scheduler_reserve_full_isl ? length(idx) : hits * engine.block_size + count);
    if (engine.kv_admission == KvAdmission::kEstimated) {
      std::int64_t left = 0;
      for (const std::size_t other : running_) {
        if (states_[other].is_decoding) {
          left += workload_.requests[other].output_tokens - states_[other].num_generated;
        }
      }
      std::int64_t promised = 0;
      for (const auto& [other, tokens] : scheduled) {
        if (states_[other].is_decoding) continue;
        promised += full_length(other) - states_[other].num_computed - tokens;
      }
      must_fit =
          full_blocks(idx) +
          needed(promised + std::llround(engine.new_token_ratio * static_cast<double>(left)));
    }
    return must_fit - (hits - num_in_tier) <= num_free() - num_idle;
  }

  [[nodiscard]] bool is_over_prefill_limit(std::int64_t count, const Scheduled& scheduled) const {
    std::int64_t left = config_.engine.max_prefill_tokens;
    bool has_prompt = false;
    for (const auto& [other, tokens] : scheduled) {
      left -= tokens;
      has_prompt = has_prompt || !states_[other].is_decoding;
    }
    return config_.engine.max_prefill_tokens > 0 && has_prompt && count >= left;
  }

  void schedule_waiting(Scheduled& scheduled, std::int64_t& budget, Seconds now, Seconds known) {
    while (!waiting_.empty() && known_[waiting_.front()] <= known && budget > 0 &&
           static_cast<std::int64_t>(running_.size() + ended_.size()) <
               config_.engine.max_num_seqs) {
      const std::size_t idx = waiting_.front();
      State& state = states_[idx];
      std::vector<std::int64_t> hits;
      std::int64_t num_idle = 0;
      if (config_.engine.enable_prefix_caching) {
        for (const std::uint64_t hash : workload_.requests[idx].block_hashes) {
          const auto found = cached_.find(hash);
          const bool is_on_gpu = found != cached_.end();
          if ((!is_on_gpu && !tiers_.has(hash)) ||
              static_cast<std::int64_t>(hits.size() + 1) * config_.engine.block_size >
                  length(idx) - 1) {
            break;
          }
          hits.push_back(is_on_gpu ? found->second : kInTier);
          num_idle += is_on_gpu && blocks_[found->second].references == 0 ? 1 : 0;
        }
      }
      const std::int64_t cached =
          static_cast<std::int64_t>(hits.size()) * config_.engine.block_size;
      std::int64_t count = length(idx) - cached;
      if (is_over_prefill_limit(count, scheduled)) break;
      if (!config_.engine.enable_chunked_prefill && count > budget) break;
      count = std::min(count, budget);
      const auto num_hits = static_cast<std::int64_t>(hits.size());
      if (!may_admit(idx, count, num_hits, num_idle, scheduled,
                     std::ranges::count(hits, kInTier))) {
        break;
      }
      take_hits(idx, hits, needed(cached + count) - num_hits);
      state.num_hashed = hits.size();
      allocate(idx, cached + count);
      state.num_computed = cached;
      if (state.record.num_preemptions == 0) {
        state.record.first_scheduled = now;
        state.record.cached_tokens = cached;
      }
      waiting_.pop_front();
      running_.push_back(idx);
      scheduled.emplace_back(idx, count);
      budget -= count;
    }
  }

  const Workload& workload_;
  const ServiceConfig& config_;
  FakeTimes times_;
  std::vector<State>& states_;
  const std::vector<Seconds>& known_;
  std::vector<Block> blocks_;
  std::list<std::int64_t> free_;
  std::map<std::uint64_t, std::int64_t> cached_;
  std::deque<std::size_t> waiting_;
  std::vector<std::size_t> running_;
  std::vector<std::size_t> ended_;  // hold seats and blocks until the next batch is formed
  static constexpr std::int64_t kInTier = -1;
  NaiveTiers tiers_;
};

// Its ranks step together, as long as the slowest takes.
class NaiveReplica {
 public:
  NaiveReplica(const Workload& workload, const ServiceConfig& config, FakeTimes times)
      : workload_(workload), config_(config), states_(workload.requests.size()) {
    for (int i = 0; i < config.num_dp_ranks; ++i) {
      ranks_.emplace_back(workload_, config_, times, states_, known_);
    }
  }

  std::vector<RequestRecord> run() {
    pass_front_end();
    std::size_t next = 0;
    std::size_t num_finished = 0;
    Seconds now;
    Seconds begin_before;
    while (num_finished < states_.size()) {
      next = enqueue_until(now, next);
      auto scheduled = schedule(now, config_.engine.async_scheduling ? begin_before : now);
      for (NaiveRank& rank : ranks_) rank.release_ended();
      if (is_empty(scheduled)) scheduled = schedule(now, now);
      if (is_empty(scheduled)) {
        now = known_[next];
        continue;
      }
      begin_before = now;
      now += duration(scheduled);
      next = enqueue_until(now, next);  // to ranks as they are while the step runs
      num_finished += apply(scheduled, now);
    }
    for (NaiveRank& rank : ranks_) rank.release_ended();
    std::vector<RequestRecord> records;
    records.reserve(states_.size());
    for (const NaiveRank::State& state : states_) records.push_back(state.record);
    return records;
  }
  [[nodiscard]] std::int64_t num_free() const {
    std::int64_t sum = 0;
    for (const NaiveRank& rank : ranks_) sum += rank.num_free();
    return sum;
  }

 private:
  using Steps = std::vector<NaiveRank::Scheduled>;  // by rank

  void pass_front_end() {
    const FrontEndConfig& front_end = config_.front_end;
    Seconds free;
    for (const Request& request : workload_.requests) {
      free = std::max(free, request.arrival) + front_end.per_request +
             front_end.per_prompt_token * static_cast<double>(request.prompt_tokens);
      known_.push_back(free);
    }
  }
  std::size_t enqueue_until(Seconds now, std::size_t next) {
    for (; next < states_.size() && known_[next] <= now; ++next) ranks_[choose()].enqueue(next);
    return next;
  }
  std::size_t choose() {
    if (config_.engine.dp_router == DpRouter::kRoundRobin) return num_chosen_++ % ranks_.size();
    std::size_t best = 0;
    for (std::size_t i = 1; i < ranks_.size(); ++i) {
      const bool is_better = config_.engine.dp_router == DpRouter::kLeastTokens
                                 ? ranks_[i].tokens_left() < ranks_[best].tokens_left()
                                 : ranks_[i].queue_length() < ranks_[best].queue_length();
      if (is_better) best = i;
    }
    return best;
  }
  // TensorRT-LLM's _balance_adp_requests, step by step.
  bool lets_prompts(Seconds known) {
    if (config_.engine.dp_balance_timeout_iters == 0) return true;
    const bool all_decode =
        std::ranges::all_of(ranks_, [](const NaiveRank& rank) { return rank.has_decodes(); });
    const auto with_prompts = std::ranges::count_if(
        ranks_, [&](const NaiveRank& rank) { return rank.has_prompts(known); });
    if (with_prompts == 0) return true;
    if (with_prompts == std::ssize(ranks_)) {
      num_waits_ = 0;
      if (all_decode && num_batching_ < config_.engine.dp_balance_batching_wait_iters) {
        ++num_batching_;
        return false;
      }
      num_batching_ = 0;
      return true;
    }
    ++num_waits_;
    if (num_waits_ < config_.engine.dp_balance_timeout_iters && all_decode) return false;
    num_waits_ = 0;
    return true;
  }
  Steps schedule(Seconds now, Seconds known) {
    const bool prompts = lets_prompts(known);
    Steps steps;
    for (NaiveRank& rank : ranks_) steps.push_back(rank.schedule(now, known, prompts));
    return steps;
  }
  static bool is_empty(const Steps& steps) {
    return std::ranges::all_of(steps, [](const auto& step) { return step.empty(); });
  }
  [[nodiscard]] Seconds duration(const Steps& steps) const {
    Seconds longest;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      longest = std::max(longest, ranks_[i].duration(steps[i]));
    }
    return longest;
  }
  std::size_t apply(const Steps& steps, Seconds now) {
    std::int64_t num_tokens = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) num_tokens += ranks_[i].num_tokens_of(steps[i]);
    stream_free_ = std::max(stream_free_, now) +
                   config_.front_end.per_output_token * static_cast<double>(num_tokens) /
                       static_cast<double>(config_.engine.stream_interval);
    std::size_t num_ended = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      num_ended += ranks_[i].apply(steps[i], stream_free_ + config_.front_end.stream_latency);
    }
    return num_ended;
  }

  const Workload& workload_;
  ServiceConfig config_;
  std::vector<NaiveRank::State> states_;
  std::vector<Seconds> known_;  // when the engine comes to know of each request
  std::deque<NaiveRank> ranks_;
  std::size_t num_chosen_ = 0;
  std::int64_t num_waits_ = 0;
  std::int64_t num_batching_ = 0;
  Seconds stream_free_;
};

}  // namespace orrery::testing
