#pragma once

// Which blocks of the paged KV cache each request holds: the identities behind the counts of
// KvBlockManager.
//
// Not thread safe.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

class KvBlocks {
 public:
  KvBlocks(std::int64_t num_blocks, std::int64_t block_size, std::int64_t num_requests);

  // Blocks that cover `tokens` tokens of `request`, those that it holds first. Throws
  // std::runtime_error when none are left.
  std::span<const std::int32_t> cover(std::int64_t request, std::int64_t tokens);
  void release(std::int64_t request);
  [[nodiscard]] std::span<const std::int32_t> held(std::int64_t request) const;
  [[nodiscard]] std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }

 private:
  std::int64_t block_size_;
  std::vector<std::int32_t> free_;               // the one given back last is taken next
  std::vector<std::vector<std::int32_t>> held_;  // by request
};

}  // namespace orrery
