#pragma once

// What element-wise kernels read and write, as small types that the two kernels of row_kernel.cuh
// and map_kernel.cuh are made of: a source gives rows of bf16, a sink takes them.
//
// A source:  kRowVectors how many vectors a thread of the row kernel takes where there are many
// rows
//            Raw load(row, column)          eight elements from `column` on, as they lie in memory
//            uint4 keep(row, column, raw)   the eight values, packed; writes what the source
//            updates float first(row, column)       one value, likewise float again(row, column)
//            the same value a second time, with no further effect
// A sink:    kVectors    how many vectors a thread of the map kernel takes where there are many:
// what
//                        streams best on an H200 for such a mix of reads and writes (a copy: one
//                        4.23 TB/s, four 4.05; half as much written as read: two, since blocks of
//                        256 threads with one vector each start no faster than 3.4 TB/s read)
//            float begin(row, factor, peak, leader)   what each value is multiplied by before it
//            is rounded, for values v * factor of which `peak` is the largest; `leader` is one
//            thread of the row and may write what there is once for a row
//            put(row, column, values) and put(row, column, value)
//            put(row, column, packed)       of values that need no multiplier (map kernel)

#include "kernels/cuda/vector.cuh"

namespace orrery {

// x [rows, columns], rows `stride` elements apart
struct PlainRows {
  static constexpr int kRowVectors = 4;
  struct Raw {
    uint4 x;
  };
  const bf16* x;
  std::int64_t columns;
  std::int64_t stride;

  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    return {load_once(x + row * stride + column)};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const { return raw.x; }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    return __bfloat162float(x[row * stride + column]);
  }
  __device__ float again(std::int64_t row, std::int64_t column) const { return first(row, column); }
};

// residual += x, both [rows, columns]; the values are the sums as rounded to bf16.
struct SumRows {
  static constexpr int kRowVectors = 2;
  struct Raw {
    uint4 residual;
    uint4 x;
  };
  bf16* residual;
  const bf16* x;
  std::int64_t columns;

  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * columns + column;
    return {load_once(residual + at), load_once(x + at)};
  }
  __device__ uint4 keep(std::int64_t row, std::int64_t column, const Raw& raw) const {
    float sum[kVectorSize];
    float added[kVectorSize];
    unpack(raw.residual, sum);
    unpack(raw.x, added);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) sum[i] += added[i];
    const uint4 packed = pack(sum);
    store(residual + row * columns + column, packed);
    return packed;
  }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * columns + column;
    residual[at] = __float2bfloat16_rn(__bfloat162float(residual[at]) + __bfloat162float(x[at]));
    return __bfloat162float(residual[at]);
  }
  __device__ float again(std::int64_t row, std::int64_t column) const {
    return __bfloat162float(residual[row * columns + column]);
  }
};

// silu(gate) * up of x [rows, 2 columns], gate first; rounded to bf16.
struct GatedRows {
  static constexpr int kRowVectors = 2;
  struct Raw {
    uint4 gate;
    uint4 up;
  };
  const bf16* x;
  std::int64_t columns;

  __device__ static float gated(float gate, float up) {
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  }
  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    const bf16* at = x + 2 * row * columns + column;
    return {load_once(at), load_once(at + columns)};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const {
    float gate[kVectorSize];
    float up[kVectorSize];
    unpack(raw.gate, gate);
    unpack(raw.up, up);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) gate[i] = gated(gate[i], up[i]);
    return pack(gate);
  }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    const bf16* at = x + 2 * row * columns + column;
    const float y = gated(__bfloat162float(at[0]), __bfloat162float(at[columns]));
    return __bfloat162float(__float2bfloat16_rn(y));
  }
  __device__ float again(std::int64_t row, std::int64_t column) const { return first(row, column); }
};

// y [rows, columns] in bf16
struct Bf16Rows {
  static constexpr bool kNeedsPeak = false;
  static constexpr int kVectors = 1;
  bf16* y;
  std::int64_t columns;

  __device__ float begin(std::int64_t, float factor, float, bool) const { return factor; }
  __device__ void put(std::int64_t row, std::int64_t column,
                      const float (&values)[kVectorSize]) const {
    put(row, column, pack(values));
  }
  __device__ void put(std::int64_t row, std::int64_t column, const uint4& packed) const {
    store(y + row * columns + column, packed);
  }
  __device__ void put(std::int64_t row, std::int64_t column, float value) const {
    y[row * columns + column] = __float2bfloat16_rn(value);
  }
};

// y [rows, columns] in fp8 with one scale for all: `multiplier` is its reciprocal.
struct StaticFp8Rows {
  static constexpr bool kNeedsPeak = false;
  static constexpr int kVectors = 2;
  fp8* y;
  std::int64_t columns;
  float multiplier;

  __device__ float begin(std::int64_t, float factor, float, bool) const {
    return factor * multiplier;
  }
  __device__ void put(std::int64_t row, std::int64_t column,
                      const float (&values)[kVectorSize]) const {
    store_fp8(y + row * columns + column, values);
  }
  __device__ void put(std::int64_t row, std::int64_t column, const uint4& packed) const {
    float values[kVectorSize];
    unpack(packed, values);
#pragma unroll
    for (float& value : values) value *= multiplier;
    put(row, column, values);
  }
  __device__ void put(std::int64_t row, std::int64_t column, float value) const {
    y[row * columns + column] = fp8(value);
  }
};

// y [rows, columns] in fp8 with a scale for each row, scales [rows]: the row's peak / kFp8Max.
struct RowwiseFp8Rows {
  static constexpr bool kNeedsPeak = true;
  fp8* y;
  float* scales;
  std::int64_t columns;

  __device__ float begin(std::int64_t row, float factor, float peak, bool leader) const {
    if (leader) scales[row] = peak / kFp8Max;
    return factor * fp8_multiplier(peak);
  }
  __device__ void put(std::int64_t row, std::int64_t column,
                      const float (&values)[kVectorSize]) const {
    store_fp8(y + row * columns + column, values);
  }
  __device__ void put(std::int64_t row, std::int64_t column, float value) const {
    y[row * columns + column] = fp8(value);
  }
};

}  // namespace orrery
