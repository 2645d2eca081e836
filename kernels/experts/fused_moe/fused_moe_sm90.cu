#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/comm/processes/process_memory.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/launch.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/fused_moe/layer_sm90.cuh"
#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/traced.h"
#include "kernels/experts/fused_moe/traced_sm90.cuh"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"

namespace orrery {
namespace fused_moe {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    fused_moe_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  whole_layer<T>(maps, a, NoTrace());
}

const char* name_of(Wait wait) {
  switch (wait) {
    case Wait::kLogits:
      return "the logits of block";
    case Wait::kCounts:
      return "the counts of block";
    case Wait::kStarts:
      return "the counts of rank";
    case Wait::kRows:
      return "the rows of tile";
    case Wait::kFirst:
      return "the first layer of tile";
    case Wait::kQuantized:
      return "the fp8 rows between the layers of tile";
    default:
      return "the second layer of tile";
  }
}

}  // namespace
}  // namespace fused_moe

using fused_moe::Config;

static_assert(sizeof(bf16) == 2, "as memory_of counts it");

namespace {

// A rank's part of what ranks write into each other's memory, each with what else is of its kind.
struct SharedBuffers {
  unsigned char* rows = nullptr;
  float* row_scales = nullptr;  // of rows; of h; the largest values of h. Null where there are none
  bf16* results = nullptr;      // the same
  unsigned long long* starts = nullptr;
  std::uint32_t* counters = nullptr;

  // In one piece of memory.
  SharedBuffers(std::byte* memory, const FusedMoeBuffers& buffers) {
    const FusedMoeArea area = fused_moe_area(buffers);
    rows = reinterpret_cast<unsigned char*>(memory);
    if (buffers.row_scales > 0) row_scales = reinterpret_cast<float*>(memory + area.row_scales);
    if (buffers.results > 0) results = reinterpret_cast<bf16*>(memory + area.results);
    starts = reinterpret_cast<unsigned long long*>(memory + area.starts);
    counters = reinterpret_cast<std::uint32_t*>(memory + area.counters);
  }
  SharedBuffers() = default;

  [[nodiscard]] bf16* result_rows() const {
    return results != nullptr ? results : reinterpret_cast<bf16*>(rows);
  }
  [[nodiscard]] fused_moe::Area area(std::int64_t most_tiles) const {
    return {.rows = rows,
            .row_scales = row_scales,
            .results = result_rows(),
            .arrived = counters,
            .second_done = counters + 2 * most_tiles,
            .starts = starts};
  }
};

// The same as allocations of their own, of ranks of one process.
struct OwnedBuffers {
  explicit OwnedBuffers(const FusedMoeBuffers& buffers)
      : rows(buffers.rows * buffers.element),
        results(buffers.results),
        row_scales(buffers.row_scales),
        starts(buffers.starts),
        counters(buffers.counters) {
    ORRERY_CUDA(cudaMemset(row_scales.get(), 0, row_scales.size() * sizeof(float)));
    ORRERY_CUDA(cudaMemset(starts.get(), 0, starts.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(counters.get(), 0, counters.size() * sizeof(std::uint32_t)));
  }
  [[nodiscard]] SharedBuffers shared() const {
    SharedBuffers shared;
    shared.rows = rows.get();
    shared.row_scales = row_scales.get();
    shared.results = results.get();
    shared.starts = starts.get();
    shared.counters = counters.get();
    return shared;
  }

  cuda::DeviceBuffer<unsigned char> rows;
  cuda::DeviceBuffer<bf16> results;
  cuda::DeviceBuffer<float> row_scales;
  cuda::DeviceBuffer<unsigned long long> starts;
  cuda::DeviceBuffer<std::uint32_t> counters;
};

}  // namespace

// What a rank works in. What ranks share lies in `shared_memory`, and is allocated where that is
// null: all ranks are of this process then.
struct FusedMoePlan::Workspace {
  Workspace(const FusedMoeBuffers& buffers, int blocks, bool has_gpu,
            std::byte* shared_memory = nullptr)
      : buffers(buffers),
        blocks(blocks),
        has_gpu(has_gpu),
        most_rows(buffers.row_scales / 3),
        most_tiles(buffers.most_tiles),
        bytes(static_cast<std::size_t>(memory_of(buffers).total().value())),
        h(buffers.h),
        h_fp8(buffers.h_fp8),
        row_token(buffers.row_token),
        row_tile(buffers.row_tile),
        token_rows(buffers.token_rows),
        token_weights(buffers.token_weights),
        counts(buffers.counts),
        logits(buffers.logits),
        row_starts(buffers.row_starts),
        control(buffers.controls) {
    if (shared_memory == nullptr) {
      shared = owned.emplace(buffers).shared();
    } else {
      shared = SharedBuffers(shared_memory, buffers);
    }
    ORRERY_CUDA(cudaMemset(row_tile.get(), 0, row_tile.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(counts.get(), 0, counts.size() * sizeof(unsigned long long)));
    ORRERY_CUDA(cudaMemset(control.get(), 0, sizeof(fused_moe::Control)));
    ORRERY_CUDA(cudaDeviceSynchronize());
  }
  void add_to(fused_moe::Arguments& a) const {
    a.row_token = row_token.get();
    a.row_tile = row_tile.get();
    a.token_rows = token_rows.get();
    a.token_weights = token_weights.get();
    a.counts = counts.get();
    a.logits = logits.get();
    a.logits_made = shared.counters + 4 * most_tiles;
    a.row_starts = row_starts.get();
    a.first_done = shared.counters + most_tiles;
    a.quantized = shared.counters + 3 * most_tiles;
    a.h = h.get();
    a.h_fp8 = h_fp8.get();
    a.h_peaks = h_peaks();
    a.h_scales = h_scales();
    a.control = control.get();
    a.layers[0].x_scale = shared.row_scales;
    a.layers[0].y = h.get();
    a.layers[1].x_scale = h_scales();
    a.layers[1].y = shared.result_rows();
    a.most_tiles = static_cast<int>(most_tiles);
  }
  [[nodiscard]] float* h_scales() const { return shared.row_scales + most_rows; }
  // Bits of floats, 0 from the start.
  [[nodiscard]] std::uint32_t* h_peaks() const {
    return reinterpret_cast<std::uint32_t*>(shared.row_scales + 2 * most_rows);
  }

  FusedMoeBuffers buffers;
  int blocks;
  bool has_gpu;           // to itself: all blocks run at once, or the launch fails
  std::size_t most_rows;  // that have scales
  std::int64_t most_tiles;
  std::size_t bytes;
  std::optional<OwnedBuffers> owned;  // what `shared` is of, where it is of this process
  SharedBuffers shared;
  cuda::DeviceBuffer<bf16> h;
  cuda::DeviceBuffer<fp8> h_fp8;
  cuda::DeviceBuffer<std::int32_t> row_token;
  cuda::DeviceBuffer<unsigned long long> row_tile;
  cuda::DeviceBuffer<std::int32_t> token_rows;
  cuda::DeviceBuffer<float> token_weights;
  cuda::DeviceBuffer<unsigned long long> counts;
  cuda::DeviceBuffer<float> logits;
  cuda::DeviceBuffer<std::int32_t> row_starts;
  cuda::DeviceBuffer<fused_moe::Control> control;
};

namespace {

bool is_aligned(const void* pointer) {
  constexpr std::uintptr_t kAlignment = 16;
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

// Of what is multiplied: boxes of a stage's columns.
template <typename T>
CUtensorMap map_of(const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return tiles::map_of<T>(data, std::max<std::int64_t>(rows, 1), columns, box_rows,
                          fused_moe::ConfigOf<T>::kK);
}

// `h` as the second layer reads it.
template <typename T>
fused_moe::Maps maps_of(const FusedMoeShape& shape, const FusedMoeOperands& operands,
                        std::int64_t tokens, const fused_moe::Arguments& a, const T* h) {
  const void* const rows = a.areas[a.rank].rows;
  const std::int64_t most = most_rows(shape);
  const std::int64_t experts = own_experts(shape);
  const bool is_gated = shape.activation == ExpertActivation::kSwiglu;
  const int w1_box = is_gated ? 64 : Config::kColumns;
  fused_moe::Maps maps{
      .x = map_of<bf16>(operands.x, tokens, shape.hidden, fused_moe::kRouted),
      .router = map_of<bf16>(operands.router, shape.experts, shape.hidden, 64),
      .rows = {},
      .w1 = map_of<T>(operands.w1, experts * first_layer_rows(shape), shape.hidden, w1_box),
      .shared_w1 = {},
      .shared_w2 = {},
      .layers = {},
      .results = {}};
  if (shape.shared > 0) {
    maps.shared_w1 =
        map_of<T>(operands.shared_w1, shape.shared * first_layer_rows(shape), shape.hidden, w1_box);
    maps.shared_w2 =
        map_of<T>(operands.shared_w2, shape.hidden, shape.shared * shape.ffn, Config::kColumns);
  }
  for (int i = 0; i < 4; ++i) {
    maps.rows[i] = map_of<T>(rows, most, shape.hidden, 16 << i);
    maps.layers[1].x[i] = map_of<T>(h, most, shape.ffn, 16 << i);
  }
  maps.layers[1].w = map_of<T>(operands.w2, experts * shape.hidden, shape.ffn, Config::kColumns);
  maps.layers[0].y = tiles::map_of<bf16>(a.h, most, shape.ffn, swap_ab::kChunk, 64);
  maps.layers[1].y = tiles::map_of<bf16>(a.layers[1].y, most, shape.hidden, swap_ab::kChunk, 64);
  for (int i = 0; i < a.ranks; ++i) {
    maps.results[i] = tiles::map_of<bf16>(a.areas[i].results, num_choices(shape), shape.hidden,
                                          swap_ab::kChunk, 64);
  }
  return maps;
}

// Throws where a block's tables have no room for its part of the tokens.
void require_room(const FusedMoeShape& shape, int blocks, std::int64_t most_tiles) {
  const std::int64_t topk = shape.topk + shape.shared;
  const std::int64_t of_block = (shape.tokens + blocks - 1) / blocks * topk;
  if (of_block > kMostBlockChoices) {
    throw std::invalid_argument("fused_moe: " + std::to_string(shape.tokens) + " tokens of " +
                                std::to_string(topk) + " experts, expected at most " +
                                std::to_string(kMostBlockChoices / topk * blocks));
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
    const auto sharing =
        is_here ? 1 : std::ranges::count(devices, devices[static_cast<std::size_t>(rank)]);
    const int blocks =
        cuda::device_properties().multiProcessorCount / static_cast<int>(std::max(sharing, 1L));
    const FusedMoeBuffers buffers = fused_moe_buffers(shape, blocks);
    require_room(shape, blocks, buffers.most_tiles);
    workspaces_.push_back(std::make_unique<Workspace>(buffers, blocks, sharing == 1));
  }
}

FusedMoePlan::FusedMoePlan(const FusedMoeShape& shape, const ProcessGroup& processes,
                           std::span<const int> ranks)
    : shape_(shape) {
  require_fused_moe_shape(shape);
  const auto place = std::ranges::find(ranks, processes.rank) - ranks.begin();
  if (std::ssize(ranks) != shape.ranks || place == std::ssize(ranks)) {
    throw std::invalid_argument("fused_moe: rank " + std::to_string(processes.rank) + " of " +
                                std::to_string(ranks.size()) + " processes, expected one of " +
                                std::to_string(shape.ranks));
  }
  if (shape.tokens == 0) return;
  const int blocks = cuda::device_properties().multiProcessorCount;
  const FusedMoeBuffers buffers = fused_moe_buffers(shape, blocks);
  require_room(shape, blocks, buffers.most_tiles);
  workspaces_.resize(ranks.size());
  std::byte* own = nullptr;
  if (shape.ranks > 1) {
    areas_ = std::make_unique<ProcessMemory>(processes, ranks, fused_moe_area(buffers).bytes);
    own = areas_->part(static_cast<int>(place));
  }
  workspaces_[static_cast<std::size_t>(place)] =
      std::make_unique<Workspace>(buffers, blocks, /*has_gpu=*/true, own);
}

const FusedMoePlan::Workspace& FusedMoePlan::workspace(int rank) const {
  const std::unique_ptr<Workspace>& found = workspaces_.at(static_cast<std::size_t>(rank));
  if (found != nullptr) return *found;
  throw std::invalid_argument("fused_moe: rank " + std::to_string(rank) + " is another process's");
}

void FusedMoePlan::close(const ProcessGroup& processes) {
  if (areas_ != nullptr) areas_->close(processes);
  areas_.reset();
  workspaces_.clear();
}

FusedMoePlan::~FusedMoePlan() = default;
FusedMoePlan::FusedMoePlan(FusedMoePlan&&) noexcept = default;
FusedMoePlan& FusedMoePlan::operator=(FusedMoePlan&&) noexcept = default;

std::size_t FusedMoePlan::workspace_bytes() const {
  const auto found =
      std::ranges::find_if(workspaces_, [](const auto& one) { return one != nullptr; });
  return found == workspaces_.end() ? 0 : (*found)->bytes;
}

namespace {

// Throws std::invalid_argument for one that is null or not aligned.
void require_operands(const FusedMoeShape& shape, const FusedMoeOperands& operands) {
  std::vector<const void*> pointers{operands.x, operands.router, operands.w1,    operands.w2,
                                    operands.y, operands.scores, operands.faults};
  if (shape.is_fp8) pointers.insert(pointers.end(), {operands.w1_scale, operands.w2_scale});
  if (shape.shared > 0) {
    pointers.insert(pointers.end(), {operands.shared_w1, operands.shared_w2});
    if (shape.is_fp8) {
      pointers.insert(pointers.end(), {operands.shared_w1_scale, operands.shared_w2_scale});
    }
  }
  if (std::ranges::all_of(pointers, is_aligned)) return;
  throw std::invalid_argument("fused_moe: operands must be 16-byte aligned, and none of them null");
}

// What does not come from a rank's memory.
fused_moe::Arguments arguments_of(const FusedMoeShape& shape, const FusedMoeOperands& operands,
                                  std::int64_t tokens, int blocks) {
  const bool is_gated = shape.activation == ExpertActivation::kSwiglu;
  const int of_stage = shape.is_fp8 ? fused_moe::ConfigOf<fp8>::kK : Config::kK;
  const auto layer = [&](std::int64_t n, std::int64_t k, const float* w_scale) {
    return tiles::Arguments{.w_scale = w_scale,
                            .groups = static_cast<int>(own_experts(shape) + shape.shared),
                            .max_rows = static_cast<int>(most_rows(shape)),
                            .n = static_cast<int>(n),
                            .k_steps = static_cast<int>(tiles::ceil_div(k, of_stage))};
  };
  const auto columns = [](std::int64_t n, int of_tile) {
    return static_cast<int>(tiles::ceil_div(n, of_tile));
  };
  const LogitParts logits = logit_parts(shape, tokens, blocks);
  return {.x = operands.x,
          .correction_bias = operands.correction_bias,
          .logit_bias = operands.logit_bias,
          .places = operands.places,
          .scores = operands.scores,
          .faults = operands.faults,
          .y = operands.y,
          .layers = {layer(shape.ffn, shape.hidden, operands.w1_scale),
                     layer(shape.hidden, shape.ffn, operands.w2_scale)},
          .shared_scales = {operands.shared_w1_scale, operands.shared_w2_scale},
          .columns = {columns(shape.ffn, is_gated ? Config::kColumns / 2 : Config::kColumns),
                      columns(shape.hidden, Config::kColumns)},
          .tokens = static_cast<int>(tokens),
          .hidden = static_cast<int>(shape.hidden),
          .slots = static_cast<int>(num_slots(shape)),
          .own = static_cast<int>(own_experts(shape) + shape.shared),
          .shared = static_cast<int>(shape.shared),
          .routed = static_cast<int>(shape.experts),
          .topk = static_cast<int>(shape.topk + shape.shared),
          .chosen = static_cast<int>(shape.topk),
          .capacity = static_cast<int>(capacity_of(shape, tokens)),
          .groups = static_cast<int>(shape.groups),
          .topk_groups = static_cast<int>(shape.topk_groups),
          .ranks = static_cast<int>(shape.ranks),
          .block_tokens = static_cast<int>(tiles::ceil_div(tokens, blocks)),
          .logit_parts = logits.parts,
          .logit_steps = logits.steps,
          .router_steps = static_cast<int>(tiles::ceil_div(shape.hidden, Config::kK)),
          .is_gated = is_gated,
          .is_relu = shape.activation == ExpertActivation::kRelu,
          .is_sigmoid = shape.router == RouterActivation::kSigmoid,
          .normalises = shape.normalises,
          .scale = static_cast<float>(shape.scale)};
}

}  // namespace

void FusedMoePlan::launch(const cuda::Stream& stream, const FusedMoeOperands& operands,
                          std::int64_t tokens, int rank, const FusedMoeTraceMemory* trace) const {
  if (tokens < 0 || tokens > shape_.tokens) {
    throw std::invalid_argument("fused_moe: " + std::to_string(tokens) +
                                " tokens, expected at most " + std::to_string(shape_.tokens));
  }
  if (shape_.tokens == 0 || (tokens == 0 && shape_.ranks == 1)) return;
  require_operands(shape_, operands);
  const Workspace& of = workspace(rank);
  fused_moe::Arguments arguments = arguments_of(shape_, operands, tokens, of.blocks);
  of.add_to(arguments);
  arguments.rank = rank;
  for (int i = 0; i < static_cast<int>(workspaces_.size()); ++i) {
    const SharedBuffers shared =
        areas_ != nullptr ? SharedBuffers(areas_->part(i), of.buffers) : workspace(i).shared;
    arguments.areas[i] = shared.area(of.most_tiles);
  }
  const cuda::LaunchShape launch_shape{.grid = dim3(static_cast<unsigned>(of.blocks)),
                                       .block = dim3(fused_moe::kThreads),
                                       .shared_bytes = fused_moe::kSharedBytes,
                                       .cooperative = of.has_gpu};
  const auto launch_of = [&]<typename T>(const T* h) {
    const fused_moe::Maps maps = maps_of<T>(shape_, operands, tokens, arguments, h);
    if (trace != nullptr) {
      fused_moe::launch_traced<T>(stream, launch_shape, maps, arguments, trace->buffers());
    } else {
      cuda::launch(stream, launch_shape, fused_moe::fused_moe_kernel<T>, maps, arguments);
    }
  };
  if (shape_.is_fp8) {
    launch_of(static_cast<const fp8*>(of.h_fp8.get()));
  } else {
    launch_of(static_cast<const bf16*>(of.h.get()));
  }
}

void FusedMoePlan::require_finished(const cuda::Stream& stream, int rank) const {
  if (workspaces_.empty()) return;
  fused_moe::Control control{};
  ORRERY_CUDA(cudaMemcpyAsync(&control, workspace(rank).control.get(), sizeof(control),
                              cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  if (control.stuck == 0) return;
  throw std::runtime_error(
      "fused_moe: waited in vain for " +
      std::string(fused_moe::name_of(static_cast<fused_moe::Wait>(control.stuck))) + " " +
      std::to_string(control.place) + " in launch " + std::to_string(control.launches));
}

}  // namespace orrery
