#include "kernels/execute/check.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {
namespace {

template <typename T>
std::vector<T> downloaded(const cuda::Stream& stream, const cuda::DeviceBuffer<T>& buffer) {
  std::vector<T> values(buffer.size());
  ORRERY_CUDA(cudaMemcpyAsync(values.data(), buffer.get(), values.size() * sizeof(T),
                              cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  return values;
}

template <typename T>
std::int64_t num_different(std::span<const T> found, std::span<const float> expected) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    count += static_cast<float>(found[i]) == expected[i] ? 0 : 1;
  }
  return count;
}

reference::GivenScores recorded_scores(const Executor& executor, const PreparedStep& step) {
  reference::GivenScores scores(static_cast<std::size_t>(executor.num_ranks()));
  for (const int rank : executor.ranks()) {
    const std::vector<Task> tasks = rank_tasks(step.plan(), rank);
    std::vector<std::vector<float>> recorded = executor.recorded(step, rank);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (recorded[i].empty()) continue;
      scores[static_cast<std::size_t>(rank)][{tasks[i].op, tasks[i].copy}] = std::move(recorded[i]);
    }
  }
  return scores;
}

// With as many blocks as sequences take where `cp` ranks have a block's tokens each.
StepInput over_ranks(StepInput input, int cp) {
  const std::int64_t tokens = std::int64_t{kConversationBlockSize} * cp;
  for (auto* sequences : {&input.prefill, &input.decodes}) {
    for (SequenceTokens& sequence : *sequences) {
      const std::int64_t length = sequence.context + std::ssize(sequence.tokens);
      sequence.blocks.resize(static_cast<std::size_t>((length + tokens - 1) / tokens));
    }
  }
  return input;
}

}  // namespace

std::int64_t num_different_elements(const WeightShard& shard, std::int64_t copy, DType dtype,
                                    std::uint64_t seed) {
  const StoredWeight expected = stored_weight(shard, copy, dtype, seed);
  const cuda::Stream stream;
  const std::size_t size = expected.values.size();
  if (dtype == DType::kBf16) {
    const cuda::DeviceBuffer<bf16> data(size);
    fill_weight(stream, shard, copy, dtype, data.get(), nullptr, seed);
    return num_different<bf16>(downloaded(stream, data), expected.values);
  }
  const cuda::DeviceBuffer<fp8> data(size);
  const cuda::DeviceBuffer<float> scales(expected.scales.size());
  fill_weight(stream, shard, copy, dtype, data.get(), scales.get(), seed);
  return num_different<fp8>(downloaded(stream, data), expected.values) +
         num_different<float>(downloaded(stream, scales), expected.scales);
}

ExecutedConversation run_conversation(const CheckedDeployment& deployment,
                                      const std::vector<CheckedStep>& steps,
                                      const ConversationOptions& options) {
  const auto plans_of = [&](const CheckedStep& step) {
    StepPlans plans = deployment.lower(
        step.input, step.is_decode ? options.decode_rows : std::ssize(step.input.decodes));
    if (options.change) plans.plan = options.change(plans.plan);
    return plans;
  };
  std::vector<int> devices(static_cast<std::size_t>(deployment.grid.size()));
  if (const ProcessGroup& processes = options.processes; processes.size > 1) {
    std::ranges::fill(devices, kElsewhere);
    devices.at(static_cast<std::size_t>(processes.rank)) = processes.rank_on_host;
  } else {
    std::iota(devices.begin(), devices.end(), 0);
  }
  StepPlans first = plans_of(steps.front());
  std::int64_t max_tokens = options.decode_rows;
  for (const SequenceTokens& chunk : steps.front().input.prefill) {
    max_tokens += std::ssize(chunk.tokens);
  }
  std::vector<std::string> recorded;
  if (options.records_scores) recorded = {"routing_scores", "fused_moe"};
  Executor executor({.plan = std::move(first.plan),
                     .grid = deployment.grid,
                     .numbers = deployment.numbers,
                     .devices = std::move(devices),
                     .seed = deployment.seed,
                     .num_kv_blocks = kConversationBlocks,
                     .block_size = kConversationBlockSize,
                     .max_tokens = max_tokens,
                     .max_sequences = std::max(kConversationSequences, options.decode_rows),
                     .max_model_len = kConversationBlocksPerSequence * kConversationBlockSize,
                     .only_nccl = options.only_nccl,
                     .recorded_kernels = recorded,
                     .processes = options.processes});
  ExecutedConversation result;
  const auto is_kept = [&](const CheckedStep& step) {
    return step.is_decode && options.decode_mode != LaunchMode::kEager;
  };
  std::vector<std::unique_ptr<PreparedStep>> eager(steps.size());
  const auto input_of = [&](const CheckedStep& step) {
    return over_ranks(step.input, deployment.grid.cp);
  };
  const auto prepare = [&](std::size_t i) {
    if (is_kept(steps[i]) || eager[i]) return;
    eager[i] = executor.prepare(plans_of(steps[i]).plan, input_of(steps[i]), LaunchMode::kEager);
  };
  for (std::size_t i = 0; options.prepares_first && i < steps.size(); ++i) prepare(i);
  std::unique_ptr<PreparedStep> kept;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const CheckedStep& step = steps[i];
    prepare(i);
    if (is_kept(step) && !kept) {
      kept = executor.prepare(plans_of(step).plan, input_of(step), options.decode_mode);
    }
    PreparedStep& prepared = is_kept(step) ? *kept : *eager[i];
    result.next_tokens.push_back(executor.run(prepared, input_of(step)).next_tokens);
    result.logits.push_back(executor.logits(prepared));
    if (options.records_scores) result.scores.push_back(recorded_scores(executor, prepared));
  }
  return result;
}

}  // namespace orrery
