#pragma once

// One replica: a front end, and behind it an engine of one or more data-parallel ranks that step
// together. Each rank has its own requests, KV blocks and queue (sim/serve/rank.h) and decides its
// own batch (sim/serve/scheduler.h); a step takes as long as its slowest rank, since ranks meet
// where experts exchange their tokens.
//
//   submit ──► front end ──► router of the ranks ──► rank 0: queue, sequences, KV blocks ┐
//                                               └──► rank 1                              ├─► step
//                                                    ...                                 ┘
//
// Steps that only decode are taken together until something changes the batch: a finish, an
// arrival that could be admitted, KV blocks running out, or the backend's next bucket.
//
// Where prompts and decodes have replicas of their own (sim/serve/disaggregated.h) both are this
// class: a prefill replica hands its requests over with their first token and keeps their blocks
// until they have been read, a decode replica sets blocks aside for a request as soon as it is
// handed over and decodes it once its KV cache has come.
//
// Not thread safe. While its backend computes, that is within compute_step, all may be called but
// form_step and compute_step: against a real clock others hold the replica then (kernels/serve).

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/serve/latency_histogram.h"
#include "sim/serve/rank.h"
#include "sim/serve/scheduler.h"
#include "sim/serve/serve.h"
#include "sim/serve/token_stream.h"

namespace orrery {

// Sums for metrics, over the steps that compute tokens of measured requests; `itl` over the tokens
// of those requests.
struct ReplicaTotals {
  LatencyHistogram itl;
  BasisSeconds basis;
  Joules energy;
  Seconds busy;
  Seconds draft;  // of `busy`: passes that draft tokens
  VerifiedDrafts verified;
  double kv_utilisation_seconds = 0;  // integral of used / all blocks over busy time
  double kv_utilisation_max = 0;
  double batch_steps = 0;  // sum over steps of sequences in the step
  // Time of steps at whose begin a request was not admitted for each limit, the mean over ranks.
  std::array<Seconds, kAdmissionLimitNames.size()> held_up{};
  std::int64_t num_steps = 0;
  std::vector<TierCounts> tiers;         // empty where there are none
  std::vector<std::int64_t> tier_units;  // that they hold, counted over all steps; as below
  Seconds exposed_blocks;                // of `busy`, for blocks on their way between tiers
  std::int64_t recomputed_tokens = 0;    // KvTierMetrics
  // Of each data-parallel rank: what its part of the steps takes; the rest of `busy` it waits for
  // the slowest. Empty with one rank.
  std::vector<Seconds> rank_busy;
};

// Tokens, valid until then.
struct LoadBound {
  std::int64_t tokens = 0;
  Seconds until;
};

class Replica {
 public:
  // `requests` and `records` (same indices) outlive the replica, as do `shared_tiers` of a `config`
  // with tiers.
  Replica(int index, const ServiceConfig& config, std::int64_t blocks_per_unit,
          std::span<const Request> requests, std::span<RequestRecord> records,
          std::unique_ptr<StepBackend> backend, ReplicaRole role = ReplicaRole::kWhole,
          SharedTiers* shared_tiers = nullptr);

  // A client sends request `idx` at `now`, not before any earlier event of this replica.
  void submit(Seconds now, std::int64_t idx);
  // Forms a step if none is in flight and there is work; compute_step() is due then.
  [[nodiscard]] bool form_step(Seconds now);
  // Lets the backend compute the step that was formed, which says when it ends.
  void compute_step();
  // When `advance` is due next: a request leaves the front end, or the step in flight ends.
  [[nodiscard]] std::optional<Seconds> next_event() const;
  // Applies what is due at `now`, the time of next_event(); indices of requests that finished are
  // appended to `finished`.
  void advance(Seconds now, std::vector<std::int64_t>& finished);

  // Prefill replicas. What was handed over since the last call, in order.
  std::vector<Handover> take_handovers();
  // What the step in flight is going to hand over at its end, kNever while it is not computed.
  [[nodiscard]] std::vector<Handover> ending_prompts() const;
  // The blocks of request `idx`, which was handed over, have been read.
  void release_handed_over(std::int64_t idx);

  // Decode replicas. A request comes at `now`, its KV cache still elsewhere.
  void receive(Seconds now, const Handover& handover);
  // Requests for whose prompts blocks were set aside since the last call, in order: their KV cache
  // may come.
  std::vector<std::int64_t> take_reserved();
  // The first token of request `idx`, received before that, was made at `now`.
  void first_token(Seconds now, std::int64_t idx);
  // The KV cache of request `idx` is here at `now`.
  void complete_transfer(Seconds now, std::int64_t idx);

  // Tokens still to be computed for all requests here at `now`, the step in flight counted as far
  // as it has come.
  [[nodiscard]] std::int64_t outstanding_tokens(Seconds now) const;
  // What that does not fall below until some time, unless something is submitted, received or due
  // before; at most `slack` less than it is at `now`.
  [[nodiscard]] LoadBound outstanding_bound(Seconds now, std::int64_t slack) const;
  // Requests here, whether they are in steps or not yet.
  [[nodiscard]] std::int64_t num_running() const;
  [[nodiscard]] std::int64_t num_queued() const;
  // Share of the KV blocks in use, the step in flight counted as above.
  [[nodiscard]] double kv_utilisation(Seconds now) const;
  [[nodiscard]] double scaling_metric(ScalingMetric metric, Seconds now) const;
  // Tokens of a unit of the prefix cache; 0: there is none.
  [[nodiscard]] std::int64_t tokens_per_unit() const {
    return ranks_.front().state.tokens_per_unit();
  }
  // Leading prompt units of `request` in the prefix cache of the rank that has most of them.
  [[nodiscard]] std::int64_t num_cached_units(const Request& request) const;
  // Whether a rank has all of `units`.
  [[nodiscard]] bool has_cached(std::span<const std::uint64_t> units) const;
  // As KvBlockManager::tell.
  void tell_prefixes(PrefixHolders& holders, std::int32_t replica);

  [[nodiscard]] const ReplicaTotals& totals() const { return totals_; }
  [[nodiscard]] std::vector<StepRecord>& steps() { return steps_; }
  [[nodiscard]] int index() const { return index_; }
  // As StepBackend::experts.
  [[nodiscard]] const ExpertHistory* experts() const { return backend_->experts(); }
  // True when nothing waits, runs or holds blocks.
  [[nodiscard]] bool is_drained() const;

 private:
  struct Flight {
    Seconds begin;
    Seconds end;
    FastForward time;        // num_steps == 1 for steps with prefill
    Seconds exposed_blocks;  // of it
    bool is_fast_forward = false;
    std::int64_t most_steps = 1;  // of a fast-forward
  };
  struct RankOfReplica {
    RankOfReplica(const Rank::Setup& setup, bool is_alone)
        : state(setup), scheduler(state, is_alone) {}
    Rank state;
    Scheduler scheduler;
  };

  // Moves what has left the front end by `now` to the queues of the ranks.
  void deliver(Seconds now);
  // The rank for a request that the engine comes to know of at `now`.
  [[nodiscard]] std::size_t choose_rank(Seconds now);
  // Steps of the fast-forward in flight that have ended.
  [[nodiscard]] std::int64_t steps_done(Seconds now) const;
  // Lets each rank form its batch of what is known since `known`; false when all are empty.
  bool schedule(Seconds now, Seconds known);
  // Whether prompts may be in the step: ranks that balance them wait for each other.
  bool lets_prompts(Seconds known);
  // The batch just formed is in flight: a fast-forward when it only decodes, unless `is_single`.
  void begin_flight(Seconds now, bool is_single);
  // Of the step just formed, by rank.
  std::span<const Batch> batches();
  // Steps that the decodes of all ranks may take in a row.
  [[nodiscard]] std::int64_t most_steps() const;
  // Tells a backend that asks whose tokens the batch just formed computes.
  void announce_sequences();
  // The fast-forward in flight ends with the first step at whose end something of `known` counts,
  // which is one later where the next step is fixed already (`is_next_fixed`).
  void cut_flight(Seconds known, bool is_next_fixed);
  void complete_step(std::vector<std::int64_t>& finished);
  void account(const Flight& flight);
  // What moved between tiers in this step, which has tokens of measured requests or not.
  void account_tiers(const Flight& flight, bool is_measured);
  void record(const Flight& flight);
  [[nodiscard]] std::int64_t num_decodes() const;

  int index_;
  bool record_steps_;
  bool wants_sequences_;
  bool may_wait_ = false;  // there were prompts to wait for or with when the step was formed
  EngineConfig engine_;
  KvTiersConfig tiers_;
  FrontEndConfig front_end_;
  std::shared_ptr<StepStore> step_store_;
  std::span<const Request> requests_;
  std::span<RequestRecord> records_;
  std::unique_ptr<StepBackend> backend_;
  std::vector<StepSequence> prefill_sequences_;  // of the step that begins; kept for their memory
  std::vector<StepSequence> decode_sequences_;
  std::vector<Batch> batches_;  // of several ranks; likewise

  Seconds front_end_free_;
  TokenStream stream_;
  std::deque<Waiting> arriving_;  // in the front end; `known` is when they leave it
  std::deque<RankOfReplica> ranks_;
  std::int64_t num_delivered_ = 0;  // to ranks in turn
  std::int64_t num_waits_ = 0;      // steps in a row for which prompts waited for other ranks
  std::int64_t num_batching_waits_ = 0;
  std::int64_t outstanding_in_front_ = 0;  // tokens of requests that no rank has yet
  Seconds last_step_begin_;
  std::optional<Flight> flight_;
  ReplicaTotals totals_;
  std::vector<StepRecord> steps_;
};

}  // namespace orrery
