// Prefill and decode apart, against closed forms and laws: a step takes 10 ms + 1 ms for each
// prompt token unless stated.

#include "sim/serve/disaggregated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "sim/serve/workload.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeSteps;
using testing::FakeTimes;
using testing::small_service;
using testing::workload_of;

constexpr double kTolerance = 1e-12;

// Blocks of 4 tokens and 1,000 bytes; 2 ms a block.
DisaggregatedConfig small_pair(int num_prefill = 1, int num_decode = 1) {
  DisaggregatedConfig config;
  config.prefill = small_service();
  config.prefill.num_replicas = num_prefill;
  config.decode = small_service();
  config.decode.num_replicas = num_decode;
  config.links.assign(static_cast<std::size_t>(num_prefill * num_decode),
                      {.time = {.rate = BytesPerSecond(500e3)}});
  config.kv_block_per_rank = Bytes(1000);
  config.kv_block = Bytes(2000);
  return config;
}

void set_rate(DisaggregatedConfig& config, double bytes_per_s, double latency_s = 0) {
  for (TransferLink& link : config.links) {
    link.time.rate = BytesPerSecond(bytes_per_s);
    link.time.latency = Seconds(latency_s);
  }
}

ServiceResult serve_fake(const Workload& workload, const DisaggregatedConfig& config,
                         const FakeTimes& times = {},
                         std::map<int, std::vector<Batch>>* batches = nullptr) {
  return serve_disaggregated(workload, config, {}, [&](int replica) {
    return std::make_unique<FakeSteps>(times, batches == nullptr ? nullptr : &(*batches)[replica]);
  });
}

Workload random_workload(std::uint64_t seed) {
  return open_loop(25, 1.5, 300, {.kind = LengthKind::kUniform, .min = 1, .max = 150},
                   {.kind = LengthKind::kLogNormal, .mean = 20, .cv = 1, .min = 1, .max = 120},
                   seed);
}

// 80 blocks of 4 tokens hold one longest request (270 tokens) and little more.
DisaggregatedConfig tight_pair(int num_prefill = 1, int num_decode = 1) {
  DisaggregatedConfig config = small_pair(num_prefill, num_decode);
  config.prefill.num_kv_blocks = 80;
  config.decode.num_kv_blocks = 80;
  return config;
}

TEST(Disaggregated, ALoneRequestTakesItsPrefillItsTransferAndItsDecodeSteps) {
  // 20 tokens: 10 + 20 ms; 5 blocks move in 10 ms; 4 steps of 10 ms + 1 ms for each token of
  // context 21, 22, 23, 24.
  const auto result =
      serve_fake(workload_of({{.arrival = Seconds(1), .prompt_tokens = 20, .output_tokens = 5}}),
                 small_pair(), {.per_context = Seconds(0.001)});
  const RequestRecord& record = result.requests[0];
  EXPECT_EQ(record.replica, 0);
  EXPECT_EQ(record.decode_replica, 1);
  EXPECT_EQ(record.transfer_bytes, Bytes(5 * 2000));
  EXPECT_NEAR(record.first_token.value(), 1.030, kTolerance);
  EXPECT_NEAR(record.prefill_end.value(), 1.030, kTolerance);
  EXPECT_NEAR(record.transfer_start.value(), 1.030, kTolerance);
  EXPECT_NEAR(record.transfer_end.value(), 1.040, kTolerance);
  EXPECT_NEAR(record.decode_start.value(), 1.040, kTolerance);
  EXPECT_NEAR(record.second_token.value(), 1.040 + 0.031, kTolerance);
  EXPECT_NEAR(record.exposed_transfer.value(), 0.010, kTolerance);
  EXPECT_NEAR(record.finish.value(), 1.040 + 4 * 0.010 + 0.090, kTolerance);
  const DisaggregationMetrics& metrics = *result.metrics.disaggregation;
  EXPECT_EQ(metrics.num_transfers, 1);
  EXPECT_NEAR(metrics.transfer_s.mean, 0.010, kTolerance);
  EXPECT_NEAR(metrics.exposed_share, 1, kTolerance);
  EXPECT_NEAR(metrics.prefill.busy, 0.030 / 0.170, kTolerance);
  EXPECT_NEAR(metrics.decode.busy, 0.130 / 0.170, kTolerance);
  EXPECT_EQ(metrics.decode.num_steps, 4);
}

TEST(Disaggregated, OneOutputTokenEndsWithThePrefill) {
  const auto result =
      serve_fake(workload_of({{.prompt_tokens = 7, .output_tokens = 1}}), small_pair());
  EXPECT_EQ(result.requests[0].first_token, result.requests[0].finish);
  EXPECT_EQ(result.requests[0].decode_replica, -1);
  EXPECT_EQ(result.metrics.disaggregation->num_transfers, 0);
  EXPECT_EQ(result.metrics.num_steps, 1);
}

TEST(Disaggregated, ASlowerLinkDelaysTheSecondTokenByJustTheTransfer) {
  // An idle system: 6 blocks of 1,000 bytes and 3 ms of latency.
  for (const bool is_async : {false, true}) {
    DisaggregatedConfig config = small_pair();
    config.decode.engine.async_scheduling = is_async;
    config.prefill.engine.async_scheduling = is_async;
    const Workload workload = workload_of({{.prompt_tokens = 24, .output_tokens = 5}});
    set_rate(config, std::numeric_limits<double>::infinity());
    const RequestRecord instant = serve_fake(workload, config).requests[0];
    EXPECT_NEAR((instant.second_token - instant.prefill_end).value(), 0.010, kTolerance);
    EXPECT_EQ(instant.exposed_transfer, Seconds(0));
    for (const double rate : {1e6, 1e5, 1e4}) {
      set_rate(config, rate, 0.003);
      const RequestRecord record = serve_fake(workload, config).requests[0];
      const double transfer = 0.003 + 6000 / rate;
      EXPECT_EQ(record.first_token, instant.first_token);
      EXPECT_NEAR((record.second_token - instant.second_token).value(), transfer, kTolerance);
      EXPECT_NEAR((record.finish - instant.finish).value(), transfer, kTolerance);
      EXPECT_NEAR(record.exposed_transfer.value(), transfer, kTolerance);
    }
  }
}

TEST(Disaggregated, ATransferHidesBehindTheStepInProgress) {
  // The first decodes from 14 ms on in steps of 10 ms. The second's prompt runs from 14 to 28 ms;
  // its transfer of 2 ms ends at 30 ms, within the step of 24 to 34 ms: nothing is exposed. At 8 ms
  // it ends at 36 ms and the step of 34 ms is missed, so 10 ms are.
  const Workload workload =
      workload_of({{.prompt_tokens = 4, .output_tokens = 100},
                   {.arrival = Seconds(0.001), .prompt_tokens = 4, .output_tokens = 5}});
  DisaggregatedConfig config = small_pair();
  set_rate(config, std::numeric_limits<double>::infinity(), 0.002);
  RequestRecord record = serve_fake(workload, config).requests[1];
  // The first one joined 2 ms later, so all its steps begin 2 ms later.
  EXPECT_NEAR(record.transfer_end.value(), 0.030, kTolerance);
  EXPECT_NEAR(record.decode_start.value(), 0.036, kTolerance);
  EXPECT_NEAR(record.exposed_transfer.value(), 0, kTolerance);
  set_rate(config, std::numeric_limits<double>::infinity(), 0.009);
  record = serve_fake(workload, config).requests[1];
  // Steps from 23 ms on; handed over at 28 ms, here at 37 ms: 43 ms instead of 33 ms.
  EXPECT_NEAR(record.decode_start.value(), 0.043, kTolerance);
  EXPECT_NEAR(record.exposed_transfer.value(), 0.010, kTolerance);
}

TEST(Disaggregated, TransfersOfAPairFollowEachOther) {
  // Both prompts are computed in one step and handed over at 18 ms; 1 block each, 2 ms.
  const auto result = serve_fake(
      workload_of(std::vector<Request>(2, {.prompt_tokens = 4, .output_tokens = 3})), small_pair());
  EXPECT_NEAR(result.requests[0].transfer_end.value(), 0.020, kTolerance);
  EXPECT_NEAR(result.requests[1].transfer_start.value(), 0.020, kTolerance);
  EXPECT_NEAR(result.requests[1].transfer_end.value(), 0.022, kTolerance);
  // The first's step from 20 to 30 ms is in progress when the second comes.
  EXPECT_NEAR(result.requests[1].decode_start.value(), 0.030, kTolerance);
}

TEST(Disaggregated, ThePrefillSideKeepsTheBlocksUntilTheTransferHasEnded) {
  // 2 blocks: one prompt of 8 tokens. The second can start only when the first's blocks have moved,
  // 18 ms + 2 * 50 ms.
  DisaggregatedConfig config = small_pair();
  config.prefill.num_kv_blocks = 2;
  set_rate(config, 1000 / 0.050);
  const auto result = serve_fake(
      workload_of(std::vector<Request>(2, {.prompt_tokens = 8, .output_tokens = 2})), config);
  EXPECT_NEAR(result.requests[1].first_scheduled.value(), 0.118, kTolerance);
}

TEST(Disaggregated, ARequestWaitsForBlocksOfTheDecodeSide) {
  // 3 blocks: the first takes 2 (8 tokens of prompt), then a third; the second needs 2 and waits
  // until the first has ended: 18 + 4 ms, 3 steps until 52 ms.
  DisaggregatedConfig config = small_pair();
  config.decode.num_kv_blocks = 3;
  const auto result = serve_fake(
      workload_of(std::vector<Request>(2, {.prompt_tokens = 8, .output_tokens = 4})), config);
  EXPECT_NEAR(result.requests[0].finish.value(), 0.026 + 0.004 + 3 * 0.010, kTolerance);
  EXPECT_EQ(result.requests[1].transfer_start, result.requests[0].finish);
  EXPECT_NEAR(result.requests[1].exposed_transfer.value(), 0.004, kTolerance);
}

TEST(Disaggregated, FirstTokensOfAStreamIntervalComeFromTheDecodeSide) {
  // The first three tokens come together, with the second decode step.
  DisaggregatedConfig config = small_pair();
  config.prefill.engine.stream_interval = 3;
  config.decode.engine.stream_interval = 3;
  const auto result = serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 5}}), config);
  EXPECT_NEAR(result.requests[0].first_token.value(), 0.014 + 0.002 + 0.020, kTolerance);
}

TEST(Disaggregated, ThePrefixCacheOfThePrefillSideIsFound) {
  DisaggregatedConfig config = small_pair();
  config.prefill.engine.enable_prefix_caching = true;
  config.decode.engine.enable_prefix_caching = true;
  Workload workload = workload_of(
      std::vector<Request>(2, {.prompt_tokens = 20, .output_tokens = 3, .block_hashes = {1, 2}}));
  workload.requests[1].arrival = Seconds(1);
  workload.hash_block_tokens = 8;
  const auto result = serve_fake(workload, config);
  EXPECT_EQ(result.requests[1].cached_tokens, 16);
  EXPECT_EQ(result.requests[1].transfer_bytes, Bytes(5 * 2000));  // all of the prompt
  EXPECT_NEAR((result.requests[1].first_token - result.requests[1].arrival).value(), 0.014,
              kTolerance);
}

class DisaggregatedLaws : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(DisaggregatedLaws, PromptsNeverDisturbDecodes) {
  // However long prompts are, each token after the second comes 10 ms after the one before.
  DisaggregatedConfig config = small_pair();
  set_rate(config, std::numeric_limits<double>::infinity());
  config.decode.engine.max_num_seqs = 64;
  std::map<int, std::vector<Batch>> batches;
  const auto result = serve_fake(random_workload(GetParam()), config, {}, &batches);
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
  const Workload workload = random_workload(GetParam());
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
    const double blocks = static_cast<double>((record.prompt_tokens + 3) / 4);
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
  const Workload workload = random_workload(GetParam());
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

TEST_P(DisaggregatedLaws, LeapsAreEqualToSingleSteps) {
  const Workload workload = random_workload(GetParam());
  // Times that have no common grid: at a tie the order of events would be one of rounding.
  const FakeTimes times{.base = Seconds(0.0097531), .per_context = Seconds(1.0369e-5)};
  FakeTimes single = times;
  single.leaps = false;
  for (const KvAdmission admission :
       {KvAdmission::kPrompt, KvAdmission::kFullLength, KvAdmission::kEstimated}) {
    for (const bool is_async : {false, true}) {
      SCOPED_TRACE("admission " + std::to_string(static_cast<int>(admission)) + ", asynchronous " +
                   std::to_string(is_async ? 1 : 0));
      DisaggregatedConfig config = tight_pair();
      config.prefill.engine.async_scheduling = is_async;
      config.decode.engine.async_scheduling = is_async;
      config.decode.engine.kv_admission = admission;
      config.decode.engine.new_token_ratio = 0.3;
      set_rate(config, 487391.7, 0.0003141);
      const auto leaps = serve_fake(workload, config, times);
      const auto steps = serve_fake(workload, config, single);
      for (std::size_t i = 0; i < leaps.requests.size(); ++i) {
        const RequestRecord& a = leaps.requests[i];
        const RequestRecord& b = steps.requests[i];
        ASSERT_NEAR(a.transfer_end.value(), b.transfer_end.value(), 1e-9) << "request " << i;
        ASSERT_NEAR(a.decode_start.value(), b.decode_start.value(), 1e-9) << "request " << i;
        ASSERT_NEAR(a.second_token.value(), b.second_token.value(), 1e-9) << "request " << i;
        ASSERT_NEAR(a.exposed_transfer.value(), b.exposed_transfer.value(), 1e-9)
            << "request " << i;
        ASSERT_NEAR(a.finish.value(), b.finish.value(), 1e-9) << "request " << i;
        ASSERT_EQ(a.num_preemptions, b.num_preemptions) << "request " << i;
      }
      EXPECT_EQ(leaps.metrics.num_steps, steps.metrics.num_steps);
      EXPECT_LT(leaps.steps.size(), steps.steps.size());
      EXPECT_NEAR(leaps.metrics.itl_s.mean, steps.metrics.itl_s.mean, 1e-12);
    }
  }
}

TEST_P(DisaggregatedLaws, ThreadsDoNotChangeTheResult) {
  const Workload workload = random_workload(GetParam());
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
  Workload workload = random_workload(GetParam());
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
  const auto result = serve_fake(random_workload(GetParam()), tight_pair());
  double sum = 0;
  std::int64_t num_gaps = 0;
  for (const RequestRecord& record : result.requests) {
    sum += (record.finish - record.first_token).value();
    num_gaps += record.output_tokens - 1;
  }
  EXPECT_NEAR(result.metrics.itl_s.mean, sum / static_cast<double>(num_gaps), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DisaggregatedLaws, ::testing::Values(1, 2, 3, 4, 5));

std::string refusal(const Workload& workload, const DisaggregatedConfig& config) {
  try {
    serve_fake(workload, config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(served)";
}

TEST(DisaggregatedBadInput, IsRefusedWithTheSide) {
  const auto expect_mentions = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const Workload workload = workload_of({{.prompt_tokens = 12, .output_tokens = 9}});
  DisaggregatedConfig config = small_pair();
  config.prefill.num_replicas = 0;
  expect_mentions(refusal(workload, config), "prefill: replicas is 0");
  config = small_pair();
  config.decode.num_kv_blocks = 4;  // 16 of 20 tokens
  expect_mentions(refusal(workload, config), "decode: request 0 needs 20 tokens of KV cache");
  config = small_pair();
  config.prefill.num_kv_blocks = 3;  // just the prompt
  EXPECT_EQ(refusal(workload, config), "(served)");
  config.prefill.num_kv_blocks = 2;
  expect_mentions(refusal(workload, config), "prefill: request 0 needs 12 tokens of KV cache");
  config = small_pair();
  config.decode.engine.block_size = 8;
  expect_mentions(refusal(workload, config), "block_size is 4 for prefill and 8 for decode");
  config = small_pair();
  config.links.clear();
  expect_mentions(refusal(workload, config), "found 0 links");
  Workload batch = workload;
  batch.is_static_batch = true;
  expect_mentions(refusal(batch, small_pair()), "no static_batch or offline");
}

}  // namespace
}  // namespace orrery
