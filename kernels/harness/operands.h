#pragma once

// Operands in device memory for cases: random, seeded, made on the device (equal on every device),
// and brought back as double for the reference.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device_copy.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// `count` normal values of mean 0 and deviation `scale`, rounded to T (bf16, fp16, fp8, float).
template <typename T>
void fill_normal(const cuda::Stream& stream, T* data, std::size_t count, std::uint64_t seed,
                 float scale = 1.0f);
// Uniform in [low, high).
template <typename T>
void fill_uniform(const cuda::Stream& stream, T* data, std::size_t count, std::uint64_t seed,
                  float low, float high);

// A buffer of `count` values from fill_normal, complete on return.
template <typename T>
cuda::DeviceBuffer<T> normal_buffer(std::size_t count, std::uint64_t seed, float scale = 1.0f);

// Device memory on the host, after synchronising `stream`.
template <typename T>
std::vector<T> host_copy(const cuda::Stream& stream, const T* data, std::size_t count);
// The same as double; T is bf16, fp16, fp8, float or std::int32_t.
template <typename T>
std::vector<double> host_double(const cuda::Stream& stream, const T* data, std::size_t count);

// What fill_normal writes for these arguments, as double.
template <typename T>
std::vector<double> host_normal(std::size_t count, std::uint64_t seed, float scale = 1.0f) {
  const cuda::Stream stream;
  const cuda::DeviceBuffer<T> buffer = normal_buffer<T>(count, seed, scale);
  return host_double(stream, buffer.get(), count);
}
// Every byte 0xFF: NaN in bf16, fp16, fp8 and fp32, -1 in integers.
template <typename T>
void poison(const cuda::Stream& stream, const cuda::DeviceBuffer<T>& buffer) {
  ORRERY_CUDA(cudaMemsetAsync(buffer.get(), 0xFF, buffer.size() * sizeof(T), stream.get()));
}

}  // namespace orrery
