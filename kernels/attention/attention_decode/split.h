#pragma once

// How attention_decode divides its work over the blocks of a launch. Lengths are only known on the
// device, so the same arithmetic runs there and, in tests, on the CPU.
//
// The work is a list of units, each the keys and values of one stretch of keys_per_unit() tokens of
// one sequence for one group of kv heads: sequence by sequence, group by group, unit by unit. The
// units of one (sequence, group) are a row. Block b of n takes the units from unit_begin(b) to
// unit_begin(b + 1), so blocks are even to one unit however unequal the sequences are, and a row is
// shared by the consecutive blocks block_of(its first unit) .. block_of(its last unit):
//
//   rows    |----- sequence 0 -----|-- sequence 1 --|-------- sequence 2 ---------|
//   blocks  |    0    |    1    |    2    |    3    |    4    |    5    |    6    |

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"

namespace orrery {

struct AttentionDecodeShape {
  std::int32_t seqs = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 128;
  std::int32_t max_context = 0;   // a hint that shapes the split; longer contexts are right too
  std::int32_t window = 1 << 30;  // newest keys that a token sees, itself included
  // Elements from the queries of a sequence to those of the next, a multiple of 8; 0: contiguous.
  std::int64_t q_stride = 0;
};

// What the host decides.
struct AttentionDecodeSplit {
  std::int32_t blocks = 0;           // of the launch, at most one per SM
  std::int32_t heads_per_block = 1;  // kv heads in a group: 1, 2 or 4, a divisor of kv_heads
  std::int32_t min_units = 1;        // units that a block gets at least, where there are as many
  // The launch may begin while its predecessor in the stream ends (launch.h); it waits for it
  // before it reads anything.
  bool starts_early = false;
};

namespace decode {

inline constexpr std::int32_t kWarps = 8;         // of a block
inline constexpr std::int32_t kTileBytes = 4096;  // keys of a unit and head; its values as many
inline constexpr std::int32_t kMaxRatio = 16;     // heads / kv_heads
inline constexpr std::int32_t kFanIn = 32;        // partial results that one merge takes

// Keys in a tile of kTileBytes: 16 (bf16, head_dim 128) to 64 (fp8, head_dim 64).
ORRERY_HOST_DEVICE constexpr std::int32_t keys_per_unit(std::int32_t head_dim,
                                                        std::int32_t element_bytes) {
  return kTileBytes / (head_dim * element_bytes);
}

// Units of a sequence that its token sees: [first, first + count) of all of its units.
struct Units {
  std::int32_t first = 0;
  std::int32_t count = 0;
};
ORRERY_HOST_DEVICE constexpr Units units_of(std::int32_t context, std::int32_t window,
                                            std::int32_t keys) {
  if (context <= 0) return {};
  const std::int32_t first = context > window ? (context - window) / keys : 0;
  return {.first = first, .count = (context + keys - 1) / keys - first};
}

// Blocks that take part: none is left without a unit.
ORRERY_HOST_DEVICE constexpr std::int32_t blocks_used(std::int32_t units,
                                                      const AttentionDecodeSplit& split) {
  const std::int32_t most = units / split.min_units;
  if (most >= split.blocks) return split.blocks;
  return most > 0 ? most : 1;
}
// First unit of a block; `blocks` = blocks_used(). The first units % blocks blocks have one unit
// more than the others.
ORRERY_HOST_DEVICE constexpr std::int32_t unit_begin(std::int32_t units, std::int32_t blocks,
                                                     std::int32_t block) {
  const std::int32_t larger = units % blocks;
  return units / blocks * block + (block < larger ? block : larger);
}
// The block that has a unit: unit_begin(block) <= unit < unit_begin(block + 1).
ORRERY_HOST_DEVICE constexpr std::int32_t block_of(std::int32_t units, std::int32_t blocks,
                                                   std::int32_t unit) {
  const std::int32_t fewest = units / blocks;
  const std::int32_t larger = units % blocks;
  const std::int32_t in_larger = larger * (fewest + 1);
  return unit < in_larger ? unit / (fewest + 1) : larger + (unit - in_larger) / fewest;
}

// Partial results of a row's blocks lie in slots: a block has at most one row that it continues
// (slot 2 b) and one that it starts and does not end (slot 2 b + 1).
ORRERY_HOST_DEVICE constexpr std::int32_t slot_of(std::int32_t first_block, std::int32_t block) {
  return 2 * block + (block == first_block ? 1 : 0);
}

}  // namespace decode

// The split for a device of so many SMs. element_bytes: 2 (bf16) or 1 (fp8). Throws
// std::invalid_argument for a shape that attention_decode does not take, saying what it takes.
AttentionDecodeSplit attention_decode_split(const AttentionDecodeShape& shape,
                                            std::int32_t element_bytes, std::int32_t num_sms);

// Whether no block of the launch ends within a row and goes on with another, where all sequences
// have max_context tokens. Else some blocks finish two rows one after the other, and launches of
// few rows take up to 5 us longer (12.7 us instead of 8.2 for 8 rows of 300 and 512 keys on an
// H200).
bool is_even_split(const AttentionDecodeShape& shape, std::int32_t element_bytes,
                   std::int32_t num_sms);

// Bytes of workspace for that split, whose first attention_decode_counter_bytes() must be zero
// before the first launch that uses it; each launch leaves them so.
std::size_t attention_decode_workspace_bytes(const AttentionDecodeShape& shape,
                                             const AttentionDecodeSplit& split);
std::size_t attention_decode_counter_bytes(const AttentionDecodeSplit& split);

}  // namespace orrery
