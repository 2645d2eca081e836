#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/row_shape.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/rows/rms_norm/rms_norm.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kWholeWarp = 0xFFFFFFFF;

// kLanes neighbouring threads hold a head, a vector each. Bound by HBM: each element of the heads
// is read and written once.
template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    head_norm_kernel(bf16* heads, const bf16* weight, unsigned num_heads, unsigned per_token,
                     unsigned query_heads, std::int64_t stride, float epsilon) {
  begin_dependent();
  constexpr int kHeadDim = kLanes * kVectorSize;
  const unsigned index = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int at = static_cast<int>(threadIdx.x) % kLanes * kVectorSize;
  const unsigned token = index / per_token;
  const unsigned head = index % per_token;
  const bool is_inside = index < num_heads;
  bf16* const x = heads + token * stride + static_cast<std::int64_t>(head) * kHeadDim + at;
  float values[kVectorSize] = {};
  float gains[kVectorSize] = {};
  if (is_inside) {
    unpack(load_once(x), values);
    unpack(load_constant(weight + (head < query_heads ? 0 : kHeadDim) + at), gains);
  }
  float sum = 0;
#pragma unroll
  for (const float value : values) sum += value * value;
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  }
  const float factor = rsqrtf(sum / kHeadDim + epsilon);
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) values[i] *= gains[i] * factor;
  if (is_inside) store(x, pack(values));
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("rms_norm_heads: " + what);
}

}  // namespace

void rms_norm_heads(const cuda::Stream& stream, bf16* heads, const bf16* weight,
                    const HeadNormShape& shape, const NormOptions& options) {
  const std::int64_t per_token = shape.query_heads + shape.key_heads;
  const std::int64_t num_heads = shape.tokens * per_token;
  if (num_heads == 0) return;
  const std::int64_t columns = per_token * shape.head_dim;
  require(is_row_stride(shape.stride, columns) && vector_aligned(heads, weight),
          "rows " + std::to_string(shape.stride) +
              " elements apart, takes 0 and multiples of 8 from all heads of a token on, and "
              "16-byte aligned pointers");
  require(num_heads * shape.head_dim / kVectorSize < std::numeric_limits<std::int32_t>::max(),
          "too many heads");
  const auto run = [&]<int kLanes>() {
    constexpr int kHeadsPerBlock = kThreads / kLanes;
    const auto blocks = static_cast<unsigned>((num_heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
    cuda::launch(stream, {.grid = dim3(blocks), .block = dim3(kThreads), .programmatic = true},
                 head_norm_kernel<kLanes>, heads, weight, static_cast<unsigned>(num_heads),
                 static_cast<unsigned>(per_token), static_cast<unsigned>(shape.query_heads),
                 shape.stride == 0 ? columns : shape.stride, options.epsilon);
  };
  if (shape.head_dim == 64) {
    run.template operator()<8>();
  } else if (shape.head_dim == 128) {
    run.template operator()<16>();
  } else {
    require(shape.head_dim == 256,
            "head_dim " + std::to_string(shape.head_dim) + ", takes 64, 128 and 256");
    run.template operator()<32>();
  }
}

}  // namespace orrery
