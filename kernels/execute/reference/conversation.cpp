#include "kernels/execute/reference/conversation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "kernels/execute/rank_batches.h"
#include "kernels/execute/reference/model.h"

namespace orrery {
namespace {

constexpr std::int32_t kBlockSize = kConversationBlockSize;
constexpr auto kNumSequences = static_cast<int>(kConversationSequences);
// Sequences 0 and 2 in two chunks, so that with two data-parallel ranks each has a chunk beside a
// decode.
constexpr std::array<std::int64_t, kNumSequences> kFirstChunk{33, 70, 12, 91};
constexpr std::int64_t kSecondChunk = 20;
constexpr bool in_two_chunks(int sequence) { return sequence % 2 == 0; }

// A sequence of the conversation: its tokens so far, all but the last in the cache.
struct Conversant {
  int index = 0;
  std::vector<std::int32_t> tokens;

  // Tokens [first, first + count), in blocks 4 apart.
  [[nodiscard]] SequenceTokens part(std::int64_t first, std::int64_t count, bool produces) const {
    SequenceTokens part{.tokens = {tokens.begin() + first, tokens.begin() + first + count},
                        .context = first,
                        .produces_token = produces};
    for (std::int64_t i = 0; i * kBlockSize < first + count; ++i) {
      part.blocks.push_back(static_cast<std::int32_t>(index + kNumSequences * i));
    }
    return part;
  }
  [[nodiscard]] SequenceTokens decode() const { return part(std::ssize(tokens) - 1, 1, true); }
};

std::vector<Conversant> prompts(std::int64_t vocab) {
  std::vector<Conversant> sequences;
  for (int i = 0; i < kNumSequences; ++i) {
    Conversant sequence{.index = i};
    const std::int64_t length =
        kFirstChunk[static_cast<std::size_t>(i)] + (in_two_chunks(i) ? kSecondChunk : 0);
    for (std::int64_t token = 0; token < length; ++token) {
      sequence.tokens.push_back(static_cast<std::int32_t>(
          (131 * token * token + 17 * token + std::int64_t{29} * i + 5) % vocab));
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

std::int64_t num_decodes(const StepInput& input) { return std::ssize(input.decodes); }

void check_sizes(std::size_t step, std::size_t num_logits, std::size_t num_tokens,
                 std::size_t expected_logits, std::size_t expected_tokens) {
  if (num_logits == expected_logits && num_tokens == expected_tokens) return;
  throw std::runtime_error("step " + std::to_string(step) + " has " + std::to_string(num_logits) +
                           " logits and " + std::to_string(num_tokens) + " tokens, expected " +
                           std::to_string(expected_logits) + " and " +
                           std::to_string(expected_tokens));
}

double largest_magnitude(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Infinite where a value is not finite.
double largest_difference(std::span<const float> found, std::span<const double> expected) {
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(found[i] - expected[i]);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

std::unique_ptr<reference::Model> model_of(const CheckedDeployment& deployment) {
  return std::make_unique<reference::Model>(
      reference::ModelSetup{.grid = deployment.grid,
                            .numbers = deployment.numbers,
                            .seed = deployment.seed,
                            .num_kv_blocks = kConversationBlocks,
                            .block_size = kBlockSize,
                            .rounding = reference::Rounding::kStored});
}

enum class TokenVerdict : std::uint8_t { kEqual, kNearTie, kWrong };

// `logits` and `expected` of its row. `tie`: the most by which expected logits of two tokens may
// differ so that either may be the likeliest.
TokenVerdict judge(std::int32_t token, std::int32_t expected_token, std::span<const float> logits,
                   std::span<const double> expected, double tie) {
  if (std::ranges::max_element(logits) - logits.begin() != token) return TokenVerdict::kWrong;
  if (token == expected_token) return TokenVerdict::kEqual;
  const double gap = expected[static_cast<std::size_t>(expected_token)] -
                     expected[static_cast<std::size_t>(token)];
  return gap <= tie ? TokenVerdict::kNearTie : TokenVerdict::kWrong;
}

}  // namespace

std::vector<CheckedStep> reference_conversation(const CheckedDeployment& deployment,
                                                int num_decode_steps) {
  std::vector<Conversant> sequences = prompts(deployment.vocab);
  std::vector<CheckedStep> steps;
  std::unique_ptr<reference::Model> model;
  // Runs a step in which `sampled` are the sequences of its logits, in order.
  const auto run = [&](StepInput input, const std::vector<int>& sampled) {
    StepPlans plans = deployment.lower(input, num_decodes(input));
    if (!model) model = model_of(deployment);
    reference::StepResult result = model->run(plans.whole, input);
    for (std::size_t row = 0; row < sampled.size(); ++row) {
      sequences[static_cast<std::size_t>(sampled[row])].tokens.push_back(result.next_tokens[row]);
    }
    const bool is_decode = input.prefill.empty();
    steps.push_back({.input = std::move(input),
                     .is_decode = is_decode,
                     .logits = std::move(result.logits),
                     .next_tokens = std::move(result.next_tokens)});
  };

  StepInput first;
  for (const Conversant& sequence : sequences) {
    first.prefill.push_back(sequence.part(0, kFirstChunk[static_cast<std::size_t>(sequence.index)],
                                          !in_two_chunks(sequence.index)));
  }
  run(std::move(first), {1, 3});
  StepInput mixed;
  for (const Conversant& sequence : sequences) {
    if (in_two_chunks(sequence.index)) {
      mixed.prefill.push_back(
          sequence.part(kFirstChunk[static_cast<std::size_t>(sequence.index)], kSecondChunk, true));
    } else {
      mixed.decodes.push_back(sequence.decode());
    }
  }
  run(std::move(mixed), {0, 2, 1, 3});
  for (int step = 0; step < num_decode_steps; ++step) {
    StepInput decode;
    for (const Conversant& sequence : sequences) decode.decodes.push_back(sequence.decode());
    run(std::move(decode), {0, 1, 2, 3});
  }
  return steps;
}

std::vector<CheckedStep> decoded_conversation(const CheckedDeployment& deployment, int num_steps) {
  constexpr int kStepsBetween = 3;
  std::vector<Conversant> sequences = prompts(deployment.vocab);
  std::vector<CheckedStep> steps;
  const std::unique_ptr<reference::Model> model = model_of(deployment);
  for (int step = 0; step < num_steps; ++step) {
    const auto position = [&](const Conversant& of) { return step - kStepsBetween * of.index; };
    CheckedStep& next = steps.emplace_back(CheckedStep{.input = {}, .is_decode = true});
    for (const Conversant& sequence : sequences) {
      if (position(sequence) < 0) continue;
      next.input.decodes.push_back(sequence.part(position(sequence), 1, true));
    }
    reference::StepResult result =
        model->run(deployment.lower(next.input, num_decodes(next.input)).whole, next.input);
    for (std::size_t i = 0; i < next.input.decodes.size(); ++i) {
      std::vector<std::int32_t>& tokens = sequences[i].tokens;
      if (position(sequences[i]) + 1 == std::ssize(tokens)) tokens.push_back(result.next_tokens[i]);
    }
    next.logits = std::move(result.logits);
    next.next_tokens = std::move(result.next_tokens);
  }
  return steps;
}

std::vector<CheckedStep> in_halves(std::vector<CheckedStep> steps, int dp) {
  for (CheckedStep& step : steps) step.input = in_halves(step.input, dp);
  return steps;
}

std::vector<CheckedStep> on_unlike_ranks(std::vector<CheckedStep> steps) {
  for (CheckedStep& step : steps) {
    for (auto* sequences : {&step.input.prefill, &step.input.decodes}) {
      for (SequenceTokens& sequence : *sequences) {
        const int index = sequence.blocks.front() % kNumSequences;
        sequence.dp_rank = index == kNumSequences - 1 ? 0 : 1;
      }
    }
  }
  return steps;
}

RepeatedConversation repeat_conversation(const CheckedDeployment& deployment,
                                         const std::vector<CheckedStep>& steps,
                                         std::int64_t decode_rows,
                                         const std::vector<reference::GivenScores>& scores) {
  RepeatedConversation result;
  std::unique_ptr<reference::Model> model;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const CheckedStep& step = steps[i];
    const StepPlans plans =
        deployment.lower(step.input, step.is_decode ? decode_rows : num_decodes(step.input));
    if (!model) model = model_of(deployment);
    reference::StepResult run = model->run(plans.plan, step.input, scores.at(i));
    result.logits.push_back(std::move(run.logits));
    result.next_tokens.push_back(std::move(run.next_tokens));
    result.score_difference = std::max(result.score_difference, run.score_difference);
  }
  return result;
}

ConversationDifference compare_conversations(
    const ExecutedConversation& found, const std::vector<std::vector<double>>& expected_logits,
    const std::vector<std::vector<std::int32_t>>& expected_tokens, double bound) {
  ConversationDifference result;
  for (std::size_t step = 0; step < expected_logits.size(); ++step) {
    const std::span expected(expected_logits[step]);
    const std::span logits(found.logits[step]);
    const std::vector<std::int32_t>& found_tokens = found.next_tokens[step];
    const std::vector<std::int32_t>& tokens = expected_tokens[step];
    check_sizes(step, logits.size(), found_tokens.size(), expected.size(), tokens.size());
    if (tokens.empty()) continue;
    const double largest = largest_magnitude(expected);
    result.logits = std::max(result.logits, largest_difference(logits, expected) / largest);
    const std::size_t vocab = expected.size() / tokens.size();
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      const TokenVerdict verdict =
          judge(found_tokens[row], tokens[row], logits.subspan(row * vocab, vocab),
                expected.subspan(row * vocab, vocab), 2 * bound * largest);
      ++result.num_tokens;
      if (verdict == TokenVerdict::kWrong) ++result.wrong_tokens;
      if (verdict == TokenVerdict::kNearTie) ++result.near_ties;
    }
  }
  return result;
}

}  // namespace orrery
