#pragma once

// The paged KV cache of one rank: all layers in one allocation.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/handles.h"
#include "kernels/cuda/paged_kv.h"
#include "sim/plan/plan.h"

namespace orrery {

struct KvShape {
  std::int64_t layers = 0;  // of this rank
  std::int64_t num_blocks = 0;
  std::int32_t block_size = 64;
  std::int64_t kv_heads = 0;  // of this rank
  std::int64_t head_dim = 0;
  DType dtype = DType::kBf16;  // bf16 or fp8
  // MLA's: the rows of one head, head_dim wide, are a latent and a rotated key; there are no
  // values.
  bool is_latent = false;
  [[nodiscard]] std::int64_t pools() const { return (is_latent ? 1 : 2) * layers; }
};
// Of the keys (as of the values) of one block of one layer.
std::int64_t kv_block_bytes(const KvShape& shape);

// 2 * layers pools of [num_blocks, block_size, kv_heads, head_dim], keys and values of a layer
// next to each other: pool 2 l holds the keys of layer l, pool 2 l + 1 its values; of latents one
// pool for each layer. pool_bytes() apart, so that kv_transfer (kernels/comm/kv_transfer) moves a
// block of all layers in one call.
class KvPool {
 public:
  // On the current device, zeroed.
  explicit KvPool(const KvShape& shape);
  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::int64_t pool_bytes() const { return pool_bytes_; }
  [[nodiscard]] std::int64_t bytes() const { return shape_.pools() * pool_bytes_; }
  // keys or values of `layer` (of this rank); of latents there are no values.
  [[nodiscard]] std::byte* keys(std::int64_t layer) const {
    return data() + (shape_.is_latent ? 1 : 2) * layer * pool_bytes_;
  }
  [[nodiscard]] std::byte* values(std::int64_t layer) const { return keys(layer) + pool_bytes_; }

 private:
  KvShape shape_;
  std::int64_t pool_bytes_ = 0;
  cuda::DeviceBuffer<std::byte> memory_;
};

}  // namespace orrery
