#pragma once

// Rows of a weight times the vectors of all sequences. A block of 16 rows passes through the pages
// 1,024 columns at a time; each of the 8 consumer warps multiplies an eighth of the columns on
// the tensor cores (weights as operand A, the sequences as the 8 columns of B). It takes only these
// columns of the input, and leaves its sums to a storer (store.cuh).

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/megakernel/machine.cuh"

namespace orrery::megakernel {

// Which rows a block has: of gate and up, half of each.
struct RowBlocks {
  bool is_double;
  int rows_each;  // of a block and weight
  int count;

  __device__ explicit RowBlocks(const Instruction& in)
      : is_double(in.opcode == Opcode::kGateUp),
        rows_each(is_double ? kRows / 2 : kRows),
        count((in.num_rows + rows_each - 1) / rows_each) {}
  [[nodiscard]] __device__ int rows_of(const Instruction& in, int block) const {
    return min(rows_each, in.num_rows - block * rows_each);
  }
};

// Rows of a block that a lane copies, a row each: of gate and up, gate's first.
struct LaneRow {
  bool is_there;
  std::int64_t at;  // of the weight
  int count;        // of all lanes

  __device__ LaneRow(const Instruction& in, const RowBlocks& blocks, int block) {
    const int rows = blocks.rows_of(in, block);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool is_up = lane >= blocks.rows_each;
    const int row = is_up ? lane - blocks.rows_each : lane;
    is_there = row < rows && (!is_up || blocks.is_double);
    at = in.first_row + block * blocks.rows_each + row + (is_up ? in.whole_rows : 0);
    count = rows * (blocks.is_double ? 2 : 1);
  }
};

__device__ inline void load_rows(Loader& loader, const Instruction& in, const bf16* weight) {
  const RowBlocks blocks(in);
  for (int block = 0; block < blocks.count; ++block) {
    const LaneRow row(in, blocks, block);
    const bf16* const from = weight + row.at * in.width;
    for (int column = 0; column < in.width; column += kColumns) {
      const int columns = min(kColumns, in.width - column);
      const auto bytes = static_cast<std::uint32_t>(columns * 2);
      loader.fill(static_cast<std::uint32_t>(row.count) * bytes,
                  [&](char* page, std::uint64_t* full, int lane) {
                    if (!row.is_there) return;
                    sm90::copy_bulk(page + lane * kRowBytes, from + column, bytes, full,
                                    loader.policy);
                  });
    }
  }
}

// --- inputs
// --------------------------------------------------------------------------------------

inline constexpr int kInputPad = 32;  // elements between the vectors of sequences

// A warp's columns of a sequence's input, page after page. No other warp writes or reads them, so
// that none waits for another before it takes the next instruction's.
template <int kBatch>
__device__ inline bf16* input_of(const Consumer<kBatch>& consumer, int width, int sequence) {
  return consumer.input + sequence * (width / kConsumerWarps + kInputPad);
}

// The columns that a warp multiplies, eight by eight: `count` octets of each sequence.
template <int kBatch>
struct WarpOctets {
  static constexpr int kOfPage = kColumns / kConsumerWarps / 8;
  int width;
  int warp;
  int count;

  __device__ WarpOctets(int columns, int of_warp)
      : width(columns), warp(of_warp), count(columns / kConsumerWarps / 8) {}
  [[nodiscard]] __device__ int sequence_of(int i) const { return kBatch == 1 ? 0 : i / count; }
  [[nodiscard]] __device__ int octet_of(int i) const { return kBatch == 1 ? i : i % count; }
  [[nodiscard]] __device__ int column_of(int i) const {
    const int octet = octet_of(i);
    const int page = octet / kOfPage;
    const int share = min(kColumns, width - page * kColumns) / kConsumerWarps;
    return page * kColumns + warp * share + octet % kOfPage * 8;
  }
};
using Octet = Units<4>;            // eight bf16
inline constexpr int kAtOnce = 4;  // octets of a lane

__device__ inline float squares(std::uint32_t pair) {
  const float low = __uint_as_float(pair << 16);
  const float high = __uint_as_float(pair & 0xFFFF0000U);
  return low * low + high * high;
}
__device__ inline std::uint32_t scaled(std::uint32_t pair, std::uint32_t gains) {
  return pack(__uint_as_float(pair << 16) * __uint_as_float(gains << 16),
              __uint_as_float(pair & 0xFFFF0000U) * __uint_as_float(gains & 0xFFFF0000U));
}
__device__ inline uint4 as_vector(const Octet& octet) {
  return {octet.words[0], octet.words[1], octet.words[2], octet.words[3]};
}

// The hidden state, from the board or the token's embedding, times the norm's gains. The factor
// of its RMS is the storer's, which has the squares of all columns.
template <int kBatch>
__device__ void take_normed(Consumer<kBatch>& consumer, const Instruction& in, const bf16* gain) {
  const Parameters& parameters = consumer.parameters;
  const WarpOctets<kBatch> octets(in.width, consumer.warp());
  const auto* const gains = reinterpret_cast<const uint4*>(gain);
  // Gains are on their way to the L1 cache while values are waited for.
  for (int i = consumer.lane(); i < octets.count; i += 32) {
    std::uint32_t unused;
    asm volatile("ld.global.nc.b32 %0, [%1];"
                 : "=r"(unused)
                 : "l"(gains + octets.column_of(i) / 8));
  }
  const auto use = [&](int i, const uint4& eight) {
    const int sequence = octets.sequence_of(i);
    const uint4 by = __ldg(gains + octets.column_of(i) / 8);
    reinterpret_cast<uint4*>(input_of(consumer, in.width, sequence))[octets.octet_of(i)] = {
        scaled(eight.x, by.x), scaled(eight.y, by.y), scaled(eight.z, by.z), scaled(eight.w, by.w)};
    return squares(eight.x) + squares(eight.y) + squares(eight.z) + squares(eight.w);
  };
  float sums[kBatch] = {};
  const auto add = [&](int i, float square) {
    const int sequence = octets.sequence_of(i);
#pragma unroll
    for (int s = 0; s < kBatch; ++s) sums[s] += s == sequence ? square : 0;
  };
  const int count = kBatch * octets.count;
  if (in.input == kNowhere) {
    for (int i = consumer.lane(); i < count; i += 32) {
      const std::int64_t token = parameters.token_ids[octets.sequence_of(i)];
      add(i, use(i, __ldg(reinterpret_cast<const uint4*>(parameters.embedding + token * in.width +
                                                         octets.column_of(i)))));
    }
  } else {
    // Squares are added up in the order of the columns, not in that in which they come.
    float square[kAtOnce] = {};
    consumer.board.template take_groups<4, kAtOnce>(
        count,
        [&](int i) {
          return in.input + (octets.sequence_of(i) * in.width + octets.column_of(i)) / 2;
        },
        [&](int place, int i, const Octet& octet) { square[place] = use(i, as_vector(octet)); },
        [&](int first) {
#pragma unroll
          for (int place = 0; place < kAtOnce; ++place) {
            if (first + 32 * place < count) add(first + 32 * place, square[place]);
          }
        });
  }
#pragma unroll
  for (int s = 0; s < kBatch; ++s) consumer.squares[s] = warp_sum(sums[s]);
  __syncwarp();
}

// Values as they stand on the board.
template <int kBatch>
__device__ void take_plain(Consumer<kBatch>& consumer, const Instruction& in) {
  const WarpOctets<kBatch> octets(in.width, consumer.warp());
  consumer.board.template take_groups<4, kAtOnce>(
      kBatch * octets.count,
      [&](int i) {
        return in.input + (octets.sequence_of(i) * in.width + octets.column_of(i)) / 2;
      },
      [&](int, int i, const Octet& octet) {
        reinterpret_cast<uint4*>(input_of(
            consumer, in.width, octets.sequence_of(i)))[octets.octet_of(i)] = as_vector(octet);
      });
  __syncwarp();
}

// --- products
// --------------------------------------------------------------------------------------

// Sums over a share of a page's columns, 32 at a time. A lane loads 8 neighbouring columns of rows
// g and g + 8 and of one sequence, which is another order of the columns than mma's, the same on
// both sides.
struct Products {
  float d[2][4] = {};

  __device__ void add(const char* rows, const bf16* x) {
    const uint4 upper = *reinterpret_cast<const uint4*>(rows);
    const uint4 lower = *reinterpret_cast<const uint4*>(rows + kRows / 2 * kRowBytes);
    const uint4 by = *reinterpret_cast<const uint4*>(x);
    const std::uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y},
                                   {upper.z, lower.z, upper.w, lower.w}};
    const std::uint32_t b[2][2] = {{by.x, by.y}, {by.z, by.w}};
    sm90::mma_bf16(d[0], a[0], b[0]);
    sm90::mma_bf16(d[1], a[1], b[1]);
  }
};

// All blocks of the instruction: this warp's columns of each.
template <int kBatch>
__device__ void multiply(Consumer<kBatch>& consumer, const Instruction& in) {
  constexpr int kStep = 32;
  constexpr int kShare = kColumns / kConsumerWarps;
  const RowBlocks blocks(in);
  const int lane = consumer.lane();
  const int warp = consumer.warp();
  const int g = lane / 4;
  const int t = lane % 4;
  const bf16* const x = input_of(consumer, in.width, min(g, kBatch - 1)) + 8 * t;
  for (int block = 0; block < blocks.count; ++block, ++consumer.block.block) {
    Products products;
    for (int column = 0; column < in.width; column += kColumns) {
      const int share = min(kColumns, in.width - column) / kConsumerWarps;
      const char* const rows = consumer.take_page() + g * kRowBytes + (warp * share + 8 * t) * 2;
      const bf16* const by = x + column / kConsumerWarps;
      if (share == kShare) {
#pragma unroll
        for (int k = 0; k < kShare; k += kStep) products.add(rows + k * 2, by + k);
      } else {
        for (int k = 0; k < share; k += kStep) products.add(rows + k * 2, by + k);
      }
      consumer.give_back();
    }
    const std::uint32_t slot = consumer.block.slot();
    sm90::barrier_wait(&consumer.control.sums_empty[slot], consumer.block.phase() ^ 1);
    BlockSums<kBatch>& sums = consumer.sums[slot];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int sequence = 2 * t + i % 2;
      if (sequence < kBatch) {
        sums.rows[warp][sequence * kRows + g + i / 2 * 8] = products.d[0][i] + products.d[1][i];
      }
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      if (lane == s) sums.squares[warp][s] = consumer.squares[s];
    }
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(&consumer.control.sums_full[slot]);
  }
}

}  // namespace orrery::megakernel
