#pragma once

// How a tile's results leave the registers: through an activation, then 32 rows of 64 columns at a
// time through a buffer in shared memory to global memory, of this GPU or of another.
//
// What is written out for each element of a tile runs once in a tile, and an SM's instruction cache
// would not hold it for two widths of both layers. So loops go over blocks of columns and over
// rows, and registers are moved down behind each: 200 instructions in place of 2,000.

#include <cstdint>

#include "kernels/cuda/vector.cuh"
#include "kernels/experts/fused_moe/parts_sm90.cuh"

namespace orrery::fused_moe {

// --- activations ---------------------------------------------------------------------------------

__device__ inline float tanh_approximate(float value) {  // to 2^-11 (PTX ISA, tanh)
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
// value / (1 + exp(-value)) is h tanh(h) + h of half of it.
__device__ inline float silu(float value) {
  const float half = 0.5f * value;
  return fmaf(half, tanh_approximate(half), half);
}
__device__ inline float gelu(float value) {
  constexpr float kRoot = 0.7978845608f;  // of 2 / pi
  const float half = 0.5f * value;
  const float inner = kRoot * fmaf(0.044715f * value * value, value, value);
  return fmaf(half, tanh_approximate(inner), half);
}

// --- where they go -------------------------------------------------------------------------------

constexpr int kNoEnd = 0x7FFFFFFF;

// Of one tile, by whole warps: rows of the first layer to the tile's rows; those of the second to
// the ranks whose tokens they are of. An expert's rows lie by the ranks that have sent them, so a
// block of 32 rows is of one rank but where two meet; those blocks go by ordinary stores, as blocks
// of fewer rows do.
class Destination {
 public:
  __device__ Destination(const Maps& maps, const Arguments& a, const Task& task,
                         std::uint32_t launch)
      : maps_(maps),
        a_(a),
        layer_(task.step == Step::kFirst ? 0 : 1),
        goes_back_(layer_ == 1 && a.ranks > 1),
        first_(goes_back_ ? task.row_of_expert : task.row),
        rows_(task.rows) {
    const int rank = static_cast<int>(threadIdx.x) % 32;
    if (!goes_back_) {
      end_ = rank == 0 ? kNoEnd : 0;
      owners_ = 0;
      return;
    }
    const int turn = turn_of(a, a.rank * a.own + task.group);
    int rows = 0;
    int start = 0;  // of its results of this expert
    if (rank < a.ranks) {
      const unsigned long long* const words = starts_of(a, a.areas[a.rank], rank, launch) + turn;
      start = static_cast<int>(static_cast<std::uint32_t>(__ldcg(words)));
      rows = static_cast<int>(static_cast<std::uint32_t>(__ldcg(words + 1))) - start;
    }
    end_ = rows;
#pragma unroll
    for (int lanes = 1; lanes < kMostRanks; lanes *= 2) {
      const int before = __shfl_up_sync(0xFFFFFFFFU, end_, lanes);
      if (rank >= lanes) end_ += before;
    }
    begin_ = end_ - rows;
    shift_ = start - begin_;
    owners_ = __ballot_sync(0xFFFFFFFFU, rows > 0 && begin_ < first_ + rows_ && end_ > first_);
  }
  // Other ranks and this one that have rows in the tile, a bit each; none where they stay.
  [[nodiscard]] __device__ unsigned owners() const { return owners_; }
  [[nodiscard]] __device__ int rows() const { return rows_; }
  [[nodiscard]] __device__ int columns() const { return a_.layers[layer_].n; }

  // A block of 32 rows from `row` of the tile on, in `buffer`: whole ones by the copy engine, which
  // drops columns past the last; `is_copier` for one thread of the warpgroup.
  __device__ void put(const unsigned char* buffer, int row, int column, bool is_copier) const {
    const int first = first_ + row;
    const unsigned whole =
        __ballot_sync(0xFFFFFFFFU, begin_ <= first && first + swap_ab::kChunk <= end_);
    if (rows_ - row < swap_ab::kChunk || whole == 0) {
      write(buffer, row, column);
      return;
    }
    const int owner = __ffs(static_cast<int>(whole)) - 1;
    const int shift = __shfl_sync(0xFFFFFFFFU, shift_, owner);
    if (!is_copier) return;
    sm90::store_2d(goes_back_ ? &maps_.results[owner] : &maps_.layers[layer_].y, buffer, column,
                   first + shift);
  }

 private:
  __device__ void write(const unsigned char* buffer, int first_row, int column) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int vector = thread % 8;
    const int ranks = goes_back_ ? a_.ranks : 1;
#pragma unroll 1
    for (int row = thread / 8; row < swap_ab::kChunk; row += 16) {
      const int at = first_ + first_row + row;
      bf16* results = nullptr;
      int to = 0;
#pragma unroll 1
      for (int rank = 0; rank < ranks; ++rank) {
        const int begin = __shfl_sync(0xFFFFFFFFU, begin_, rank);
        const int end = __shfl_sync(0xFFFFFFFFU, end_, rank);
        const int shift = __shfl_sync(0xFFFFFFFFU, shift_, rank);
        if (at < begin || at >= end) continue;
        results = goes_back_ ? a_.areas[rank].results : a_.layers[layer_].y;
        to = at + shift;
      }
      const int n = columns();
      if (first_row + row >= rows_ || column + kVectorSize * vector >= n) continue;
      const uint4 y =
          *reinterpret_cast<const uint4*>(buffer + row * 128 + ((vector ^ (row % 8)) * 16));
      store(results + static_cast<std::int64_t>(to) * n + column + kVectorSize * vector, y);
    }
  }

  const Maps& maps_;
  const Arguments& a_;
  int layer_;
  bool goes_back_;
  int first_;  // row of the tile: of the expert, or of the area where they stay
  int rows_;
  // A lane for each rank: its rows, and what is added to find its results.
  int begin_ = 0;
  int end_ = 0;
  int shift_ = 0;
  unsigned owners_;
};

// --- scales of fp8 -------------------------------------------------------------------------------

// Of a tile: of rows of x a lane has one of each 32, of rows of w a thread those of its columns of
// y (fill_buffer), those of a gated layer by gate and other half.
template <int kWidth>
struct TileScales {
  float x[(kWidth + 31) / 32];
  float w[Config::kBlocks][2];
};

template <int kWidth>
__device__ __forceinline__ TileScales<kWidth> load_scales(const Arguments& a, const Task& task,
                                                          int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int layer = task.step == Step::kFirst ? 0 : 1;
  const bool is_gated = layer == 0 && a.is_gated;
  const tiles::Arguments& of = a.layers[layer];
  const Weights from(a, task, is_gated ? 2 : 1);
  const float* const w_scale = task.group < a.shared ? a.shared_scales[layer] : of.w_scale;
  TileScales<kWidth> scales;
#pragma unroll
  for (int i = 0; i < (kWidth + 31) / 32; ++i) {
    const int row = 32 * i + lane;
    scales.x[i] = row < task.rows ? __ldcg(of.x_scale + task.row + row) : 0.0f;
  }
  const int first = task.column + (is_gated ? 64 : 64 * Config::kBlocks) * group +
                    static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int block = 0; block < Config::kBlocks; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = first + (is_gated ? 0 : 64 * block) + 8 * half;
      const int row = from.row + (is_gated ? block * from.other : 0);
      scales.w[block][half] = column < of.n ? __ldg(w_scale + row + column) : 0.0f;
    }
  }
  return scales;
}

template <int kWidth>
__device__ __forceinline__ void scale(swap_ab::Sums<Config, kWidth>& d,
                                      const TileScales<kWidth>& scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int eight = 0; eight < kWidth / 8; ++eight) {
    const int row = eight % 4 * 8 + lane % 4 * 2;
    const float low = __shfl_sync(0xFFFFFFFFU, scales.x[eight / 4], row);
    const float high = __shfl_sync(0xFFFFFFFFU, scales.x[eight / 4], row + 1);
#pragma unroll
    for (int block = 0; block < Config::kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float w = scales.w[block][half];
        d[block][4 * eight + 2 * half] *= low * w;
        d[block][4 * eight + 2 * half + 1] *= high * w;
      }
    }
  }
}

// The largest |y| of each of 32 rows of 64 columns in a buffer: four threads a row.
__device__ inline void note_peaks(const unsigned char* buffer, std::uint32_t* peaks, int rows) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int row = thread / 4;
  __nv_bfloat162 peak = __float2bfloat162_rn(0.0f);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int vector = thread % 4 * 2 + i;
    const uint4 y =
        *reinterpret_cast<const uint4*>(buffer + row * 128 + ((vector ^ (row % 8)) * 16));
    const std::uint32_t words[] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (const std::uint32_t word : words) {
      peak = __hmax2_nan(peak, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&word)));
    }
  }
  float most = __bfloat162float(__hmax_nan(__low2bfloat16(peak), __high2bfloat16(peak)));
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFU, most, lanes);
    most = isnan(other) ? other : fmaxf(most, other);
  }
  if (thread % 4 == 0 && row < rows) atomicMax(peaks + row, __float_as_uint(most));
}

// --- tiles ---------------------------------------------------------------------------------------

// 64 columns of a warpgroup, from `column` on; `peaks` of the tile's rows, or null. `d` is of no
// use behind it.
template <typename T, int kWidth>
__device__ __forceinline__ void write_block(float (&d)[kWidth / 2], Shared& shared,
                                            const Destination& to, int column, int group,
                                            std::uint32_t* peaks, int& buffer_index) {
  constexpr int kOfChunk = swap_ab::kChunk / 2;  // registers
  const bool is_copier = threadIdx.x % 128 == 0;
#pragma unroll 1
  for (int row = 0; row < to.rows(); row += swap_ab::kChunk) {
    unsigned char* const buffer = shared.gemm.y[group][buffer_index];
    if (is_copier) sm90::store_wait_read<Config::kBuffers - 1>();
    sm90::named_barrier_sync(1 + group, 128);
    swap_ab::fill_buffer<Config, kWidth>(buffer, d, 0, nullptr, nullptr);
    sm90::fence_async_shared();
    sm90::named_barrier_sync(1 + group, 128);
    to.put(buffer, row, column, is_copier);
    if (is_copier) sm90::store_commit();  // empty where nothing is copied: groups count buffers
    if (sizeof(T) == 1 && peaks != nullptr) note_peaks(buffer, peaks + row, to.rows() - row);
    buffer_index = buffer_index + 1 == Config::kBuffers ? 0 : buffer_index + 1;
#pragma unroll
    for (int i = 0; i + kOfChunk < kWidth / 2; ++i) d[i] = d[i + kOfChunk];
  }
}

// A tile of a warpgroup: the first layer's through its activation.
template <typename T, int kWidth>
__device__ __forceinline__ void write_tile(swap_ab::Sums<Config, kWidth>& d, Shared& shared,
                                           const Arguments& a, const Task& task,
                                           const Destination& to, int group, int& buffer_index) {
  const bool is_first = task.step == Step::kFirst;
  std::uint32_t* const peaks = is_first ? a.h_peaks + task.row : nullptr;  // of fp8
  const bool is_gated = is_first && a.is_gated;
  if (is_gated) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) d[0][i] = silu(d[0][i]) * d[1][i];
  }
  const int blocks = is_gated ? 1 : Config::kBlocks;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    if (is_first && !a.is_gated) {
      if (a.is_relu) {
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) d[0][i] = fmaxf(d[0][i], 0.0f);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) d[0][i] = gelu(d[0][i]);
      }
    }
    const int column = task.column + (blocks * group + block) * 64;
    if (column < to.columns()) {
      write_block<T, kWidth>(d[0], shared, to, column, group, peaks, buffer_index);
    }
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) d[0][i] = d[1][i];
  }
}

}  // namespace orrery::fused_moe
