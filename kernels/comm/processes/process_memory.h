#pragma once

// Device memory that processes of one host, a GPU each, write into each other's: each allocates a
// part by cudaMalloc and maps those of the others (cudaIpcGetMemHandle, cudaIpcOpenMemHandle).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/comm/processes/process_group.h"
#include "kernels/comm/processes/sent_text.h"

namespace orrery {

// What a process says of its part.
struct MemoryOffer {
  SentText<64> host;  // the same for all processes of a host
  SentText<24> gpu;   // PCI bus id
  std::uint64_t bytes = 0;
  std::array<std::byte, 64> handle{};
  SentText<240> fault;  // why there is no part; empty: there is
};

// That processes of `ranks`, whose offers are at these places, can share memory. Throws
// std::invalid_argument for processes of several hosts, std::runtime_error for a rank that has no
// part or one of another size; both name the rank.
void require_shareable(std::span<const MemoryOffer> offers, std::span<const int> ranks);

// The parts of a group of ranks, each a process, zeroed before anybody can write into them. Not
// thread safe.
class ProcessMemory {
 public:
  // `bytes` on the current device, the same for all of `ranks`; without a part where this process
  // is none of them. All processes make the call. Throws as require_shareable() does, and on all
  // processes std::runtime_error where one of them cannot open a part (no peer access between two
  // GPUs, for one) or has ended: which rank, and what is wrong.
  ProcessMemory(const ProcessGroup& processes, std::span<const int> ranks, std::size_t bytes);
  // Unmaps the others' parts. Leaves its own to the end of the process, since others may still have
  // it mapped, in which case cudaFree is undefined; close() frees it.
  ~ProcessMemory();
  ProcessMemory(const ProcessMemory&) = delete;
  ProcessMemory& operator=(const ProcessMemory&) = delete;

  // Where the part of ranks[place] is for this process.
  [[nodiscard]] std::byte* part(int place) const;
  // Unmaps, waits until all processes have, and frees the own part. All processes make the call,
  // once none of them has work under way that uses a part. Throws as ProcessGroup does.
  void close(const ProcessGroup& processes);

 private:
  void unmap();

  std::vector<void*> parts_;  // by place; null once unmapped
  int own_ = -1;              // place; -1: none
  int device_ = 0;
};

}  // namespace orrery
