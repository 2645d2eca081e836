#pragma once

// kv_gather in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

struct KvGatherOperands {
  std::span<const double> cache;              // [slots, latent + rope]
  std::span<const std::int32_t> block_table;  // [sequences, blocks per sequence]
  std::span<const std::int32_t> lengths;      // [sequences]
  std::int64_t latent = 0;
  std::int64_t rope = 0;
  std::int64_t block_size = 0;
};
struct KvGatherResult {
  std::vector<double> latents;  // [tokens, latent], of the sequences one behind the other
  std::vector<double> rotated;  // [tokens, rope]
};

// Throws std::invalid_argument for a token whose slot is outside of the cache.
KvGatherResult kv_gather(const KvGatherOperands& operands);

// Of a sequence's tokens, new ones included, those that `cache` has, in their order.
KvGatherResult cached_latents(const KvLayer& cache, std::int64_t block_size,
                              const SequenceRows& sequence, std::int64_t latent, std::int64_t rope);

}  // namespace orrery::reference
