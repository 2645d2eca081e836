// Prefill and decode apart, against closed forms: a step takes 10 ms + 1 ms for each
// prompt token unless stated.

#include "sim/serve/disaggregated.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "sim/serve/workload.h"
#include "tests/serve/disaggregated_testing.h"

namespace orrery {
namespace {

using testing::kTolerance;
using testing::serve_fake;
using testing::set_rate;
using testing::small_pair;
using testing::workload_of;

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

TEST(Disaggregated, ADecodeSideWithoutRoomHoldsUpPrompts) {
  // Prefill holds one prompt of 2 blocks, decode 3 blocks: the first prompt (8 tokens) moves from
  // 18 to 22 ms and fills them by its fourth step, 62 ms. The second, computed by 40 ms, has no
  // room until then and moves until 66 ms; only then the third has room on the prefill side.
  DisaggregatedConfig config = small_pair();
  config.prefill.num_kv_blocks = 2;
  config.decode.num_kv_blocks = 3;
  const auto result = serve_fake(
      workload_of(std::vector<Request>(3, {.prompt_tokens = 8, .output_tokens = 5})), config);
  EXPECT_NEAR(result.requests[0].finish.value(), 0.062, kTolerance);
  EXPECT_NEAR(result.requests[1].prefill_end.value(), 0.040, kTolerance);
  EXPECT_NEAR(result.requests[1].transfer_start.value(), 0.062, kTolerance);
  EXPECT_NEAR(result.requests[2].first_scheduled.value(), 0.066, kTolerance);
}

TEST(Disaggregated, PrefillReplicasShareThePortOfADecodeReplica) {
  // One block each, handed over at 14 ms: 2 ms alone, 6 ms where three enter by one port.
  const Workload workload =
      workload_of(std::vector<Request>(3, {.prompt_tokens = 4, .output_tokens = 3}));
  for (const RequestRecord& record : serve_fake(workload, small_pair(3, 1)).requests) {
    EXPECT_NEAR(record.transfer_end.value(), 0.020, kTolerance);
  }
  for (const RequestRecord& record : serve_fake(workload, small_pair(3, 3)).requests) {
    EXPECT_NEAR(record.transfer_end.value(), 0.016, kTolerance);
  }
}

TEST(Disaggregated, LayersMoveWhileThePromptIsComputed) {
  // 20 tokens: one step of 30 ms; 5 blocks in 10 layers. In 10 ms all have moved but the last,
  // which takes 1 ms behind the step; in 100 ms they move from the first layer on, 3 ms.
  const Workload workload = workload_of({{.prompt_tokens = 20, .output_tokens = 3}});
  for (const auto& [rate, end] : {std::pair(500e3, 0.031), {50e3, 0.103}}) {
    DisaggregatedConfig config = small_pair();
    config.num_moved_layers = 10;
    set_rate(config, rate);
    const auto result = serve_fake(workload, config);
    const RequestRecord& record = result.requests[0];
    EXPECT_NEAR(record.prefill_end.value(), 0.030, kTolerance);
    EXPECT_NEAR(record.transfer_start.value(), 0.003, kTolerance);
    EXPECT_NEAR(record.transfer_end.value(), end, kTolerance);
    EXPECT_NEAR(record.decode_start.value(), end, kTolerance);
    EXPECT_NEAR(record.exposed_transfer.value(), end - 0.030, kTolerance);
    EXPECT_EQ(result.metrics.disaggregation->wait_s.max, 0);
    EXPECT_EQ(record.transfer_bytes, Bytes(5 * 2000));
  }
}

TEST(Disaggregated, LayersWaitForRoomOnTheDecodeSide) {
  // 3 blocks: the first request (8 tokens, 2 blocks in 4 ms by the step's end at 18 ms and 0.4 ms
  // behind it) decodes until 18.4 + 4 * 10 ms. The second's step, 18 to 36 ms, has ended by then:
  // it moves from 58.4 ms on as if its layers had come at once.
  DisaggregatedConfig config = small_pair();
  config.num_moved_layers = 10;
  config.prefill.engine.max_num_seqs = 1;
  config.decode.num_kv_blocks = 3;
  const auto result = serve_fake(
      workload_of(std::vector<Request>(2, {.prompt_tokens = 8, .output_tokens = 5})), config);
  EXPECT_NEAR(result.requests[0].finish.value(), 0.0584, kTolerance);
  EXPECT_NEAR(result.requests[1].transfer_start.value(), 0.0584, kTolerance);
  EXPECT_NEAR(result.requests[1].transfer_end.value(), 0.0624, kTolerance);
}

TEST(Disaggregated, DataParallelRanksHavePortsOfTheirOwn) {
  // Two prompts on ranks of their own are handed over at 14 ms, one block each: 2 ms where each has
  // a port of either side.
  const Workload workload =
      workload_of(std::vector<Request>(2, {.prompt_tokens = 4, .output_tokens = 3}));
  const auto moved_by = [&](int replicas, int prefill_ranks, int decode_ranks) {
    DisaggregatedConfig config = small_pair(replicas, 1);
    config.prefill.num_dp_ranks = prefill_ranks;
    config.prefill.num_kv_blocks *= prefill_ranks;
    config.decode.num_dp_ranks = decode_ranks;
    config.decode.num_kv_blocks *= decode_ranks;
    const auto pairs = static_cast<std::size_t>(replicas * prefill_ranks * decode_ranks);
    config.links.resize(pairs, config.links.front());
    const auto result = serve_fake(workload, config);
    EXPECT_EQ(result.requests[1].decode_dp_rank, decode_ranks - 1);
    EXPECT_EQ(result.requests[0].transfer_start, result.requests[1].transfer_start);
    EXPECT_EQ(result.requests[0].transfer_end, result.requests[1].transfer_end);
    return result.requests[1].transfer_end.value();
  };
  EXPECT_NEAR(moved_by(2, 1, 1), 0.018, kTolerance);  // one port of the decode replica
  EXPECT_NEAR(moved_by(2, 1, 2), 0.016, kTolerance);
  // One step of both prompts, 18 ms, and one port of the prefill replica.
  EXPECT_NEAR(moved_by(1, 1, 2), 0.022, kTolerance);
  EXPECT_NEAR(moved_by(1, 2, 2), 0.016, kTolerance);
}

TEST(Disaggregated, TheFirstTokenComesFromThePrefillSideWhateverTheStreamInterval) {
  DisaggregatedConfig config = small_pair();
  config.prefill.engine.stream_interval = 3;
  config.decode.engine.stream_interval = 3;
  const auto result = serve_fake(workload_of({{.prompt_tokens = 4, .output_tokens = 5}}), config);
  EXPECT_NEAR(result.requests[0].first_token.value(), 0.014, kTolerance);
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
