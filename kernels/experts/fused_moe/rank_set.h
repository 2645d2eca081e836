#pragma once

// The ranks of a layer of experts that this process has: all of them, a thread each, or one, where
// the others are processes of their own.

#include <functional>
#include <span>
#include <vector>

#include "kernels/comm/processes/process_group.h"
#include "kernels/cuda/devices.h"
#include "kernels/experts/fused_moe/fused_moe.h"

namespace orrery {

class RankSet {
 public:
  // All ranks, on devices that they have or share.
  explicit RankSet(std::span<const int> devices);
  // Rank processes.rank of processes.size, on `device`. All processes make the same calls of run(),
  // plan() and close(). The group must outlive it.
  RankSet(const ProcessGroup& processes, int device);
  RankSet(const RankSet&) = delete;
  RankSet& operator=(const RankSet&) = delete;

  [[nodiscard]] int size() const { return size_; }  // those of other processes, too
  [[nodiscard]] std::span<const int> here() const { return here_; }
  // Of a rank here.
  [[nodiscard]] int device(int rank) const { return team_.devices()[place(rank)]; }
  [[nodiscard]] const cuda::Stream& stream(int rank) const {
    return team_.stream(static_cast<int>(place(rank)));
  }
  // work(rank) of those here as DeviceTeam::run(), once all processes have come to it.
  void run(const std::function<void(int rank)>& work) const;
  // Waits for the streams here.
  void synchronize() const { team_.synchronize(); }
  [[nodiscard]] FusedMoePlan plan(const FusedMoeShape& shape) const;
  void close(FusedMoePlan& plan) const;

 private:
  [[nodiscard]] std::size_t place(int rank) const {
    return static_cast<std::size_t>(processes_ == nullptr ? rank : 0);
  }

  const ProcessGroup* processes_ = nullptr;  // null: all ranks are here
  int size_;
  std::vector<int> here_;
  cuda::DeviceTeam team_;  // of those here
};

}  // namespace orrery
