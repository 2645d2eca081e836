#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "kernels/harness/operands.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;

// The output function of SplitMix64 at position `index` of stream `seed` (Steele, Lea, Flood,
// OOPSLA 2014): a value for each index without state.
__device__ std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xD1342543DE82EF95ULL + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

__device__ float unit(std::uint32_t bits) {
  return (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    normal_kernel(T* data, std::size_t count, std::uint64_t seed, float scale) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x; i < count;
       i += stride) {
    const std::uint64_t bits = mix(seed, i);
    const float radius = sqrtf(-2.0f * logf(unit(static_cast<std::uint32_t>(bits >> 32))));
    data[i] = T(scale * radius * cospif(2.0f * unit(static_cast<std::uint32_t>(bits))));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    uniform_kernel(T* data, std::size_t count, std::uint64_t seed, float low, float high) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(kThreads) + threadIdx.x; i < count;
       i += stride) {
    data[i] = T(low + (high - low) * unit(static_cast<std::uint32_t>(mix(seed, i))));
  }
}

// Of this thread on the current device. Cases make hundreds of small buffers, and a stream takes
// longer to make than one of them to fill.
const cuda::Stream& own_stream() {
  thread_local std::map<int, cuda::Stream> streams;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  return streams[device];
}

unsigned blocks_for(std::size_t count) {
  constexpr std::size_t kMost = 4096;
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMost));
}

}  // namespace

template <typename T>
void fill_normal(const cuda::Stream& stream, T* data, std::size_t count, std::uint64_t seed,
                 float scale) {
  if (count == 0) return;
  normal_kernel<<<blocks_for(count), kThreads, 0, stream.get()>>>(data, count, seed, scale);
  ORRERY_CUDA(cudaPeekAtLastError());
}

template <typename T>
void fill_uniform(const cuda::Stream& stream, T* data, std::size_t count, std::uint64_t seed,
                  float low, float high) {
  if (count == 0) return;
  uniform_kernel<<<blocks_for(count), kThreads, 0, stream.get()>>>(data, count, seed, low, high);
  ORRERY_CUDA(cudaPeekAtLastError());
}

template <typename T>
cuda::DeviceBuffer<T> normal_buffer(std::size_t count, std::uint64_t seed, float scale) {
  const cuda::Stream& stream = own_stream();
  cuda::DeviceBuffer<T> buffer(count);
  fill_normal(stream, buffer.get(), count, seed, scale);
  stream.synchronize();
  return buffer;
}

template <typename T>
std::vector<T> host_copy(const cuda::Stream& stream, const T* data, std::size_t count) {
  std::vector<T> values(count);
  ORRERY_CUDA(cudaMemcpyAsync(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost,
                              stream.get()));
  stream.synchronize();
  return values;
}

template <typename T>
std::vector<double> host_double(const cuda::Stream& stream, const T* data, std::size_t count) {
  const std::vector<T> values = host_copy(stream, data, count);
  std::vector<double> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, std::int32_t>) {
      result[i] = values[i];
    } else {
      result[i] = static_cast<float>(values[i]);
    }
  }
  return result;
}

#define ORRERY_OPERANDS(T)                                                                       \
  template void fill_normal(const cuda::Stream&, T*, std::size_t, std::uint64_t, float);         \
  template void fill_uniform(const cuda::Stream&, T*, std::size_t, std::uint64_t, float, float); \
  template cuda::DeviceBuffer<T> normal_buffer(std::size_t, std::uint64_t, float);               \
  template std::vector<T> host_copy(const cuda::Stream&, const T*, std::size_t);                 \
  template std::vector<double> host_double(const cuda::Stream&, const T*, std::size_t);
ORRERY_OPERANDS(bf16)
ORRERY_OPERANDS(fp16)
ORRERY_OPERANDS(fp8)
ORRERY_OPERANDS(float)
#undef ORRERY_OPERANDS
template std::vector<std::int32_t> host_copy(const cuda::Stream&, const std::int32_t*, std::size_t);
template std::vector<double> host_double(const cuda::Stream&, const std::int32_t*, std::size_t);

}  // namespace orrery
