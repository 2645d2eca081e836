// Routers choose as one that asks every replica at every arrival, and the event loop serves as one
// that starts all replicas at every event.

#include "sim/serve/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "sim/serve/load_index.h"
#include "sim/serve/prefix_holders.h"
#include "sim/serve/service_loop.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeSteps;
using testing::FakeTimes;
using testing::serve_fake;
using testing::small_service;
using Replicas = std::vector<std::unique_ptr<Replica>>;

std::size_t least_of_all(const Replicas& replicas, Seconds now) {
  return static_cast<std::size_t>(
      std::ranges::min_element(replicas, {},
                               [&](const auto& of) { return of->outstanding_tokens(now); }) -
      replicas.begin());
}

std::size_t longest_prefix_of_all(const Replicas& replicas, const Request& request, Seconds now) {
  std::size_t best = least_of_all(replicas, now);
  const std::int64_t least = replicas[best]->outstanding_tokens(now);
  std::int64_t longest = replicas[best]->num_cached_units(request);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const std::int64_t load = replicas[i]->outstanding_tokens(now);
    const bool is_overloaded =
        load > least + 16384 && static_cast<double>(load) > 1.5 * static_cast<double>(least);
    const std::int64_t units = replicas[i]->num_cached_units(request);
    if (units > longest && !is_overloaded) {
      longest = units;
      best = i;
    }
  }
  return best;
}

// An open loop that knows nothing between events.
std::vector<RequestRecord> serve_plainly(const Workload& workload, const ServiceConfig& config,
                                         const FakeTimes& times) {
  std::vector<RequestRecord> records = new_records(workload);
  Replicas replicas;
  for (int i = 0; i < config.num_replicas; ++i) {
    replicas.push_back(
        std::make_unique<Replica>(i, config, workload.hash_block_tokens / config.engine.block_size,
                                  workload.requests, records, std::make_unique<FakeSteps>(times)));
  }
  const auto event_of = [](const auto& replica) { return replica->next_event().value_or(kNever); };
  std::vector<std::int64_t> finished;
  std::size_t next = 0;
  while (true) {
    const auto due = std::ranges::min_element(replicas, {}, event_of);
    const Seconds event = event_of(*due);
    const Seconds sent = next < records.size() ? workload.requests[next].arrival : kNever;
    const Seconds now = std::min(event, sent);
    if (now == kNever) return records;
    if (event < sent) (*due)->advance(now, finished);
    for (; next < records.size() && workload.requests[next].arrival <= now; ++next) {
      const std::size_t chosen =
          config.router == RouterKind::kLeastLoaded
              ? least_of_all(replicas, now)
              : longest_prefix_of_all(replicas, workload.requests[next], now);
      replicas[chosen]->submit(now, static_cast<std::int64_t>(next));
    }
    for (const auto& replica : replicas) {
      if (replica->form_step(now)) replica->compute_step();
    }
  }
}

class Routers : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  // Conversations that share prompts, some of them long: caches are full and replicas overloaded.
  static Workload conversations(std::uint64_t seed, double requests_per_s) {
    Workload workload = open_loop(requests_per_s, 2, 400, lognormal_of_mean_cv(3000, 1.5, 1, 30000),
                                  lognormal_of_mean_cv(60, 1, 1, 300), seed);
    workload.hash_block_tokens = 256;
    Random random(seed);
    for (Request& request : workload.requests) {
      const std::uint64_t topic = 1000 * static_cast<std::uint64_t>(random.uniform_integer(0, 12));
      const std::int64_t shared = random.uniform_integer(0, 60);
      for (std::int64_t unit = 0; unit < request.prompt_tokens / 256; ++unit) {
        request.block_hashes.push_back(
            unit < shared ? topic + static_cast<std::uint64_t>(unit)
                          : static_cast<std::uint64_t>((request.id + 1) * 1'000'000 + unit));
      }
    }
    return workload;
  }
  static ServiceConfig service(RouterKind router, int num_replicas) {
    ServiceConfig config = small_service();
    config.engine.max_num_batched_tokens = 2048;
    config.engine.block_size = 16;
    config.engine.enable_prefix_caching = true;
    config.num_kv_blocks = 2500;
    config.num_replicas = num_replicas;
    config.router = router;
    return config;
  }
};

TEST_P(Routers, ChooseAsThoseThatAskEveryReplica) {
  const FakeTimes times{.base = Seconds(0.0101),
                        .per_prefill = Seconds(1.0073e-4),
                        .per_context = Seconds(1.0123e-7)};
  for (const RouterKind router : {RouterKind::kLeastLoaded, RouterKind::kPrefixAware}) {
    for (const int num_replicas : {1, 2, 7, 60}) {
      for (const bool is_async : {false, true}) {
        ServiceConfig config = service(router, num_replicas);
        config.engine.async_scheduling = is_async;
        config.front_end.per_request = Seconds(0.003);
        const Workload workload = conversations(GetParam(), 2.0 * num_replicas);
        const auto found = serve_fake(workload, config, times);
        const auto expected = serve_plainly(workload, config, times);
        std::int64_t num_cached = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(found.requests[i].replica, expected[i].replica)
              << to_text(router) << ", " << num_replicas << " replicas, request " << i;
          ASSERT_EQ(found.requests[i].finish, expected[i].finish) << "request " << i;
          num_cached += expected[i].cached_tokens;
        }
        EXPECT_GT(num_cached, 0) << "prompts are meant to be shared";
      }
    }
  }
}

// Steps that all take equally long end together on all replicas: loads are equal all the time.
TEST_P(Routers, TakeTheFirstOfEquallyLoadedReplicas) {
  Workload workload;
  for (std::int64_t id = 0; id < 200; ++id) {
    workload.requests.push_back({.id = id,
                                 .arrival = Seconds(0.01 * static_cast<double>(id / 40)),
                                 .prompt_tokens = 8,
                                 .output_tokens = 1 + static_cast<std::int64_t>(GetParam()) * 7});
  }
  ServiceConfig config = small_service();
  config.num_replicas = 40;
  config.router = RouterKind::kLeastLoaded;
  const FakeTimes times{.base = Seconds(0.01), .per_prefill = Seconds(0)};
  const auto found = serve_fake(workload, config, times);
  const auto expected = serve_plainly(workload, config, times);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found.requests[i].replica, expected[i].replica) << "request " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Routers, ::testing::Values(1, 2, 3));

TEST(PrefixHolders, NameEveryHolderInOrder) {
  PrefixHolders holders;
  for (const std::int32_t replica : {5, 1, 3}) holders.add(7, replica);
  EXPECT_TRUE(std::ranges::equal(holders.of(7), std::vector{1, 3, 5}));
  holders.remove(7, 3);
  EXPECT_TRUE(std::ranges::equal(holders.of(7), std::vector{1, 5}));
  EXPECT_TRUE(holders.of(8).empty());
}

}  // namespace
}  // namespace orrery
