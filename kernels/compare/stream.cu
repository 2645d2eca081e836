#include <stdexcept>

#include "kernels/compare/c_api.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"

namespace orrery::compare {
namespace {

constexpr int kThreads = 256;

// The yardstick of memory-bound kernels: each thread reads kUnits vectors of 16 bytes from each of
// kReads stretches and writes as many to kWrites, with nothing to compute but an xor, which keeps
// every load alive. The fastest of the thread counts, vectors per thread and cache hints tried on
// an H200 over 768 MB: 4.65 TB/s read only, 4.23 as a copy, 4.38 with two reads to a write.
template <int kReads, int kWrites, int kUnits>
__global__ void __launch_bounds__(kThreads)
    stream_kernel(const uint4* source, uint4* sink, std::int64_t units) {
  begin_dependent();
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kThreads * kUnits + threadIdx.x;
  uint4 vectors[kUnits][kReads];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      const std::int64_t at = first + i * kThreads;
      vectors[i][j] = at < units ? source[j * units + at] : uint4{};
    }
  }
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const std::int64_t at = first + i * kThreads;
    if (at >= units) continue;
    uint4 sum{};
#pragma unroll
    for (int j = 0; j < kReads; ++j) {
      sum.x ^= vectors[i][j].x;
      sum.y ^= vectors[i][j].y;
      sum.z ^= vectors[i][j].z;
      sum.w ^= vectors[i][j].w;
    }
#pragma unroll
    for (int j = 0; j < kWrites; ++j) sink[j * units + at] = sum;
    if (kWrites == 0 && sum.x == 0x7F8A5B3C && sum.y == 0x12345678) sink[0] = sum;
  }
}

template <int kReads, int kWrites>
void launch_stream(const cuda::Stream& stream, const void* source, void* sink,
                   std::int64_t vectors) {
  const std::int64_t units = vectors / kReads;
  constexpr int kUnits = kWrites == 0 ? 4 : 1;
  constexpr std::int64_t kPerBlock = kThreads * kUnits;
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>((units + kPerBlock - 1) / kPerBlock)),
                .block = dim3(kThreads),
                .programmatic = true},
               stream_kernel<kReads, kWrites, kUnits>, static_cast<const uint4*>(source),
               static_cast<uint4*>(sink), units);
}

}  // namespace

// Reads `vectors` 16-byte vectors and writes writes / reads as many. The mixes that kernels have:
// 1:0, 1:1, 2:1, 4:1, 4:3.
extern "C" int orrery_stream(void* stream, const void* source, void* sink, std::int64_t vectors,
                             std::int64_t reads, std::int64_t writes) {
  return guarded(stream, [&](const cuda::Stream& on) {
    if (reads == 1 && writes == 0) return launch_stream<1, 0>(on, source, sink, vectors);
    if (reads == 1 && writes == 1) return launch_stream<1, 1>(on, source, sink, vectors);
    if (reads == 2 && writes == 1) return launch_stream<2, 1>(on, source, sink, vectors);
    if (reads == 4 && writes == 1) return launch_stream<4, 1>(on, source, sink, vectors);
    if (reads == 4 && writes == 3) return launch_stream<4, 3>(on, source, sink, vectors);
    throw std::invalid_argument("no stream of that mix of reads and writes");
  });
}

}  // namespace orrery::compare
