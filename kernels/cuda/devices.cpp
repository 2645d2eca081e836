#include "kernels/cuda/devices.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace orrery::cuda {
namespace {

void open_peers(int device, std::span<const int> devices) {
  const DeviceGuard guard(device);
  for (const int peer : devices) {
    if (peer == device) continue;
    int can_access = 0;
    ORRERY_CUDA(cudaDeviceCanAccessPeer(&can_access, device, peer));
    if (can_access == 0) {
      throw std::invalid_argument("GPU " + std::to_string(device) +
                                  " cannot access the memory of GPU " + std::to_string(peer) +
                                  "; GPUs of one team need peer access (NVLink)");
    }
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
      continue;
    }
    ORRERY_CUDA(code);
  }
}

}  // namespace

bool are_peers(std::span<const int> devices) {
  const int count = device_count();
  for (const int device : devices) {
    if (device < 0 || device >= count || std::ranges::count(devices, device) != 1) return false;
    for (const int peer : devices) {
      int can_access = 1;
      if (peer >= 0 && peer < count && peer != device) {
        ORRERY_CUDA(cudaDeviceCanAccessPeer(&can_access, device, peer));
      }
      if (can_access == 0) return false;
    }
  }
  return true;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

DeviceTeam::DeviceTeam(std::span<const int> devices, bool may_share)
    : devices_(devices.begin(), devices.end()) {
  const int count = device_count();
  for (const int device : devices_) {
    if (device < 0 || device >= count) {
      throw std::invalid_argument("no GPU " + std::to_string(device) + "; there are " +
                                  std::to_string(count));
    }
    if (!may_share && std::ranges::count(devices_, device) != 1) {
      throw std::invalid_argument("GPU " + std::to_string(device) + " is named twice");
    }
  }
  streams_.reserve(devices_.size());
  for (const int device : devices_) {
    open_peers(device, devices_);
    const DeviceGuard guard(device);
    streams_.emplace_back();
  }
}

void DeviceTeam::run(const std::function<void(int rank)>& work) const {
  std::mutex mutex;
  std::exception_ptr error;
  {
    std::vector<std::jthread> threads;
    threads.reserve(devices_.size());
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const DeviceGuard guard(devices_[rank]);
          work(rank);
        } catch (...) {  // carried to the caller's thread
          const std::scoped_lock lock(mutex);
          if (!error) error = std::current_exception();
        }
      });
    }
  }
  if (error) std::rethrow_exception(error);
}

void DeviceTeam::synchronize() const {
  for (const Stream& stream : streams_) stream.synchronize();
}

}  // namespace orrery::cuda
