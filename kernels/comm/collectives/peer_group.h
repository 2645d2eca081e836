#pragma once

// Everything that makes collectives on some GPUs of this host: their streams, NCCL's communicators
// and the receive areas of our own all-reduce.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/comm/all_reduce/all_reduce.h"
#include "kernels/comm/collectives/collective.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/nccl.h"

namespace orrery {

enum class CollectiveImplementation : std::uint8_t { kNccl, kOneShot, kTwoShot };
// As the collective tables name them: "nccl", "orrery_one_shot", "orrery_two_shot".
std::string_view to_text(CollectiveImplementation implementation);

class PeerGroup {
 public:
  PeerGroup(std::span<const int> devices, const AllReduceOptions& options);
  [[nodiscard]] const cuda::DeviceTeam& team() const { return team_; }
  [[nodiscard]] int size() const { return team_.size(); }
  [[nodiscard]] AllReduceWorkspace& workspace() { return workspace_; }
  // Whether `implementation` makes `call`: ours only sum bf16, fp16 and fp32 up to their largest
  // buffer.
  [[nodiscard]] bool takes(CollectiveImplementation implementation,
                           const CollectiveCall& call) const;
  // Enqueues rank's part on `stream`, the rank's device being current; may be captured.
  void enqueue(CollectiveImplementation implementation, int rank, const cuda::Stream& stream,
               const CollectiveCall& call) const;

 private:
  cuda::DeviceTeam team_;
  std::vector<cuda::Communicator> communicators_;
  AllReduceWorkspace workspace_;
};

}  // namespace orrery
