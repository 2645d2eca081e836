#include "kernels/cuda/copy_ring_sm90.cuh"
#include "kernels/cuda/counted_rows.cuh"
#include "kernels/cuda/prefix.cuh"
#include "kernels/gather_mul/gather_mul.h"

namespace orrery {
namespace {

constexpr int kVectors = 4;  // of a thread

// Rows of `tokens`, in the layout named.
template <bool kPadded>
struct TokenRows {
  struct Raw {
    uint4 x;
    float weight;
  };
  struct Place {
    std::int64_t token;  // -1: zeros
    float weight;
  };
  GatheredTokens from;
  std::int64_t columns;
  const std::int32_t* starts;  // shared memory

  __device__ void begin() {
    if constexpr (kPadded) starts = group_starts(from.counts, static_cast<int>(from.experts), 1);
  }
  __device__ Place place(std::int64_t row) const {
    if constexpr (kPadded) {
      const auto expert = static_cast<int>(row / from.capacity);
      row += starts[expert] - expert * from.capacity;
      if (row >= starts[expert + 1] || row >= from.rows) return {-1, 1};
    }
    const std::int64_t token = from.row_token[row];
    if (token < 0 || token >= from.tokens) return {-1, 1};
    return {token, from.row_weight == nullptr ? 1.0f : from.row_weight[row]};
  }
  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    const Place at = place(row);
    if (at.token < 0) return {{}, 1};
    return {load_once(from.x + at.token * columns + column), at.weight};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const {
    if (from.row_weight == nullptr) return raw.x;
    float values[kVectorSize];
    unpack(raw.x, values);
#pragma unroll
    for (float& value : values) value *= raw.weight;
    return pack(values);
  }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    const Place at = place(row);
    if (at.token < 0) return 0;
    const float value = __bfloat162float(from.x[at.token * columns + column]);
    return __bfloat162float(__float2bfloat16_rn(value * at.weight));
  }
};

template <int kStages, int kStageBytes>
__global__ void __launch_bounds__(32)
    bulk_kernel(GatheredTokens from, bf16* xs, std::int64_t step_rows) {
  extern __shared__ __align__(128) unsigned char ring_memory[];
  CopyRing<kStages, kStageBytes> ring(ring_memory);
  begin_dependent();
  const std::int64_t rows = from.num_rows == nullptr
                                ? from.rows
                                : min(from.rows, static_cast<std::int64_t>(*from.num_rows));
  const int lane = static_cast<int>(threadIdx.x);
  const auto bytes = static_cast<std::uint32_t>(from.hidden * sizeof(bf16));
  const bool strided = step_rows == 0;
  const std::int64_t begin = strided ? blockIdx.x : rows * blockIdx.x / gridDim.x;
  const std::int64_t end = strided ? rows : rows * (blockIdx.x + 1) / gridDim.x;
  const std::int64_t step = strided ? gridDim.x : 1;
  for (std::int64_t first = begin; first < end; first += 32 * step) {
    const std::int64_t own = first + lane * step;
    const std::int32_t mine = own < end ? from.row_token[own] : -1;
    for (int i = 0; i < 32 && first + i * step < end; ++i) {
      const std::int32_t token = __shfl_sync(0xFFFFFFFFU, mine, i);
      bf16* const to = xs + (first + i * step) * from.hidden;
      if (token >= 0 && token < from.tokens) {
        if (lane == 0) ring.push(from.x + token * from.hidden, to, bytes);
      } else {
        for (std::int64_t column = lane * kVectorSize; column < from.hidden;
             column += 32 * kVectorSize) {
          store(to + column, uint4{});
        }
      }
    }
  }
  if (lane == 0) ring.finish();
}

template <int kStages, int kStageBytes>
void launch_bulk(const cuda::Stream& stream, const GatheredTokens& rows, bf16* xs, int per_sm,
                 bool strided) {
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(132 * per_sm)),
                .block = dim3(32),
                .shared_bytes = CopyRing<kStages, kStageBytes>::kSharedBytes,
                .programmatic = true},
               bulk_kernel<kStages, kStageBytes>, rows, xs, strided ? 0 : 1);
}

template <typename Sink>
void launch(const cuda::Stream& stream, const GatheredTokens& rows, const Sink& sink) {
  const bool aligned = vector_aligned(rows.x, sink.y);
  if (rows.experts == 0) {
    return launch_counted_rows(stream, TokenRows<false>{rows, rows.hidden, nullptr}, sink,
                               {.most = rows.rows, .on_device = rows.num_rows}, kVectors, aligned);
  }
  if (rows.experts > kMostGroups) {
    throw std::invalid_argument("gather_mul takes up to " + std::to_string(kMostGroups) +
                                " experts, not " + std::to_string(rows.experts));
  }
  launch_counted_rows(stream, TokenRows<true>{rows, rows.hidden, nullptr}, sink,
                      {.most = rows.experts * rows.capacity}, kVectors, aligned);
}

}  // namespace

void gather_mul(const cuda::Stream& stream, const GatheredTokens& rows, bf16* xs) {
  const char* const bulk = std::getenv("ORRERY_BULK");
  if (bulk != nullptr && rows.experts == 0 && rows.row_weight == nullptr && rows.rows > 512 &&
      rows.hidden % 8 == 0 && rows.hidden <= 8192) {
    const int how = std::atoi(bulk);
    const bool strided = how >= 10;
    if (rows.hidden <= 5120) {
      if (how % 10 == 1) return launch_bulk<20, 10240>(stream, rows, xs, 1, strided);
      if (how % 10 == 2) return launch_bulk<10, 10240>(stream, rows, xs, 2, strided);
      if (how % 10 == 3) return launch_bulk<6, 10240>(stream, rows, xs, 3, strided);
      if (how % 10 == 4) return launch_bulk<4, 10240>(stream, rows, xs, 5, strided);
    }
    return launch_bulk<12, 16384>(stream, rows, xs, 1, strided);
  }
  launch(stream, rows, Bf16Rows{xs, rows.hidden});
}

void gather_mul_fp8(const cuda::Stream& stream, const GatheredTokens& rows, fp8* xs,
                    float* scales) {
  launch(stream, rows, RowwiseFp8Rows{xs, scales, rows.hidden});
}

}  // namespace orrery
