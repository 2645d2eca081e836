#pragma once

// One replica: a front end, and behind it an engine: a waiting queue, the running requests and
// their KV blocks, and the step in flight. Decides batches as vLLM v1's scheduler does (and in the
// ways of other engines that SchedulerPolicy and KvAdmission name):
//
//   1. running requests in order of admission: one token for each that decodes, then the next chunk
//      of a prompt that is not finished (at most one for each data-parallel rank);
//   2. if nothing was preempted, waiting requests in order while max_num_seqs, the token budget
//      and KV blocks allow; a prompt longer than the budget left is cut (chunked prefill).
//   When a decoding request needs a block and there is none, the request admitted last gives up its
//   blocks and returns to the head of the queue (preemption by recomputation).
//
// Steps that only decode are taken together until something changes the batch: a finish, an
// arrival that could be admitted, KV blocks running out, or the backend's next bucket. What such a
// fast-forward does to each request is kept as offsets to a step counter (DecodeBatch), so its cost
// does not depend on the batch.
//
// With asynchronous scheduling the batch of a step knows what was known when the step before began:
//
//   step       |    k    |   k+1   |   k+2   |
//   arrives        ^                [ runs
//   ends                 ]         [ its seat and its blocks are taken again
//
// Where prompts and decodes have replicas of their own (sim/serve/disaggregated.h) both are this
// class: a prefill replica hands its requests over with their first token and keeps their blocks
// until they have been read, a decode replica sets blocks aside for a request as soon as it is
// handed over and decodes it once its KV cache has come.
//
// Not thread safe. While its backend computes, that is within StepBackend::run and fast_forward,
// receive, take_reserved, complete_transfer and release_handed_over may be called (kernels/serve).

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/serve/decode_batch.h"
#include "sim/serve/kv_block_manager.h"
#include "sim/serve/latency_histogram.h"
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
  double kv_utilisation_seconds = 0;  // integral of used / all blocks over busy time
  double kv_utilisation_max = 0;
  double batch_steps = 0;  // sum over steps of sequences in the step
  // Time of steps at whose begin a request was not admitted for each limit.
  std::array<Seconds, kAdmissionLimitNames.size()> held_up{};
  std::int64_t num_steps = 0;
};

enum class ReplicaRole : std::uint8_t {
  kWhole,    // prompts and decodes
  kPrefill,  // prompts and first tokens
  kDecode    // requests that are handed over; recomputes what it preempts itself
};

// A request with its first token, made at `time`, that another replica is to decode.
struct Handover {
  std::int64_t idx = 0;
  Seconds time;
};

// Tokens, valid until then.
struct LoadBound {
  std::int64_t tokens = 0;
  Seconds until;
};

class Replica {
 public:
  // `requests` and `records` (same indices) outlive the replica.
  Replica(int index, const ServiceConfig& config, std::int64_t blocks_per_unit,
          std::span<const Request> requests, std::span<RequestRecord> records,
          std::unique_ptr<StepBackend> backend, ReplicaRole role = ReplicaRole::kWhole);

  // A client sends request `idx` at `now`, not before any earlier event of this replica.
  void submit(Seconds now, std::int64_t idx);
  // Starts a step if none is in flight and there is work.
  void start(Seconds now);
  // When `advance` is due next: a request leaves the front end, or the step in flight ends.
  [[nodiscard]] std::optional<Seconds> next_event() const;
  // Applies what is due at `now`, the time of next_event(); indices of requests that finished are
  // appended to `finished`.
  void advance(Seconds now, std::vector<std::int64_t>& finished);

  // Prefill replicas. What was handed over since the last call, in order.
  std::vector<Handover> take_handovers();
  // The blocks of request `idx`, which was handed over, have been read.
  void release_handed_over(std::int64_t idx);

  // Decode replicas. A request comes at `now`, its KV cache still elsewhere.
  void receive(Seconds now, const Handover& handover);
  // Requests for whose prompts blocks were set aside since the last call, in order: their KV cache
  // may come.
  std::vector<std::int64_t> take_reserved();
  // The KV cache of request `idx` is here at `now`.
  void complete_transfer(Seconds now, std::int64_t idx);

  // Tokens still to be computed for all requests here at `now`, the step in flight counted as far
  // as it has come.
  [[nodiscard]] std::int64_t outstanding_tokens(Seconds now) const;
  // What that does not fall below until some time, unless something is submitted, received or due
  // before; at most `slack` less than it is at `now`.
  [[nodiscard]] LoadBound outstanding_bound(Seconds now, std::int64_t slack) const;
  // Leading prompt units of `request` in this replica's prefix cache.
  [[nodiscard]] std::int64_t num_cached_units(const Request& request) const;
  // Whether all of `units` are.
  [[nodiscard]] bool has_cached(std::span<const std::uint64_t> units) const;
  // As KvBlockManager::tell.
  void tell_prefixes(PrefixHolders& holders, std::int32_t replica) {
    blocks_.tell(holders, replica);
  }

  [[nodiscard]] const ReplicaTotals& totals() const { return totals_; }
  [[nodiscard]] std::vector<StepRecord>& steps() { return steps_; }
  [[nodiscard]] const KvBlockManager& blocks() const { return blocks_; }
  // True when nothing waits, runs or holds blocks.
  [[nodiscard]] bool is_drained() const;

 private:
  // A running request. While it prefills, `computed` counts its tokens in the KV cache; while it
  // decodes, its position is `computed` plus the steps since `joined_step`. Once ended it may hold
  // its `computed` tokens for one more step.
  struct Sequence {
    std::int64_t idx = 0;
    std::int64_t order = 0;   // of admission
    std::int64_t target = 0;  // tokens to prefill before decoding (prompt + tokens made before)
    std::int64_t computed = 0;
    std::int64_t generated = 0;  // output tokens made before `joined_step`
    std::int64_t joined_step = 0;
    std::int64_t finish_step = 0;
    std::int64_t num_units = 0;  // leading prompt units held in the prefix cache
    Seconds last_token;          // before it joined the decodes
    bool is_decoding = false;
  };
  struct Chunk {
    std::int64_t slot = 0;
    std::int64_t query = 0;
    bool ends_prompt = false;
  };
  struct Flight {
    Seconds begin;
    Seconds end;
    FastForward time;  // num_steps == 1 for steps with prefill
    bool is_fast_forward = false;
    bool has_preempted = false;
    std::optional<AdmissionLimit> held_up_by;  // the first that waits
    Batch batch;
    std::vector<Chunk> chunks;
    std::int64_t blocks_before = 0;
    std::int64_t reserved_blocks = 0;  // of decodes, taken for the first step of a fast-forward
  };
  // What a request that waits again has made before.
  struct Preempted {
    std::int64_t generated = 0;
    Seconds last_token;
  };
  // Decoding sequences whose last token came at `time`, and how many of them are measured.
  struct LastToken {
    Seconds time;
    std::int64_t count = 0;
    std::int64_t num_measured = 0;
  };
  // A request that the engine knows of since `known`.
  struct Waiting {
    std::int64_t idx = 0;
    Seconds known;
  };
  // A request handed over to this replica that does not decode yet.
  struct Incoming {
    Handover handover;
    Seconds reserved;                      // its blocks were set aside
    std::optional<Seconds> ready;          // its KV cache came
    std::optional<Seconds> without_delay;  // it would have decoded, had the KV cache come at once
  };

  // Position of a decoding sequence: tokens in the KV cache before the current step.
  [[nodiscard]] std::int64_t position(const Sequence& sequence) const;
  // Of a sequence with so many tokens; one without any holds no state yet.
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const;
  [[nodiscard]] std::span<const std::uint64_t> units_of(const Request& request,
                                                        std::int64_t count) const;
  [[nodiscard]] bool could_admit() const;
  [[nodiscard]] bool is_measured(const Sequence& sequence) const;
  // Whether a step computes a token of a measured request.
  [[nodiscard]] bool is_measured(const Flight& flight) const;

  // Moves what has left the front end by `now` to the waiting queue.
  void deliver(Seconds now);
  // Forms a batch of what is known since `known` or earlier; false when it would be empty.
  bool schedule(Seconds now, Seconds known);
  void schedule_decodes();
  void schedule_prefill(std::int64_t num_decodes, Seconds now, Seconds known);
  // How long the batch just formed takes: a fast-forward when it only decodes, unless `is_single`.
  void time_flight(bool is_single);
  // Tells a backend that asks whose tokens the batch just formed computes.
  void announce_sequences();
  void preempt_last();
  // The next chunk of a prompt that was cut; false when it could not have the blocks.
  bool continue_prefill(std::int64_t slot, std::int64_t& budget);
  void admit(std::int64_t& budget, Seconds now, Seconds known);
  bool admit_front(std::int64_t& budget, Seconds now);
  // Whether prompts that could join `num_decodes` decodes wait for more to come (batch_wait_*).
  bool holds_back(std::int64_t num_decodes, std::int64_t budget, Seconds known);
  // Whether KvAdmission lets in a request of `target` tokens to prefill, `cached` of them in the
  // prefix cache in `units`, that computes `query` now.
  [[nodiscard]] bool has_blocks_for(const Request& request, std::int64_t target,
                                    std::int64_t cached, std::int64_t query,
                                    std::span<const std::uint64_t> units) const;
  void add_chunk(std::int64_t slot, std::int64_t query);
  [[nodiscard]] std::int64_t full_length(const Request& request) const;
  std::int64_t new_slot();
  void publish_units(Sequence& sequence, std::int64_t computed);
  void join_decodes(std::int64_t slot);
  void leave_decodes(Sequence& sequence, std::int64_t slot);
  // The fast-forward in flight ends with the first step at whose end something of `known` counts,
  // which is one later where the next step is fixed already (`is_next_fixed`).
  void cut_flight(Seconds known, bool is_next_fixed);
  // What a fast-forward in flight is still to take of the blocks, and the tokens it has made so
  // far.
  [[nodiscard]] std::int64_t blocks_in_flight() const;
  [[nodiscard]] std::int64_t tokens_in_flight() const;
  [[nodiscard]] bool has_seat() const;
  // Why the first request that waits is not in the batch just formed, which leaves `budget` tokens.
  [[nodiscard]] std::optional<AdmissionLimit> held_up_by(std::int64_t budget, Seconds known) const;
  void hand_over(std::int64_t slot, Seconds now);
  // Sets blocks aside for requests handed over, in order, while there are seats and blocks.
  void reserve_incoming(Seconds now);
  // Whether one may come to be let in after the step now formed, though nothing ends with it.
  [[nodiscard]] bool may_let_in_soon() const;
  // Those whose KV cache is here since `known` join the decodes.
  void join_incoming(Seconds now, Seconds known);
  void record_second_tokens(Seconds made);
  void complete_step(std::vector<std::int64_t>& finished);
  void add_latencies(const Flight& flight);
  void account(const Flight& flight);
  void finish_sequence(std::int64_t slot, Seconds at_client, std::vector<std::int64_t>& finished);
  // Gives back the blocks of a sequence that neither runs nor decodes any more, and its slot.
  void release(std::int64_t slot);
  void release_ended();

  int index_;
  ReplicaRole role_;
  std::int64_t num_dp_ranks_;
  EngineConfig engine_;
  FrontEndConfig front_end_;
  bool record_steps_;
  std::shared_ptr<StepStore> step_store_;
  std::int64_t blocks_per_unit_;
  std::span<const Request> requests_;
  std::span<RequestRecord> records_;
  std::unique_ptr<StepBackend> backend_;
  bool wants_sequences_;
  std::vector<StepSequence> prefill_sequences_;  // of the step that begins; kept for their memory
  std::vector<StepSequence> decode_sequences_;
  std::int64_t state_blocks_ = 0;
  KvBlockManager blocks_;

  Seconds front_end_free_;
  TokenStream stream_;
  std::deque<Waiting> arriving_;  // in the front end; `known` is when they leave it
  std::deque<Waiting> waiting_;   // preempted ones first
  std::unordered_map<std::int64_t, Preempted> preempted_;  // by request; never iterated
  std::vector<Sequence> slots_;
  std::vector<std::int64_t> free_slots_;
  std::set<std::pair<std::int64_t, std::int64_t>> running_;  // (order, slot)
  std::vector<std::int64_t> ended_;  // slots that ended with the last step and are not free yet
  std::int64_t next_order_ = 0;
  // Slots of prompts cut in the middle, in order of admission: at most one for each dp rank.
  std::vector<std::int64_t> prefilling_;

  DecodeBatch decodes_;
  std::vector<LastToken> last_tokens_;  // of all decoding sequences; counts above 0
  std::int64_t num_measured_decodes_ = 0;
  std::int64_t committed_blocks_ = 0;  // that running and ended sequences hold at their full length
  std::int64_t largest_chunk_ = 0;     // of this step: the token budget that a rank has left
  std::int64_t num_held_back_ = 0;     // steps in a row for which prompts were held back
  bool is_held_back_ = false;          // in this step
  std::int64_t promised_tokens_ = 0;   // that sequences prefilled in this step are yet to add
  std::int64_t outstanding_ = 0;
  Seconds last_step_begin_;
  Seconds last_decode_end_;
  std::optional<Flight> flight_;

  std::vector<Handover> handovers_;                          // not taken yet
  std::unordered_map<std::int64_t, std::int64_t> retained_;  // slots of requests handed over
  std::int64_t num_leaving_ = 0;              // handed over, with a seat in the step to come
  std::deque<Incoming> unreserved_;           // no blocks yet, in order
  std::vector<Incoming> incoming_;            // with blocks, in order
  std::vector<std::int64_t> newly_reserved_;  // not taken yet
  std::vector<std::pair<std::int64_t, std::int64_t>> joined_;  // (order, slot), no second token yet
  ReplicaTotals totals_;
  std::vector<StepRecord> steps_;
};

}  // namespace orrery
