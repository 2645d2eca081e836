#pragma once

// KV blocks from the caches of prefill executors to those of decode executors, GPU to GPU.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/executor.h"
#include "kernels/serve/live_transfers.h"
#include "sim/units/units.h"

namespace orrery {

// One instance: an executor and the devices of its ranks.
struct MovedInstance {
  const Executor* executor = nullptr;
  std::vector<int> devices;
};

// What moves blocks (kernels/comm/kv_transfer). A KV cache is a copy for each layer's keys and
// values at least, and copy engines start them one after the other: on H200s, between a prefill and
// a decode step, 162 MB of 64 pools take 0.59 ms by SMs and 0.91 ms by copy engines, 41 MB of 32
// pools 0.15 and 0.34 ms (means).
enum class MoveBy : std::uint8_t { kSm, kCopyEngine };

// Each rank of a prefill instance writes to the same rank of a decode instance, on a stream of its
// own for each pair of instances.
class GpuKvMover : public KvMover {
 public:
  // The executors outlive it. Throws std::invalid_argument where ranks or the shapes of their
  // caches differ, or GPUs cannot access each other.
  GpuKvMover(std::vector<MovedInstance> prefill, std::vector<MovedInstance> decode,
             MoveBy move_by = MoveBy::kSm);
  ~GpuKvMover() override;

  // The longest of the ranks' times, by events on their streams. Throws cuda::Error.
  Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
               std::span<const std::int32_t> destination) override;
  // Bytes of the destination that are not the source's, by copies of both on the host.
  [[nodiscard]] std::int64_t wrong_bytes(int prefill, int decode,
                                         std::span<const std::int32_t> source,
                                         std::span<const std::int32_t> destination) const;

 private:
  struct Lane;  // of one rank of one pair

  std::vector<MovedInstance> prefill_;
  std::vector<MovedInstance> decode_;
  MoveBy move_by_;
  std::unique_ptr<cuda::DeviceTeam> team_;  // opens the devices' memory to each other
  std::vector<std::vector<std::unique_ptr<Lane>>> lanes_;  // [prefill, decode], by rank
};

// Moves by another and looks at what came; throws std::runtime_error for a byte that is wrong.
class CheckedKvMover : public KvMover {
 public:
  explicit CheckedKvMover(GpuKvMover& mover) : mover_(mover) {}
  Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
               std::span<const std::int32_t> destination) override;

 private:
  GpuKvMover& mover_;
};

// Bytes of one KV block over all ranks of an instance.
Bytes kv_block_of(const Executor& executor);

}  // namespace orrery
