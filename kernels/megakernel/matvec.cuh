#pragma once

// Rows of a weight times the vectors of all sequences. A block of 16 rows passes through the pages
// 2 KB of each row at a time; each of the 8 consumer warps multiplies an eighth of the columns on
// the tensor cores (weights as operand A, the sequences as the 8 columns of B). It takes only these
// columns of the input, and leaves its sums to a storer (store.cuh).
//
// fp8 weights (e4m3) become bf16 by moving their bits, which makes them 2^-120 as large; the input
// is 2^100 as large for them (both exact), so that products stay normal numbers, and the storer
// multiplies by what is left (kFp8Left) and the row's scale.

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

// `weight`: its address, in whichever format.
__device__ inline void load_rows(Loader& loader, const Instruction& in, const char* weight) {
  const RowBlocks blocks(in);
  const int row_bytes = in.width * in.weight_bytes;
  for (int block = 0; block < blocks.count; ++block) {
    const LaneRow row(in, blocks, block);
    const char* const from = weight + row.at * row_bytes;
    for (int at = 0; at < row_bytes; at += kPageRowBytes) {
      const auto bytes = static_cast<std::uint32_t>(min(kPageRowBytes, row_bytes - at));
      loader.fill(static_cast<std::uint32_t>(row.count) * bytes,
                  [&](char* page, std::uint64_t* full, int lane) {
                    if (!row.is_there) return;
                    sm90::copy_bulk(page + lane * kRowBytes, from + at, bytes, full, loader.policy);
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
  int width;
  int warp;
  int count;
  bool is_fp8;

  __device__ WarpOctets(const Instruction& in, int of_warp)
      : width(in.width),
        warp(of_warp),
        count(in.width / kConsumerWarps / 8),
        is_fp8(in.weight_bytes == 1) {}
  // By comparisons: divisions for each look were a tenth of a step of four sequences.
  [[nodiscard]] __device__ int sequence_of(int i) const {
    int sequence = 0;
#pragma unroll
    for (int s = 1; s < kBatch; ++s) sequence += i >= s * count ? 1 : 0;
    return sequence;
  }
  [[nodiscard]] __device__ int octet_of(int i) const { return i - sequence_of(i) * count; }
  [[nodiscard]] __device__ int column_of(int i) const {
    return is_fp8 ? column_of_octet<kPageRowBytes>(octet_of(i))
                  : column_of_octet<kPageRowBytes / 2>(octet_of(i));
  }

 private:
  template <int kColumns>  // of a page
  [[nodiscard]] __device__ int column_of_octet(int octet) const {
    constexpr int kOctets = kColumns / kConsumerWarps / 8;
    const int page = octet / kOctets;
    const int share = min(kColumns, width - page * kColumns) / kConsumerWarps;
    return page * kColumns + warp * share + octet % kOctets * 8;
  }
};
using Octet = Units<4>;            // eight bf16
inline constexpr int kAtOnce = 4;  // octets of a lane

// As fp8 weights meet their input: of four neighbouring columns the first and the third, then the
// second and the fourth.
inline constexpr float kFp8Left = 0x1p20F;
__device__ inline std::uint32_t times_2_to_100(std::uint32_t pair) {
  constexpr std::uint32_t kFactors = 0x71807180;  // 2^100 twice, as bf16
  std::uint32_t result;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(kFactors));
  return result;
}
__device__ inline uint4 for_fp8(const uint4& eight) {
  constexpr unsigned kLow = 0x5410;
  constexpr unsigned kHigh = 0x7632;
  const uint4 large{times_2_to_100(eight.x), times_2_to_100(eight.y), times_2_to_100(eight.z),
                    times_2_to_100(eight.w)};
  return {__byte_perm(large.x, large.y, kLow), __byte_perm(large.x, large.y, kHigh),
          __byte_perm(large.z, large.w, kLow), __byte_perm(large.z, large.w, kHigh)};
}

// Eight values of the input where the warp's products look for them.
template <int kBatch>
__device__ inline void keep(const Consumer<kBatch>& consumer, const WarpOctets<kBatch>& octets,
                            int i, const uint4& eight) {
  bf16* const input = input_of(consumer, octets.width, octets.sequence_of(i));
  reinterpret_cast<uint4*>(input)[octets.octet_of(i)] = octets.is_fp8 ? for_fp8(eight) : eight;
}

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
  const WarpOctets<kBatch> octets(in, consumer.warp());
  const auto* const gains = reinterpret_cast<const uint4*>(gain);
  // Gains are on their way to the L1 cache while values are waited for.
  for (int i = consumer.lane(); i < octets.count; i += 32) {
    std::uint32_t unused;
    asm volatile("ld.global.nc.b32 %0, [%1];"
                 : "=r"(unused)
                 : "l"(gains + octets.column_of(i) / 8));
  }
  const auto use = [&](int i, const uint4& eight) {
    const uint4 by = __ldg(gains + octets.column_of(i) / 8);
    keep(consumer, octets, i,
         {scaled(eight.x, by.x), scaled(eight.y, by.y), scaled(eight.z, by.z),
          scaled(eight.w, by.w)});
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
    std::int32_t tokens[kBatch];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) tokens[s] = consumer.board.token(s);
    for (int i = consumer.lane(); i < count; i += 32) {
      std::int64_t token = tokens[0];
#pragma unroll
      for (int s = 1; s < kBatch; ++s) token = s == octets.sequence_of(i) ? tokens[s] : token;
      add(i, use(i, __ldg(reinterpret_cast<const uint4*>(parameters.embedding + token * in.width +
                                                         octets.column_of(i)))));
    }
  } else {
    // Squares are added up in the order of the columns, not in that in which they come.
    float square[kAtOnce] = {};
    consumer.board.template take_groups<4, kAtOnce, (kBatch > 1)>(
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
  const WarpOctets<kBatch> octets(in, consumer.warp());
  consumer.board.template take_groups<4, kAtOnce, (kBatch > 1)>(
      kBatch * octets.count,
      [&](int i) {
        return in.input + (octets.sequence_of(i) * in.width + octets.column_of(i)) / 2;
      },
      [&](int, int i, const Octet& octet) { keep(consumer, octets, i, as_vector(octet)); });
  __syncwarp();
}

// --- products
// --------------------------------------------------------------------------------------

// Four e4m3 as bf16, 2^-120 as large: the first and the third, the second and the fourth.
__device__ inline std::uint32_t first_and_third(std::uint32_t four) {
  return (four << 8 & 0x80008000) | (four << 4 & 0x07F007F0);
}
__device__ inline std::uint32_t second_and_fourth(std::uint32_t four) {
  return (four & 0x80008000) | (four >> 4 & 0x07F007F0);
}

// Sums over a share of a page's columns, 64 bytes of each row at a time. A lane loads 16
// neighbouring bytes of rows g and g + 8 and the same columns of one sequence, which is another
// order of the columns than mma's, the same on both sides.
struct Products {
  float d[2][4] = {};

  __device__ void add(const uint4& upper, const uint4& lower, const bf16* x) {
    const uint4 by = *reinterpret_cast<const uint4*>(x);
    const std::uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y},
                                   {upper.z, lower.z, upper.w, lower.w}};
    const std::uint32_t b[2][2] = {{by.x, by.y}, {by.z, by.w}};
    sm90::mma_bf16(d[0], a[0], b[0]);
    sm90::mma_bf16(d[1], a[1], b[1]);
  }
  __device__ void add_fp8(const uint4& upper, const uint4& lower, const bf16* x) {
    const std::uint32_t rows[2][4] = {{upper.x, upper.y, upper.z, upper.w},
                                      {lower.x, lower.y, lower.z, lower.w}};
    const auto* const columns = reinterpret_cast<const uint4*>(x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 by = columns[half];
      const std::uint32_t b[2][2] = {{by.x, by.y}, {by.z, by.w}};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t up = rows[0][2 * half + i];
        const std::uint32_t low = rows[1][2 * half + i];
        const std::uint32_t a[4] = {first_and_third(up), first_and_third(low),
                                    second_and_fourth(up), second_and_fourth(low)};
        sm90::mma_bf16(d[i], a, b[i]);
      }
    }
  }
};
inline constexpr int kStepBytes = 64;                               // of a row, for one add
inline constexpr int kShareBytes = kPageRowBytes / kConsumerWarps;  // of a row of a whole page

// A lane's part of its warp's columns of a page.
struct PagePart {
  static constexpr int kSteps = kShareBytes / kStepBytes;
  uint4 upper[kSteps];
  uint4 lower[kSteps];

  __device__ void load(const char* rows) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      upper[i] = *reinterpret_cast<const uint4*>(rows + i * kStepBytes);
      lower[i] = *reinterpret_cast<const uint4*>(rows + i * kStepBytes + kRows / 2 * kRowBytes);
    }
  }
  __device__ void multiply(Products& products, const bf16* x, bool is_fp8) const {
    if (is_fp8) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) products.add_fp8(upper[i], lower[i], x + i * kStepBytes);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) products.add(upper[i], lower[i], x + i * kStepBytes / 2);
    }
  }
};
// Where it begins, in a page of which the warp has so many bytes of each row.
template <int kBatch>
__device__ inline const char* lane_rows(const Consumer<kBatch>& consumer, const char* page,
                                        int share) {
  const int lane = consumer.lane();
  return page + lane / 4 * kRowBytes + consumer.warp() * share + lane % 4 * 16;
}

// An instruction's first pages, which a warp takes into registers before it has the values that
// they are multiplied by: while it waits, others come to their places in the ring.
inline constexpr int kHeldPages = 2;
struct HeldPages {
  PagePart parts[kHeldPages];
  int count = 0;
};
template <int kBatch>
__device__ inline void hold_pages(Consumer<kBatch>& consumer, const Instruction& in,
                                  HeldPages& held) {
  const int row_bytes = in.width * in.weight_bytes;
  if (row_bytes % kPageRowBytes != 0) return;
  const int all = RowBlocks(in).count * (row_bytes / kPageRowBytes);
#pragma unroll
  for (int i = 0; i < kHeldPages; ++i) {
    if (i != held.count || i >= all || !consumer.has_page()) continue;
    held.parts[i].load(lane_rows(consumer, consumer.take_page(), kShareBytes));
    consumer.give_back();
    ++held.count;
  }
}

// This warp's columns of a page that it takes from the ring; `x` are the lane's.
template <int kBatch>
__device__ inline void multiply_page(Consumer<kBatch>& consumer, Products& products, int share,
                                     const bf16* x, bool is_fp8) {
  const char* const rows = lane_rows(consumer, consumer.take_page(), share);
  if (share == kShareBytes) {
    PagePart part;
    part.load(rows);
    part.multiply(products, x, is_fp8);
  } else {
    for (int at = 0; at < share; at += kStepBytes) {
      const uint4 upper = *reinterpret_cast<const uint4*>(rows + at);
      const uint4 lower = *reinterpret_cast<const uint4*>(rows + at + kRows / 2 * kRowBytes);
      if (is_fp8) {
        products.add_fp8(upper, lower, x + at);
      } else {
        products.add(upper, lower, x + at / 2);
      }
    }
  }
  consumer.give_back();
}

// A block's sums to a storer.
template <int kBatch>
__device__ inline void leave_sums(const Consumer<kBatch>& consumer, const Products& products) {
  const int warp = consumer.warp();
  const int lane = consumer.lane();
  const std::uint32_t slot = consumer.block.slot();
  sm90::barrier_wait(&consumer.control.sums_empty[slot], consumer.block.phase() ^ 1);
  BlockSums<kBatch>& sums = consumer.sums[slot];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int sequence = 2 * (lane % 4) + i % 2;
    if (sequence < kBatch) {
      sums.rows[warp][sequence * kRows + lane / 4 + i / 2 * 8] =
          products.d[0][i] + products.d[1][i];
    }
  }
#pragma unroll
  for (int s = 0; s < kBatch; ++s) {
    if (lane == s) sums.squares[warp][s] = consumer.squares[s];
  }
  __syncwarp();
  if (lane == 0) sm90::barrier_arrive(&consumer.control.sums_full[slot]);
}

// All blocks of the instruction: this warp's columns of each.
template <int kBatch>
__device__ void multiply(Consumer<kBatch>& consumer, const Instruction& in, const HeldPages& held) {
  const RowBlocks blocks(in);
  const bool is_fp8 = in.weight_bytes == 1;
  const int row_bytes = in.width * in.weight_bytes;
  const int lane = consumer.lane();
  const int shift = is_fp8 ? 0 : 1;  // bytes of a row to columns
  const bf16* const x =
      input_of(consumer, in.width, min(lane / 4, kBatch - 1)) + (lane % 4 * 16 >> shift);
  int page = 0;  // of the instruction
  for (int block = 0; block < blocks.count; ++block, ++consumer.block.block) {
    Products products;
    for (int at = 0; at < row_bytes; at += kPageRowBytes, ++page) {
      const bf16* const own = x + (at / kConsumerWarps >> shift);
      if (page < held.count) {
#pragma unroll
        for (int i = 0; i < kHeldPages; ++i) {
          if (i == page) held.parts[i].multiply(products, own, is_fp8);
        }
      } else {
        const int share = min(kPageRowBytes, row_bytes - at) / kConsumerWarps;
        multiply_page(consumer, products, share, own, is_fp8);
      }
    }
    leave_sums(consumer, products);
  }
}

}  // namespace orrery::megakernel
