#include <type_traits>

#include "kernels/cuda/counted_rows.cuh"
#include "kernels/cuda/prefix.cuh"
#include "kernels/experts/gather_mul/gather_mul.h"

namespace orrery {
namespace {

// Of a thread, where there are many rows: few copies are on their way at once, so that reads and
// writes stay apart; a row that is reduced waits for its last vector, so that more rows share an
// SM.
template <typename Sink>
constexpr int kVectors = Sink::kNeedsPeak ? 4 : 2;

struct TokenKey {
  std::int32_t token;  // -1: zeros
  float weight;
};

// Rows in the layout named. `kFactors`: the sink multiplies them by their weights, which rounds
// once.
template <bool kPadded, bool kFactors>
struct TokenRows {
  struct Plain {
    uint4 x;
  };
  struct Weighed {
    uint4 x;
    float weight;
  };
  using Raw = std::conditional_t<kFactors, Plain, Weighed>;
  GatheredTokens from;
  std::int64_t columns;
  const std::int32_t* starts;  // shared memory

  __device__ void begin() {
    if constexpr (kPadded) starts = group_starts(from.counts, static_cast<int>(from.experts), 1);
  }
  __device__ TokenKey key(std::int64_t row) const {
    if constexpr (kPadded) {
      const int expert = static_cast<int>(row) / static_cast<int>(from.capacity);
      row += starts[expert] - expert * from.capacity;
      if (row >= starts[expert + 1] || row >= from.rows) return {-1, 1};
    }
    // Both are asked for before the token is looked at.
    const float weight = from.row_weight == nullptr ? 1.0f : from.row_weight[row];
    const std::int32_t token = from.row_token[row];
    const bool is_there =
        static_cast<std::uint32_t>(token) < static_cast<std::uint32_t>(from.tokens);
    return {is_there ? token : -1, is_there ? weight : 1.0f};
  }
  __device__ float factor(const TokenKey& key) const { return kFactors ? key.weight : 1; }
  __device__ Raw load(std::int64_t, std::int64_t column, const TokenKey& key) const {
    Raw raw{};
    if (key.token >= 0) {
      raw.x = load_once(from.x + static_cast<std::int64_t>(key.token) * columns + column);
    }
    if constexpr (!kFactors) raw.weight = key.weight;
    return raw;
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const {
    if constexpr (kFactors) {
      return raw.x;
    } else {
      if (from.row_weight == nullptr) return raw.x;
      float values[kVectorSize];
      unpack(raw.x, values);
#pragma unroll
      for (float& value : values) value *= raw.weight;
      return pack(values);
    }
  }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    const TokenKey at = key(row);
    if (at.token < 0) return 0;
    const float value =
        __bfloat162float(from.x[static_cast<std::int64_t>(at.token) * columns + column]);
    return kFactors ? value : value * at.weight;
  }
};

template <typename Sink>
void launch(const cuda::Stream& stream, const GatheredTokens& rows, const Sink& sink) {
  const bool aligned = vector_aligned(rows.x, sink.y);
  if (rows.experts == 0) {
    return launch_counted_rows(
        stream, TokenRows<false, Sink::kNeedsPeak>{rows, rows.hidden, nullptr}, sink,
        {.most = rows.rows, .on_device = rows.num_rows}, kVectors<Sink>, aligned);
  }
  if (rows.experts > kMostGroups) {
    throw std::invalid_argument("gather_mul takes up to " + std::to_string(kMostGroups) +
                                " experts, not " + std::to_string(rows.experts));
  }
  launch_counted_rows(stream, TokenRows<true, Sink::kNeedsPeak>{rows, rows.hidden, nullptr}, sink,
                      {.most = rows.experts * rows.capacity}, kVectors<Sink>, aligned);
}

}  // namespace

void gather_mul(const cuda::Stream& stream, const GatheredTokens& rows, bf16* xs) {
  launch(stream, rows, Bf16Rows{xs, rows.hidden});
}

void gather_mul_fp8(const cuda::Stream& stream, const GatheredTokens& rows, fp8* xs,
                    float* scales) {
  launch(stream, rows, RowwiseFp8Rows{xs, scales, rows.hidden});
}

}  // namespace orrery
