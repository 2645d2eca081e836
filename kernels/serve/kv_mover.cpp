#include "kernels/serve/kv_mover.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cuda/handles.h"
#include "kernels/kv_transfer/kv_transfer.h"

namespace orrery {
namespace {

void check_alike(const Executor& prefill, const Executor& decode) {
  bool is_alike = prefill.num_ranks() == decode.num_ranks();
  for (int rank = 0; is_alike && rank < prefill.num_ranks(); ++rank) {
    const KvShape& a = prefill.kv(rank).shape();
    const KvShape& b = decode.kv(rank).shape();
    is_alike = a.layers == b.layers && a.block_size == b.block_size && a.kv_heads == b.kv_heads &&
               a.head_dim == b.head_dim && a.dtype == b.dtype;
  }
  if (!is_alike) {
    throw std::invalid_argument(
        "prefill and decode instances have caches of other shapes, so that blocks cannot move as "
        "they are; expected the same ranks, layers, heads and block size");
  }
}

KvTransferSide blocks_of(const KvPool& pool, std::span<const std::int32_t> blocks,
                         const std::int32_t* device_blocks) {
  return {.pool = pool.data(),
          .layer_stride = pool.pool_bytes(),
          .blocks = blocks,
          .device_blocks = device_blocks};
}

}  // namespace

// Made and used with the source's device current.
struct GpuKvMover::Lane {
  explicit Lane(std::size_t most_blocks)
      : source_blocks(most_blocks), destination_blocks(most_blocks) {}

  cuda::Stream stream;
  cuda::Event begin;
  cuda::Event end;
  cuda::DeviceBuffer<std::int32_t> source_blocks;
  cuda::DeviceBuffer<std::int32_t> destination_blocks;
};

GpuKvMover::GpuKvMover(std::vector<MovedInstance> prefill, std::vector<MovedInstance> decode)
    : prefill_(std::move(prefill)), decode_(std::move(decode)) {
  std::vector<int> devices;
  for (const auto* side : {&prefill_, &decode_}) {
    for (const MovedInstance& instance : *side) {
      devices.insert(devices.end(), instance.devices.begin(), instance.devices.end());
    }
  }
  team_ = std::make_unique<cuda::DeviceTeam>(devices);
  for (const MovedInstance& from : prefill_) {
    for (const MovedInstance& to : decode_) {
      check_alike(*from.executor, *to.executor);
      auto& lanes = lanes_.emplace_back();
      for (int rank = 0; rank < from.executor->num_ranks(); ++rank) {
        const cuda::DeviceGuard guard(from.devices[static_cast<std::size_t>(rank)]);
        const auto most = std::min(from.executor->kv(rank).shape().num_blocks,
                                   to.executor->kv(rank).shape().num_blocks);
        lanes.push_back(std::make_unique<Lane>(static_cast<std::size_t>(most)));
      }
    }
  }
}

GpuKvMover::~GpuKvMover() = default;

Seconds GpuKvMover::move(int prefill, int decode, std::span<const std::int32_t> source,
                         std::span<const std::int32_t> destination) {
  const MovedInstance& from = prefill_[static_cast<std::size_t>(prefill)];
  const MovedInstance& to = decode_[static_cast<std::size_t>(decode)];
  const auto& lanes =
      lanes_[static_cast<std::size_t>(prefill) * decode_.size() + static_cast<std::size_t>(decode)];
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    const cuda::DeviceGuard guard(from.devices[rank]);
    const Lane& lane = *lanes[rank];
    const auto upload = [&](std::span<const std::int32_t> blocks, std::int32_t* list) {
      ORRERY_CUDA(cudaMemcpyAsync(list, blocks.data(), blocks.size_bytes(), cudaMemcpyHostToDevice,
                                  lane.stream.get()));
    };
    upload(source, lane.source_blocks.get());
    upload(destination, lane.destination_blocks.get());
    const KvPool& out = from.executor->kv(static_cast<int>(rank));
    const KvPool& in = to.executor->kv(static_cast<int>(rank));
    lane.begin.record(lane.stream);
    kv_transfer(lane.stream,
                {.source = blocks_of(out, source, lane.source_blocks.get()),
                 .destination = blocks_of(in, destination, lane.destination_blocks.get()),
                 .block_bytes = kv_block_bytes(out.shape()),
                 .layers = static_cast<int>(2 * out.shape().layers)});
    lane.end.record(lane.stream);
  }
  Seconds longest;
  for (std::size_t rank = 0; rank < lanes.size(); ++rank) {
    const cuda::DeviceGuard guard(from.devices[rank]);
    lanes[rank]->end.synchronize();
    longest = std::max(longest, lanes[rank]->end - lanes[rank]->begin);
  }
  return longest;
}

Bytes kv_block_of(const Executor& executor) {
  Bytes bytes;
  for (int rank = 0; rank < executor.num_ranks(); ++rank) {
    const KvShape& shape = executor.kv(rank).shape();
    bytes += Bytes(2.0 * static_cast<double>(shape.layers * kv_block_bytes(shape)));
  }
  return bytes;
}

}  // namespace orrery
