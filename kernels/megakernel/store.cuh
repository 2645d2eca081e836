#pragma once

// What becomes of the sums of a block of rows: three storer warps take turns. Each adds up what the
// consumers left, applies the norm's factor, adds the residual or gates, and writes to the board.

#include <cstdint>

#include "kernels/megakernel/matvec.cuh"

namespace orrery::megakernel {

// Values of a lane: of row lane % 16 and sequences lane / 16 + 2 i; of one sequence all lanes have
// it.
template <int kBatch>
inline constexpr int kValues = kBatch == 1 ? 1 : kBatch / 2;
template <int kBatch>
__device__ inline int sequence_of(int i) {
  return kBatch == 1 ? 0 : Storer<kBatch>::lane() / 16 + 2 * i;
}

template <int kBatch>
__device__ inline void add_up(const BlockSums<kBatch>& sums, float (&values)[kValues<kBatch>]) {
  const int lane = Storer<kBatch>::lane();
  if constexpr (kBatch == 1) {
    constexpr int kHalf = kConsumerWarps / 2;
    float value = 0;
#pragma unroll
    for (int w = 0; w < kHalf; ++w) value += sums.rows[lane / 16 * kHalf + w][lane % 16];
    values[0] = value + __shfl_xor_sync(0xFFFFFFFF, value, 16);
  } else {
#pragma unroll
    for (int i = 0; i < kValues<kBatch>; ++i) {
      values[i] = 0;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) values[i] += sums.rows[w][lane + 32 * i];
    }
  }
}

// Times 1 / RMS of the whole input: lanes of a half have its warps' squares.
template <int kBatch>
__device__ inline void apply_norm(const BlockSums<kBatch>& sums, int width, float epsilon,
                                  float (&values)[kValues<kBatch>]) {
#pragma unroll
  for (int i = 0; i < kValues<kBatch>; ++i) {
    float sum = sums.squares[Storer<kBatch>::lane() % kConsumerWarps][sequence_of<kBatch>(i)];
#pragma unroll
    for (int distance = kConsumerWarps / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, distance);
    }
    values[i] *= rsqrtf(sum / static_cast<float>(width) + epsilon);
  }
}

// What the products of a lane's row are multiplied by.
__device__ inline float row_scale(const Instruction& in, const float* scales,
                                  const RowBlocks& blocks, int block) {
  if (in.weight_bytes != 1) return 1;
  const int lane_row = static_cast<int>(threadIdx.x) % kRows;
  const bool is_up = lane_row >= blocks.rows_each;
  const int row = is_up ? lane_row - blocks.rows_each : lane_row;
  if (row >= blocks.rows_of(in, block)) return 0;
  const int at = in.first_row + block * blocks.rows_each + row + (is_up ? in.whole_rows : 0);
  return __ldg(scales + at) * kFp8Left;
}

// All blocks whose turn is this warp's: `early(block)` before the sums are there, `late(block,
// values)` with them.
template <int kBatch, typename Early, typename Late>
__device__ void store(Storer<kBatch>& storer, const Instruction& in, const Early& early,
                      const Late& late) {
  const RowBlocks blocks(in);
  const bool is_normed =
      in.opcode == Opcode::kQkv || in.opcode == Opcode::kGateUp || in.opcode == Opcode::kLogits;
  for (int block = 0; block < blocks.count; ++block, ++storer.block.block) {
    if (!storer.is_turn()) continue;
    early(block);
    const float scale = row_scale(in, storer.scales, blocks, block);
    const std::uint32_t slot = storer.block.slot();
    sm90::barrier_wait(&storer.control.sums_full[slot], storer.block.phase());
    float values[kValues<kBatch>];
    add_up<kBatch>(storer.sums[slot], values);
    if (is_normed) {
      apply_norm<kBatch>(storer.sums[slot], in.width, storer.parameters.epsilon, values);
    }
    __syncwarp();
    if (storer.lane() == 0) sm90::barrier_arrive(&storer.control.sums_empty[slot]);
#pragma unroll
    for (float& value : values) value *= scale;
    late(block, values);
  }
}

__device__ inline float rounded(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

// Rows become units: a value beside that of the next row.
template <int kBatch>
__device__ inline void put_rows(const Storer<kBatch>& storer, std::int32_t first_unit,
                                int vector_units, int row, int rows, int i, float value) {
  const float next = __shfl_down_sync(0xFFFFFFFF, value, 1);
  const int sequence = sequence_of<kBatch>(i);
  const bool is_here = kBatch > 1 || storer.lane() < kRows;
  if (is_here && row < rows && row % 2 == 0) {
    storer.board.put(first_unit + sequence * vector_units + row / 2, pack(value, next));
  }
}

template <int kBatch>
__device__ void store_qkv(Storer<kBatch>& storer, const Instruction& in) {
  store(
      storer, in, [](int) {},
      [&](int block, const float(&values)[kValues<kBatch>]) {
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          put_rows(storer, in.output + (in.first_row + block * kRows) / 2, in.whole_rows / 2,
                   storer.lane() % kRows, in.num_rows - block * kRows, i, values[i]);
        }
      });
}

// Residual + rows, for kOutput and kDown.
template <int kBatch>
__device__ void store_projection(Storer<kBatch>& storer, const Instruction& in) {
  const Parameters& parameters = storer.parameters;
  const int units = in.whole_rows / 2;
  Units<1> seen[kValues<kBatch>];
  std::uint32_t pair[kValues<kBatch>];
  store(
      storer, in,
      [&](int block) {
        const int row = in.first_row + block * kRows + storer.lane() % kRows;
        if (row >= in.first_row + in.num_rows) return;
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          const int sequence = sequence_of<kBatch>(i);
          if (in.residual == kNowhere) {
            const std::int64_t token = storer.board.token(sequence);
            pair[i] = __ldg(reinterpret_cast<const std::uint32_t*>(parameters.embedding) +
                            token * units + row / 2);
          } else {
            seen[i] = storer.board.template look<1>(in.residual + sequence * units + row / 2);
          }
        }
      },
      [&](int block, const float(&values)[kValues<kBatch>]) {
        const int row = storer.lane() % kRows;
        const int rows = in.num_rows - block * kRows;
        const int first = in.first_row + block * kRows;
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          float value = 0;
          if (row < rows) {
            if (in.residual != kNowhere) {
              const int at = in.residual + sequence_of<kBatch>(i) * units + (first + row) / 2;
              pair[i] = storer.board.take(at, seen[i]);
            }
            const float before =
                __uint_as_float(row % 2 == 0 ? pair[i] << 16 : pair[i] & 0xFFFF0000U);
            value = before + rounded(values[i]);
          }
          put_rows(storer, in.output + first / 2, units, row, rows, i, value);
        }
      });
}

template <int kBatch>
__device__ void store_gate_up(Storer<kBatch>& storer, const Instruction& in) {
  constexpr int kHalf = kRows / 2;
  store(
      storer, in, [](int) {},
      [&](int block, const float(&values)[kValues<kBatch>]) {
        const int row = storer.lane() % kRows;
        const int rows = min(kHalf, in.num_rows - block * kHalf);
#pragma unroll
        for (int i = 0; i < kValues<kBatch>; ++i) {
          const float up = rounded(__shfl_down_sync(0xFFFFFFFF, values[i], kHalf));
          const float gate = rounded(values[i]);
          const float gated = gate / (1 + __expf(-gate)) * up;
          put_rows(storer, in.output + (in.first_row + block * kHalf) / 2, in.whole_rows / 2, row,
                   row < kHalf ? rows : 0, i, gated);
        }
      });
}

template <int kBatch>
__device__ void store_logits(Storer<kBatch>& storer, const Instruction& in) {
  const Parameters& parameters = storer.parameters;
  Control& control = storer.control;
  Largest largest[kValues<kBatch>];
  store(
      storer, in, [](int) {},
      [&](int block, const float(&values)[kValues<kBatch>]) {
        const int row = storer.lane() % kRows;
        const bool is_here = kBatch > 1 || storer.lane() < kRows;
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
#pragma unroll
  for (int i = 0; i < kValues<kBatch>; ++i) {
    largest[i].see_lanes(kRows);
    if (storer.lane() % kRows != 0 || (kBatch == 1 && storer.lane() != 0)) continue;
    control.largest[sequence_of<kBatch>(i)][storer.warp()] = largest[i].value;
    control.largest_rows[sequence_of<kBatch>(i)][storer.warp()] = largest[i].row;
  }
  storer.sync();
  if (storer.warp() == 0 && storer.lane() < kBatch) {
    Largest own;
#pragma unroll
    for (int w = 0; w < kStorerWarps; ++w) {
      own.see(control.largest[storer.lane()][w], control.largest_rows[storer.lane()][w]);
    }
    // Before the forward ends: that units are missing again, and what was appended to the cache.
    if (storer.parameters.steps > 1) {
      __threadfence();
      sm90::fence_async();
    }
    const std::int32_t unit = in.output + (storer.lane() * in.parts + in.part) * 2;
    storer.board.put(unit, __float_as_uint(own.value));
    storer.board.put(unit + 1, static_cast<std::uint32_t>(own.row));
  }
}

// Ends the forward: by now all SMs have read its number, and written all but the token.
template <int kBatch>
__device__ void pick(Storer<kBatch>& storer, const Instruction& in) {
  const Parameters& parameters = storer.parameters;
  for (int sequence = storer.warp(); sequence < kBatch; sequence += kStorerWarps) {
    Largest largest;
    storer.board.template take_groups<2, 4>(
        in.parts, [&](int i) { return in.input + (sequence * in.parts + i) * 2; },
        [&](int, int, const Units<2>& two) {
          largest.see(__uint_as_float(two.words[0]), static_cast<std::int32_t>(two.words[1]));
        });
    largest.see_lanes(32);
    if (storer.lane() == 0) {
      const std::int32_t token = largest.row == 0x7FFFFFFF ? 0 : largest.row;
      parameters.next_tokens[sequence] = token;
      parameters.step_tokens[storer.board.ahead() * kBatch + sequence] = token;
      if (parameters.steps > 1) __threadfence();
      storer.board.put(parameters.token_unit + sequence, static_cast<std::uint32_t>(token));
    }
  }
  storer.sync();
  if (storer.warp() == 0 && storer.lane() == 0) *parameters.forward = storer.board.forward();
}

}  // namespace orrery::megakernel
