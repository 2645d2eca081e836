#pragma once

// A step runner without a model: what it samples depends on every token of the sequence as the
// paged cache holds it, so a token or block that is mixed up changes all that follow.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/serve/executed_steps.h"

namespace orrery::testing {

inline constexpr std::int64_t kVocabulary = 50'000;

// Takes the place of a model: the next token after `history`.
inline std::int32_t next_token(std::span<const std::int32_t> history) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const std::int32_t token : history) {
    hash = (hash ^ static_cast<std::uint64_t>(token)) * 1099511628211U;
  }
  return static_cast<std::int32_t>((hash >> 20) % kVocabulary);
}

// Prompt and outputs of a request served by itself, with block hashes of so many tokens.
inline std::vector<std::int32_t> whole_history(std::uint64_t seed, const Request& request,
                                               std::int64_t hash_block_tokens = 0) {
  std::vector<std::int32_t> tokens;
  for (const std::uint64_t hash : request.block_hashes) {
    for (std::int64_t i = 0; i < hash_block_tokens; ++i) {
      tokens.push_back(shared_token(seed, hash, i, kVocabulary));
    }
  }
  for (auto i = std::ssize(tokens); i < request.prompt_tokens; ++i) {
    tokens.push_back(prompt_token(seed, request.id, i, kVocabulary));
  }
  for (std::int64_t i = 0; i < request.output_tokens; ++i) tokens.push_back(next_token(tokens));
  return tokens;
}

struct RunnerTimes {
  Seconds base;
  Seconds per_token;  // of prompts
};

// With a cache of `num_blocks` on each data-parallel rank.
class FakeRunner : public StepRunner {
 public:
  FakeRunner(std::int64_t num_blocks, std::int64_t block_size, RunnerTimes times = {},
             int num_dp_ranks = 1)
      : block_size_(block_size),
        caches_(static_cast<std::size_t>(num_dp_ranks),
                std::vector<std::int32_t>(static_cast<std::size_t>(num_blocks * block_size), -1)),
        times_(times) {}

  void capture(std::int64_t rows) override { captured.push_back(rows); }

  std::vector<std::int32_t> run(const StepInput& input, std::int64_t graph_rows,
                                const KvMoves& moves) override {
    EXPECT_TRUE(moves.is_empty());
    const LiveClock clock;
    runs.push_back(graph_rows);
    if (num_runs_before_failure == 0) {
      has_failed = true;
      throw std::runtime_error("rank 1, op o_proj: lost");
    }
    --num_runs_before_failure;
    EXPECT_TRUE(graph_rows == 0 || input.prefill.empty());
    std::vector<std::int64_t> decodes(caches_.size());
    for (const SequenceTokens& decode : input.decodes) ++decodes[rank_of(decode)];
    num_decodes.push_back(std::move(decodes));
    std::int64_t prompt_tokens = 0;
    std::vector<std::int32_t> next;
    for (const SequenceTokens& chunk : input.prefill) {
      prompt_tokens += static_cast<std::int64_t>(chunk.tokens.size());
      store(chunk);
    }
    for (const SequenceTokens& decode : input.decodes) {
      EXPECT_EQ(decode.tokens.size(), 1U);
      store(decode);
    }
    // All are stored before one is read: a slot that two sequences write shows.
    for (const auto& sequences : {input.prefill, input.decodes}) {
      for (const SequenceTokens& sequence : sequences) {
        if (sequence.produces_token) next.push_back(next_token(history(sequence)));
      }
    }
    clock.wait_until(times_.base + times_.per_token * static_cast<double>(prompt_tokens));
    ++num_ended;
    return next;
  }

  // The content of block `source` of another runner's cache.
  void copy_block(const FakeRunner& from, std::int32_t source, std::int32_t destination,
                  int from_rank = 0, int to_rank = 0) {
    for (std::int64_t i = 0; i < block_size_; ++i) {
      caches_.at(static_cast<std::size_t>(to_rank))
          .at(static_cast<std::size_t>(destination * block_size_ + i)) =
          from.caches_.at(static_cast<std::size_t>(from_rank))
              .at(static_cast<std::size_t>(source * block_size_ + i));
    }
  }

  std::vector<std::int64_t> captured;
  std::vector<std::int64_t> runs;                      // rows of the graph, 0: eager
  std::vector<std::vector<std::int64_t>> num_decodes;  // of each run, by data-parallel rank
  std::int64_t num_runs_before_failure = -1;
  std::atomic<std::int64_t> num_ended = 0;  // runs
  std::atomic<bool> has_failed = false;

 private:
  // Of several ranks all sequences must name theirs; of one, none.
  [[nodiscard]] std::size_t rank_of(const SequenceTokens& of) const {
    EXPECT_EQ(of.dp_rank >= 0, caches_.size() > 1);
    return static_cast<std::size_t>(std::max(of.dp_rank, 0));
  }
  [[nodiscard]] std::int32_t& slot(const SequenceTokens& of, std::int64_t position) {
    const std::int32_t block = of.blocks.at(static_cast<std::size_t>(position / block_size_));
    return caches_.at(rank_of(of))
        .at(static_cast<std::size_t>(block * block_size_ + position % block_size_));
  }
  void store(const SequenceTokens& sequence) {
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
      slot(sequence, sequence.context + static_cast<std::int64_t>(i)) = sequence.tokens[i];
    }
  }
  std::vector<std::int32_t> history(const SequenceTokens& of) {
    std::vector<std::int32_t> tokens;
    const auto end = of.context + static_cast<std::int64_t>(of.tokens.size());
    tokens.reserve(static_cast<std::size_t>(end));
    for (std::int64_t position = 0; position < end; ++position) {
      tokens.push_back(slot(of, position));
    }
    return tokens;
  }

  std::int64_t block_size_;
  std::vector<std::vector<std::int32_t>> caches_;  // token by slot, of each data-parallel rank
  RunnerTimes times_;
};

// Steps that take as long as those of one replica took before.
class RepeatedSteps : public StepBackend {
 public:
  RepeatedSteps(std::span<const StepRecord> steps, int replica) {
    for (const StepRecord& step : steps) {
      if (step.replica == replica) durations_.push_back(step.duration);
    }
  }
  StepTime run(std::span<const Batch> /*ranks*/) override {
    // What they waited for blocks is in their times.
    return {.duration = durations_.at(next_++), .waited = Seconds(0)};
  }
  FastForward fast_forward(std::span<const Batch> /*ranks*/, std::int64_t /*max_steps*/) override {
    return {.num_steps = 1, .first = durations_.at(next_++)};
  }

 private:
  std::vector<Seconds> durations_;
  std::size_t next_ = 0;
};

// What ExecutedSteps holds at its end.
struct Kept {
  std::vector<std::vector<std::int32_t>> tokens;  // by request
  std::size_t num_blocks = 0;                     // held by requests
};

class KeptSteps : public ExecutedSteps {
 public:
  KeptSteps(ExecutedStepsConfig config, std::span<const Request> requests, StepRunner& runner,
            const LiveClock& clock, Kept& kept)
      : ExecutedSteps(std::move(config), requests, runner, clock),
        num_requests_(requests.size()),
        kept_(kept) {}
  ~KeptSteps() override {
    kept_ = {};
    for (std::size_t i = 0; i < num_requests_; ++i) {
      const auto own = tokens(static_cast<std::int64_t>(i));
      kept_.tokens.emplace_back(own.begin(), own.end());
      kept_.num_blocks += blocks(static_cast<std::int64_t>(i)).size();
    }
  }

 private:
  std::size_t num_requests_;
  Kept& kept_;
};

}  // namespace orrery::testing
