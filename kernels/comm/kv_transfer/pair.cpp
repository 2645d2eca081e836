#include "kernels/comm/kv_transfer/pair.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/harness/operands.h"

namespace orrery {
namespace {

constexpr int kPoolFactor = 2;  // pools hold more blocks than are moved

// `count` distinct blocks of a pool.
std::vector<std::int32_t> choose(int count, bool scattered, std::uint64_t seed) {
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(count) * kPoolFactor);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::mt19937_64 random(seed);
  // Fisher and Yates, since std::shuffle differs between libraries.
  for (std::size_t i = blocks.size() - 1; scattered && i > 0; --i) {
    std::swap(blocks[i], blocks[random() % (i + 1)]);
  }
  blocks.resize(count);
  return blocks;
}

std::vector<std::byte> to_host(const std::byte* data, std::size_t bytes) {
  std::vector<std::byte> host(bytes);
  ORRERY_CUDA(cudaMemcpy(host.data(), data, bytes, cudaMemcpyDeviceToHost));
  return host;
}

}  // namespace

KvPair::KvPair(const cuda::DeviceTeam& team, const KvPairShape& shape, std::uint64_t seed)
    : team_(team),
      shape_(shape),
      source_blocks_(choose(shape.blocks, shape.scattered, seed)),
      destination_blocks_(choose(shape.blocks, shape.scattered, seed + 1)) {
  for (int rank = 0; rank < 2; ++rank) {
    const cuda::DeviceGuard guard(team.devices()[rank]);
    pools_.emplace_back(pool_bytes());
  }
  {
    const cuda::DeviceGuard guard(team.devices()[0]);
    block_lists_.push_back(device_copy(std::span<const std::int32_t>(source_blocks_)));
    block_lists_.push_back(device_copy(std::span<const std::int32_t>(destination_blocks_)));
    // Random bytes: uniform floats' bit patterns.
    fill_uniform(team.stream(0), reinterpret_cast<float*>(pools_[0].get()),
                 pool_bytes() / sizeof(float), seed, -1.0f, 1.0f);
    team.stream(0).synchronize();
  }
  const auto stride = static_cast<std::int64_t>(pool_bytes()) / shape.layers;
  transfer_ = {.source = {.pool = pools_[0].get(),
                          .layer_stride = stride,
                          .blocks = source_blocks_,
                          .device_blocks = block_lists_[0].get()},
               .destination = {.pool = pools_[1].get(),
                               .layer_stride = stride,
                               .blocks = destination_blocks_,
                               .device_blocks = block_lists_[1].get()},
               .block_bytes = shape.block_bytes,
               .layers = shape.layers};
  reset();
}

std::size_t KvPair::pool_bytes() const {
  return static_cast<std::size_t>(shape_.block_bytes) * shape_.blocks * kPoolFactor * shape_.layers;
}

void KvPair::reset() {
  const cuda::DeviceGuard guard(team_.devices()[1]);
  ORRERY_CUDA(cudaMemsetAsync(pools_[1].get(), 0xFF, pool_bytes(), team_.stream(1).get()));
  team_.stream(1).synchronize();
}

std::int64_t KvPair::wrong_bytes() {
  const std::vector<std::byte> source = to_host(pools_[0].get(), pool_bytes());
  const std::vector<std::byte> found = to_host(pools_[1].get(), pool_bytes());
  std::vector<std::byte> expected(pool_bytes(), std::byte{0xFF});
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const std::int64_t base = layer * transfer_.source.layer_stride;
    for (int i = 0; i < shape_.blocks; ++i) {
      std::copy_n(source.begin() + base + source_blocks_[i] * shape_.block_bytes,
                  shape_.block_bytes,
                  expected.begin() + base + destination_blocks_[i] * shape_.block_bytes);
    }
  }
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != expected[i] ? 1 : 0;
  return wrong;
}

}  // namespace orrery
