#pragma once

// A service whose prefill and decode are apart, on steps of given times: for the tests of
// sim/serve/disaggregated.h.

#include <map>
#include <memory>
#include <vector>

#include "sim/serve/disaggregated.h"
#include "tests/serve/fake_steps.h"

namespace orrery::testing {

// Blocks of 4 tokens and 1,000 bytes; 2 ms a block.
inline DisaggregatedConfig small_pair(int num_prefill = 1, int num_decode = 1) {
  DisaggregatedConfig config;
  config.prefill = small_service();
  config.prefill.num_replicas = num_prefill;
  config.decode = small_service();
  config.decode.num_replicas = num_decode;
  config.links.assign(static_cast<std::size_t>(num_prefill) * static_cast<std::size_t>(num_decode),
                      {.time = {.rate = BytesPerSecond(500e3)}});
  config.kv_block_per_gpu = Bytes(1000);
  config.kv_block = Bytes(2000);
  return config;
}

inline void set_rate(DisaggregatedConfig& config, double bytes_per_s, double latency_s = 0) {
  for (TransferLink& link : config.links) {
    link.time.rate = BytesPerSecond(bytes_per_s);
    link.time.latency = Seconds(latency_s);
  }
}

inline ServiceResult serve_fake(const Workload& workload, const DisaggregatedConfig& config,
                                const FakeTimes& times = {},
                                std::map<int, std::vector<Batch>>* batches = nullptr) {
  return serve_disaggregated(workload, config, {}, [&](int replica) {
    return std::make_unique<FakeSteps>(times, batches == nullptr ? nullptr : &(*batches)[replica]);
  });
}

}  // namespace orrery::testing
