#include <algorithm>
#include <stdexcept>
#include <string>

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
//   scores | top-k | counts of all blocks | x into rows of experts | tiles of both layers, sums
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
  route(shared, tables, maps, a, ring, launch);
  if (threadIdx.x < 128) {
    sm90::registers_decrease<56>();
    if (threadIdx.x == 0) produce(shared, tables, maps, a, ring, launch);
    __syncwarp();
    combine(tables, a, launch);
  } else {
    sm90::registers_increase<224>();
    consume(shared, maps, a, ring, static_cast<int>(threadIdx.x) / 128 - 1);
    combine(tables, a, launch);
  }
}

const char* name_of(Wait wait) {
  switch (wait) {
    case Wait::kCounts:
      return "the counts of block";
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

struct FusedMoePlan::Workspace {
  explicit Workspace(const FusedMoeShape& shape, int blocks)
      : blocks(blocks),
        most_tiles(shape.tokens * shape.topk / Config::kRows +
                   std::min(shape.experts, shape.tokens * shape.topk)),
        rows(choices(shape) * shape.hidden),
        h(choices(shape) * shape.ffn),
        row_token(choices(shape)),
        token_rows(choices(shape)),
        token_weights(choices(shape)),
        counts(static_cast<std::size_t>(blocks) * (shape.experts + 1)),
        counters(static_cast<std::size_t>(3 * most_tiles)),
        control(1) {
    ORRERY_CUDA(cudaMemset(counts.get(), 0, counts.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(counters.get(), 0, counters.size() * sizeof(std::uint32_t)));
    ORRERY_CUDA(cudaMemset(control.get(), 0, sizeof(fused_moe::Control)));
    ORRERY_CUDA(cudaDeviceSynchronize());
  }
  static std::size_t choices(const FusedMoeShape& shape) {
    return static_cast<std::size_t>(std::max<std::int64_t>(shape.tokens * shape.topk, 1));
  }

  int blocks;
  std::int64_t most_tiles;
  cuda::DeviceBuffer<bf16> rows;
  cuda::DeviceBuffer<bf16> h;
  cuda::DeviceBuffer<std::int32_t> row_token;
  cuda::DeviceBuffer<std::int32_t> token_rows;
  cuda::DeviceBuffer<float> token_weights;
  cuda::DeviceBuffer<unsigned long long> counts;
  cuda::DeviceBuffer<std::uint32_t> counters;
  cuda::DeviceBuffer<fused_moe::Control> control;
};

namespace {

bool is_aligned(const void* pointer) {
  constexpr std::uintptr_t kAlignment = 16;
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

CUtensorMap map_of(const bf16* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return tiles::map_of<bf16>(data, rows, columns, box_rows, Config::kK);
}

fused_moe::Maps maps_of(const FusedMoeShape& shape, const FusedMoeOperands& operands, bf16* rows,
                        bf16* h) {
  const std::int64_t choices = shape.tokens * shape.topk;
  const bool is_gated = shape.activation == ExpertActivation::kSwiglu;
  fused_moe::Maps maps{.x = map_of(operands.x, shape.tokens, shape.hidden, fused_moe::kRouted),
                       .router = map_of(operands.router, shape.experts, shape.hidden, 64),
                       .rows = {},
                       .w1 = map_of(operands.w1, shape.experts * first_layer_rows(shape),
                                    shape.hidden, is_gated ? 64 : Config::kColumns),
                       .layers = {}};
  for (int i = 0; i < 4; ++i) {
    maps.rows[i] = map_of(rows, choices, shape.hidden, 16 << i);
    maps.layers[1].x[i] = map_of(h, choices, shape.ffn, 16 << i);
  }
  maps.layers[1].w = map_of(operands.w2, shape.experts * shape.hidden, shape.ffn, Config::kColumns);
  maps.layers[0].y = tiles::map_of<bf16>(h, choices, shape.ffn, swap_ab::kChunk, 64);
  maps.layers[1].y = tiles::map_of<bf16>(rows, choices, shape.hidden, swap_ab::kChunk, 64);
  return maps;
}

}  // namespace

FusedMoePlan::FusedMoePlan(const FusedMoeShape& shape) : shape_(shape) {
  require_fused_moe_shape(shape);
  if (shape.tokens == 0) return;
  const int blocks = cuda::device_properties().multiProcessorCount;
  const std::int64_t of_block = (shape.tokens + blocks - 1) / blocks * shape.topk;
  if (of_block > kMostBlockChoices) {
    throw std::invalid_argument("fused_moe: " + std::to_string(shape.tokens) + " tokens of " +
                                std::to_string(shape.topk) + " experts, expected at most " +
                                std::to_string(kMostBlockChoices / shape.topk * blocks));
  }
  workspace_ = std::make_unique<Workspace>(shape, blocks);
}

FusedMoePlan::~FusedMoePlan() = default;
FusedMoePlan::FusedMoePlan(FusedMoePlan&&) noexcept = default;
FusedMoePlan& FusedMoePlan::operator=(FusedMoePlan&&) noexcept = default;

std::size_t FusedMoePlan::workspace_bytes() const {
  if (workspace_ == nullptr) return 0;
  const Workspace& of = *workspace_;
  return (of.rows.size() + of.h.size()) * sizeof(bf16) +
         (of.row_token.size() + of.token_rows.size()) * sizeof(std::int32_t) +
         of.token_weights.size() * sizeof(float) + of.counts.size() * sizeof(unsigned long long) +
         of.counters.size() * sizeof(std::uint32_t) + sizeof(fused_moe::Control);
}

void FusedMoePlan::launch(const cuda::Stream& stream, const FusedMoeOperands& operands) const {
  if (shape_.tokens == 0) return;
  for (const void* pointer :
       {static_cast<const void*>(operands.x), static_cast<const void*>(operands.router),
        static_cast<const void*>(operands.w1), static_cast<const void*>(operands.w2),
        static_cast<const void*>(operands.y), static_cast<const void*>(operands.scores),
        static_cast<const void*>(operands.faults)}) {
    if (is_aligned(pointer)) continue;
    throw std::invalid_argument(
        "fused_moe: operands must be 16-byte aligned, and none of them null");
  }
  Workspace& of = *workspace_;
  const bool is_gated = shape_.activation == ExpertActivation::kSwiglu;
  const auto steps = [](std::int64_t k) {
    return static_cast<int>(tiles::ceil_div(k, Config::kK));
  };
  const auto layer = [&](bf16* y, std::int64_t n, std::int64_t k) {
    return tiles::Arguments{.y = y,
                            .groups = static_cast<int>(shape_.experts),
                            .max_rows = static_cast<int>(shape_.tokens * shape_.topk),
                            .n = static_cast<int>(n),
                            .k_steps = steps(k)};
  };
  const auto columns = [](std::int64_t n, int of_tile) {
    return static_cast<int>(tiles::ceil_div(n, of_tile));
  };
  const fused_moe::Arguments arguments{
      .x = operands.x,
      .scores = operands.scores,
      .faults = operands.faults,
      .y = operands.y,
      .rows = of.rows.get(),
      .row_token = of.row_token.get(),
      .token_rows = of.token_rows.get(),
      .token_weights = of.token_weights.get(),
      .counts = of.counts.get(),
      .arrived = of.counters.get(),
      .first_done = of.counters.get() + of.most_tiles,
      .second_done = of.counters.get() + 2 * of.most_tiles,
      .control = of.control.get(),
      .layers = {layer(of.h.get(), shape_.ffn, shape_.hidden),
                 layer(of.rows.get(), shape_.hidden, shape_.ffn)},
      .columns = {columns(shape_.ffn, is_gated ? Config::kColumns / 2 : Config::kColumns),
                  columns(shape_.hidden, Config::kColumns)},
      .tokens = static_cast<int>(shape_.tokens),
      .hidden = static_cast<int>(shape_.hidden),
      .experts = static_cast<int>(shape_.experts),
      .topk = static_cast<int>(shape_.topk),
      .block_tokens = static_cast<int>(tiles::ceil_div(shape_.tokens, of.blocks)),
      .most_tiles = static_cast<int>(of.most_tiles),
      .router_steps = steps(shape_.hidden),
      .is_gated = is_gated,
      .is_relu = shape_.activation == ExpertActivation::kRelu,
      .is_sigmoid = shape_.router == RouterActivation::kSigmoid,
      .normalises = shape_.normalises,
      .scale = static_cast<float>(shape_.scale)};
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(of.blocks)),
                .block = dim3(fused_moe::kThreads),
                .shared_bytes = fused_moe::kSharedBytes,
                .cooperative = true},
               fused_moe::fused_moe_kernel, maps_of(shape_, operands, of.rows.get(), of.h.get()),
               arguments);
}

void FusedMoePlan::require_finished(const cuda::Stream& stream) const {
  if (workspace_ == nullptr) return;
  fused_moe::Control control{};
  ORRERY_CUDA(cudaMemcpyAsync(&control, workspace_->control.get(), sizeof(control),
                              cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  if (control.stuck == 0) return;
  throw std::runtime_error(
      "fused_moe: waited in vain for " +
      std::string(fused_moe::name_of(static_cast<fused_moe::Wait>(control.stuck))) + " " +
      std::to_string(control.place) + " in launch " + std::to_string(control.launches));
}

}  // namespace orrery
