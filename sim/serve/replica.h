#pragma once

// One engine: a waiting queue, the running requests and their KV blocks, and the step in flight.
// Decides batches as vLLM v1's scheduler does:
//
//   1. running requests in order of admission: one token for each that decodes, then the next chunk
//      of a prompt that is not finished (at most one: the last admitted);
//   2. if nothing was preempted, waiting requests in order while max_num_seqs, the token budget
//      and KV blocks allow; a prompt longer than the budget left is cut (chunked prefill).
//   When a decoding request needs a block and there is none, the request admitted last gives up its
//   blocks and returns to the head of the queue (preemption by recomputation).
//
// Steps that only decode are taken together until something changes the batch: a finish, an
// arrival that could be admitted, KV blocks running out, or the backend's next bucket. What such a
// leap does to each request is kept as offsets to the replica's step counter, so its cost does not
// depend on the batch.
//
// Not thread safe.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/serve/kv_block_manager.h"
#include "sim/serve/latency_histogram.h"
#include "sim/serve/serve.h"

namespace orrery {

// Sums over a replica's life, for metrics.
struct ReplicaTotals {
  LatencyHistogram itl;
  BasisSeconds basis;
  Seconds busy;
  double kv_utilisation_seconds = 0;  // integral of used / all blocks over busy time
  double kv_utilisation_max = 0;
  double batch_steps = 0;  // sum over steps of sequences in the step
  std::int64_t num_steps = 0;
};

class Replica {
 public:
  // `requests` and `records` (same indices) outlive the replica.
  Replica(int index, const ServiceConfig& config, std::int64_t blocks_per_unit,
          std::span<const Request> requests, std::span<RequestRecord> records,
          std::unique_ptr<StepBackend> backend);

  // Request `idx` arrives at `now`, not before any earlier event of this replica.
  void submit(Seconds now, std::int64_t idx);
  // Starts a step if none is in flight and there is work.
  void start(Seconds now);
  [[nodiscard]] bool is_stepping() const { return flight_.has_value(); }
  [[nodiscard]] Seconds step_end() const { return flight_->end; }
  // Applies the step in flight; indices of requests that finished are appended to `finished`.
  void complete_step(std::vector<std::int64_t>& finished);

  // Tokens still to be computed for all requests here at `now`, the step in flight counted as far
  // as it has come.
  [[nodiscard]] std::int64_t outstanding_tokens(Seconds now) const;
  // Leading prompt units of `request` in this replica's prefix cache.
  [[nodiscard]] std::int64_t num_cached_units(const Request& request) const;

  [[nodiscard]] const ReplicaTotals& totals() const { return totals_; }
  [[nodiscard]] std::vector<StepRecord>& steps() { return steps_; }
  [[nodiscard]] const KvBlockManager& blocks() const { return blocks_; }
  // True when nothing waits, runs or holds blocks.
  [[nodiscard]] bool is_drained() const;

 private:
  // A running request. While it prefills, `computed` counts its tokens in the KV cache; while it
  // decodes, its position is `computed` plus the steps since `joined_step`.
  struct Sequence {
    std::int64_t idx = 0;
    std::int64_t order = 0;   // of admission
    std::int64_t target = 0;  // tokens to prefill before decoding (prompt + tokens made before)
    std::int64_t computed = 0;
    std::int64_t generated = 0;  // output tokens made before `joined_step`
    std::int64_t joined_step = 0;
    std::int64_t num_units = 0;  // leading prompt units held in the prefix cache
    Seconds last_token;          // while a preempted one computes its tokens again
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
    LeapTime time;  // num_steps == 1 for steps with prefill
    bool is_leap = false;
    Batch batch;
    std::vector<Chunk> chunks;
    std::int64_t blocks_before = 0;
    std::int64_t reserved_blocks = 0;  // of decodes, taken for the first step of a leap
  };
  // What a request that waits again has made before.
  struct Preempted {
    std::int64_t generated = 0;
    Seconds last_token;
  };
  struct Finish {
    std::int64_t step = 0;
    std::int64_t order = 0;
    std::int64_t slot = 0;
    // Soonest on top of a std::priority_queue.
    bool operator<(const Finish& other) const {
      return step != other.step ? step > other.step : order > other.order;
    }
  };

  // Position of a decoding sequence: tokens in the KV cache before the current step.
  [[nodiscard]] std::int64_t position(const Sequence& sequence) const;
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const;
  // Blocks that `num_steps` decode steps of the current batch take.
  [[nodiscard]] std::int64_t decode_blocks(std::int64_t num_steps) const;
  // Most decode steps that `available` blocks are enough for, at most `limit`.
  [[nodiscard]] std::int64_t steps_before_full(std::int64_t available, std::int64_t limit) const;
  [[nodiscard]] std::span<const std::uint64_t> units_of(const Request& request,
                                                        std::int64_t count) const;
  [[nodiscard]] bool could_admit() const;

  bool preempt_until_decodes_fit();
  void preempt_last();
  // False when the prompt had to give up its blocks.
  bool continue_prefill(std::int64_t& budget);
  void admit(std::int64_t& budget, Seconds now);
  bool admit_front(std::int64_t& budget, Seconds now);
  std::int64_t new_slot();
  void publish_units(Sequence& sequence, std::int64_t computed);
  void release(const Sequence& sequence, std::int64_t computed);
  void join_decodes(std::int64_t slot);
  void leave_decodes(const Sequence& sequence);
  void cut_flight(Seconds now);
  void account(const Flight& flight);
  void finish_sequence(std::int64_t slot, Seconds now, std::vector<std::int64_t>& finished);

  int index_;
  EngineConfig engine_;
  bool record_steps_;
  std::int64_t blocks_per_unit_;
  std::span<const Request> requests_;
  std::span<RequestRecord> records_;
  std::unique_ptr<StepBackend> backend_;
  KvBlockManager blocks_;

  std::deque<std::int64_t> waiting_;
  std::unordered_map<std::int64_t, Preempted> preempted_;  // by request; never iterated
  std::vector<Sequence> slots_;
  std::vector<std::int64_t> free_slots_;
  std::set<std::pair<std::int64_t, std::int64_t>> running_;  // (order, slot)
  std::priority_queue<Finish> finishes_;                     // entries of preempted ones are stale
  std::int64_t next_order_ = 0;
  std::int64_t prefilling_ = -1;  // slot of the prompt cut in the middle

  std::int64_t step_ = 0;  // decode steps so far
  std::int64_t num_decodes_ = 0;
  std::int64_t decode_positions_ = 0;  // sum of position() over decoding sequences
  std::vector<std::int64_t>
      residues_;  // count of decoding sequences by (position - step) mod block
  std::int64_t outstanding_ = 0;
  Seconds last_end_;  // of the step before
  std::optional<Flight> flight_;
  ReplicaTotals totals_;
  std::vector<StepRecord> steps_;
};

}  // namespace orrery
