#include "sim/serve/load.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "sim/serve/serve.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeSteps;

// Every step takes one.
constexpr testing::FakeTimes kSecond{.base = Seconds(1), .per_prefill = Seconds(0)};

// A request a second of `output` tokens, in an engine of `seats`.
ServiceResult served(std::int64_t output, std::int64_t seats, std::int64_t budget,
                     std::int64_t blocks, std::int64_t prompt = 16) {
  Workload workload;
  for (int i = 0; i < 400; ++i) {
    workload.requests.push_back({.id = i,
                                 .arrival = Seconds(i),
                                 .prompt_tokens = prompt,
                                 .output_tokens = output,
                                 .block_hashes = {}});
  }
  ServiceConfig config;
  config.engine.max_num_seqs = seats;
  config.engine.max_num_batched_tokens = budget;
  config.engine.max_model_len = 100'000;
  config.num_kv_blocks = blocks;
  return serve(workload, config, {}, [](int) { return std::make_unique<FakeSteps>(kSecond); });
}

TEST(Load, KeepsUp) {
  // Twelve tokens of a second each: about 12 requests at a time.
  const LoadMetrics load = served(12, 64, 1024, 10'000).metrics.load;
  EXPECT_FALSE(load.is_overloaded);
  EXPECT_TRUE(load.is_settled);
  EXPECT_FALSE(load.limit());
  EXPECT_NEAR(load.offered_requests_per_s, 1, 1e-9);
  EXPECT_NEAR(load.served_requests_per_s, 1, 0.02);
  EXPECT_LE(load.num_waiting, 1);
}

TEST(Load, SeatsHoldUp) {
  // Five seats of 10 s each serve one request in 2 s: half of 400 wait at last.
  const LoadMetrics load = served(10, 5, 1024, 10'000).metrics.load;
  EXPECT_TRUE(load.is_overloaded);
  EXPECT_FALSE(load.is_settled);
  EXPECT_EQ(load.limit(), AdmissionLimit::kSeats);
  EXPECT_NEAR(load.served_requests_per_s, 0.5, 0.05);
  EXPECT_NEAR(static_cast<double>(load.num_waiting), 200, 15);
}

TEST(Load, BlocksHoldUp) {
  // A request takes two blocks of 16: of 10 blocks five requests, as above.
  const LoadMetrics load = served(10, 64, 1024, 10).metrics.load;
  EXPECT_TRUE(load.is_overloaded);
  EXPECT_EQ(load.limit(), AdmissionLimit::kKvBlocks);
}

TEST(Load, TokenBudgetHoldsUp) {
  // Each prompt takes two steps of 64 tokens.
  const LoadMetrics load = served(2, 64, 64, 10'000, 120).metrics.load;
  EXPECT_TRUE(load.is_overloaded);
  EXPECT_EQ(load.limit(), AdmissionLimit::kTokenBudget);
}

TEST(Load, GrowthWithoutAQueueIsNotSettled) {
  // All are admitted at once and none ends before the last comes.
  const LoadMetrics load = served(600, 1024, 2048, 100'000).metrics.load;
  EXPECT_FALSE(load.is_overloaded);
  EXPECT_FALSE(load.is_settled);
}

TEST(Load, ClosedLoopsHaveNone) {
  Workload workload;
  workload.closed_loop_concurrency = 4;
  for (int i = 0; i < 40; ++i) {
    workload.requests.push_back({.id = i,
                                 .arrival = Seconds(0),
                                 .prompt_tokens = 16,
                                 .output_tokens = 4,
                                 .block_hashes = {}});
  }
  ServiceConfig config;
  config.engine.max_num_seqs = 1;
  config.engine.max_model_len = 100'000;
  config.num_kv_blocks = 1000;
  const ServiceResult result =
      serve(workload, config, {}, [](int) { return std::make_unique<FakeSteps>(kSecond); });
  EXPECT_EQ(result.metrics.load.offered_requests_per_s, 0);
  EXPECT_FALSE(result.metrics.load.is_overloaded);
}

}  // namespace
}  // namespace orrery
