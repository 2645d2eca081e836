#pragma once

// KV blocks between a paged cache and page-locked host memory, by the copy engines.
//
//   GPU     pools [2 l, 2 l + 1] of layer l: [block][block] .. each     (kernels/binding/kv_pool.h)
//   host    slot: [pool 0: the blocks][pool 1: the blocks] .. [pool 2 L - 1: the blocks]

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// Bytes of a slot for so many blocks of one rank.
std::int64_t host_slot_bytes(const KvShape& shape, std::int64_t num_blocks);

class HostCopies {
 public:
  // Layers [layer, layer + num_layers) of `blocks`, in this order in the slot that begins at
  // `slot`: neighbours on the GPU are one copy.
  void add(const KvPool& pool, std::span<const std::int32_t> blocks, std::byte* slot,
           std::int64_t layer, std::int64_t num_layers, bool to_host);
  void add(void* to, const void* from, std::size_t bytes);
  // All as one batch on the stream, in any order; nothing where there are none. Throws cuda::Error.
  void enqueue(const cuda::Stream& stream) const;
  // The same one by one.
  void enqueue_singly(const cuda::Stream& stream) const;
  [[nodiscard]] std::int64_t size() const { return std::ssize(sizes_); }

 private:
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<std::size_t> sizes_;
};

}  // namespace orrery
