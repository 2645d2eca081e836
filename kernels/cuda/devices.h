#pragma once

// Several GPUs of one host in one process: which device is current, peer access among them, and one
// host thread per rank.

#include <cuda_runtime_api.h>

#include <functional>
#include <span>
#include <vector>

#include "kernels/cuda/handles.h"

namespace orrery::cuda {

// Makes `device` current in this thread for the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    ORRERY_CUDA(cudaGetDevice(&before_));
    ORRERY_CUDA(cudaSetDevice(device));
  }
  ~DeviceGuard() { static_cast<void>(cudaSetDevice(before_)); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// Devices of this process as ranks 0 .. size() - 1, each with a stream. Not thread safe, except
// inside run().
class DeviceTeam {
 public:
  // Opens each device's memory to all others. Throws std::invalid_argument for a device that does
  // not exist, a pair without peer access, or, unless ranks may share one, a device named twice.
  explicit DeviceTeam(std::span<const int> devices, bool may_share = false);
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] std::span<const int> devices() const { return devices_; }
  [[nodiscard]] const Stream& stream(int rank) const { return streams_[rank]; }
  // work(rank) in a thread per rank with its device current; returns when all have, and throws what
  // the first of them threw. `work` may launch kernels that wait for other ranks, but must not
  // allocate or free device memory while one runs: that may wait for a device to be idle.
  void run(const std::function<void(int rank)>& work) const;
  void synchronize() const;

 private:
  std::vector<int> devices_;
  std::vector<Stream> streams_;
};

// Whether each of `devices`, all different and of this process, can access the memory of all
// others.
bool are_peers(std::span<const int> devices);

// Number of GPUs that this process sees; 0 without a driver.
int device_count();

}  // namespace orrery::cuda
