#pragma once

// Rows of a weight times the vectors of all sequences. A block of 16 rows passes through the pages
// 1,024 columns at a time; each of the 16 consumer warps multiplies a sixteenth of the columns on
// the tensor cores (weights as operand A, the sequences as the 8 columns of B), and the warps take
// turns in adding up the sums of a block and in writing its results.

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

__device__ inline void load_rows(Loader& loader, const Instruction& in, const bf16* weight) {
  const RowBlocks blocks(in);
  for (int block = 0; block < blocks.count; ++block) {
    const int rows = blocks.rows_of(in, block);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool is_up = lane >= blocks.rows_each;
    const int row = is_up ? lane - blocks.rows_each : lane;
    const bool has_row = row < rows && (!is_up || blocks.is_double);
    const std::int64_t at =
        in.first_row + block * blocks.rows_each + row + (is_up ? in.whole_rows : 0);
    const bf16* const from = weight + at * in.width;
    const int total = rows * (blocks.is_double ? 2 : 1);
    for (int column = 0; column < in.width; column += kColumns) {
      const int columns = min(kColumns, in.width - column);
      const auto bytes = static_cast<std::uint32_t>(columns * 2);
      loader.fill(
          static_cast<std::uint32_t>(total) * bytes, [&](char* page, std::uint64_t* full, int) {
            if (!has_row) return;
            sm90::copy_bulk(page + lane * kRowBytes, from + column, bytes, full, loader.policy);
          });
    }
  }
}

// --- inputs: [kBatch][width] bf16 in scratch, rows kInputPad apart
// ---------------------------------

inline constexpr int kInputPad = 8;  // elements between the vectors of sequences

template <int kBatch>
struct Share {  // of the threads that build the vector of one sequence
  static constexpr int kThreads = kConsumers / kBatch;
  int sequence = static_cast<int>(threadIdx.x) / kThreads;
  int thread = static_cast<int>(threadIdx.x) % kThreads;
};

template <int kBatch>
__device__ inline bf16* input_of(const Consumer<kBatch>& consumer, int width, int sequence) {
  return reinterpret_cast<bf16*>(consumer.scratch) + sequence * (width + kInputPad);
}

__device__ inline float squares(std::uint32_t pair) {
  const float low = __uint_as_float(pair << 16);
  const float high = __uint_as_float(pair & 0xFFFF0000U);
  return low * low + high * high;
}
__device__ inline std::uint32_t scaled(std::uint32_t pair, std::uint32_t gains, float factor) {
  return pack(__uint_as_float(pair << 16) * factor * __uint_as_float(gains << 16),
              __uint_as_float(pair & 0xFFFF0000U) * factor * __uint_as_float(gains & 0xFFFF0000U));
}

// RMSNorm of the hidden state: from the board, or the token's embedding.
template <int kBatch>
__device__ void take_normed(Consumer<kBatch>& consumer, const Instruction& in, const bf16* gain) {
  const Parameters& parameters = consumer.parameters;
  const Share<kBatch> share;
  const int quads = in.width / 4;
  auto* const x = reinterpret_cast<uint2*>(input_of(consumer, in.width, share.sequence));
  const auto* const gains = reinterpret_cast<const uint2*>(gain);
  // Gains are on their way to the L1 cache while values are waited for.
  for (int i = share.thread; i < quads; i += Share<kBatch>::kThreads) {
    std::uint32_t unused;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(unused) : "l"(gains + i));
  }
  float sum = 0;
  if (in.input == kNowhere) {
    const auto* const row = reinterpret_cast<const uint2*>(
        parameters.embedding +
        static_cast<std::int64_t>(parameters.token_ids[share.sequence]) * in.width);
    for (int i = share.thread; i < quads; i += Share<kBatch>::kThreads) {
      const uint2 four = __ldg(row + i);
      x[i] = four;
      sum += squares(four.x) + squares(four.y);
    }
  } else {
    const std::int32_t first = in.input + share.sequence * in.width / 2;
    const int warp_first = share.thread - consumer.lane();
    consumer.board.await(first + 2 * warp_first, warp_first < quads);
    consumer.board.template take_pairs<4>(first, quads, share.thread, Share<kBatch>::kThreads,
                                          [&](int i, const Board::Two& two) {
                                            const uint2 four{two.value(0), two.value(1)};
                                            x[i] = four;
                                            sum += squares(four.x) + squares(four.y);
                                          });
  }
  sum = warp_sum(sum);
  if (consumer.lane() == 0) consumer.control.sums[consumer.warp()] = sum;
  consumer.sync();
  constexpr int kWarps = kConsumerWarps / kBatch;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += consumer.control.sums[share.sequence * kWarps + i];
  const float factor = rsqrtf(total / static_cast<float>(in.width) + parameters.epsilon);
  for (int i = share.thread; i < quads; i += Share<kBatch>::kThreads) {
    const uint2 four = x[i];
    const uint2 by = __ldg(gains + i);
    x[i] = {scaled(four.x, by.x, factor), scaled(four.y, by.y, factor)};
  }
  consumer.sync();
}

// Values as they stand on the board.
template <int kBatch>
__device__ void take_plain(Consumer<kBatch>& consumer, const Instruction& in) {
  const Share<kBatch> share;
  auto* const x = reinterpret_cast<uint2*>(input_of(consumer, in.width, share.sequence));
  const std::int32_t first = in.input + share.sequence * in.width / 2;
  const int warp_first = share.thread - consumer.lane();
  consumer.board.await(first + 2 * warp_first, warp_first < in.width / 4);
  consumer.board.template take_pairs<4>(
      first, in.width / 4, share.thread, Share<kBatch>::kThreads,
      [&](int i, const Board::Two& two) { x[i] = {two.value(0), two.value(1)}; });
  consumer.sync();
}

// --- products
// --------------------------------------------------------------------------------------

// Sums of a block of rows: each warp's share of the columns into `sums`.
template <int kBatch>
__device__ void multiply_block(Consumer<kBatch>& consumer, int width, float* sums) {
  const int lane = consumer.lane();
  const int warp = consumer.warp();
  const int g = lane / 4;
  const int t = lane % 4;
  float d[4] = {};
  const bf16* const x = input_of(consumer, width, kBatch == 1 ? 0 : min(g, kBatch - 1));
  for (int column = 0; column < width; column += kColumns) {
    const int share = min(kColumns, width - column) / kConsumerWarps;
    const char* const page = consumer.take_page();
    const char* const from = page + lane % 16 * kRowBytes + (warp * share + lane / 16 * 8) * 2;
    const auto* const by =
        reinterpret_cast<const std::uint32_t*>(x + column + warp * share + 2 * t);
#pragma unroll 4
    for (int k = 0; k < share; k += 16) {
      std::uint32_t a[4];
      sm90::load_matrix_x4(a, from + k * 2);
      std::uint32_t b[2] = {0, 0};
      if (g < kBatch) {
        b[0] = by[k / 2];
        b[1] = by[k / 2 + 4];
      }
      sm90::mma_bf16(d, a, b);
    }
    consumer.give_back();
  }
  float* const own = sums + warp * kRows * kBatch;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int sequence = 2 * t + i % 2;
    if (sequence < kBatch) own[sequence * kRows + g + i / 2 * 8] = d[i];
  }
}

// Values of a lane of the warp whose turn it is: of row lane % 16 and sequences lane / 16 + 2 i; of
// one sequence all lanes have it.
template <int kBatch>
inline constexpr int kValues = kBatch == 1 ? 1 : kBatch / 2;
template <int kBatch>
__device__ inline int sequence_of(int i) {
  return kBatch == 1 ? 0 : static_cast<int>(threadIdx.x) % 32 / 16 + 2 * i;
}

template <int kBatch>
__device__ inline void add_up(const float* sums, float (&values)[kValues<kBatch>]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kStride = kRows * kBatch;
  if constexpr (kBatch == 1) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps / 2; ++w) {
      value += sums[(lane / 16 * (kConsumerWarps / 2) + w) * kStride + lane % 16];
    }
    values[0] = value + __shfl_xor_sync(0xFFFFFFFF, value, 16);
  } else {
#pragma unroll
    for (int i = 0; i < kValues<kBatch>; ++i) {
      values[i] = 0;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) values[i] += sums[w * kStride + lane + 32 * i];
    }
  }
}

// All blocks of the instruction. `early(block)` is called by the warp whose turn it is before the
// products, `late(block, values)` with their sums.
template <int kBatch, typename Early, typename Late>
__device__ void multiply(Consumer<kBatch>& consumer, const Instruction& in, const Early& early,
                         const Late& late) {
  const RowBlocks blocks(in);
  for (int block = 0; block < blocks.count; ++block, ++consumer.block) {
    const bool is_turn = consumer.block % kConsumerWarps == consumer.warp();
    if (is_turn) early(block);
    float* const sums = consumer.sums + consumer.block % 2 * (kConsumerWarps * kRows * kBatch);
    multiply_block(consumer, in.width, sums);
    consumer.sync();
    if (!is_turn) continue;
    float values[kValues<kBatch>];
    add_up<kBatch>(sums, values);
    late(block, values);
  }
}

__device__ inline float rounded(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

// Rows become units: a value beside that of the next row.
template <int kBatch>
__device__ inline void put_rows(const Consumer<kBatch>& consumer, std::int32_t first_unit,
                                int vector_units, int row, int rows, int i, float value) {
  const float next = __shfl_down_sync(0xFFFFFFFF, value, 1);
  const int sequence = sequence_of<kBatch>(i);
  const bool is_here = kBatch > 1 || consumer.lane() < kRows;
  if (is_here && row < rows && row % 2 == 0) {
    consumer.board.put(first_unit + sequence * vector_units + row / 2, pack(value, next));
  }
}

// --- instructions
// ----------------------------------------------------------------------------------

template <int kBatch>
__device__ void run_qkv(Consumer<kBatch>& consumer, const Instruction& in) {
  multiply(
      consumer, in, [](int) {},
      [&](int block, const float(&values)[kValues<kBatch>]) {
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          put_rows(consumer, in.output + (in.first_row + block * kRows) / 2, in.whole_rows / 2,
                   consumer.lane() % kRows, in.num_rows - block * kRows, i, values[i]);
        }
      });
}

// Residual + rows, for kOutput and kDown.
template <int kBatch>
__device__ void run_projection(Consumer<kBatch>& consumer, const Instruction& in) {
  const Parameters& parameters = consumer.parameters;
  const int units = in.whole_rows / 2;
  std::uint64_t seen[kValues<kBatch>];
  std::uint32_t pair[kValues<kBatch>];
  multiply(
      consumer, in,
      [&](int block) {
        const int row = in.first_row + block * kRows + consumer.lane() % kRows;
        if (row >= in.first_row + in.num_rows) return;
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          const int sequence = sequence_of<kBatch>(i);
          if (in.residual == kNowhere) {
            const std::int64_t token = parameters.token_ids[sequence];
            pair[i] = __ldg(reinterpret_cast<const std::uint32_t*>(parameters.embedding) +
                            token * units + row / 2);
          } else {
            seen[i] = consumer.board.look_at_one(in.residual + sequence * units + row / 2);
          }
        }
      },
      [&](int block, const float(&values)[kValues<kBatch>]) {
        const int row = consumer.lane() % kRows;
        const int rows = in.num_rows - block * kRows;
        const int first = in.first_row + block * kRows;
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          float value = 0;
          if (row < rows) {
            if (in.residual != kNowhere) {
              const int at = in.residual + sequence_of<kBatch>(i) * units + (first + row) / 2;
              pair[i] = consumer.board.take(at, seen[i]);
            }
            const float before =
                __uint_as_float(row % 2 == 0 ? pair[i] << 16 : pair[i] & 0xFFFF0000U);
            value = before + rounded(values[i]);
          }
          put_rows(consumer, in.output + first / 2, units, row, rows, i, value);
        }
      });
}

template <int kBatch>
__device__ void run_gate_up(Consumer<kBatch>& consumer, const Instruction& in) {
  constexpr int kHalf = kRows / 2;
  multiply(
      consumer, in, [](int) {},
      [&](int block, const float(&values)[kValues<kBatch>]) {
        const int row = consumer.lane() % kRows;
        const int rows = min(kHalf, in.num_rows - block * kHalf);
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          const float up = rounded(__shfl_down_sync(0xFFFFFFFF, values[i], kHalf));
          const float gate = rounded(values[i]);
          const float gated = gate / (1 + __expf(-gate)) * up;
          put_rows(consumer, in.output + (in.first_row + block * kHalf) / 2, in.whole_rows / 2, row,
                   row < kHalf ? rows : 0, i, gated);
        }
      });
}

// The largest logit seen and its row; of equal ones the first row.
struct Largest {
  float value = -INFINITY;
  std::int32_t row = 0x7FFFFFFF;
  __device__ void see(float other, std::int32_t other_row) {
    if (other > value || (other == value && other_row < row)) {
      value = other;
      row = other_row;
    }
  }
  __device__ void see_lanes(int width) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFF, value, distance);
      see(other, __shfl_xor_sync(0xFFFFFFFF, row, distance));
    }
  }
};

template <int kBatch>
__device__ void run_logits(Consumer<kBatch>& consumer, const Instruction& in) {
  const Parameters& parameters = consumer.parameters;
  Largest largest[kValues<kBatch>];
  multiply(
      consumer, in, [](int) {},
      [&](int block, const float(&values)[kValues<kBatch>]) {
        const int row = consumer.lane() % kRows;
        const bool is_here = kBatch > 1 || consumer.lane() < kRows;
        if (!is_here || row >= in.num_rows - block * kRows) return;
        const int at = in.first_row + block * kRows + row;
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          const bf16 logit = __float2bfloat16_rn(values[i]);
          parameters
              .logits[static_cast<std::int64_t>(sequence_of<kBatch>(i)) * parameters.vocab + at] =
              logit;
          largest[i].see(__bfloat162float(logit), at);
        }
      });
  consumer.sync();  // the input in scratch is read
  auto* const of_warps = reinterpret_cast<Largest*>(consumer.scratch);  // [kBatch][warps]
#pragma unroll
  for (int i = 0; i < kValues<kBatch>; ++i) {
    largest[i].see_lanes(kRows);
    const bool writes = consumer.lane() % kRows == 0 && (kBatch > 1 || consumer.lane() == 0);
    if (writes) of_warps[sequence_of<kBatch>(i) * kConsumerWarps + consumer.warp()] = largest[i];
  }
  consumer.sync();
  if (consumer.warp() < kBatch) {
    Largest own = of_warps[consumer.warp() * kConsumerWarps + consumer.lane() % kConsumerWarps];
    own.see_lanes(kConsumerWarps);
    if (consumer.lane() < 2) {
      const std::int32_t unit = in.output + (consumer.warp() * in.parts + in.part) * 2;
      consumer.board.put(unit + consumer.lane(), consumer.lane() == 0
                                                     ? __float_as_uint(own.value)
                                                     : static_cast<std::uint32_t>(own.row));
    }
  }
  consumer.sync();  // scratch is free
}

// Ends the forward: by now all SMs have read its number.
template <int kBatch>
__device__ void run_pick(Consumer<kBatch>& consumer, const Instruction& in) {
  const Parameters& parameters = consumer.parameters;
  if (consumer.warp() < kBatch) {
    Largest largest;
    consumer.board.template take_pairs<4>(in.input + consumer.warp() * in.parts * 2, in.parts,
                                          consumer.lane(), 32, [&](int, const Board::Two& two) {
                                            largest.see(__uint_as_float(two.value(0)),
                                                        static_cast<std::int32_t>(two.value(1)));
                                          });
    largest.see_lanes(32);
    if (consumer.lane() == 0) {
      parameters.next_tokens[consumer.warp()] = largest.row == 0x7FFFFFFF ? 0 : largest.row;
    }
  }
  consumer.sync();
  if (threadIdx.x == 0) *parameters.forward = consumer.board.forward();
}

}  // namespace orrery::megakernel
