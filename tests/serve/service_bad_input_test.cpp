#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "sim/serve/router.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::serve_fake;
using testing::small_service;
using testing::workload_of;

// The message of the std::invalid_argument that serving throws.
std::string refusal(const Workload& workload, const ServiceConfig& config) {
  try {
    serve_fake(workload, config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(served)";
}

std::string refusal(Request request) {
  return refusal(workload_of({std::move(request)}), small_service());
}

void expect_mentions(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(ServiceBadInput, ZeroLengthsAreRefused) {
  expect_mentions(refusal({.prompt_tokens = 0, .output_tokens = 5}), "request 0 has 0 prompt");
  expect_mentions(refusal({.prompt_tokens = 5, .output_tokens = 0}), "0 output tokens");
}

TEST(ServiceBadInput, ARequestLongerThanTheKvCacheIsRefused) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 10;  // 40 tokens; 31 + 10 - 1 = 40 fit, one more does not
  EXPECT_EQ(refusal(workload_of({{.prompt_tokens = 31, .output_tokens = 10}}), config), "(served)");
  expect_mentions(refusal(workload_of({{.prompt_tokens = 32, .output_tokens = 10}}), config),
                  "needs 41 tokens of KV cache, more than the 40");
}

TEST(ServiceBadInput, ARequestMustFitTheKvCacheOfOneDataParallelRank) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 20;
  config.num_dp_ranks = 2;
  EXPECT_EQ(refusal(workload_of({{.prompt_tokens = 31, .output_tokens = 10}}), config), "(served)");
  expect_mentions(refusal(workload_of({{.prompt_tokens = 32, .output_tokens = 10}}), config),
                  "more than the 40 that one data-parallel rank holds");
  config.num_dp_ranks = 0;
  expect_mentions(refusal(workload_of({{.prompt_tokens = 1, .output_tokens = 1}}), config),
                  "num_dp_ranks is 0");
}

TEST(ServiceBadInput, ARequestLongerThanTheModelIsRefused) {
  ServiceConfig config = small_service();
  config.engine.max_model_len = 50;
  expect_mentions(refusal(workload_of({{.prompt_tokens = 45, .output_tokens = 6}}), config),
                  "more than max_model_len, 50");
}

TEST(ServiceBadInput, ArrivalsThatGoBackAreRefused) {
  expect_mentions(
      refusal(workload_of({{.arrival = Seconds(2), .prompt_tokens = 1, .output_tokens = 1},
                           {.arrival = Seconds(1), .prompt_tokens = 1, .output_tokens = 1}}),
              small_service()),
      "request 1 arrives before");
}

TEST(ServiceBadInput, ArrivalsThatAreNotFiniteAreRefused) {
  for (const double arrival :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    expect_mentions(refusal({.arrival = Seconds(arrival), .prompt_tokens = 1, .output_tokens = 1}),
                    "negative or not finite");
  }
}

TEST(ServiceBadInput, ABudgetBelowMaxNumSeqsIsRefused) {
  ServiceConfig config = small_service();
  config.engine.max_num_batched_tokens = 7;
  expect_mentions(refusal(workload_of({{.prompt_tokens = 1, .output_tokens = 1}}), config),
                  "expected at least max_num_seqs, 8");
}

TEST(ServiceBadInput, AnUnchunkedPromptAboveTheBudgetIsRefused) {
  ServiceConfig config = small_service();
  config.engine.enable_chunked_prefill = false;
  expect_mentions(refusal(workload_of({{.prompt_tokens = 70, .output_tokens = 1}}), config),
                  "without chunked prefill");
}

TEST(ServiceBadInput, WithoutPreemptionOnlyThePromptMustFitTheBudgetWhole) {
  ServiceConfig config = small_service();  // 64 tokens
  config.engine.enable_chunked_prefill = false;
  config.engine.kv_admission = KvAdmission::kFullLength;
  EXPECT_EQ(refusal(workload_of({{.prompt_tokens = 64, .output_tokens = 9}}), config), "(served)");
  expect_mentions(refusal(workload_of({{.prompt_tokens = 65, .output_tokens = 1}}), config),
                  "needs up to 65 tokens in one step without chunked prefill");
}

TEST(ServiceBadInput, ANewTokenRatioOutsideOfZeroToOneIsRefused) {
  ServiceConfig config = small_service();
  config.engine.new_token_ratio = 1.5;
  expect_mentions(refusal(workload_of({{.prompt_tokens = 1, .output_tokens = 1}}), config),
                  "expected from 0 to 1");
}

TEST(ServiceBadInput, AStaticBatchThatTheKvCacheCannotHoldIsRefused) {
  // 4 + 9 - 1 = 12 tokens in 3 blocks each.
  Workload workload =
      workload_of(std::vector<Request>(4, {.prompt_tokens = 4, .output_tokens = 9}));
  workload.is_static_batch = true;
  ServiceConfig config = small_service();
  config.num_kv_blocks = 12;
  EXPECT_EQ(refusal(workload, config), "(served)");
  config.num_kv_blocks = 11;
  expect_mentions(refusal(workload, config), "needs up to 12 KV blocks, more than the 11");
}

TEST(ServiceBadInput, HashBlocksThatAreNoMultipleOfTheBlockSizeAreRefused) {
  ServiceConfig config = small_service();
  config.engine.enable_prefix_caching = true;
  Workload workload = workload_of({{.prompt_tokens = 1, .output_tokens = 1}});
  workload.hash_block_tokens = 10;
  expect_mentions(refusal(workload, config), "expected a divisor");
}

TEST(ServiceBadInput, AnUnknownRouterNamesTheNearest) {
  EXPECT_EQ(parse_router("least_loaded"), RouterKind::kLeastLoaded);
  try {
    parse_router("round_robbin");
    FAIL();
  } catch (const std::invalid_argument& error) {
    expect_mentions(error.what(), "round_robin");
  }
}

TEST(ServiceBadInput, MoreHashesThanFullBlocksAreRefused) {
  Workload workload =
      workload_of({{.prompt_tokens = 15, .output_tokens = 1, .block_hashes = {1, 2}}});
  workload.hash_block_tokens = 8;
  expect_mentions(refusal(workload, small_service()), "has 2 block hashes of 8 tokens");
}

TEST(ServiceBadInput, LengthsWhoseSumWouldOverflowAreRefused) {
  expect_mentions(refusal({.prompt_tokens = std::numeric_limits<std::int64_t>::max(),
                           .output_tokens = std::numeric_limits<std::int64_t>::max()}),
                  "expected at most 2^40");
}

TEST(ServiceBadInput, CountsOutOfRangeAreRefused) {
  Workload workload = workload_of({{.prompt_tokens = 4, .output_tokens = 1}});
  workload.warmup_requests = 1;
  expect_mentions(refusal(workload, small_service()), "warmup_requests is 1");
  workload.warmup_requests = 0;
  workload.closed_loop_concurrency = -1;
  expect_mentions(refusal(workload, small_service()), "concurrency is -1");
  workload.closed_loop_concurrency = 0;
  ServiceConfig config = small_service();
  config.num_threads = 0;
  expect_mentions(refusal(workload, config), "num_threads is 0");
  config = small_service();
  config.num_replicas = 0;
  expect_mentions(refusal(workload, config), "replicas is 0");
}

TEST(ServiceBadInput, APrefixAwareRouterNeedsThePrefixCache) {
  ServiceConfig config = small_service();
  config.router = RouterKind::kPrefixAware;
  expect_mentions(refusal(workload_of({{.prompt_tokens = 4, .output_tokens = 1}}), config),
                  "enable_prefix_caching");
}

}  // namespace
}  // namespace orrery
