#include "kernels/serve/executed_steps.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {
namespace {

// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

void require_positive(std::int64_t value, const char* name) {
  if (value >= 1) return;
  throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) +
                              ", expected at least 1");
}

}  // namespace

std::int32_t prompt_token(std::uint64_t seed, std::int64_t request, std::int64_t position,
                          std::int64_t vocab_size) {
  const std::uint64_t noise = mix(mix(seed ^ mix(static_cast<std::uint64_t>(request))) +
                                  static_cast<std::uint64_t>(position));
  return static_cast<std::int32_t>(noise % static_cast<std::uint64_t>(vocab_size));
}

std::int32_t shared_token(std::uint64_t seed, std::uint64_t hash, std::int64_t position,
                          std::int64_t vocab_size) {
  return prompt_token(~seed, static_cast<std::int64_t>(hash), position, vocab_size);
}

ExecutedSteps::ExecutedSteps(ExecutedStepsConfig config, std::span<const Request> requests,
                             StepRunner& runner, const LiveClock& clock)
    : config_(std::move(config)),
      runner_(runner),
      clock_(clock),
      ranks_(requests.size()),
      tokens_(requests.size()) {
  require_positive(config_.num_kv_blocks, "num_kv_blocks");
  require_positive(config_.block_size, "block_size");
  require_positive(config_.num_dp_ranks, "num_dp_ranks");
  require_positive(config_.vocab_size, "vocab_size");
  if (!std::ranges::is_sorted(config_.graph_batch_sizes)) {
    throw std::invalid_argument("graph_batch_sizes must ascend");
  }
  if (!config_.graph_batch_sizes.empty()) {
    require_positive(config_.graph_batch_sizes.front(), "the first of graph_batch_sizes");
  }
  if (config_.caches_prefixes) {
    if (config_.num_dp_ranks > 1) {
      throw std::invalid_argument("prefixes are cached on " + std::to_string(config_.num_dp_ranks) +
                                  " data-parallel ranks of a replica, which is not executed; "
                                  "expected dp 1");
    }
    prefixes_.emplace(config_.num_kv_blocks, config_.block_size,
                      config_.hash_block_tokens / config_.block_size, std::ssize(requests));
  }
  for (int rank = 0; rank < config_.num_dp_ranks; ++rank) {
    pools_.emplace_back(config_.num_kv_blocks, config_.block_size,
                        static_cast<std::int64_t>(requests.size()));
  }
  // Prompts are there when their requests come: making them is no part of a step.
  for (const Request& request : requests) make_prompt(request);
}

void ExecutedSteps::make_prompt(const Request& request) {
  std::vector<std::int32_t>& tokens = tokens_[static_cast<std::size_t>(request.id)];
  tokens.reserve(static_cast<std::size_t>(request.prompt_tokens + request.output_tokens));
  for (const std::uint64_t hash : request.block_hashes) {
    for (std::int64_t at = 0; at < config_.hash_block_tokens; ++at) {
      if (std::ssize(tokens) == request.prompt_tokens) return;
      tokens.push_back(shared_token(config_.seed, hash, at, config_.vocab_size));
    }
  }
  for (auto at = std::ssize(tokens); at < request.prompt_tokens; ++at) {
    tokens.push_back(prompt_token(config_.seed, request.id, at, config_.vocab_size));
  }
}

void ExecutedSteps::begin(Seconds now, std::span<const StepSequence> prefill,
                          std::span<const StepSequence> decodes) {
  ++num_steps_;
  begin_ = now;
  input_ = {};
  sampled_.clear();
  input_.prefill.reserve(prefill.size());
  input_.decodes.reserve(decodes.size());
  for (const StepSequence& chunk : prefill) input_.prefill.push_back(sequence(chunk));
  for (const StepSequence& decode : decodes) input_.decodes.push_back(sequence(decode));
  if (prefixes_) moves_ = prefixes_->take_moves();
}

SequenceTokens ExecutedSteps::sequence(const StepSequence& of) {
  const std::vector<std::int32_t>& tokens = tokens_[static_cast<std::size_t>(of.request)];
  const std::int64_t end = of.context + of.query;
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (end > length || of.produces_token != (end == length)) {
    throw std::logic_error("request " + std::to_string(of.request) + " has " +
                           std::to_string(length) + " tokens; a step computes those up to " +
                           std::to_string(end));
  }
  if (of.produces_token) sampled_.push_back(of.request);
  ranks_[static_cast<std::size_t>(of.request)] = of.rank;
  const std::span<const std::int32_t> blocks =
      prefixes_ ? prefixes_->cover(of.request, end)
                : pools_[rank_of(of.request)].cover(of.request, end);
  return {.tokens = {tokens.begin() + of.context, tokens.begin() + end},
          .context = of.context,
          .blocks = {blocks.begin(), blocks.end()},
          .produces_token = of.produces_token,
          .dp_rank = config_.num_dp_ranks > 1 ? of.rank : -1};
}

void ExecutedSteps::release(std::int64_t request) {
  prefixes_ ? prefixes_->release(request) : pools_[rank_of(request)].release(request);
}

// All ranks pad to the graph of the one with most decodes.
std::int64_t ExecutedSteps::graph_rows() const {
  if (!input_.prefill.empty()) return 0;
  std::vector<std::int64_t> decodes(pools_.size());
  for (const SequenceTokens& decode : input_.decodes) {
    ++decodes[static_cast<std::size_t>(std::max(decode.dp_rank, 0))];
  }
  const auto size = std::ranges::lower_bound(config_.graph_batch_sizes, std::ranges::max(decodes));
  return size == config_.graph_batch_sizes.end() ? 0 : *size;
}

Seconds ExecutedSteps::compute() {
  const std::vector<std::int32_t> next = runner_.run(input_, graph_rows(), moves_);
  if (next.size() != sampled_.size()) {
    throw std::logic_error("a step made " + std::to_string(next.size()) + " tokens, expected " +
                           std::to_string(sampled_.size()));
  }
  for (std::size_t i = 0; i < next.size(); ++i) {
    tokens_[static_cast<std::size_t>(sampled_[i])].push_back(next[i]);
  }
  return clock_.now() - begin_;
}

StepTime ExecutedSteps::run(std::span<const Batch> /*ranks*/) {
  const Seconds duration = compute();
  return {.duration = duration, .basis = {.measured = duration}, .waited = runner_.waited()};
}

FastForward ExecutedSteps::fast_forward(std::span<const Batch> /*ranks*/,
                                        std::int64_t /*max_steps*/) {
  const Seconds duration = compute();
  return {.num_steps = 1,
          .first = duration,
          .slope = Seconds(0),
          .basis = {.measured = duration},
          .waited = runner_.waited()};
}

std::span<const std::int32_t> ExecutedSteps::adopt(std::int64_t request, std::int64_t context,
                                                   int rank) {
  ranks_[static_cast<std::size_t>(request)] = rank;
  return pools_[rank_of(request)].cover(request, context);
}

void ExecutedSteps::take_over(std::int64_t request, std::span<const std::int32_t> tokens) {
  tokens_[static_cast<std::size_t>(request)].assign(tokens.begin(), tokens.end());
}

}  // namespace orrery
