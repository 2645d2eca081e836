#include <stdexcept>
#include <string>

#include "kernels/attention/kv_gather/kv_gather.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/vector.cuh"

namespace orrery {
namespace {

constexpr unsigned kRows = 4;  // of a block
constexpr unsigned kMostVectors = 1024 / kRows;

// A thread per vector of a row. Bound by HBM: each byte is read and written once; the tables lie in
// the L1 cache.
__global__ void __launch_bounds__(kRows* kMostVectors)
    kv_gather_kernel(PagedKv<const bf16> cache, const std::int32_t* starts, KvGatherShape shape,
                     bf16* latents, bf16* rotated) {
  begin_dependent();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
  if (row >= shape.tokens) return;
  // The last sequence that starts at or before the row.
  std::int64_t sequence = 0;
  for (std::int64_t end = shape.sequences; sequence + 1 < end;) {
    const std::int64_t middle = (sequence + end) / 2;
    if (__ldg(starts + middle) <= row) {
      sequence = middle;
    } else {
      end = middle;
    }
  }
  const std::int64_t token = row - __ldg(starts + sequence);
  const std::int64_t block =
      __ldg(cache.block_table + sequence * cache.blocks_per_sequence + token / cache.block_size);
  const std::int64_t slot = block * cache.block_size + token % cache.block_size;
  const std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kVectorSize;
  const uint4 vector = load_once(cache.keys + slot * (shape.latent + shape.rope) + column);
  bf16* const to = column < shape.latent ? latents + row * shape.latent + column
                                         : rotated + row * shape.rope + (column - shape.latent);
  store(to, vector);
}

}  // namespace

void kv_gather(const cuda::Stream& stream, const PagedKv<const bf16>& cache,
               const std::int32_t* starts, const KvGatherShape& shape, bf16* latents,
               bf16* rotated) {
  if (shape.tokens == 0) return;
  const std::int64_t vectors = (shape.latent + shape.rope) / kVectorSize;
  if (shape.sequences < 1 || (shape.latent | shape.rope) % kVectorSize != 0 || vectors < 1 ||
      vectors > kMostVectors) {
    throw std::invalid_argument("kv_gather: " + std::to_string(shape.sequences) +
                                " sequences of tokens with " + std::to_string(shape.latent) +
                                " and " + std::to_string(shape.rope) +
                                " elements, takes at least one and multiples of 8 up to " +
                                std::to_string(kMostVectors * kVectorSize) + " together");
  }
  if (!vector_aligned(cache.keys, latents, rotated)) {
    throw std::invalid_argument("kv_gather: cache and results must be 16-byte aligned");
  }
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>((shape.tokens + kRows - 1) / kRows)),
                .block = dim3(static_cast<unsigned>(vectors), kRows),
                .programmatic = true},
               kv_gather_kernel, cache, starts, shape, latents, rotated);
}

}  // namespace orrery
