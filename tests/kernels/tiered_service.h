#pragma once

// Small services whose prompts share prefixes, with a tier of the host behind them.

#include <cstdint>
#include <random>

#include "sim/serve/workload.h"
#include "tests/serve/fake_steps.h"

namespace orrery::testing {

inline constexpr std::uint64_t kPromptSeed = 5;
inline constexpr std::int64_t kUnitTokens = 8;
inline constexpr double kBlockBytes = 1e6;

// Prompts that begin alike in groups, each with a length of its own.
inline Workload shared_prompts(std::int64_t num_requests, std::uint64_t seed, double rate) {
  Workload workload =
      open_loop(rate, 1, num_requests, {.kind = LengthKind::kUniform, .min = 1, .max = 100},
                {.kind = LengthKind::kUniform, .min = 1, .max = 20}, seed);
  workload.hash_block_tokens = kUnitTokens;
  std::mt19937_64 random(seed);
  for (Request& request : workload.requests) {
    const std::uint64_t group = random() % 6;
    for (std::int64_t unit = 0; unit < request.prompt_tokens / kUnitTokens; ++unit) {
      request.block_hashes.push_back(group * 1000 + static_cast<std::uint64_t>(unit));
    }
  }
  return workload;
}

inline ServiceConfig tiered(std::int64_t num_kv_blocks, std::int64_t num_units,
                            TierWrite write = TierWrite::kEviction) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = num_kv_blocks;
  config.engine.enable_prefix_caching = true;
  if (num_units == 0) return config;
  const double unit_bytes = 2 * kBlockBytes;  // of 2 blocks of 4 tokens
  config.kv_tiers = {.tiers = {{.name = "host",
                                .capacity = Bytes(unit_bytes * static_cast<double>(num_units)),
                                .bandwidth = BytesPerSecond(1e12),
                                .write_bandwidth = BytesPerSecond(1e12),
                                .write = write}},
                     .block_of_gpu = Bytes(kBlockBytes),
                     .block = Bytes(kBlockBytes),
                     .layers = {.all = 3, .of_stage = 3}};
  return config;
}

}  // namespace orrery::testing
