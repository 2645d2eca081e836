#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/launch.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/route_sm90.cuh"
#include "kernels/experts/fused_moe/work_sm90.cuh"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"

namespace orrery {
namespace fused_moe {
namespace {

// One block per SM, all at once:
//
//   scores | top-k | counts of all blocks, of all ranks | x into rows of experts | tiles, sums
//
// The first four take every block through its own tokens; from there on tasks go to whoever is free
// (work_sm90.cuh).
__global__ void __launch_bounds__(kThreads, 1)
    fused_moe_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Tables& tables = *reinterpret_cast<Tables*>(memory + sizeof(Shared));
  const std::uint32_t launch = a.control->launches + 1;
  if (threadIdx.x == 0) {
    tiles::init_barriers(shared.gemm.stages);
    // The first of the launch's tickets, whoever comes first.
    atomicMax(&a.control->gemm_ticket, static_cast<unsigned long long>(launch) << 32);
    atomicMax(&a.control->combine_ticket, static_cast<unsigned long long>(launch) << 32);
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicInc(&a.control->blocks, gridDim.x - 1) == gridDim.x - 1) {
    a.control->launches = launch;  // all blocks have read it
  }
  Ring<Config::kStages> ring;
  if (!route(shared, tables, maps, a, ring, launch)) {
    spoil(a);
    return;
  }
  if (threadIdx.x < 128) {
    sm90::registers_decrease<56>();
    if (threadIdx.x == 0) produce(shared, tables, maps, a, ring, launch);
    __syncwarp();
    combine(a, launch);
  } else {
    sm90::registers_increase<224>();
    consume(shared, maps, a, ring, static_cast<int>(threadIdx.x) / 128 - 1, launch);
    combine(a, launch);
  }
  __syncthreads();
  if (*reinterpret_cast<volatile std::uint32_t*>(&a.control->stuck) != 0) spoil(a);
}

const char* name_of(Wait wait) {
  switch (wait) {
    case Wait::kCounts:
      return "the counts of block";
    case Wait::kStarts:
      return "the counts of rank";
    case Wait::kRows:
      return "the rows of tile";
    case Wait::kFirst:
      return "the first layer of tile";
    default:
      return "the second layer of tile";
  }
}

}  // namespace
}  // namespace fused_moe

using fused_moe::Config;

static_assert(sizeof(bf16) == 2, "as memory_of counts it");

// What a rank has of its own, and its part of what ranks write into each other's memory.
struct FusedMoePlan::Workspace {
  Workspace(const FusedMoeBuffers& buffers, int blocks)
      : blocks(blocks),
        is_alone(buffers.results == 0),
        most_tiles(buffers.most_tiles),
        bytes(static_cast<std::size_t>(memory_of(buffers).total().value())),
        rows(buffers.rows),
        results(buffers.results),
        h(buffers.h),
        row_token(buffers.row_token),
        row_tile(buffers.row_tile),
        token_rows(buffers.token_rows),
        token_weights(buffers.token_weights),
        counts(buffers.counts),
        starts(buffers.starts),
        counters(buffers.counters),
        control(buffers.controls) {
    ORRERY_CUDA(cudaMemset(row_tile.get(), 0, row_tile.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(counts.get(), 0, counts.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(starts.get(), 0, starts.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(counters.get(), 0, counters.size() * sizeof(std::uint32_t)));
    ORRERY_CUDA(cudaMemset(control.get(), 0, sizeof(fused_moe::Control)));
    ORRERY_CUDA(cudaDeviceSynchronize());
  }
  [[nodiscard]] fused_moe::Area area() const {
    return {.rows = rows.get(),
            .results = is_alone ? rows.get() : results.get(),
            .arrived = counters.get(),
            .second_done = counters.get() + 2 * most_tiles,
            .starts = starts.get()};
  }

  int blocks;
  bool is_alone;
  std::int64_t most_tiles;
  std::size_t bytes;
  cuda::DeviceBuffer<bf16> rows;
  cuda::DeviceBuffer<bf16> results;
  cuda::DeviceBuffer<bf16> h;
  cuda::DeviceBuffer<std::int32_t> row_token;
  cuda::DeviceBuffer<unsigned long long> row_tile;
  cuda::DeviceBuffer<std::int32_t> token_rows;
  cuda::DeviceBuffer<float> token_weights;
  cuda::DeviceBuffer<unsigned long long> counts;
  cuda::DeviceBuffer<unsigned long long> starts;
  cuda::DeviceBuffer<std::uint32_t> counters;
  cuda::DeviceBuffer<fused_moe::Control> control;
};

namespace {

bool is_aligned(const void* pointer) {
  constexpr std::uintptr_t kAlignment = 16;
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

CUtensorMap map_of(const bf16* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return tiles::map_of<bf16>(data, std::max<std::int64_t>(rows, 1), columns, box_rows, Config::kK);
}

fused_moe::Maps maps_of(const FusedMoeShape& shape, const FusedMoeOperands& operands,
                        std::int64_t tokens, bf16* rows, bf16* h) {
  const std::int64_t most = most_rows(shape);
  const std::int64_t experts = own_experts(shape);
  const bool is_gated = shape.activation == ExpertActivation::kSwiglu;
  fused_moe::Maps maps{.x = map_of(operands.x, tokens, shape.hidden, fused_moe::kRouted),
                       .router = map_of(operands.router, shape.experts, shape.hidden, 64),
                       .rows = {},
                       .w1 = map_of(operands.w1, experts * first_layer_rows(shape), shape.hidden,
                                    is_gated ? 64 : Config::kColumns),
                       .layers = {},
                       .results = {}};
  for (int i = 0; i < 4; ++i) {
    maps.rows[i] = map_of(rows, most, shape.hidden, 16 << i);
    maps.layers[1].x[i] = map_of(h, most, shape.ffn, 16 << i);
  }
  maps.layers[1].w = map_of(operands.w2, experts * shape.hidden, shape.ffn, Config::kColumns);
  maps.layers[0].y = tiles::map_of<bf16>(h, most, shape.ffn, swap_ab::kChunk, 64);
  maps.layers[1].y = tiles::map_of<bf16>(rows, most, shape.hidden, swap_ab::kChunk, 64);
  return maps;
}

// Throws where a block's tables have no room for its part of the tokens.
void require_room(const FusedMoeShape& shape, int blocks, std::int64_t most_tiles) {
  const std::int64_t of_block = (shape.tokens + blocks - 1) / blocks * shape.topk;
  if (of_block > kMostBlockChoices) {
    throw std::invalid_argument("fused_moe: " + std::to_string(shape.tokens) + " tokens of " +
                                std::to_string(shape.topk) + " experts, expected at most " +
                                std::to_string(kMostBlockChoices / shape.topk * blocks));
  }
  constexpr std::int64_t kMostTiles = 0xFFFF;
  if (most_tiles > kMostTiles) {
    throw std::invalid_argument("fused_moe: " + std::to_string(most_tiles) +
                                " tiles of rows on all ranks, expected at most " +
                                std::to_string(kMostTiles) + ": fewer tokens");
  }
}

}  // namespace

FusedMoePlan::FusedMoePlan(const FusedMoeShape& shape) : FusedMoePlan(shape, {}) {}

FusedMoePlan::FusedMoePlan(const FusedMoeShape& shape, std::span<const int> devices)
    : shape_(shape) {
  require_fused_moe_shape(shape);
  const bool is_here = devices.empty();  // on the current device
  if (std::max<std::int64_t>(std::ssize(devices), 1) != shape.ranks) {
    throw std::invalid_argument("fused_moe: " + std::to_string(shape.ranks) + " ranks on " +
                                std::to_string(devices.size()) + " devices, expected one each");
  }
  if (shape.tokens == 0) return;
  for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
    std::optional<cuda::DeviceGuard> guard;
    if (!is_here) guard.emplace(devices[static_cast<std::size_t>(rank)]);
    const int blocks = cuda::device_properties().multiProcessorCount;
    const FusedMoeBuffers buffers = fused_moe_buffers(shape, blocks);
    require_room(shape, blocks, buffers.most_tiles);
    workspaces_.push_back(std::make_unique<Workspace>(buffers, blocks));
  }
}

FusedMoePlan::~FusedMoePlan() = default;
FusedMoePlan::FusedMoePlan(FusedMoePlan&&) noexcept = default;
FusedMoePlan& FusedMoePlan::operator=(FusedMoePlan&&) noexcept = default;

std::size_t FusedMoePlan::workspace_bytes() const {
  return workspaces_.empty() ? 0 : workspaces_.front()->bytes;
}

void FusedMoePlan::launch(const cuda::Stream& stream, const FusedMoeOperands& operands,
                          std::int64_t tokens, int rank) const {
  if (tokens < 0 || tokens > shape_.tokens) {
    throw std::invalid_argument("fused_moe: " + std::to_string(tokens) +
                                " tokens, expected at most " + std::to_string(shape_.tokens));
  }
  if (shape_.tokens == 0 || (tokens == 0 && shape_.ranks == 1)) return;
  for (const void* pointer :
       {static_cast<const void*>(operands.x), static_cast<const void*>(operands.router),
        static_cast<const void*>(operands.w1), static_cast<const void*>(operands.w2),
        static_cast<const void*>(operands.y), static_cast<const void*>(operands.scores),
        static_cast<const void*>(operands.faults)}) {
    if (is_aligned(pointer)) continue;
    throw std::invalid_argument(
        "fused_moe: operands must be 16-byte aligned, and none of them null");
  }
  const Workspace& of = *workspaces_.at(static_cast<std::size_t>(rank));
  const bool is_gated = shape_.activation == ExpertActivation::kSwiglu;
  const auto steps = [](std::int64_t k) {
    return static_cast<int>(tiles::ceil_div(k, Config::kK));
  };
  const auto layer = [&](bf16* y, std::int64_t n, std::int64_t k) {
    return tiles::Arguments{.y = y,
                            .groups = static_cast<int>(own_experts(shape_)),
                            .max_rows = static_cast<int>(most_rows(shape_)),
                            .n = static_cast<int>(n),
                            .k_steps = steps(k)};
  };
  const auto columns = [](std::int64_t n, int of_tile) {
    return static_cast<int>(tiles::ceil_div(n, of_tile));
  };
  fused_moe::Arguments arguments{
      .x = operands.x,
      .scores = operands.scores,
      .faults = operands.faults,
      .y = operands.y,
      .areas = {},
      .row_token = of.row_token.get(),
      .row_tile = of.row_tile.get(),
      .token_rows = of.token_rows.get(),
      .token_weights = of.token_weights.get(),
      .counts = of.counts.get(),
      .first_done = of.counters.get() + of.most_tiles,
      .control = of.control.get(),
      .layers = {layer(of.h.get(), shape_.ffn, shape_.hidden),
                 layer(of.rows.get(), shape_.hidden, shape_.ffn)},
      .columns = {columns(shape_.ffn, is_gated ? Config::kColumns / 2 : Config::kColumns),
                  columns(shape_.hidden, Config::kColumns)},
      .tokens = static_cast<int>(tokens),
      .hidden = static_cast<int>(shape_.hidden),
      .experts = static_cast<int>(shape_.experts),
      .own_experts = static_cast<int>(own_experts(shape_)),
      .topk = static_cast<int>(shape_.topk),
      .rank = rank,
      .ranks = static_cast<int>(shape_.ranks),
      .block_tokens = static_cast<int>(tiles::ceil_div(tokens, of.blocks)),
      .most_tiles = static_cast<int>(of.most_tiles),
      .router_steps = steps(shape_.hidden),
      .is_gated = is_gated,
      .is_relu = shape_.activation == ExpertActivation::kRelu,
      .is_sigmoid = shape_.router == RouterActivation::kSigmoid,
      .normalises = shape_.normalises,
      .scale = static_cast<float>(shape_.scale)};
  fused_moe::Maps maps = maps_of(shape_, operands, tokens, of.rows.get(), of.h.get());
  for (std::size_t i = 0; i < workspaces_.size(); ++i) {
    arguments.areas[i] = workspaces_[i]->area();
    maps.results[i] = tiles::map_of<bf16>(arguments.areas[i].results, num_choices(shape_),
                                          shape_.hidden, swap_ab::kChunk, 64);
  }
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(of.blocks)),
                .block = dim3(fused_moe::kThreads),
                .shared_bytes = fused_moe::kSharedBytes,
                .cooperative = true},
               fused_moe::fused_moe_kernel, maps, arguments);
}

void FusedMoePlan::require_finished(const cuda::Stream& stream, int rank) const {
  if (workspaces_.empty()) return;
  fused_moe::Control control{};
  ORRERY_CUDA(cudaMemcpyAsync(&control,
                              workspaces_.at(static_cast<std::size_t>(rank))->control.get(),
                              sizeof(control), cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  if (control.stuck == 0) return;
  throw std::runtime_error(
      "fused_moe: waited in vain for " +
      std::string(fused_moe::name_of(static_cast<fused_moe::Wait>(control.stuck))) + " " +
      std::to_string(control.place) + " in launch " + std::to_string(control.launches));
}

}  // namespace orrery
