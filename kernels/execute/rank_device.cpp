#include "kernels/execute/rank_device.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/attention/rope/reference.h"
#include "kernels/cuda/device_copy.h"
#include "kernels/execute/inject.h"
#include "sim/memory/buffers.h"
#include "sim/plan/streams.h"
#include "sim/units/parse.h"

namespace orrery {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// `current` if it is large enough, else new zeroed memory on the current device.
void grow(std::shared_ptr<cuda::DeviceBuffer<std::byte>>& current, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (current && current->size() >= size) return;
  current = nullptr;  // gone before the larger one comes, unless a graph holds it
  current = std::make_shared<cuda::DeviceBuffer<std::byte>>(size);
  if (size == 0) return;
  const cuda::Stream stream;
  ORRERY_CUDA(cudaMemsetAsync(current->get(), 0, size, stream.get()));
  stream.synchronize();
}

std::unique_ptr<cuda::DeviceBuffer<float>> uploaded(const std::vector<float>& values) {
  return std::make_unique<cuda::DeviceBuffer<float>>(device_copy<float>(values));
}

}  // namespace

RankDevice::RankDevice(const ExecutorSetup& setup, int rank, std::optional<HeldMemory> others,
                       Watch& watch)
    : rank_(rank),
      others_(std::move(others)),
      watch_(watch),
      cache_{.num_blocks = setup.num_kv_blocks,
             .block_size = setup.block_size,
             .max_model_len = setup.max_model_len,
             .cp = setup.grid.cp,
             .cp_rank = setup.grid.cp_rank(rank)},
      layers_(kv_layers(setup.plan, rank)),
      first_expert_(orrery::first_expert(setup.plan, rank)) {
  memory.context = device_memory_in_use();
  if (others_) memory.context -= others_->bytes;
}

void RankDevice::allocate(const ExecutorSetup& setup) {
  require_memory(setup);
  take_memory("weights, KV cache and tables", [&] {
    measure(&RankMemory::weights, [&] { allocate_weights(setup); });
    measure(&RankMemory::kv_cache, [&] { kv_ = std::make_unique<KvPool>(kv_shape(setup)); });
    measure(&RankMemory::other, [&] { allocate_tables(setup); });
  });
}

void RankDevice::require_memory(const ExecutorSetup& setup) const {
  const KvShape kv = kv_shape(setup);
  const Bytes weights = memory_of(setup.plan, rank_).weights;
  const Bytes cache(static_cast<double>(kv.pools() * kv.num_blocks * kv_block_bytes(kv)));
  const Bytes arena(static_cast<double>(plan_buffers(setup.plan, rank_).arena_bytes));
  const std::string purposes = "weights " + to_text(weights) + ", KV cache " + to_text(cache) +
                               ", activations " + to_text(arena);
  try {
    require_device_memory(weights + cache + arena, purposes, others_);
  } catch (const std::runtime_error& error) {
    throw RankError(rank_, "", error.what());
  }
}

bool RankDevice::reach(const ExecutorSetup& setup, const std::string& op, const cuda::Stream& on) {
  watch_.enqueueing(rank_, op);
  if (!setup.fault || setup.fault->rank != rank_ || setup.fault->op != op) return false;
  if (++times_at_fault_ < setup.fault->run) return false;
  if (times_at_fault_ == setup.fault->run) inject(setup.fault->kind, on);
  return setup.fault->kind == FaultKind::kNan;
}

void RankDevice::allocate_weights(const ExecutorSetup& setup) {
  for (const auto& [name, kept] :
       kept_weights(setup.plan, rank_, setup.numbers.routing.expert_of_slot)) {
    weights_.emplace(name, filled_weight(kept, setup.seed));
  }
  stream(0).synchronize();
}

RankDevice::Weight RankDevice::filled_weight(const KeptWeight& kept, std::uint64_t seed) {
  const WeightShard& shard = kept.shard;
  require_stored_dtype(shard, kept.dtype);
  const bool is_fp8 = kept.dtype == DType::kFp8;
  const auto element_bytes = static_cast<std::int64_t>(bytes_per_element(kept.dtype));
  const std::int64_t stride = aligned(shard.rows * shard.columns * element_bytes);
  const std::int64_t num_scales = is_fp8 ? shard.rows * shard.num_copies : 0;
  Weight weight{
      .kept = kept,
      .stride = stride,
      .data = cuda::DeviceBuffer<std::byte>(static_cast<std::size_t>(stride * shard.num_copies)),
      .scales = cuda::DeviceBuffer<float>(static_cast<std::size_t>(num_scales))};
  for (std::int64_t copy = 0; copy < shard.num_copies; ++copy) {
    fill_weight(stream(0), shard, copy, kept.dtype, weight.data.get() + copy * stride,
                is_fp8 ? weight.scales.get() + copy * shard.rows : nullptr, seed);
  }
  return weight;
}

KvShape RankDevice::kv_shape(const ExecutorSetup& setup) const {
  KvShape shape{.layers = layers_.count,
                .num_blocks = setup.num_kv_blocks,
                .block_size = setup.block_size,
                .head_dim = setup.numbers.head_dim,
                .dtype = setup.kv_dtype};
  for (std::size_t i = 0; i < layers_.first.size(); ++i) {
    if (layers_.first[i] < 0) continue;
    const Tensor& tensor = setup.plan.tensors()[i];
    const std::int64_t width = tensor.axes.back().size;  // keys and values, or a latent and a key
    if (tensor.axes.back().name == axis::kLatent) {
      shape.is_latent = true;
      shape.kv_heads = 1;
      shape.head_dim = width;
      continue;
    }
    const std::int64_t heads = width / (2 * shape.head_dim);
    if (heads * 2 * shape.head_dim != width || (shape.kv_heads != 0 && shape.kv_heads != heads)) {
      throw std::invalid_argument("the KV cache of \"" + tensor.name + "\" is " +
                                  std::to_string(width) + " wide, expected keys and values of " +
                                  std::to_string(shape.head_dim) +
                                  " per head, as many heads in every layer");
    }
    shape.kv_heads = heads;
  }
  return shape;
}

void RankDevice::allocate_tables(const ExecutorSetup& setup) {
  const reference::RopeTables rope = reference::rope_tables(
      static_cast<std::size_t>(setup.numbers.max_positions),
      static_cast<std::size_t>(setup.numbers.head_dim), setup.numbers.rope_theta);
  cosines_ = uploaded(rope.cosines);
  sines_ = uploaded(rope.sines);
  const StepRows rows{.tokens = setup.max_tokens,
                      .prefill = setup.max_tokens,
                      .decodes = setup.max_sequences,
                      .seqs = setup.max_sequences};
  const std::int64_t bytes = table_layout(rows, setup.max_sequences, cache_, 0).end;
  static_cast<void>(tables(bytes));
  static_cast<void>(staging(bytes));
  static_cast<void>(results(setup.max_sequences));
}

Operand RankDevice::weight(const Tensor& tensor, std::int64_t copies, std::int32_t copy) const {
  const auto found = weights_.find(tensor.name);
  if (found == weights_.end()) {
    throw std::invalid_argument("weight \"" + tensor.name +
                                "\" is not in the plan that the executor was made for");
  }
  const Weight& weight = found->second;
  const std::int64_t index = kept_copy(weight.kept, tensor, copies, copy);
  const bool is_fp8 = weight.kept.dtype == DType::kFp8;
  return {.data = weight.data.get() + index * weight.stride,
          .scales = is_fp8 ? weight.scales.get() + index * weight.kept.shard.rows : nullptr,
          .tensor = &tensor};
}

std::shared_ptr<cuda::DeviceBuffer<std::byte>> RankDevice::arena(std::int64_t bytes) {
  if (!arena_ || arena_->size() < static_cast<std::size_t>(bytes)) {
    measure(&RankMemory::activations, [&] { grow(arena_, bytes); });
  }
  return arena_;
}

std::shared_ptr<cuda::DeviceBuffer<std::byte>> RankDevice::tables(std::int64_t bytes) {
  grow(tables_, bytes);
  return tables_;
}

std::byte* RankDevice::staging(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (!staging_ || staging_->size() < size) {
    staging_ = std::make_unique<cuda::PinnedBuffer<std::byte>>(size);
  }
  return staging_->get();
}

std::int32_t* RankDevice::results(std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  if (!results_ || results_->size() < size) {
    results_ = std::make_unique<cuda::PinnedBuffer<std::int32_t>>(size);
  }
  return results_->get();
}

RankDevice::Stream& RankDevice::stream_entry(int number) {
  std::unique_ptr<Stream>& entry = streams_[number];
  if (!entry) {
    entry = std::make_unique<Stream>(number == kCollectiveStream ? cuda::Stream::preferred()
                                                                 : cuda::Stream());
  }
  return *entry;
}

const cuda::Stream& RankDevice::stream(int number) { return stream_entry(number).stream; }

BindResources& RankDevice::resources(int stream) { return stream_entry(stream).resources; }

bool RankDevice::sends_anew(const CommGroup& group, CollectiveKind kind, double bytes) {
  const bool is_new = sent_.emplace(&group, kind, std::ilogb(std::max(bytes, 1.0))).second;
  return is_new || !is_warm_;
}

std::size_t RankDevice::workspace_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [number, entry] : streams_) bytes += entry->resources.bytes();
  return bytes;
}

}  // namespace orrery
