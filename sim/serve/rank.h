#pragma once

// One data-parallel rank of a replica: the requests that wait for it and those that run, and their
// KV blocks. Its Scheduler (sim/serve/scheduler.h) decides what a step computes; the Replica
// (sim/serve/replica.h) says how long that takes and, at its end, has it applied here.
//
//   enqueue ──► waiting ──admit──► running: prompt ──► decodes ──► ended ──► (blocks are free)
//                  ▲                  │
//                  └────preempt───────┘
//
// A fast-forward moves the sequences that decode as offsets to a step counter (DecodeBatch), so its
// cost does not depend on the batch.
//
// Not thread safe.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/serve/decode_batch.h"
#include "sim/serve/fast_forward.h"
#include "sim/serve/incoming.h"
#include "sim/serve/kv_block_manager.h"
#include "sim/serve/kv_tiers.h"
#include "sim/serve/kv_unit_events.h"
#include "sim/serve/serve.h"
#include "sim/serve/token_intervals.h"

namespace orrery {

enum class ReplicaRole : std::uint8_t {
  kWhole,    // prompts and decodes
  kPrefill,  // prompts and first tokens
  kDecode    // requests that are handed over; recomputes what it preempts itself
};

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

// A request that the engine knows of since `known`.
struct Waiting {
  std::int64_t idx = 0;
  Seconds known;
};

// Leading units of a prompt that need not be computed.
struct CachedPrefix {
  std::int64_t num_units = 0;
  std::int64_t num_on_gpu = 0;  // of them; the others stand in tiers
  std::int64_t num_idle = 0;    // of those on the GPU: taking them makes as many unavailable
  // Where each is: a tier, or KvTiers::kOnGpu. Empty where there are no tiers.
  std::vector<int> places;
  std::int64_t num_recomputed = 0;  // units behind them that a tier has
};

// What a rank computes in a step.
struct ScheduledStep {
  struct Chunk {
    std::int64_t slot = 0;
    std::int64_t query = 0;
    bool ends_prompt = false;
  };
  Batch batch;
  std::vector<Chunk> chunks;
  bool has_preempted = false;
  bool is_held_back = false;                 // prompts that could join wait for more to come
  std::optional<AdmissionLimit> held_up_by;  // the first that waits
  std::int64_t blocks_before = 0;
  std::int64_t reserved_blocks = 0;    // of decodes, taken for the first step of a fast-forward
  std::vector<std::int64_t> accepted;  // drafts of each decode, in order of admission
  [[nodiscard]] bool is_empty() const { return chunks.empty() && batch.num_decodes == 0; }
};

// Of decodes of measured requests that verified drafts.
struct VerifiedDrafts {
  std::int64_t num_verifications = 0;
  std::int64_t num_tokens = 0;  // that they made
};

// A step, or steps in a row that only decode, of all ranks of a replica.
struct StepEnd {
  Seconds begin;
  Seconds end;
  FastForward time;
  Seconds at_client;  // when clients see its last tokens
  [[nodiscard]] Seconds first_end() const { return begin + fast_forward_duration(time, 1); }
};

class Rank {
 public:
  struct Setup {
    int index = 0;  // of the replica's
    ReplicaRole role = ReplicaRole::kWhole;
    EngineConfig engine;
    std::int64_t num_kv_blocks = 0;
    std::int64_t state_blocks = 0;
    std::int64_t blocks_per_unit = 0;      // of the prefix cache; 0: none
    const KvTiersConfig* tiers = nullptr;  // behind it; null: none
    SharedTiers* shared_tiers = nullptr;   // of the service; not null where `tiers` is not
    int num_ranks = 1;                     // that share the other ones
    std::span<const Request> requests;
    std::span<RequestRecord> records;
    StepBackend* released = nullptr;  // is told who gives its blocks back; or null
    KvUnitEvents* units = nullptr;    // is told of units of the prefix cache; or null
  };
  // What `setup` points to outlives it.
  explicit Rank(const Setup& setup);

  // --- What happens to it.

  void enqueue(const Waiting& request) { waiting_.push_back(request); }
  // The decodes that run take so many steps in a row; 0: none is in flight.
  void set_steps_in_flight(std::int64_t num_steps) { steps_in_flight_ = num_steps; }
  // The step ends: what its decodes came to need of blocks is taken; then its tokens are there.
  void take_blocks(std::int64_t num_steps);
  // Which drafts of the step are accepted is drawn; their number.
  std::int64_t accept_drafts();
  void complete(const StepEnd& step, LatencyHistogram& itl, std::vector<std::int64_t>& finished);
  // What ended with the last step gives back its seats and its blocks.
  void release_ended();

  // Prefill replicas. What was handed over since the last call, in order.
  std::vector<Handover> take_handovers() { return std::exchange(handovers_, {}); }
  // Appends what the step in flight, which ends at `end`, is going to hand over.
  void list_ending_prompts(Seconds end, std::vector<Handover>& ending) const;
  // The blocks of request `idx`, which was handed over, have been read.
  void release_handed_over(std::int64_t idx);
  [[nodiscard]] const VerifiedDrafts& verified() const { return verified_; }
  // Decode replicas: requests whose KV cache is still elsewhere.
  [[nodiscard]] Incoming& incoming() { return incoming_; }

  // --- What the scheduler does to it.

  // What is done until the next call happens at `now`.
  void at(Seconds now) {
    if (tiers_) tiers_->at(now);
  }
  // A new step, empty so far; and that step.
  ScheduledStep& new_step();
  [[nodiscard]] ScheduledStep& step() { return step_; }
  // Requests whose KV cache is here since `known` join the decodes.
  void join_incoming(Seconds now, Seconds known);
  // Blocks for one more token of each decoding sequence, and for its drafts.
  void reserve_decodes();
  // The request admitted last gives up its blocks and waits again.
  void preempt_last();
  // Blocks for the next request handed over, which has a seat from now on.
  void reserve_next(Seconds now, bool is_running);
  // The first that waits, with `query` tokens after those of its `cached` units.
  void admit_front(Seconds now, const CachedPrefix& cached, std::int64_t query);
  void add_chunk(std::int64_t slot, std::int64_t query);
  // Slots of prompts cut in the middle, in order of admission: at most one.
  std::vector<std::int64_t>& prefilling() { return prefilling_; }

  // --- What is asked of it.

  [[nodiscard]] const ScheduledStep& step() const { return step_; }
  [[nodiscard]] const EngineConfig& engine() const { return setup_.engine; }
  [[nodiscard]] const std::deque<Waiting>& waiting() const { return waiting_; }
  [[nodiscard]] std::int64_t num_running() const {
    return static_cast<std::int64_t>(running_.size());
  }
  // Slot of the request admitted last. REQUIRES: one runs.
  [[nodiscard]] std::int64_t last_admitted() const { return running_.rbegin()->second; }
  [[nodiscard]] const Sequence& sequence(std::int64_t slot) const {
    return slots_[static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] const Request& request(std::int64_t idx) const {
    return setup_.requests[static_cast<std::size_t>(idx)];
  }
  // Output tokens made by a request that waits, before it was preempted.
  [[nodiscard]] std::int64_t generated_before(std::int64_t idx) const;
  [[nodiscard]] const DecodeBatch& decodes() const { return decodes_; }
  [[nodiscard]] KvBlockManager& blocks() { return blocks_; }
  [[nodiscard]] const KvBlockManager& blocks() const { return blocks_; }
  [[nodiscard]] const Incoming& incoming() const { return incoming_; }
  [[nodiscard]] std::int64_t tokens_per_unit() const {  // of the prefix cache; 0: there is none
    return setup_.blocks_per_unit * setup_.engine.block_size;
  }
  [[nodiscard]] std::int64_t blocks_per_unit() const { return setup_.blocks_per_unit; }
  // Of `request`, of which `target` tokens are to be prefilled: at least one is computed, to have
  // logits to sample from.
  [[nodiscard]] CachedPrefix cached_prefix(const Request& request, std::int64_t target) const;
  // Leading ones of `units` on the GPU or in a tier.
  [[nodiscard]] std::int64_t num_cached_units(std::span<const std::uint64_t> units) const;
  // Null where there are none.
  [[nodiscard]] KvTiers* tiers() { return tiers_ ? &*tiers_ : nullptr; }
  [[nodiscard]] const KvTiers* tiers() const { return tiers_ ? &*tiers_ : nullptr; }
  [[nodiscard]] std::span<const std::uint64_t> units_of(const Request& request,
                                                        std::int64_t count) const;
  // Of a sequence with so many tokens; one without any holds no state yet.
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const;
  // Tokens in the KV cache when the last output token, which is never computed, is made; those of
  // the prompt where another replica decodes.
  [[nodiscard]] std::int64_t full_length(const Request& request) const;
  // Tokens that a decoding sequence computes in a step: one, and its drafts.
  [[nodiscard]] std::int64_t decode_query() const {
    return 1 + setup_.engine.speculation.num_tokens;
  }
  // Blocks that a sequence holds at its full length, drafts behind it included.
  [[nodiscard]] std::int64_t most_blocks(const Request& request) const;
  // Position of a decoding sequence: tokens in the KV cache before the current step.
  [[nodiscard]] std::int64_t position(const Sequence& sequence) const;
  // That running and ended sequences hold at their full length.
  [[nodiscard]] std::int64_t committed_blocks() const { return committed_blocks_; }
  // What a fast-forward in flight is still to take of the blocks, and the tokens it has made.
  [[nodiscard]] std::int64_t blocks_in_flight() const;
  [[nodiscard]] std::int64_t tokens_in_flight() const;
  // That sequences prefilled in this step are yet to add.
  [[nodiscard]] std::int64_t promised_tokens() const { return promised_tokens_; }
  // Seats that sequences have, of the engine's max_num_seqs.
  [[nodiscard]] std::int64_t num_seated() const;
  [[nodiscard]] bool has_seat() const { return num_seated() < setup_.engine.max_num_seqs; }
  [[nodiscard]] bool has_ended() const { return !ended_.empty(); }
  // Whether a request that comes now might get a seat and tokens of the budget.
  [[nodiscard]] bool could_admit() const;
  // Tokens still to be computed for all requests here, the steps in flight left out.
  [[nodiscard]] std::int64_t outstanding() const { return outstanding_; }
  void add_outstanding(std::int64_t tokens) { outstanding_ += tokens; }
  [[nodiscard]] bool computes_measured() const;
  [[nodiscard]] std::int64_t num_waiting() const;
  [[nodiscard]] bool is_drained() const;
  // Tokens of the step that was decided, as a backend that computes them wants them; appended.
  void list_prefill(std::vector<StepSequence>& sequences) const;
  void list_decodes(std::vector<StepSequence>& sequences) const;

 private:
  // What a request that waits again has made before.
  struct Preempted {
    std::int64_t generated = 0;
    Seconds last_token;
  };

  [[nodiscard]] RequestRecord& record(std::int64_t idx) const {
    return setup_.records[static_cast<std::size_t>(idx)];
  }
  [[nodiscard]] bool is_measured(const Sequence& sequence) const {
    return record(sequence.idx).is_measured;
  }
  std::int64_t seat(const Sequence& sequence);
  // Takes the units of `cached` for `request`; those in tiers come onto the GPU.
  void take_units(const Request& request, const CachedPrefix& cached, std::int64_t num_blocks,
                  bool is_hit);
  void publish_units(Sequence& sequence, std::int64_t computed);
  // One unit's private blocks; whether it is new on the GPU.
  bool publish_unit(std::span<const std::uint64_t> unit);
  // The drafts of a decode that were accepted join its tokens; those left give back their blocks.
  void take_accepted(LatencyHistogram& itl, const std::vector<std::int64_t>& accepted,
                     std::int64_t reserved_blocks);
  void join_decodes(std::int64_t slot);
  void leave_decodes(Sequence& sequence, std::int64_t slot);
  void end_chunk(const ScheduledStep::Chunk& chunk, const StepEnd& step, LatencyHistogram& itl,
                 std::vector<std::int64_t>& finished);
  void finish_sequence(std::int64_t slot, Seconds at_client, std::vector<std::int64_t>& finished);
  // Its blocks stay until they have been read; its seat is free for the next batch.
  void hand_over(std::int64_t slot, Seconds now);
  // Of the sequences that joined since the last step with decodes, `made` at its end.
  void record_second_tokens(Seconds made);
  // Gives back the blocks of a sequence that neither runs nor decodes any more, and its slot.
  void release(std::int64_t slot);

  Setup setup_;
  KvBlockManager blocks_;
  std::optional<KvTiers> tiers_;
  std::deque<Waiting> waiting_;                            // preempted ones first
  std::unordered_map<std::int64_t, Preempted> preempted_;  // by request; never iterated
  std::vector<Sequence> slots_;
  std::vector<std::int64_t> free_slots_;
  std::set<std::pair<std::int64_t, std::int64_t>> running_;
  std::vector<std::int64_t> ended_;  // slots that ended with the last step and are not free yet
  std::int64_t next_order_ = 0;
  std::vector<std::int64_t> prefilling_;

  DecodeBatch decodes_;
  TokenIntervals intervals_;
  ScheduledStep step_;
  std::int64_t steps_in_flight_ = 0;
  std::int64_t committed_blocks_ = 0;
  std::int64_t promised_tokens_ = 0;
  std::int64_t outstanding_ = 0;
  Seconds last_step_begin_;
  VerifiedDrafts verified_;

  std::vector<Handover> handovers_;                          // not taken yet
  std::unordered_map<std::int64_t, std::int64_t> retained_;  // slots of requests handed over
  std::int64_t num_leaving_ = 0;  // handed over, with a seat in the step to come
  Incoming incoming_;
  std::vector<std::pair<std::int64_t, std::int64_t>> joined_;  // (order, slot), no second token yet
};

}  // namespace orrery
