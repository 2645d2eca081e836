#include <array>
#include <vector>

#include "kernels/comm/collectives/replay.h"
#include "kernels/cuda/dtypes.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 64;

struct ReplayCall {
  std::int64_t count;
  CollectiveImplementation implementation;
};
// Grids of 1 to 64 blocks in turn, so that the counts of calls of all blocks are put to use.
constexpr std::array kCalls = {
    ReplayCall{.count = 1, .implementation = CollectiveImplementation::kOneShot},
    ReplayCall{.count = 131071, .implementation = CollectiveImplementation::kTwoShot},
    ReplayCall{.count = 4099, .implementation = CollectiveImplementation::kOneShot},
    ReplayCall{.count = 3, .implementation = CollectiveImplementation::kTwoShot},
    ReplayCall{.count = 65537, .implementation = CollectiveImplementation::kOneShot},
    ReplayCall{.count = 8191, .implementation = CollectiveImplementation::kTwoShot}};

__device__ std::uint32_t draw(std::uint32_t replay, std::uint32_t rank, std::uint32_t call,
                              std::uint32_t index) {
  std::uint32_t x = replay * 0x9E3779B9u ^ (rank + 1) * 0x85EBCA6Bu ^ (call + 1) * 0xC2B2AE35u ^
                    (index + 1) * 0x27D4EB2Fu;
  x = (x ^ (x >> 15)) * 0x2C1B3C6Du;
  x = (x ^ (x >> 12)) * 0x297A2D39u;
  return x ^ (x >> 15);
}

__device__ float value(std::uint32_t replay, std::uint32_t rank, std::uint32_t call,
                       std::int64_t index) {
  return static_cast<float>(draw(replay, rank, call, static_cast<std::uint32_t>(index)) & 15);
}

__global__ void __launch_bounds__(kThreads)
    make_kernel(bf16* input, std::int64_t count, const std::uint32_t* replay, int rank, int call) {
  constexpr std::uint32_t kMostCycles = 16384;  // about 8 us
  const std::uint32_t now = *replay;
  const std::int64_t begin = clock64();
  const std::uint32_t wait = draw(now, rank, call, 0xFFFFFFF0u) % kMostCycles;
  while (clock64() - begin < wait) {
  }
  for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    input[i] = __float2bfloat16_rn(value(now, rank, call, i));
  }
}

__global__ void __launch_bounds__(kThreads)
    compare_kernel(bf16* output, std::int64_t count, const std::uint32_t* replay, int num_ranks,
                   int call, unsigned long long* errors) {
  const std::uint32_t now = *replay;
  for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    float sum = 0;
    for (int rank = 0; rank < num_ranks; ++rank) sum += value(now, rank, call, i);
    if (!(__bfloat162float(output[i]) == sum)) atomicAdd(errors, 1ull);
    output[i] = __ushort_as_bfloat16(0xFFFF);
  }
}

__global__ void next_kernel(std::uint32_t* replay) { ++*replay; }

struct ReplayBuffers {
  std::vector<cuda::DeviceBuffer<bf16>> inputs;
  std::vector<cuda::DeviceBuffer<bf16>> outputs;
  cuda::DeviceBuffer<std::uint32_t> replay{1};
  cuda::DeviceBuffer<unsigned long long> errors{1};
};

ReplayBuffers make_buffers() {
  ReplayBuffers buffers;
  for (const ReplayCall& call : kCalls) {
    buffers.inputs.emplace_back(call.count);
    buffers.outputs.emplace_back(call.count);
  }
  ORRERY_CUDA(cudaMemset(buffers.replay.get(), 0, sizeof(std::uint32_t)));
  ORRERY_CUDA(cudaMemset(buffers.errors.get(), 0, sizeof(unsigned long long)));
  ORRERY_CUDA(cudaStreamSynchronize(nullptr));
  return buffers;
}

void enqueue(const PeerGroup& group, int rank, const ReplayBuffers& buffers) {
  const cuda::Stream& stream = group.team().stream(rank);
  for (std::size_t i = 0; i < kCalls.size(); ++i) {
    const ReplayCall& call = kCalls[i];
    const int index = static_cast<int>(i);
    make_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(buffers.inputs[i].get(), call.count,
                                                        buffers.replay.get(), rank, index);
    ORRERY_CUDA(cudaPeekAtLastError());
    group.enqueue(call.implementation, rank, stream,
                  {.count = call.count,
                   .input = buffers.inputs[i].get(),
                   .output = buffers.outputs[i].get()});
    compare_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(buffers.outputs[i].get(), call.count,
                                                           buffers.replay.get(), group.size(),
                                                           index, buffers.errors.get());
    ORRERY_CUDA(cudaPeekAtLastError());
  }
  next_kernel<<<1, 1, 0, stream.get()>>>(buffers.replay.get());
  ORRERY_CUDA(cudaPeekAtLastError());
}

}  // namespace

std::int64_t replay_errors(PeerGroup& group, int replays) {
  std::vector<ReplayBuffers> buffers;
  std::vector<cuda::Graph> graphs;
  for (int rank = 0; rank < group.size(); ++rank) {
    const cuda::DeviceGuard guard(group.team().devices()[rank]);
    buffers.push_back(make_buffers());
    graphs.push_back(cuda::Graph::capture(group.team().stream(rank),
                                          [&] { enqueue(group, rank, buffers[rank]); }));
  }
  group.team().run([&](int rank) {
    for (int i = 0; i < replays; ++i) graphs[rank].launch(group.team().stream(rank));
    group.team().stream(rank).synchronize();
  });
  std::int64_t total = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const cuda::DeviceGuard guard(group.team().devices()[rank]);
    unsigned long long errors = 0;
    std::uint32_t made = 0;
    ORRERY_CUDA(
        cudaMemcpy(&errors, buffers[rank].errors.get(), sizeof(errors), cudaMemcpyDeviceToHost));
    ORRERY_CUDA(
        cudaMemcpy(&made, buffers[rank].replay.get(), sizeof(made), cudaMemcpyDeviceToHost));
    total += static_cast<std::int64_t>(errors);
    if (made != static_cast<std::uint32_t>(replays)) total += 1;  // a replay did not run to its end
  }
  return total;
}

}  // namespace orrery
