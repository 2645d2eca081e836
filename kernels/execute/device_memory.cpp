#include "kernels/execute/device_memory.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <stdexcept>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/nvml.h"

namespace orrery {
namespace {

struct Use {
  Bytes free;
  Bytes total;
};

Use use() {
  std::size_t free = 0;
  std::size_t total = 0;
  ORRERY_CUDA(cudaMemGetInfo(&free, &total));
  return {.free = Bytes(static_cast<double>(free)), .total = Bytes(static_cast<double>(total))};
}

std::string gibibytes(Bytes bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", bytes.value() / (1024.0 * 1024.0 * 1024.0));
  return text;
}

std::optional<HeldMemory> held_now(int device) {
  try {
    const cuda::Board board = cuda::Board::of_device(device);
    const cuda::BoardMemory memory = board.memory();
    HeldMemory held{.bytes = memory.total - memory.reserved - memory.free};
    for (const cuda::BoardProcess& process : board.processes()) {
      if (process.id == static_cast<std::uint32_t>(getpid())) continue;
      if (!held.holders.empty()) held.holders += ", ";
      held.holders += "process " + std::to_string(process.id) + " " + gibibytes(process.memory);
    }
    return held;
  } catch (const std::runtime_error&) {  // no NVML: nothing is known
    return std::nullopt;
  }
}

}  // namespace

std::optional<HeldMemory> held_by_others(int device) {
  static std::mutex mutex;
  static std::map<int, std::optional<HeldMemory>> first;
  const std::scoped_lock lock(mutex);
  const auto found = first.find(device);
  if (found != first.end()) return found->second;
  return first.emplace(device, held_now(device)).first->second;
}

Bytes device_memory_in_use() {
  const Use now = use();
  return now.total - now.free;
}

std::string memory_shortage(std::optional<Bytes> needed, const std::string& purposes,
                            const std::optional<HeldMemory>& others) {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const Use now = use();
  std::string text = "GPU " + std::to_string(device) + " (" + cuda::device_properties().name +
                     ") has " + gibibytes(now.free) + " free of " + gibibytes(now.total);
  constexpr Bytes kNoteworthy{64.0 * 1024 * 1024};
  if (others && others->bytes > kNoteworthy) {
    text += ", of which others hold " + gibibytes(others->bytes);
    if (!others->holders.empty()) text += " (" + others->holders + ")";
  }
  return text + "; " + (needed ? gibibytes(*needed) + " are" : std::string("more is")) +
         " needed: " + purposes;
}

void require_device_memory(Bytes needed, const std::string& purposes,
                           const std::optional<HeldMemory>& others) {
  if (use().free >= needed) return;
  throw std::runtime_error(memory_shortage(needed, purposes, others));
}

}  // namespace orrery
