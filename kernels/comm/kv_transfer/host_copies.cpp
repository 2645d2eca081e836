#include "kernels/comm/kv_transfer/host_copies.h"

#include <numeric>

#include "kernels/comm/kv_transfer/runs.h"

namespace orrery {

std::int64_t host_slot_bytes(const KvShape& shape, std::int64_t num_blocks) {
  return shape.pools() * num_blocks * kv_block_bytes(shape);
}

void HostCopies::add(void* to, const void* from, std::size_t bytes) {
  to_.push_back(to);
  from_.push_back(from);
  sizes_.push_back(bytes);
}

void HostCopies::add(const KvPool& pool, std::span<const std::int32_t> blocks, std::byte* slot,
                     std::int64_t layer, std::int64_t num_layers, bool to_host) {
  const KvShape& shape = pool.shape();
  const std::int64_t bytes = kv_block_bytes(shape);
  const std::int64_t pools_of_layer = shape.is_latent ? 1 : 2;
  std::vector<std::int32_t> places(blocks.size());
  std::iota(places.begin(), places.end(), 0);
  const std::vector<BlockRun> runs = block_runs(blocks, places);
  for (auto p = layer * pools_of_layer; p < (layer + num_layers) * pools_of_layer; ++p) {
    for (const BlockRun& run : runs) {
      std::byte* const on_gpu = pool.data() + p * pool.pool_bytes() + run.source * bytes;
      std::byte* const on_host = slot + (p * std::ssize(blocks) + run.destination) * bytes;
      add(to_host ? on_host : on_gpu, to_host ? on_gpu : on_host,
          static_cast<std::size_t>(run.count * bytes));
    }
  }
}

void HostCopies::enqueue(const cuda::Stream& stream) const {
  if (sizes_.empty()) return;
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  ORRERY_CUDA(cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), sizes_.size(),
                                   &attributes, &first, 1, stream.get()));
}

void HostCopies::enqueue_singly(const cuda::Stream& stream) const {
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    ORRERY_CUDA(cudaMemcpyAsync(to_[i], from_[i], sizes_[i], cudaMemcpyDefault, stream.get()));
  }
}

}  // namespace orrery
