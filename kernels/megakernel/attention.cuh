#pragma once

// Attention of the query heads of one kv head over a part of the keys of one sequence, and the
// merge of the parts. Keys and values that were cached before come through pages, four tiles of
// each in one; those of the new token are in the step's own projection, and count with part 0,
// which also appends them to the cache.

#include <cstdint>

#include "kernels/attention/attention_decode/tile.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/megakernel/matvec.cuh"

namespace orrery::megakernel {

inline constexpr int kTilesOfPage = 4;     // of keys, and as many of values
inline constexpr int kAttentionWarps = 8;  // that work on tiles
inline constexpr int kMostHeadsOfOne = 8;  // query heads of a kv head
static_assert(kTilesOfPage * 2 * decode::kTileBytes <= kPageBytes);

// Tiles of a part.
template <int kHeadDim>
struct PartRange {
  using Tile = decode::TileShape<bf16, kHeadDim>;
  int cached;  // keys of the sequence that the cache has
  int begin;
  int end;

  __device__ PartRange(const Instruction& in, int length) : cached(max(length - 1, 0)) {
    const int tiles = (cached + Tile::kKeys - 1) / Tile::kKeys;
    const int pages = (tiles + kTilesOfPage - 1) / kTilesOfPage;
    const int each = (pages + in.parts - 1) / in.parts * kTilesOfPage;
    begin = min(tiles, in.part * each);
    end = min(tiles, begin + each);
  }
};

template <int kHeadDim>
__device__ void load_keys(Loader& loader, const Instruction& in, const CUtensorMap* cache) {
  const Parameters& parameters = loader.parameters;
  const int sequence = in.first_row;
  const PartRange<kHeadDim> range(in, parameters.lengths[sequence]);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = lane / (2 * parameters.boxes);
  const int is_value = lane / parameters.boxes % 2;
  const int box = lane % parameters.boxes;
  for (int first = range.begin; first < range.end; first += kTilesOfPage) {
    const int tiles = min(kTilesOfPage, range.end - first);
    const int key = (first + tile) * PartRange<kHeadDim>::Tile::kKeys + box * parameters.box_keys;
    // Tiles may reach over blocks that the sequence does not have: any other will do.
    const int entry = min(key, range.cached - 1) >> parameters.block_shift;
    const int block =
        __ldg(parameters.block_table + sequence * parameters.blocks_per_sequence + entry) +
        (2 * in.layer + is_value) * parameters.pool_blocks;
    loader.fill(static_cast<std::uint32_t>(tiles * 2 * decode::kTileBytes),
                [&](char* page, std::uint64_t* full, int) {
                  if (tile >= tiles) return;
                  char* const to = page + (2 * tile + is_value) * decode::kTileBytes +
                                   box * (decode::kTileBytes / parameters.boxes);
                  const int row = key & ((1 << parameters.block_shift) - 1);
                  sm90::load_5d(to, cache, 0, row, 0, in.num_rows, block, full, loader.policy);
                });
  }
}

// An instruction's own memory.
template <int kHeadDim>
struct AttentionScratch {
  static constexpr int kRow = kHeadDim + 4;                 // no bank conflicts between heads
  std::uint32_t raw[(kMostHeadsOfOne + 2) * kHeadDim / 2];  // as they were projected
  alignas(16) bf16 queries[kMostHeadsOfOne][kHeadDim];
  bf16 key[kHeadDim];
  bf16 value[kHeadDim];
  float2 stats[kAttentionWarps + 1][kMostHeadsOfOne];  // max and sum; the last: the new token
};
// Behind it: float acc[kAttentionWarps][heads of a kv head][kRow].
template <int kHeadDim>
constexpr int attention_scratch_bytes(int heads_of_one) {
  return static_cast<int>(sizeof(AttentionScratch<kHeadDim>)) +
         kAttentionWarps * heads_of_one * AttentionScratch<kHeadDim>::kRow * 4;
}

// A head of the new token by one warp: its norm if there is one, rotary positions. Lane l has dims
// l + 32 i and their partners half a head further.
template <int kHeadDim>
__device__ void turn_head(const Parameters& parameters, const std::uint32_t* raw, const bf16* gain,
                          int position, bf16* out) {
  constexpr int kPairs = kHeadDim / 64;  // of a lane
  constexpr int kHalf = kHeadDim / 2;
  const auto* const x = reinterpret_cast<const bf16*>(raw);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float low[kPairs];
  float high[kPairs];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    low[i] = __bfloat162float(x[lane + 32 * i]);
    high[i] = __bfloat162float(x[lane + 32 * i + kHalf]);
    sum += low[i] * low[i] + high[i] * high[i];
  }
  if (gain != nullptr) {
    const float factor = rsqrtf(warp_sum(sum) / kHeadDim + parameters.epsilon);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      low[i] = rounded(low[i] * (__bfloat162float(gain[lane + 32 * i]) * factor));
      high[i] = rounded(high[i] * (__bfloat162float(gain[lane + 32 * i + kHalf]) * factor));
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(position) * kHalf + lane + 32 * i;
    const float cosine = __ldg(parameters.cosines + at);
    const float sine = __ldg(parameters.sines + at);
    out[lane + 32 * i] = __float2bfloat16_rn(low[i] * cosine - high[i] * sine);
    out[lane + 32 * i + kHalf] = __float2bfloat16_rn(high[i] * cosine + low[i] * sine);
  }
}

// Queries, key and value of the new token into scratch, turned; part 0 appends them to the cache.
template <int kHeadDim, int kBatch>
__device__ void take_heads(Consumer<kBatch>& consumer, const Instruction& in, const bf16* gains,
                           AttentionScratch<kHeadDim>& scratch) {
  const Parameters& parameters = consumer.parameters;
  const int group = parameters.heads / parameters.kv_heads;
  const int kv_head = in.num_rows;
  const int sequence = in.first_row;
  constexpr int kUnits = kHeadDim / 2;
  const int position = parameters.positions[sequence];
  const std::int64_t slot = parameters.slots[sequence];
  const std::int32_t row = in.input + sequence * in.width / 2;
  for (int pair = static_cast<int>(threadIdx.x); pair < (group + 2) * kUnits / 2;
       pair += kConsumers) {
    const int head = pair * 2 / kUnits;
    const int within = pair * 2 % kUnits;
    const int from = head < group
                         ? kv_head * group + head
                         : parameters.heads + (head - group) * parameters.kv_heads + kv_head;
    consumer.board.template take_pairs<1>(row + from * kUnits + within, 1, 0, 1,
                                          [&](int, const Board::Two& two) {
                                            scratch.raw[2 * pair] = two.value(0);
                                            scratch.raw[2 * pair + 1] = two.value(1);
                                          });
  }
  consumer.sync();
  const int warp = consumer.warp();
  const int lane = consumer.lane();
  if (warp <= group) {
    const bool is_key = warp == group;
    bf16* const out = is_key ? scratch.key : scratch.queries[warp];
    const bf16* const gain = gains == nullptr ? nullptr : gains + (is_key ? kHeadDim : 0);
    turn_head<kHeadDim>(parameters, scratch.raw + warp * kUnits, gain, position, out);
  } else if (warp == group + 1) {
    auto* const out = reinterpret_cast<std::uint32_t*>(scratch.value);
    for (int i = lane; i < kUnits; i += 32) out[i] = scratch.raw[warp * kUnits + i];
  }
  __syncwarp();
  if (in.part == 0 && slot >= 0 && (warp == group || warp == group + 1)) {
    const bool is_key = warp == group;
    const auto* const from =
        reinterpret_cast<const std::uint32_t*>(is_key ? scratch.key : scratch.value);
    bf16* const to = parameters.keys +
                     (2 * in.layer + (is_key ? 0 : 1)) * parameters.pool_elements +
                     (slot * parameters.kv_heads + kv_head) * kHeadDim;
    for (int i = lane; i < kUnits; i += 32) reinterpret_cast<std::uint32_t*>(to)[i] = from[i];
  }
  consumer.sync();
}

template <int kHeadDim, int kBatch>
__device__ void run_attention(Consumer<kBatch>& consumer, const Instruction& in) {
  using Tile = decode::TileShape<bf16, kHeadDim>;
  using Scratch = AttentionScratch<kHeadDim>;
  const Parameters& parameters = consumer.parameters;
  auto& scratch = *reinterpret_cast<Scratch*>(consumer.scratch);
  auto* const acc = reinterpret_cast<float*>(consumer.scratch + sizeof(Scratch));
  const int group = parameters.heads / parameters.kv_heads;
  const int warp = consumer.warp();
  const int lane = consumer.lane();
  const PartRange<kHeadDim> range(in, parameters.lengths[in.first_row]);
  decode::WarpSoftmax<bf16, kHeadDim, 1> softmax;
  softmax.load_shared(&scratch.queries[0][0], group);
  softmax.start(parameters.scale_log2);
  for (int first = range.begin; first < range.end; first += kTilesOfPage) {
    const char* const page = consumer.take_page();
    const int tile = (warp - (first - range.begin)) & (kAttentionWarps - 1);
    if (warp < kAttentionWarps && tile < min(kTilesOfPage, range.end - first)) {
      char* const keys = const_cast<char*>(page) + 2 * tile * decode::kTileBytes;
      char* const values = keys + decode::kTileBytes;
      const int seen = range.cached - (first + tile) * Tile::kKeys;
      float scores[Tile::kKeyTiles][1][4];
      std::uint32_t weights[Tile::kKeyTiles][1][2];
      softmax.score(keys, scores);
      if (seen < Tile::kKeys) {
        decode::mask<bf16, kHeadDim, 1>(scores, 0, seen);
        decode::zero_unseen<bf16, kHeadDim>(values, 0, seen);
      }
      softmax.weigh(scores, weights);
      softmax.accumulate(values, weights);
    }
    consumer.give_back();
  }
  softmax.finish();
  if (warp < kAttentionWarps) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 2 * (lane % 4) + i % 2;
      if (head >= group) continue;
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        acc[(warp * group + head) * Scratch::kRow + softmax.dim_of(d, i)] = softmax.acc[0][d][i];
      }
      if (lane < 4 && i < 2) {
        scratch.stats[warp][head] = make_float2(softmax.max[0][i], softmax.sum[0][i]);
      }
    }
  } else if (warp - kAttentionWarps < group) {  // the new token's score
    const int head = warp - kAttentionWarps;
    float score = 0;
    for (int i = lane; i < kHeadDim; i += 32) {
      score += __bfloat162float(scratch.queries[head][i]) * __bfloat162float(scratch.key[i]);
    }
    score = warp_sum(score) * parameters.scale_log2;
    if (lane == 0) {
      scratch.stats[kAttentionWarps][head] =
          in.part == 0 ? make_float2(score, 1) : make_float2(-INFINITY, 0);
    }
  }
  consumer.sync();
  constexpr int kUnits = kHeadDim / 2;
  const int first_head = in.first_row * parameters.heads + in.num_rows * group;
  for (int unit = static_cast<int>(threadIdx.x); unit < group * kUnits; unit += kConsumers) {
    const int head = unit / kUnits;
    const int dim = unit % kUnits * 2;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w <= kAttentionWarps; ++w) most = fmaxf(most, scratch.stats[w][head].x);
    float sum = 0;
    float low = 0;
    float high = 0;
    if (most > -INFINITY) {
#pragma unroll
      for (int w = 0; w < kAttentionWarps; ++w) {
        const float weight = exp2f(scratch.stats[w][head].x - most);
        const float2 part =
            *reinterpret_cast<const float2*>(acc + (w * group + head) * Scratch::kRow + dim);
        sum += weight * scratch.stats[w][head].y;
        low += weight * part.x;
        high += weight * part.y;
      }
      const float weight = exp2f(scratch.stats[kAttentionWarps][head].x - most);
      sum += weight * scratch.stats[kAttentionWarps][head].y;
      low += weight * __bfloat162float(scratch.value[dim]);
      high += weight * __bfloat162float(scratch.value[dim + 1]);
    }
    const float factor = sum > 0 ? 1 / sum : 0;
    const int place = (first_head + head) * in.parts + in.part;
    consumer.board.put(in.output + place * kUnits + dim / 2, pack(low * factor, high * factor));
    if (dim == 0) {
      const float score = sum > 0 ? most + log2f(sum) : -INFINITY;
      consumer.board.put(in.scores + place, __float_as_uint(score));
    }
  }
  consumer.sync();  // scratch is free
}

// Parts merged into the vector that the projection back takes.
template <int kHeadDim, int kBatch>
__device__ void take_merged(Consumer<kBatch>& consumer, const Instruction& in) {
  const Share<kBatch> share;
  constexpr int kAtOnce = 4;
  constexpr int kUnits = kHeadDim / 2;
  const int heads = in.width / kHeadDim;
  auto* const x = reinterpret_cast<uint2*>(input_of(consumer, in.width, share.sequence));
  const int first_quad = share.thread - consumer.lane();
  consumer.board.await(in.scores + (share.sequence * heads + first_quad * 4 / kHeadDim) * in.parts,
                       first_quad < in.width / 4);
  for (int quad = share.thread; quad < in.width / 4; quad += Share<kBatch>::kThreads) {
    const int head = quad * 4 / kHeadDim;
    const int place = (share.sequence * heads + head) * in.parts;
    const int within = quad * 2 % kUnits;
    float most = -INFINITY;
    float sum = 0;
    float acc[4] = {};
    for (int first = 0; first < in.parts; first += kAtOnce) {
      std::uint64_t scores[kAtOnce];
      Board::Two values[kAtOnce];
      std::uint32_t spins = 0;
      bool is_ready = false;
      do {
        is_ready = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i >= in.parts) continue;
          scores[i] = consumer.board.look_at_one(in.scores + place + first + i);
          values[i] = consumer.board.look(in.input + (place + first + i) * kUnits + within);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i >= in.parts) continue;
          if (!consumer.board.has(scores[i]) || !consumer.board.has(values[i])) is_ready = false;
        }
      } while (!is_ready && !consumer.board.gives_up(spins, in.scores + place));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= in.parts) continue;
        const float score = __uint_as_float(static_cast<std::uint32_t>(scores[i]));
        const float newest = fmaxf(most, score);
        if (newest == -INFINITY) continue;
        const float keep = exp2f(most - newest);
        const float weight = exp2f(score - newest);
        most = newest;
        sum = sum * keep + weight;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t pair = values[i].value(j / 2);
          const float value = __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
          acc[j] = acc[j] * keep + weight * value;
        }
      }
    }
    const float factor = sum > 0 ? 1 / sum : 0;
    x[quad] = {pack(acc[0] * factor, acc[1] * factor), pack(acc[2] * factor, acc[3] * factor)};
  }
  consumer.sync();
}

}  // namespace orrery::megakernel
