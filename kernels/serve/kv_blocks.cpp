#include "kernels/serve/kv_blocks.h"

#include <cstddef>
#include <stdexcept>
#include <string>

namespace orrery {

KvBlocks::KvBlocks(std::int64_t num_blocks, std::int64_t block_size, std::int64_t num_requests)
    : block_size_(block_size), held_(static_cast<std::size_t>(num_requests)) {
  free_.reserve(static_cast<std::size_t>(num_blocks));
  for (std::int64_t block = num_blocks - 1; block >= 0; --block) {
    free_.push_back(static_cast<std::int32_t>(block));
  }
}

std::span<const std::int32_t> KvBlocks::cover(std::int64_t request, std::int64_t tokens) {
  std::vector<std::int32_t>& blocks = held_[static_cast<std::size_t>(request)];
  const auto needed = static_cast<std::size_t>((tokens + block_size_ - 1) / block_size_);
  while (blocks.size() < needed) {
    if (free_.empty()) {
      throw std::runtime_error("request " + std::to_string(request) + " needs " +
                               std::to_string(needed) + " KV blocks and holds " +
                               std::to_string(blocks.size()) + "; none are left");
    }
    blocks.push_back(free_.back());
    free_.pop_back();
  }
  return blocks;
}

void KvBlocks::release(std::int64_t request) {
  std::vector<std::int32_t>& blocks = held_[static_cast<std::size_t>(request)];
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
  blocks.clear();
}

std::span<const std::int32_t> KvBlocks::held(std::int64_t request) const {
  return held_[static_cast<std::size_t>(request)];
}

}  // namespace orrery
