// Laws of prefill and decode apart, on random workloads: a step takes 10 ms + 1 ms for each prompt
// token unless stated.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "sim/serve/disaggregated.h"
#include "sim/serve/workload.h"
#include "tests/serve/disaggregated_testing.h"

namespace orrery {
namespace {

using testing::FakeTimes;
using testing::random_workload;
using testing::serve_fake;
using testing::set_rate;
using testing::small_pair;

// 80 blocks of 4 tokens hold one longest request (270 tokens) and little more.
DisaggregatedConfig tight_pair(int num_prefill = 1, int num_decode = 1) {
  DisaggregatedConfig config = small_pair(num_prefill, num_decode);
  config.prefill.num_kv_blocks = 80;
  config.decode.num_kv_blocks = 80;
  return config;
}

class DisaggregatedLaws : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(DisaggregatedLaws, PromptsNeverDisturbDecodes) {
  // However long prompts are, each token after the second comes 10 ms after the one before.
  DisaggregatedConfig config = small_pair();
  set_rate(config, std::numeric_limits<double>::infinity());
  config.decode.engine.max_num_seqs = 64;
  std::map<int, std::vector<Batch>> batches;
  const auto result = serve_fake(random_workload(GetParam(), 25), config, {}, &batches);
  for (const Batch& batch : batches[1]) ASSERT_TRUE(batch.prefill.empty());
  for (const Batch& batch : batches[0]) ASSERT_EQ(batch.num_decodes, 0);
  ASSERT_EQ(result.metrics.num_preemptions, 0);
  for (const RequestRecord& record : result.requests) {
    if (record.output_tokens < 2) continue;
    ASSERT_NEAR((record.finish - record.decode_start).value(),
                0.010 * static_cast<double>(record.output_tokens - 1), 1e-9);
    EXPECT_EQ(record.exposed_transfer, Seconds(0));
    // It waits for the step in progress at most.
    EXPECT_LE((record.decode_start - record.prefill_end).value(), 0.010 + 1e-9);
  }
}

TEST_P(DisaggregatedLaws, EachRequestIsPrefilledOnceMovedOnceAndAllBlocksComeBack) {
  const Workload workload = random_workload(GetParam(), 25);
  DisaggregatedConfig config = small_pair(2, 3);
  config.prefill.router = RouterKind::kLeastLoaded;
  config.decode.router = RouterKind::kLeastLoaded;
  std::map<int, std::vector<Batch>> batches;
  const auto result = serve_fake(workload, config, {}, &batches);
  ASSERT_EQ(result.metrics.num_preemptions, 0);
  std::int64_t prefilled = 0;
  std::int64_t num_prompts = 0;
  for (const auto& [replica, list] : batches) {
    for (const Batch& batch : list) {
      for (const PrefillChunk& chunk : batch.prefill) {
        prefilled += chunk.query;
        num_prompts += chunk.produces_token ? 1 : 0;
      }
    }
  }
  std::int64_t prompt_tokens = 0;
  std::int64_t num_moved = 0;
  Bytes moved;
  for (const RequestRecord& record : result.requests) {
    prompt_tokens += record.prompt_tokens;
    if (record.output_tokens == 1) continue;
    ++num_moved;
    const std::int64_t num_blocks = (record.prompt_tokens + 3) / 4;
    const auto blocks = static_cast<double>(num_blocks);
    EXPECT_EQ(record.transfer_bytes, Bytes(2000 * blocks));
    moved += record.transfer_bytes;
    EXPECT_GE((record.transfer_end - record.transfer_start).value(), 0.002 * blocks - 1e-9);
    EXPECT_LE(record.prefill_end, record.transfer_start);
    EXPECT_LE(record.transfer_end, record.decode_start);
    EXPECT_LT(record.decode_start, record.second_token);
    EXPECT_LE(record.second_token, record.finish);
    EXPECT_GE(record.exposed_transfer, Seconds(0));
    EXPECT_GE(record.decode_replica, 2);
  }
  EXPECT_EQ(prefilled, prompt_tokens);
  EXPECT_EQ(num_prompts, 300);
  EXPECT_EQ(result.metrics.disaggregation->num_transfers, num_moved);
  EXPECT_EQ(result.metrics.disaggregation->transferred, moved);
  // Per replica the last step leaves only the blocks of what ends with it (prefill replicas: of
  // what is handed over then).
  std::map<int, StepRecord> last;
  for (const StepRecord& step : result.steps) last[step.replica] = step;
  for (const auto& [replica, step] : last) {
    std::int64_t blocks = 0;
    const Seconds end = step.start + step.duration;
    for (const RequestRecord& record : result.requests) {
      const bool is_prefill = replica < 2;
      const std::int64_t tokens =
          record.prompt_tokens + (is_prefill ? 0 : record.output_tokens - 1);
      const bool is_held = is_prefill
                               ? record.replica == replica &&
                                     (record.output_tokens == 1
                                          ? record.finish == end
                                          : record.prefill_end <= end && record.transfer_end > end)
                               : record.decode_replica == replica && record.finish == end;
      if (is_held) blocks += (tokens + 3) / 4;
    }
    EXPECT_EQ(step.kv_blocks_used, blocks) << "replica " << replica;
  }
}

TEST_P(DisaggregatedLaws, EveryRequestIsServedWhateverMemoryAndLinksAllow) {
  const Workload workload = random_workload(GetParam(), 25);
  for (const KvAdmission admission :
       {KvAdmission::kPrompt, KvAdmission::kFullLength, KvAdmission::kEstimated}) {
    for (const double rate : {1e4, 5e5}) {
      DisaggregatedConfig config = tight_pair(1, 2);
      config.decode.engine.kv_admission = admission;
      config.decode.engine.new_token_ratio = 0.3;
      set_rate(config, rate);
      const auto result = serve_fake(workload, config);
      for (const RequestRecord& record : result.requests) {
        ASSERT_GT(record.finish, record.arrival);
        ASSERT_LE(record.first_token, record.finish);
        if (record.output_tokens > 1) {
          ASSERT_GT(record.second_token, record.prefill_end);
        }
      }
      for (const StepRecord& step : result.steps) ASSERT_LE(step.kv_blocks_used, 80);
      if (admission == KvAdmission::kFullLength) {
        EXPECT_EQ(result.metrics.num_preemptions, 0);
      }
    }
  }
}

// Layers that move while prompts are computed: all are served, none decodes before its first token
// and its KV cache are there, and less of the transfers is waited for.
TEST_P(DisaggregatedLaws, LayersThatMoveEarlierAreThereEarlier) {
  const Workload workload = random_workload(GetParam(), 25);
  for (const bool is_async : {false, true}) {
    DisaggregatedConfig config = tight_pair(2, 2);
    config.num_moved_layers = 8;
    config.prefill.engine.async_scheduling = is_async;
    config.decode.engine.async_scheduling = is_async;
    set_rate(config, 3e5, 0.0002);
    const auto result = serve_fake(workload, config);
    for (const RequestRecord& record : result.requests) {
      ASSERT_GT(record.finish, record.arrival);
      if (record.output_tokens < 2) continue;
      EXPECT_GT(record.transfer_end, record.prefill_end);
      EXPECT_GE(record.decode_start, record.transfer_end);
      EXPECT_GE(record.exposed_transfer, Seconds(0));
      EXPECT_GT(record.second_token, record.decode_start);
    }
  }
  // Nobody waits for room or seats to decode.
  DisaggregatedConfig roomy = small_pair();
  roomy.decode.engine.max_num_seqs = 64;
  const auto whole = serve_fake(workload, roomy);
  roomy.num_moved_layers = 8;
  const auto layers = serve_fake(workload, roomy);
  EXPECT_LT(layers.metrics.disaggregation->exposed_s.mean,
            whole.metrics.disaggregation->exposed_s.mean);
  for (std::size_t i = 0; i < layers.requests.size(); ++i) {
    EXPECT_EQ(layers.requests[i].transfer_bytes, whole.requests[i].transfer_bytes);
  }
}

// With fast-forwards and without, whatever blocks are admitted by.
void expect_equal_steps(const Workload& workload, const FakeTimes& times,
                        std::int64_t num_moved_layers) {
  FakeTimes single = times;
  single.fast_forwards = false;
  for (const KvAdmission admission :
       {KvAdmission::kPrompt, KvAdmission::kFullLength, KvAdmission::kEstimated}) {
    for (const bool is_async : {false, true}) {
      SCOPED_TRACE("admission " + std::to_string(static_cast<int>(admission)) + ", asynchronous " +
                   std::to_string(is_async ? 1 : 0) + ", layers " +
                   std::to_string(num_moved_layers));
      DisaggregatedConfig config = tight_pair();
      config.num_moved_layers = num_moved_layers;
      config.prefill.engine.async_scheduling = is_async;
      config.decode.engine.async_scheduling = is_async;
      config.decode.engine.kv_admission = admission;
      config.decode.engine.new_token_ratio = 0.3;
      set_rate(config, 487391.7, 0.0003141);
      const auto fast = serve_fake(workload, config, times);
      const auto steps = serve_fake(workload, config, single);
      for (std::size_t i = 0; i < fast.requests.size(); ++i) {
        const RequestRecord& a = fast.requests[i];
        const RequestRecord& b = steps.requests[i];
        ASSERT_NEAR(a.transfer_end.value(), b.transfer_end.value(), 1e-9) << "request " << i;
        ASSERT_NEAR(a.decode_start.value(), b.decode_start.value(), 1e-9) << "request " << i;
        ASSERT_NEAR(a.second_token.value(), b.second_token.value(), 1e-9) << "request " << i;
        ASSERT_NEAR(a.exposed_transfer.value(), b.exposed_transfer.value(), 1e-9)
            << "request " << i;
        ASSERT_NEAR(a.finish.value(), b.finish.value(), 1e-9) << "request " << i;
        ASSERT_EQ(a.num_preemptions, b.num_preemptions) << "request " << i;
      }
      EXPECT_EQ(fast.metrics.num_steps, steps.metrics.num_steps);
      EXPECT_LT(fast.steps.size(), steps.steps.size());
      EXPECT_NEAR(fast.metrics.itl_s.mean, steps.metrics.itl_s.mean, 1e-12);
    }
  }
}

TEST_P(DisaggregatedLaws, FastForwardsAreEqualToSingleSteps) {
  const Workload workload = random_workload(GetParam(), 25);
  // Times that have no common grid: at a tie the order of events would be one of rounding.
  const FakeTimes times{.base = Seconds(0.0097531), .per_context = Seconds(1.0369e-5)};
  for (const std::int64_t num_moved_layers : {0, 8}) {
    expect_equal_steps(workload, times, num_moved_layers);
  }
}

TEST_P(DisaggregatedLaws, ThreadsDoNotChangeTheResult) {
  const Workload workload = random_workload(GetParam(), 25);
  DisaggregatedConfig config = tight_pair(2, 2);
  const auto one = serve_fake(workload, config);
  config.prefill.num_threads = 4;
  config.decode.num_threads = 3;
  const auto many = serve_fake(workload, config);
  for (std::size_t i = 0; i < one.requests.size(); ++i) {
    ASSERT_EQ(one.requests[i].finish, many.requests[i].finish);
    ASSERT_EQ(one.requests[i].transfer_end, many.requests[i].transfer_end);
  }
}

TEST_P(DisaggregatedLaws, AClosedLoopKeepsItsConcurrency) {
  Workload workload = random_workload(GetParam(), 25);
  workload.closed_loop_concurrency = 5;
  const auto result = serve_fake(workload, small_pair(2, 1));
  std::vector<double> finishes;
  finishes.reserve(result.requests.size());
  for (const RequestRecord& record : result.requests) finishes.push_back(record.finish.value());
  std::ranges::sort(finishes);
  for (std::size_t i = 5; i < result.requests.size(); ++i) {
    ASSERT_EQ(result.requests[i].arrival.value(), finishes[i - 5]);
  }
}

TEST_P(DisaggregatedLaws, ItlsAddUpToTheTimeFromFirstToLastToken) {
  const auto result = serve_fake(random_workload(GetParam(), 25), tight_pair());
  double sum = 0;
  std::int64_t num_gaps = 0;
  for (const RequestRecord& record : result.requests) {
    sum += (record.finish - record.first_token).value();
    num_gaps += record.output_tokens - 1;
  }
  EXPECT_NEAR(result.metrics.itl_s.mean, sum / static_cast<double>(num_gaps), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DisaggregatedLaws, ::testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace orrery
