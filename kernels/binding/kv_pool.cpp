#include "kernels/binding/kv_pool.h"

#include <stdexcept>
#include <string>

namespace orrery {
namespace {

std::int64_t checked_pool_bytes(const KvShape& shape) {
  if (shape.dtype != DType::kBf16 && shape.dtype != DType::kFp8) {
    throw std::invalid_argument("a KV cache of " + std::string(to_text(shape.dtype)) +
                                ", expected bf16 or fp8");
  }
  if (shape.layers < 0 || shape.num_blocks < 0 || shape.block_size < 1 || shape.kv_heads < 0 ||
      shape.head_dim < 0) {
    throw std::invalid_argument("a KV cache of negative size");
  }
  return shape.num_blocks * kv_block_bytes(shape);
}

}  // namespace

std::int64_t kv_block_bytes(const KvShape& shape) {
  const std::int64_t elements = shape.block_size * shape.kv_heads * shape.head_dim;
  return shape.dtype == DType::kFp8 ? elements : 2 * elements;
}

KvPool::KvPool(const KvShape& shape)
    : shape_(shape),
      pool_bytes_(checked_pool_bytes(shape)),
      memory_(static_cast<std::size_t>(bytes())) {
  if (memory_.size() == 0) return;
  const cuda::Stream stream;
  ORRERY_CUDA(cudaMemsetAsync(memory_.get(), 0, memory_.size(), stream.get()));
  stream.synchronize();
}

}  // namespace orrery
