#include "kernels/serve/kv_mover.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/comm/kv_transfer/kv_transfer.h"
#include "kernels/cuda/handles.h"

namespace orrery {
namespace {

constexpr int kThreadBlocks = 64;  // of a transfer by SMs, as kv_transfer has

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

GpuKvMover::GpuKvMover(std::vector<MovedInstance> prefill, std::vector<MovedInstance> decode,
                       MoveBy move_by)
    : prefill_(std::move(prefill)), decode_(std::move(decode)), move_by_(move_by) {
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
    const KvTransfer transfer{
        .source = blocks_of(out, source, lane.source_blocks.get()),
        .destination = blocks_of(in, destination, lane.destination_blocks.get()),
        .block_bytes = kv_block_bytes(out.shape()),
        .layers = static_cast<int>(out.shape().pools())};
    lane.begin.record(lane.stream);
    if (move_by_ == MoveBy::kSm) {
      kv_transfer_sm(lane.stream, transfer, kThreadBlocks);
    } else {
      kv_transfer_engine(lane.stream, transfer);
    }
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

std::int64_t GpuKvMover::wrong_bytes(int prefill, int decode, std::span<const std::int32_t> source,
                                     std::span<const std::int32_t> destination) const {
  const Executor& from = *prefill_[static_cast<std::size_t>(prefill)].executor;
  const Executor& to = *decode_[static_cast<std::size_t>(decode)].executor;
  std::int64_t wrong = 0;
  for (int rank = 0; rank < from.num_ranks(); ++rank) {
    const std::int64_t size = kv_block_bytes(from.kv(rank).shape());
    std::vector<std::byte> expected(static_cast<std::size_t>(size));
    std::vector<std::byte> found(expected.size());
    const auto read = [&](const KvPool& pool, std::int64_t layer, std::int32_t block,
                          std::vector<std::byte>& bytes) {
      ORRERY_CUDA(cudaMemcpy(bytes.data(), pool.data() + layer * pool.pool_bytes() + block * size,
                             bytes.size(), cudaMemcpyDeviceToHost));
    };
    for (std::int64_t layer = 0; layer < from.kv(rank).shape().pools(); ++layer) {
      for (std::size_t i = 0; i < source.size(); ++i) {
        read(from.kv(rank), layer, source[i], expected);
        read(to.kv(rank), layer, destination[i], found);
        for (std::size_t byte = 0; byte < found.size(); ++byte) {
          wrong += found[byte] != expected[byte] ? 1 : 0;
        }
      }
    }
  }
  return wrong;
}

Seconds CheckedKvMover::move(int prefill, int decode, std::span<const std::int32_t> source,
                             std::span<const std::int32_t> destination) {
  const Seconds time = mover_.move(prefill, decode, source, destination);
  const std::int64_t wrong = mover_.wrong_bytes(prefill, decode, source, destination);
  if (wrong > 0) {
    throw std::runtime_error(std::to_string(wrong) + " bytes of " + std::to_string(source.size()) +
                             " KV blocks came wrong");
  }
  return time;
}

Bytes kv_block_of(const Executor& executor) {
  Bytes bytes;
  for (int rank = 0; rank < executor.num_ranks(); ++rank) {
    const KvShape& shape = executor.kv(rank).shape();
    bytes += Bytes(static_cast<double>(shape.pools() * kv_block_bytes(shape)));
  }
  return bytes;
}

}  // namespace orrery
