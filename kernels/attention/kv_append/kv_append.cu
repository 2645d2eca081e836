#include "kernels/attention/kv_append/kv_append.h"
#include "kernels/cuda/map_kernel.cuh"

namespace orrery {
namespace {

// Rows 0 .. tokens - 1 are keys, the next `tokens` are values.
struct KeyValueRows {
  struct Raw {
    uint4 x;
  };
  const bf16* keys;
  const bf16* values;
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t stride;  // from token to token

  __device__ const bf16* at(std::int64_t row, std::int64_t column) const {
    return row < tokens ? keys + row * stride + column : values + (row - tokens) * stride + column;
  }
  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    return {load_once(at(row, column))};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const { return raw.x; }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    return __bfloat162float(*at(row, column));
  }
};

// Each row is a latent and a rotated key.
struct JoinedRows {
  struct Raw {
    uint4 x;
  };
  LatentRows rows;
  std::int64_t columns;

  __device__ const bf16* at(std::int64_t row, std::int64_t column) const {
    return column < rows.latent ? rows.latents + row * rows.latent_stride + column
                                : rows.rotated + row * rows.rope_stride + (column - rows.latent);
  }
  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    return {load_once(at(row, column))};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const { return raw.x; }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    return __bfloat162float(*at(row, column));
  }
};

// The same rows of the cache, at their slots.
template <typename T>
struct SlotRows {
  static constexpr int kVectors = sizeof(T) == sizeof(bf16) ? 1 : 2;
  const std::int64_t* slots;
  T* keys;
  T* values;
  float key_multiplier;
  float value_multiplier;
  std::int64_t tokens;
  std::int64_t columns;

  __device__ float begin(std::int64_t, float factor, float, bool) const { return factor; }
  // Null where nothing is stored.
  __device__ T* at(std::int64_t row, std::int64_t column) const {
    const std::int64_t slot = slots[row < tokens ? row : row - tokens];
    if (slot < 0) return nullptr;
    return (row < tokens ? keys : values) + slot * columns + column;
  }
  __device__ void put(std::int64_t row, std::int64_t column, const uint4& packed) const {
    T* const to = at(row, column);
    if (to == nullptr) return;
    if constexpr (sizeof(T) == sizeof(bf16)) {
      store(to, packed);
    } else {
      const float multiplier = row < tokens ? key_multiplier : value_multiplier;
      float values_of[kVectorSize];
      unpack(packed, values_of);
#pragma unroll
      for (float& value : values_of) value *= multiplier;
      store_fp8(to, values_of);
    }
  }
  __device__ void put(std::int64_t row, std::int64_t column, float value) const {
    T* const to = at(row, column);
    if (to != nullptr) *to = T(value * (row < tokens ? key_multiplier : value_multiplier));
  }
};

template <typename T>
void append(const cuda::Stream& stream, const bf16* keys, const bf16* values,
            const std::int64_t* slots, const PagedKv<T>& cache, std::int64_t tokens,
            std::int64_t width, std::int64_t stride) {
  if (stride != 0 && stride < width) {
    throw std::invalid_argument("kv_append: rows of " + std::to_string(width) + " elements " +
                                std::to_string(stride) +
                                " apart, expected 0 or at least the width");
  }
  const SlotRows<T> sink{
      .slots = slots,
      .keys = cache.keys,
      .values = cache.values,
      .key_multiplier = reciprocal_scale("kv_append keys", cache.key_scale),
      .value_multiplier = reciprocal_scale("kv_append values", cache.value_scale),
      .tokens = tokens,
      .columns = width};
  const KeyValueRows source{.keys = keys,
                            .values = values,
                            .tokens = tokens,
                            .columns = width,
                            .stride = stride == 0 ? width : stride};
  launch_map(stream, source, sink, values == nullptr ? tokens : 2 * tokens,
             vector_aligned(keys, values, cache.keys, cache.values) && stride % kVectorSize == 0);
}

}  // namespace

void kv_append(const cuda::Stream& stream, const bf16* keys, const bf16* values,
               const std::int64_t* slots, const PagedKv<bf16>& cache, std::int64_t tokens,
               std::int64_t width, std::int64_t stride) {
  append(stream, keys, values, slots, cache, tokens, width, stride);
}

void kv_append(const cuda::Stream& stream, const bf16* keys, const bf16* values,
               const std::int64_t* slots, const PagedKv<fp8>& cache, std::int64_t tokens,
               std::int64_t width, std::int64_t stride) {
  append(stream, keys, values, slots, cache, tokens, width, stride);
}

void kv_append_latent(const cuda::Stream& stream, const LatentRows& rows, const std::int64_t* slots,
                      const PagedKv<bf16>& cache, std::int64_t tokens) {
  JoinedRows source{.rows = rows, .columns = rows.latent + rows.rope};
  if (rows.latent_stride == 0) source.rows.latent_stride = rows.latent;
  if (rows.rope_stride == 0) source.rows.rope_stride = rows.rope;
  if (source.rows.latent_stride < rows.latent || source.rows.rope_stride < rows.rope) {
    throw std::invalid_argument("kv_append: rows of latents or rotated keys that overlap");
  }
  const SlotRows<bf16> sink{.slots = slots,
                            .keys = cache.keys,
                            .values = nullptr,
                            .key_multiplier = 1,
                            .value_multiplier = 1,
                            .tokens = tokens,
                            .columns = source.columns};
  const bool is_whole =
      (rows.latent | source.rows.latent_stride | source.rows.rope_stride) % kVectorSize == 0;
  launch_map(stream, source, sink, tokens,
             is_whole && vector_aligned(rows.latents, rows.rotated, cache.keys));
}

}  // namespace orrery
