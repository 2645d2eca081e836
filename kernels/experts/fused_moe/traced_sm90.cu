// The kernel of fused_moe with a trace of its blocks: a program of its own, so that the other one
// has no instruction of it.

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/experts/fused_moe/layer_sm90.cuh"
#include "kernels/experts/fused_moe/traced.h"
#include "kernels/experts/fused_moe/traced_sm90.cuh"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"

namespace orrery {
namespace fused_moe {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    traced_moe_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a,
                      const __grid_constant__ TraceBuffers to) {
  whole_layer<T>(maps, a, BlockTrace(to));
}

// Of a block, where blocks share what there is of all.
std::int32_t room_for(std::int64_t all, std::int64_t blocks) {
  constexpr std::int64_t kUneven = 8;
  constexpr std::int64_t kLeast = 256;
  return static_cast<std::int32_t>(std::max(kUneven * tiles::ceil_div(all, blocks), kLeast));
}

// Tiles of rows of a rank's experts, rows twice the even ones.
std::int64_t even_tiles(const FusedMoeShape& shape) {
  const std::int64_t rows = 2 * num_choices(shape);
  return tiles::ceil_div(rows, kFusedTileRows) + 2 * (own_experts(shape) + shape.shared);
}

}  // namespace

template <typename T>
void launch_traced(const cuda::Stream& stream, const cuda::LaunchShape& launch_shape,
                   const Maps& maps, const Arguments& arguments, const TraceBuffers& to) {
  cuda::launch(stream, launch_shape, traced_moe_kernel<T>, maps, arguments, to);
}
template void launch_traced<bf16>(const cuda::Stream&, const cuda::LaunchShape&, const Maps&,
                                  const Arguments&, const TraceBuffers&);
template void launch_traced<fp8>(const cuda::Stream&, const cuda::LaunchShape&, const Maps&,
                                 const Arguments&, const TraceBuffers&);

}  // namespace fused_moe

struct FusedMoeTraceMemory::Memory {
  Memory(std::size_t num_blocks, std::int32_t most_tasks, std::int32_t most_rows)
      : most_tasks(most_tasks),
        most_rows(most_rows),
        blocks(num_blocks),
        tasks(num_blocks * static_cast<std::size_t>(most_tasks)),
        rows(num_blocks * static_cast<std::size_t>(most_rows)) {}

  std::int32_t most_tasks;
  std::int32_t most_rows;
  cuda::DeviceBuffer<fused_moe::BlockRecord> blocks;
  cuda::DeviceBuffer<fused_moe::TaskRecord> tasks;
  cuda::DeviceBuffer<fused_moe::RowsRecord> rows;
};

FusedMoeTraceMemory::FusedMoeTraceMemory(const FusedMoeShape& shape) {
  const std::int64_t blocks = cuda::device_properties().multiProcessorCount;
  const bool is_gated = shape.activation == ExpertActivation::kSwiglu;
  constexpr std::int64_t kColumns = fused_moe::Config::kColumns;
  const std::int64_t columns = tiles::ceil_div(shape.ffn, is_gated ? kColumns / 2 : kColumns) +
                               tiles::ceil_div(shape.hidden, kColumns);
  constexpr std::int64_t kParts = 4;  // of few rows, in which warps add them up
  const std::int64_t rows = kParts * num_choices(shape) * (shape.is_fp8 ? 2 : 1);
  memory_ =
      std::make_unique<Memory>(static_cast<std::size_t>(blocks),
                               fused_moe::room_for(fused_moe::even_tiles(shape) * columns, blocks),
                               fused_moe::room_for(rows, blocks));
}

FusedMoeTraceMemory::~FusedMoeTraceMemory() = default;

void FusedMoeTraceMemory::clear(const cuda::Stream& stream) const {
  ORRERY_CUDA(cudaMemsetAsync(memory_->blocks.get(), 0,
                              memory_->blocks.size() * sizeof(fused_moe::BlockRecord),
                              stream.get()));
}

fused_moe::TraceBuffers FusedMoeTraceMemory::buffers() const {
  return {.blocks = memory_->blocks.get(),
          .tasks = memory_->tasks.get(),
          .rows = memory_->rows.get(),
          .most_tasks = memory_->most_tasks,
          .most_rows = memory_->most_rows};
}

fused_moe::TraceRecords FusedMoeTraceMemory::read(const cuda::Stream& stream) const {
  const auto host = [&]<typename T>(const cuda::DeviceBuffer<T>& from) {
    std::vector<T> values(from.size());
    ORRERY_CUDA(cudaMemcpyAsync(values.data(), from.get(), from.size() * sizeof(T),
                                cudaMemcpyDeviceToHost, stream.get()));
    return values;
  };
  fused_moe::TraceRecords records{.blocks = host(memory_->blocks),
                                  .tasks = host(memory_->tasks),
                                  .rows = host(memory_->rows),
                                  .most_tasks = memory_->most_tasks,
                                  .most_rows = memory_->most_rows};
  stream.synchronize();
  return records;
}

}  // namespace orrery
