#include "kernels/cuda/memory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/check.h"

namespace orrery::cuda {
namespace {

using Kind = std::pair<int, std::size_t>;  // device, rounded bytes

struct Blocks {
  std::mutex mutex;
  int caches = 0;
  std::map<void*, Kind> lent;  // those that go back to `spare`
  std::map<Kind, std::vector<void*>> spare;
};

// Never destroyed: buffers of static lifetime may outlive it.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

// Up to eight sizes per power of two, at least the granularity of cudaMalloc.
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kLeast = 512;
  const std::size_t step = std::max(kLeast, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

void release_spare(Blocks& all) {
  for (auto& [kind, memory] : all.spare) {
    for (void* block : memory) static_cast<void>(cudaFree(block));
  }
  all.spare.clear();
}

void* cached(Blocks& all, std::size_t bytes) {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const Kind kind{device, rounded(bytes)};
  void* memory = nullptr;
  std::vector<void*>& spare = all.spare[kind];
  if (!spare.empty()) {
    memory = spare.back();
    spare.pop_back();
  } else if (cudaMalloc(&memory, kind.second) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    release_spare(all);
    ORRERY_CUDA(cudaMalloc(&memory, kind.second));
  }
  all.lent.emplace(memory, kind);
  return memory;
}

}  // namespace

namespace detail {

void* allocate_device(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  Blocks& all = blocks();
  const std::scoped_lock lock(all.mutex);
  if (all.caches > 0) return cached(all, bytes);
  void* memory = nullptr;
  ORRERY_CUDA(cudaMalloc(&memory, bytes));
  return memory;
}

void free_device(void* memory) {
  Blocks& all = blocks();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.lent.find(memory);
  if (found == all.lent.end() || all.caches == 0) {
    static_cast<void>(cudaFree(memory));
  } else {
    all.spare[found->second].push_back(memory);
  }
  if (found != all.lent.end()) all.lent.erase(found);
}

}  // namespace detail

MemoryCache::MemoryCache() {
  const std::scoped_lock lock(blocks().mutex);
  ++blocks().caches;
}

MemoryCache::~MemoryCache() {
  const std::scoped_lock lock(blocks().mutex);
  if (--blocks().caches == 0) release_spare(blocks());
}

}  // namespace orrery::cuda
