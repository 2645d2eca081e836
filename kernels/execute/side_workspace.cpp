#include "kernels/execute/side_workspace.h"

#include <algorithm>

namespace orrery {

SideWorkspace::SideWorkspace(const cuda::DeviceTeam& team, std::int64_t area_bytes,
                             std::int64_t num_flags) {
  const auto flags = static_cast<std::size_t>(num_flags);
  for (const int device : team.devices()) {
    const cuda::DeviceGuard guard(device);
    const Rank& rank = ranks_.emplace_back(
        Rank{.device = device,
             .area = cuda::DeviceBuffer<std::byte>(static_cast<std::size_t>(area_bytes)),
             .flags = cuda::DeviceBuffer<std::uint32_t>(flags),
             .side = cuda::Stream(),
             .ones = cuda::PinnedBuffer<std::uint32_t>(flags)});
    std::fill_n(rank.ones.get(), flags, 1U);
    // Rows that nobody sends fill up the last share.
    ORRERY_CUDA(cudaMemsetAsync(rank.area.get(), 0, rank.area.size(), rank.side.get()));
    ORRERY_CUDA(
        cudaMemsetAsync(rank.flags.get(), 0, flags * sizeof(std::uint32_t), rank.side.get()));
    rank.side.synchronize();
  }
}

void SideWorkspace::abort() {
  for (const Rank& rank : ranks_) {
    const cuda::DeviceGuard guard(rank.device);
    ORRERY_CUDA(cudaMemcpyAsync(rank.flags.get(), rank.ones.get(),
                                rank.flags.size() * sizeof(std::uint32_t), cudaMemcpyHostToDevice,
                                rank.side.get()));
  }
  for (const Rank& rank : ranks_) rank.side.synchronize();
}

}  // namespace orrery
