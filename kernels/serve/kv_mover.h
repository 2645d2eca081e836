#pragma once

// KV blocks from the caches of prefill executors to those of decode executors, GPU to GPU.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/executor.h"
#include "kernels/serve/live_disaggregated.h"
#include "sim/units/units.h"

namespace orrery {

// One instance: an executor and the devices of its ranks.
struct MovedInstance {
  const Executor* executor = nullptr;
  std::vector<int> devices;
};

// Each rank of a prefill instance writes to the same rank of a decode instance, by copy engines or
// SMs (kernels/kv_transfer), on a stream of its own for each pair of instances.
class GpuKvMover : public KvMover {
 public:
  // The executors outlive it. Throws std::invalid_argument where ranks or the shapes of their
  // caches differ, or GPUs cannot access each other.
  GpuKvMover(std::vector<MovedInstance> prefill, std::vector<MovedInstance> decode);
  ~GpuKvMover() override;

  // The longest of the ranks' times, by events on their streams. Throws cuda::Error.
  Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
               std::span<const std::int32_t> destination) override;

 private:
  struct Lane;  // of one rank of one pair

  std::vector<MovedInstance> prefill_;
  std::vector<MovedInstance> decode_;
  std::unique_ptr<cuda::DeviceTeam> team_;  // opens the devices' memory to each other
  std::vector<std::vector<std::unique_ptr<Lane>>> lanes_;  // [prefill, decode], by rank
};

// Bytes of one KV block over all ranks of an instance.
Bytes kv_block_of(const Executor& executor);

}  // namespace orrery
