#pragma once

// Steps that are computed: behind the scheduler in place of SimulatedSteps. Keeps the tokens of
// every request and the KV blocks that hold them, and makes of the sequences that the scheduler
// names what a StepRunner computes. A step takes what passes on the clock from its begin, so what
// the scheduler and the host do for it counts.
//
//   tokens of a request   [ prompt, random but the same for a seed | outputs as they were sampled ]
//   in the KV cache       [ computed .................................... ]  the last one never is
//
// Of several data-parallel ranks each has KV blocks of its own, and the scheduler says which one
// computes a sequence.
//
// Not thread safe; one per replica.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/serve/kv_blocks.h"
#include "kernels/serve/live_clock.h"
#include "kernels/serve/prefix_blocks.h"
#include "kernels/serve/step_runner.h"
#include "sim/serve/serve.h"
#include "sim/serve/step_backend.h"

namespace orrery {

struct ExecutedStepsConfig {
  std::int64_t num_kv_blocks = 0;  // of a data-parallel rank
  int num_dp_ranks = 1;
  std::int64_t block_size = 0;
  // Ascending; decode steps of at most the last are padded to one of these and replayed as a graph.
  std::vector<std::int64_t> graph_batch_sizes;
  std::int64_t vocab_size = 0;
  std::uint64_t seed = 1;  // of the prompts
  // Of the workload: tokens of a block hash, which prompts with the same one share. 0: none.
  std::int64_t hash_block_tokens = 0;
  bool caches_prefixes = false;  // keeps such blocks; on one data-parallel rank
};

// Token `position` of the prompt of `request`: uniform in [0, vocab_size).
std::int32_t prompt_token(std::uint64_t seed, std::int64_t request, std::int64_t position,
                          std::int64_t vocab_size);
// Token `position` of the block `hash` of a prompt, likewise.
std::int32_t shared_token(std::uint64_t seed, std::uint64_t hash, std::int64_t position,
                          std::int64_t vocab_size);

class ExecutedSteps : public StepBackend {
 public:
  // `requests`, `runner` and `clock` outlive it. Throws std::invalid_argument for sizes that are
  // not positive or do not ascend, and for prefixes that are cached on several ranks.
  ExecutedSteps(ExecutedStepsConfig config, std::span<const Request> requests, StepRunner& runner,
                const LiveClock& clock);

  [[nodiscard]] bool wants_sequences() const override { return true; }
  [[nodiscard]] KvUnitEvents* kv_units() override { return prefixes_ ? &*prefixes_ : nullptr; }
  void begin(Seconds now, std::span<const StepSequence> prefill,
             std::span<const StepSequence> decodes) override;
  void release(std::int64_t request) override;
  StepTime run(std::span<const Batch> ranks) override;
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) override;

  // Prompt and outputs made so far; empty before the request's first step.
  [[nodiscard]] std::span<const std::int32_t> tokens(std::int64_t request) const {
    return tokens_[static_cast<std::size_t>(request)];
  }
  [[nodiscard]] std::span<const std::int32_t> blocks(std::int64_t request) const {
    return prefixes_ ? prefixes_->held(request) : pool(request).held(request);
  }
  // Of a request that is computed elsewhere: blocks of data-parallel rank `rank` for the first
  // `context` of its tokens, whose content the caller brings. They are given back by `release`.
  std::span<const std::int32_t> adopt(std::int64_t request, std::int64_t context, int rank);
  // Its tokens, before its first step here.
  void take_over(std::int64_t request, std::span<const std::int32_t> tokens);
  [[nodiscard]] int num_dp_ranks() const { return config_.num_dp_ranks; }
  // That have begun; the runner has begun all but perhaps the last.
  [[nodiscard]] std::int64_t num_steps() const { return num_steps_; }

 private:
  [[nodiscard]] std::size_t rank_of(std::int64_t request) const {
    return static_cast<std::size_t>(ranks_[static_cast<std::size_t>(request)]);
  }
  [[nodiscard]] const KvBlocks& pool(std::int64_t request) const {
    return pools_[rank_of(request)];
  }
  void make_prompt(const Request& request);
  SequenceTokens sequence(const StepSequence& of);
  // Runs the step that began and hands its tokens out; how long it took since its begin.
  Seconds compute();
  // Rows of the graph for the step that began, 0 when it is launched eagerly.
  [[nodiscard]] std::int64_t graph_rows() const;

  ExecutedStepsConfig config_;
  StepRunner& runner_;
  const LiveClock& clock_;
  std::vector<KvBlocks> pools_;                    // by data-parallel rank
  std::optional<PrefixBlocks> prefixes_;           // in place of these
  std::vector<int> ranks_;                         // by request, which has its blocks
  std::vector<std::vector<std::int32_t>> tokens_;  // by request
  std::int64_t num_steps_ = 0;
  Seconds begin_;
  StepInput input_;
  KvMoves moves_;                      // of the step
  std::vector<std::int64_t> sampled_;  // requests in the order of the sampled rows
};

}  // namespace orrery
