#include "kernels/serve/kv_mover.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/comm/kv_transfer/kv_transfer.h"
#include "kernels/cuda/handles.h"

namespace orrery {
namespace {

constexpr int kThreadBlocks = 64;  // of a GPU that sends, by SMs, as kv_transfer has

// Bytes of one token's keys (or values) of one KV head.
std::int64_t head_bytes(const KvShape& shape) {
  return kv_block_bytes(shape) / (shape.block_size * shape.kv_heads);
}

bool holds(const KvShape& shape, std::int64_t layer, std::int64_t head, const KvPart& part) {
  return layer + part.num_layers <= shape.layers && head + part.num_heads <= shape.kv_heads;
}

void check_part(const KvPart& part, const MovedInstance& prefill, const MovedInstance& decode) {
  bool fits = part.sender < prefill.gpus.size() && part.receiver < decode.gpus.size();
  if (fits) {
    const KvShape& from = prefill.gpus[part.sender].pool->shape();
    const KvShape& to = decode.gpus[part.receiver].pool->shape();
    fits = holds(from, part.sender_layer, part.sender_head, part) &&
           holds(to, part.receiver_layer, part.receiver_head, part) &&
           from.block_size == to.block_size && from.head_dim == to.head_dim &&
           from.dtype == to.dtype && from.is_latent == to.is_latent;
  }
  if (!fits) {
    throw std::invalid_argument(
        "prefill and decode instances have KV caches between which blocks cannot move; expected "
        "the layers and KV heads of their placements, the same block size and the same format");
  }
}

// `num_layers` of the part from its layer `layer` on, in the pools of one side.
KvTransferSide side_of(const KvPool& pool, std::int64_t layer, std::int64_t head,
                       std::span<const std::int32_t> blocks, const std::int32_t* device_blocks) {
  const KvShape& shape = pool.shape();
  return {.pool = pool.keys(layer) + head * head_bytes(shape),
          .layer_stride = pool.pool_bytes(),
          .block_stride = kv_block_bytes(shape),
          .row_stride = shape.kv_heads * head_bytes(shape),
          .blocks = blocks,
          .device_blocks = device_blocks};
}

KvTransfer transfer_of(const KvPool& from, const KvPool& to, const KvPart& part,
                       std::int64_t first_layer, std::int64_t num_layers) {
  const KvShape& shape = from.shape();
  return {.source = side_of(from, part.sender_layer + first_layer, part.sender_head, {}, nullptr),
          .destination =
              side_of(to, part.receiver_layer + first_layer, part.receiver_head, {}, nullptr),
          .block_bytes = shape.block_size * part.num_heads * head_bytes(shape),
          .rows = shape.block_size,
          .layers = static_cast<int>((shape.is_latent ? 1 : 2) * num_layers)};
}

}  // namespace

// Made and used with the sender's device current.
struct GpuKvMover::Lane {
  Lane(const MovedInstance::Gpu& sender, const MovedInstance::Gpu& receiver)
      : from(sender),
        to(receiver),
        source_blocks(static_cast<std::size_t>(most_blocks())),
        destination_blocks(static_cast<std::size_t>(most_blocks())) {}
  [[nodiscard]] std::int64_t most_blocks() const {
    return std::min(from.pool->shape().num_blocks, to.pool->shape().num_blocks);
  }

  MovedInstance::Gpu from;
  MovedInstance::Gpu to;
  int thread_blocks = kThreadBlocks;
  cuda::Stream stream;
  cuda::Event begin;
  cuda::Event end;
  cuda::DeviceBuffer<std::int32_t> source_blocks;
  cuda::DeviceBuffer<std::int32_t> destination_blocks;
  bool has_begun = false;  // in the transfer that is enqueued
};

struct GpuKvMover::Piece {
  std::size_t part = 0;
  std::int64_t first_layer = 0;  // of the part's
  std::int64_t num_layers = 0;
};

GpuKvMover::GpuKvMover(std::vector<MovedInstance> prefill, std::vector<MovedInstance> decode,
                       std::vector<KvPart> parts, MoveBy move_by)
    : prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      parts_(std::move(parts)),
      move_by_(move_by) {
  std::vector<int> devices;
  for (const auto* side : {&prefill_, &decode_}) {
    for (const MovedInstance& instance : *side) {
      for (const MovedInstance::Gpu& gpu : instance.gpus) {
        if (std::ranges::find(devices, gpu.device) == devices.end()) devices.push_back(gpu.device);
      }
    }
  }
  team_ = std::make_unique<cuda::DeviceTeam>(devices);
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> lanes;
  for (const KvPart& part : parts_) {
    lane_of_part_.push_back(
        lanes.emplace(std::pair(part.sender, part.receiver), lanes.size()).first->second);
  }
  for (const MovedInstance& from : prefill_) {
    steps_before_.push_back(from.layers != nullptr ? from.layers->num_steps() : 0);
    for (const MovedInstance& to : decode_) {
      for (const KvPart& part : parts_) check_part(part, from, to);
      lanes_.push_back(make_lanes(from, to));
    }
  }
}

GpuKvMover::~GpuKvMover() = default;

GpuKvMover::Lanes GpuKvMover::make_lanes(const MovedInstance& from, const MovedInstance& to) const {
  Lanes lanes;
  std::vector<int> num_lanes(from.gpus.size());
  std::vector<std::size_t> senders;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (lane_of_part_[i] != lanes.size()) continue;
    const KvPart& part = parts_[i];
    const cuda::DeviceGuard guard(from.gpus[part.sender].device);
    lanes.push_back(std::make_unique<Lane>(from.gpus[part.sender], to.gpus[part.receiver]));
    senders.push_back(part.sender);
    ++num_lanes[part.sender];
  }
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i]->thread_blocks = std::max(kThreadBlocks / num_lanes[senders[i]], 1);
  }
  return lanes;
}

// By layers: in the order in which they are computed.
std::vector<GpuKvMover::Piece> GpuKvMover::pieces(bool by_layers) const {
  std::vector<Piece> all;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::int64_t step = by_layers ? 1 : parts_[i].num_layers;
    for (std::int64_t layer = 0; layer < parts_[i].num_layers; layer += step) {
      all.push_back({.part = i, .first_layer = layer, .num_layers = step});
    }
  }
  std::ranges::stable_sort(
      all, {}, [&](const Piece& piece) { return parts_[piece.part].layer + piece.first_layer; });
  return all;
}

Seconds GpuKvMover::move(const Move& move) {
  const Lanes& lanes = lanes_[static_cast<std::size_t>(move.prefill) * decode_.size() +
                              static_cast<std::size_t>(move.decode)];
  for (const std::unique_ptr<Lane>& lane : lanes) {
    const cuda::DeviceGuard guard(lane->from.device);
    const auto upload = [&](std::span<const std::int32_t> blocks, std::int32_t* list) {
      ORRERY_CUDA(cudaMemcpyAsync(list, blocks.data(), blocks.size_bytes(), cudaMemcpyHostToDevice,
                                  lane->stream.get()));
    };
    upload(move.source, lane->source_blocks.get());
    upload(move.destination, lane->destination_blocks.get());
    lane->has_begun = false;
  }
  for (const Piece& piece : pieces(move.step > 0)) {
    enqueue(move, *lanes[lane_of_part_[piece.part]], piece);
  }
  Seconds longest;
  for (const std::unique_ptr<Lane>& lane : lanes) {
    const cuda::DeviceGuard guard(lane->from.device);
    lane->end.record(lane->stream);
  }
  for (const std::unique_ptr<Lane>& lane : lanes) {
    const cuda::DeviceGuard guard(lane->from.device);
    lane->end.synchronize();
    longest = std::max(longest, lane->end - lane->begin);
  }
  return longest;
}

void GpuKvMover::enqueue(const Move& move, Lane& lane, const Piece& piece) const {
  const KvPart& part = parts_[piece.part];
  const cuda::DeviceGuard guard(lane.from.device);
  if (move.step > 0) {
    const auto prefill = static_cast<std::size_t>(move.prefill);
    prefill_[prefill].layers->hold(lane.stream, steps_before_[prefill] + move.step, lane.from.rank,
                                   part.sender_layer + piece.first_layer + piece.num_layers - 1);
  }
  if (!std::exchange(lane.has_begun, true)) lane.begin.record(lane.stream);
  KvTransfer transfer =
      transfer_of(*lane.from.pool, *lane.to.pool, part, piece.first_layer, piece.num_layers);
  transfer.source.blocks = move.source;
  transfer.source.device_blocks = lane.source_blocks.get();
  transfer.destination.blocks = move.destination;
  transfer.destination.device_blocks = lane.destination_blocks.get();
  if (move_by_ == MoveBy::kSm) {
    kv_transfer_sm(lane.stream, transfer, lane.thread_blocks);
  } else {
    kv_transfer_engine(lane.stream, transfer);
  }
}

Bytes GpuKvMover::block_bytes() const {
  Bytes bytes;
  for (const KvPart& part : parts_) {
    const KvTransfer transfer =
        transfer_of(*prefill_.front().gpus[part.sender].pool,
                    *decode_.front().gpus[part.receiver].pool, part, 0, part.num_layers);
    bytes += Bytes(static_cast<double>(transfer.block_bytes * transfer.layers));
  }
  return bytes;
}

std::int64_t GpuKvMover::wrong_bytes(const Move& move) const {
  const MovedInstance& from = prefill_[static_cast<std::size_t>(move.prefill)];
  const MovedInstance& to = decode_[static_cast<std::size_t>(move.decode)];
  std::int64_t wrong = 0;
  for (const KvPart& part : parts_) {
    const KvPool& out = *from.gpus[part.sender].pool;
    const KvPool& in = *to.gpus[part.receiver].pool;
    const KvTransfer transfer = transfer_of(out, in, part, 0, part.num_layers);
    const std::int64_t width = transfer.block_bytes / transfer.rows;
    std::vector<std::byte> expected(static_cast<std::size_t>(transfer.block_bytes));
    std::vector<std::byte> found(expected.size());
    const auto read = [&](const KvTransferSide& side, int layer, std::int32_t block,
                          std::vector<std::byte>& bytes) {
      ORRERY_CUDA(cudaMemcpy2D(bytes.data(), static_cast<std::size_t>(width),
                               side.pool + layer * side.layer_stride + block * side.block_stride,
                               static_cast<std::size_t>(side.row_stride),
                               static_cast<std::size_t>(width),
                               static_cast<std::size_t>(transfer.rows), cudaMemcpyDeviceToHost));
    };
    for (int layer = 0; layer < transfer.layers; ++layer) {
      for (std::size_t i = 0; i < move.source.size(); ++i) {
        read(transfer.source, layer, move.source[i], expected);
        read(transfer.destination, layer, move.destination[i], found);
        for (std::size_t byte = 0; byte < found.size(); ++byte) {
          wrong += found[byte] != expected[byte] ? 1 : 0;
        }
      }
    }
  }
  return wrong;
}

Seconds CheckedKvMover::move(const Move& move) {
  const Seconds time = mover_.move(move);
  const std::int64_t wrong = mover_.wrong_bytes(move);
  if (wrong > 0) {
    throw std::runtime_error(std::to_string(wrong) + " bytes of " +
                             std::to_string(move.source.size()) + " KV blocks came wrong");
  }
  return time;
}

}  // namespace orrery
