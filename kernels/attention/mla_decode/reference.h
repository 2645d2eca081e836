#pragma once

// mla_decode in double.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

struct MlaDecodeOperands {
  std::span<const double> q;                  // [sequences, heads, latent + rope]
  std::span<const double> cache;              // [num_blocks, block_size, latent + rope]
  std::span<const std::int32_t> block_table;  // [sequences, blocks per sequence]
  std::span<const std::int32_t> lengths;      // [sequences]
  std::int64_t heads = 0;
  std::int64_t latent = 0;
  std::int64_t rope = 0;
  std::int64_t block_size = 0;
  double scale = 1;
};

struct MlaDecodeResult {
  std::vector<double> out;  // [sequences, heads, latent]
  std::vector<double> lse;  // [sequences, heads]; -inf for a sequence of length zero
};

// Throws std::invalid_argument when the sizes contradict each other.
MlaDecodeResult mla_decode(const MlaDecodeOperands& operands);

}  // namespace orrery::reference
