#pragma once

// Two paged caches on two GPUs with a random choice of blocks: what check and time work on.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/comm/kv_transfer/kv_transfer.h"
#include "kernels/cuda/devices.h"
#include "sim/units/units.h"

namespace orrery {

struct KvPairShape {
  std::int64_t block_bytes = 0;
  int blocks = 0;
  int layers = 1;
  bool scattered = true;  // else blocks 0, 1, 2, …
};

// Pools of 2 * blocks blocks: random bytes in the source, 0xFF in the destination.
class KvPair {
 public:
  KvPair(const cuda::DeviceTeam& team, const KvPairShape& shape, std::uint64_t seed);
  [[nodiscard]] const KvTransfer& transfer() const { return transfer_; }
  // The destination as made.
  void reset();
  // Number of bytes of the destination that are not what the transfer should have left: the
  // source's in the chosen blocks, 0xFF elsewhere.
  std::int64_t wrong_bytes();

 private:
  [[nodiscard]] std::size_t pool_bytes() const;

  const cuda::DeviceTeam& team_;
  KvPairShape shape_;
  std::vector<std::int32_t> source_blocks_;
  std::vector<std::int32_t> destination_blocks_;
  std::vector<cuda::DeviceBuffer<std::byte>> pools_;           // source, destination
  std::vector<cuda::DeviceBuffer<std::int32_t>> block_lists_;  // both on the source's GPU
  KvTransfer transfer_;
};

}  // namespace orrery
