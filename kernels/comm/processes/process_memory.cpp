#include "kernels/comm/processes/process_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "kernels/cuda/check.h"

namespace orrery {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryOffer::handle));

// cudaMalloc takes smaller allocations from blocks of this size, and a handle opens whole blocks.
constexpr std::size_t kBlock = std::size_t{2} << 20;

// Of the running system; containers of one host have the same.
std::string host_identity() {
  std::string text;
  if (std::ifstream file("/proc/sys/kernel/random/boot_id"); file >> text) return text;
  std::array<char, 64> name{};
  static_cast<void>(gethostname(name.data(), name.size() - 1));
  return name.data();
}

std::string gpu_identity(int device) {
  std::array<char, 24> name{};
  ORRERY_CUDA(cudaDeviceGetPCIBusId(name.data(), name.size(), device));
  return name.data();
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

// Memory of another GPU that this process sees must be within reach; of one that it does not see,
// opening tells.
void require_access(int device, const MemoryOffer& own, const MemoryOffer& peer) {
  int other = 0;
  const std::string name(peer.gpu.view());
  if (cudaDeviceGetByPCIBusId(&other, name.c_str()) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  if (other == device) return;
  int can_access = 0;
  ORRERY_CUDA(cudaDeviceCanAccessPeer(&can_access, device, other));
  if (can_access != 0) return;
  throw std::runtime_error("GPU " + std::string(own.gpu.view()) + " has no peer access to GPU " +
                           name);
}

void* opened(const MemoryOffer& peer) {
  cudaIpcMemHandle_t handle{};
  std::memcpy(&handle, peer.handle.data(), sizeof(handle));
  void* memory = nullptr;
  ORRERY_CUDA(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  return memory;
}

// What each process gives, in the order of ranks.
template <typename T>
std::vector<T> gathered(const ProcessGroup& processes, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(processes.size));
  processes.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

void require_shareable(std::span<const MemoryOffer> offers, std::span<const int> ranks) {
  const auto offer_of = [&](int rank) { return offers[static_cast<std::size_t>(rank)]; };
  const MemoryOffer first = offer_of(ranks.front());
  for (const int rank : ranks) {
    const MemoryOffer offer = offer_of(rank);
    if (offer.host.view() != first.host.view()) {
      throw std::invalid_argument(rank_text(rank) + " is on another host than " +
                                  rank_text(ranks.front()) +
                                  ", expected all on one: GPUs of several hosts do not reach each "
                                  "other's memory");
    }
  }
  for (const int rank : ranks) {
    const MemoryOffer offer = offer_of(rank);
    if (!offer.fault.view().empty()) {
      throw std::runtime_error(rank_text(rank) +
                               " has no memory to share: " + std::string(offer.fault.view()));
    }
    if (offer.bytes != first.bytes) {
      throw std::runtime_error(rank_text(rank) + " shares " + std::to_string(offer.bytes) +
                               " bytes, expected " + std::to_string(first.bytes) + " as " +
                               rank_text(ranks.front()));
    }
  }
}

ProcessMemory::ProcessMemory(const ProcessGroup& processes, std::span<const int> ranks,
                             std::size_t bytes)
    : parts_(ranks.size()) {
  const auto found = std::ranges::find(ranks, processes.rank);
  if (found != ranks.end()) own_ = static_cast<int>(found - ranks.begin());
  // What fails on one process is told to all, so that none waits for it.
  MemoryOffer own{.host = host_identity(), .bytes = bytes};
  if (own_ >= 0) {
    try {
      ORRERY_CUDA(cudaGetDevice(&device_));
      own.gpu = gpu_identity(device_);
      void*& part = parts_[static_cast<std::size_t>(own_)];
      const std::size_t whole = (std::max<std::size_t>(bytes, 1) + kBlock - 1) / kBlock * kBlock;
      ORRERY_CUDA(cudaMalloc(&part, whole));
      ORRERY_CUDA(cudaMemset(part, 0, whole));
      ORRERY_CUDA(cudaDeviceSynchronize());
      cudaIpcMemHandle_t handle{};
      ORRERY_CUDA(cudaIpcGetMemHandle(&handle, part));
      std::memcpy(own.handle.data(), &handle, sizeof(handle));
    } catch (const std::exception& error) {
      own.fault = std::string_view(error.what());
    }
  }
  const std::vector<MemoryOffer> offers = gathered(processes, own);
  require_shareable(offers, ranks);

  SentText<400> fault;
  for (std::size_t i = 0; own_ >= 0 && i < ranks.size() && fault.view().empty(); ++i) {
    if (static_cast<int>(i) == own_) continue;
    const MemoryOffer& peer = offers[static_cast<std::size_t>(ranks[i])];
    try {
      require_access(device_, own, peer);
      parts_[i] = opened(peer);
    } catch (const std::exception& error) {
      fault = rank_text(processes.rank) + " cannot open the memory of " + rank_text(ranks[i]) +
              ": " + error.what();
    }
  }
  try {
    for (const SentText<400>& text : gathered(processes, fault)) {
      if (!text.view().empty()) throw std::runtime_error(std::string(text.view()));
    }
  } catch (...) {  // no destructor will
    unmap();
    throw;
  }
}

ProcessMemory::~ProcessMemory() { unmap(); }

std::byte* ProcessMemory::part(int place) const {
  return static_cast<std::byte*>(parts_.at(static_cast<std::size_t>(place)));
}

void ProcessMemory::unmap() {
  if (own_ < 0) return;
  int before = 0;
  static_cast<void>(cudaGetDevice(&before));
  static_cast<void>(cudaSetDevice(device_));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (static_cast<int>(i) == own_ || parts_[i] == nullptr) continue;
    static_cast<void>(cudaIpcCloseMemHandle(parts_[i]));
    parts_[i] = nullptr;
  }
  static_cast<void>(cudaSetDevice(before));
}

void ProcessMemory::close(const ProcessGroup& processes) {
  unmap();
  processes.barrier();
  if (own_ < 0) return;
  ORRERY_CUDA(cudaFree(parts_[static_cast<std::size_t>(own_)]));
  parts_[static_cast<std::size_t>(own_)] = nullptr;
}

}  // namespace orrery
