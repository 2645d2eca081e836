#include <algorithm>

#include "kernels/comm/all_reduce/all_reduce.h"

namespace orrery {
namespace {

constexpr std::size_t kStateWords = kMaxAllReduceBlocks + 1;

}  // namespace

AllReduceWorkspace::AllReduceWorkspace(const cuda::DeviceTeam& team,
                                       const AllReduceOptions& options)
    : devices_(team.devices().begin(), team.devices().end()) {
  const int num_ranks = team.size();
  const std::int64_t half = std::max(
      all_reduce_slot_bytes(AllReduceAlgorithm::kOneShot, options.one_shot_bytes, num_ranks),
      all_reduce_slot_bytes(AllReduceAlgorithm::kTwoShot, options.two_shot_bytes, num_ranks));
  for (const int device : devices_) {
    const cuda::DeviceGuard guard(device);
    ranks_.push_back({.slots = cuda::DeviceBuffer<std::byte>(2 * half),
                      .state = cuda::DeviceBuffer<std::uint32_t>(kStateWords),
                      .side = cuda::Stream(),
                      .word = cuda::PinnedBuffer<std::uint32_t>(1),
                      .noticed = cuda::PinnedBuffer<std::uint32_t>(1)});
    load_all_reduce(num_ranks);
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    int clock_khz = 0;
    ORRERY_CUDA(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, devices_[rank]));
    AllReducePeers peers{
        .calls = ranks_[rank].state.get(),
        .timed_out = ranks_[rank].state.get() + kMaxAllReduceBlocks,
        .noticed = ranks_[rank].noticed.get(),
        .half_bytes = half,
        .timeout_cycles = static_cast<std::int64_t>(options.timeout.value() * 1e3 * clock_khz),
        .rank = rank,
        .num_ranks = num_ranks};
    for (int peer = 0; peer < num_ranks; ++peer) peers.slots[peer] = ranks_[peer].slots.get();
    peers_.push_back(peers);
  }
  reset();
}

std::uint32_t AllReduceWorkspace::timed_out(int rank) const {
  return *static_cast<volatile std::uint32_t*>(peers_[rank].noticed);
}

std::uint32_t AllReduceWorkspace::calls_begun(int rank) const {
  const cuda::DeviceGuard guard(devices_[rank]);
  const Rank& memory = ranks_[rank];
  ORRERY_CUDA(cudaMemcpyAsync(memory.word.get(), peers_[rank].calls, sizeof(std::uint32_t),
                              cudaMemcpyDeviceToHost, memory.side.get()));
  memory.side.synchronize();
  return *memory.word.get();
}

void AllReduceWorkspace::abort() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const cuda::DeviceGuard guard(devices_[rank]);
    const Rank& memory = ranks_[rank];
    *memory.noticed.get() = kAllReduceAborted;
    *memory.word.get() = kAllReduceAborted;
    ORRERY_CUDA(cudaMemcpyAsync(peers_[rank].timed_out, memory.word.get(), sizeof(std::uint32_t),
                                cudaMemcpyHostToDevice, memory.side.get()));
    memory.side.synchronize();
  }
}

void AllReduceWorkspace::reset() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const cuda::DeviceGuard guard(devices_[rank]);
    const cuda::Stream stream;
    const Rank& memory = ranks_[rank];
    *memory.noticed.get() = 0;
    ORRERY_CUDA(cudaMemsetAsync(memory.slots.get(), 0xFF, memory.slots.size(), stream.get()));
    ORRERY_CUDA(
        cudaMemsetAsync(memory.state.get(), 0, kStateWords * sizeof(std::uint32_t), stream.get()));
    stream.synchronize();
  }
}

}  // namespace orrery
