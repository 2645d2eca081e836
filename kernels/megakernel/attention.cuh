#pragma once

// Attention of the query heads of one kv head over a part of the keys of one sequence, and the
// merge of the parts. Keys and values that were cached before come through pages, four tiles of
// each in one; those of the new token are in the step's own projection, and count with part 0,
// which also appends them to the cache.

#include <cstdint>

#include "kernels/attention/attention_decode/tile.cuh"
#include "kernels/cuda/flags.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/megakernel/matvec.cuh"
#include "kernels/megakernel/store.cuh"

namespace orrery::megakernel {

inline constexpr int kTilesOfPage = 4;  // of keys, and as many of values
static_assert(kTilesOfPage * 2 * decode::kTileBytes == kKeyPageBytes);
static_assert(kKeyPageBytes <= kPageBytes);

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
  // What forwards of this launch appended is there once the last one's token is.
  if (loader.seen_ahead != loader.board.ahead()) {
    loader.seen_ahead = loader.board.ahead();
    static_cast<void>(loader.board.token(sequence));
    sm90::fence_async();
  }
  const PartRange<kHeadDim> range(in, length_of(parameters, sequence, loader.board.ahead()));
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
  static constexpr int kRow = kHeadDim + 4;  // no bank conflicts between heads
  alignas(16) std::uint32_t raw[(kMostHeadsOfOne + 2) * kHeadDim / 2];  // as they were projected
  alignas(16) bf16 queries[kMostHeadsOfOne][kHeadDim];
  bf16 key[kHeadDim];
  bf16 value[kHeadDim];
  float2 stats[kConsumerWarps + 1][kMostHeadsOfOne];  // max and sum; the last: the new token
};
// Each warp's float acc[heads of a kv head][kRow] stands where its input does.
template <int kHeadDim>
constexpr int attention_sums_bytes(int heads_of_one) {
  return heads_of_one * AttentionScratch<kHeadDim>::kRow * 4;
}

// Cosines and sines of a lane's dims, l + 32 i and their partners half a head further.
template <int kHeadDim>
struct Turn {
  static constexpr int kPairs = kHeadDim / 64;
  float cosine[kPairs];
  float sine[kPairs];

  // Asked for here: while values are waited for.
  __device__ Turn(const Parameters& parameters, int position) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::int64_t at =
          static_cast<std::int64_t>(position) * (kHeadDim / 2) + threadIdx.x % 32 + 32 * i;
      asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(cosine[i]) : "l"(parameters.cosines + at));
      asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(sine[i]) : "l"(parameters.sines + at));
    }
  }
};

// A head of the new token by one warp: its norm if there is one, rotary positions.
template <int kHeadDim>
__device__ void turn_head(const Turn<kHeadDim>& turn, const std::uint32_t* raw, const bf16* gain,
                          float epsilon, bf16* out) {
  constexpr int kPairs = Turn<kHeadDim>::kPairs;
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
    const float factor = rsqrtf(warp_sum(sum) / kHeadDim + epsilon);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      low[i] = rounded(low[i] * (__bfloat162float(gain[lane + 32 * i]) * factor));
      high[i] = rounded(high[i] * (__bfloat162float(gain[lane + 32 * i + kHalf]) * factor));
    }
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    out[lane + 32 * i] = __float2bfloat16_rn(low[i] * turn.cosine[i] - high[i] * turn.sine[i]);
    out[lane + 32 * i + kHalf] =
        __float2bfloat16_rn(high[i] * turn.cosine[i] + low[i] * turn.sine[i]);
  }
}

// Queries, key and value of the new token into scratch, turned, a head by each warp; part 0 appends
// key and value to the cache.
template <int kHeadDim, int kBatch>
__device__ void take_heads(Consumer<kBatch>& consumer, const Instruction& in, const bf16* gains,
                           AttentionScratch<kHeadDim>& scratch) {
  const Parameters& parameters = consumer.parameters;
  const int group = parameters.heads / parameters.kv_heads;
  const int kv_head = in.num_rows;
  const int sequence = in.first_row;
  constexpr int kUnits = kHeadDim / 2;
  const int warp = consumer.warp();
  const int lane = consumer.lane();
  const int ahead = consumer.board.ahead();
  const std::int64_t slot = slot_of(parameters, sequence, ahead);
  const Turn<kHeadDim> turn(parameters, parameters.positions[sequence] + ahead);
  for (int own = warp; own < group + 2; own += kConsumerWarps) {
    const bool is_key = own == group;
    const bool is_value = own == group + 1;
    const int head = own < group ? kv_head * group + own
                                 : parameters.heads + (own - group) * parameters.kv_heads + kv_head;
    std::uint32_t* const raw = scratch.raw + own * kUnits;
    consumer.board.template take_groups<4, 1>(
        kUnits / 4,
        [&](int i) { return in.input + sequence * in.width / 2 + head * kUnits + 4 * i; },
        [&](int, int i, const Octet& octet) {
          reinterpret_cast<uint4*>(raw)[i] = as_vector(octet);
        });
    __syncwarp();
    bf16* const out = is_value ? scratch.value : is_key ? scratch.key : scratch.queries[own];
    if (is_value) {
      for (int i = lane; i < kUnits; i += 32) {
        reinterpret_cast<std::uint32_t*>(out)[i] = raw[i];
      }
    } else {
      const bf16* const gain = gains == nullptr ? nullptr : gains + (is_key ? kHeadDim : 0);
      turn_head<kHeadDim>(turn, raw, gain, parameters.epsilon, out);
    }
    __syncwarp();
    if (in.part == 0 && slot >= 0 && own >= group) {
      bf16* const to = parameters.keys + (2 * in.layer + is_value) * parameters.pool_elements +
                       (slot * parameters.kv_heads + kv_head) * kHeadDim;
      for (int i = lane; i < kUnits; i += 32) {
        reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(out)[i];
      }
    }
  }
  consumer.sync();
}

template <int kHeadDim, int kBatch>
__device__ void run_attention(Consumer<kBatch>& consumer, const Instruction& in) {
  using Tile = decode::TileShape<bf16, kHeadDim>;
  using Scratch = AttentionScratch<kHeadDim>;
  const Parameters& parameters = consumer.parameters;
  auto& scratch = *reinterpret_cast<Scratch*>(consumer.attention);
  const int group = parameters.heads / parameters.kv_heads;
  const int warp = consumer.warp();
  const int floats_of_warp = parameters.input_bytes / kConsumerWarps / 4;
  auto* const own_acc = reinterpret_cast<float*>(consumer.input);
  const float* const acc = own_acc - warp * floats_of_warp;  // of warp 0
  const int lane = consumer.lane();
  const PartRange<kHeadDim> range(in, length_of(parameters, in.first_row, consumer.board.ahead()));
  decode::WarpSoftmax<bf16, kHeadDim, 1> softmax;
  softmax.load_shared(&scratch.queries[0][0], group);
  softmax.start(parameters.scale_log2);
  for (int first = range.begin; first < range.end; first += kTilesOfPage) {
    const char* const page = consumer.take_page();
    const int tile = (warp - (first - range.begin)) & (kConsumerWarps - 1);
    if (tile < min(kTilesOfPage, range.end - first)) {
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
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = 2 * (lane % 4) + i % 2;
    if (head >= group) continue;
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      own_acc[head * Scratch::kRow + softmax.dim_of(d, i)] = softmax.acc[0][d][i];
    }
    if (lane < 4 && i < 2) {
      scratch.stats[warp][head] = make_float2(softmax.max[0][i], softmax.sum[0][i]);
    }
  }
  if (warp < group) {  // the new token's score
    float score = 0;
    for (int i = lane; i < kHeadDim; i += 32) {
      score += __bfloat162float(scratch.queries[warp][i]) * __bfloat162float(scratch.key[i]);
    }
    score = warp_sum(score) * parameters.scale_log2;
    if (lane == 0) {
      scratch.stats[kConsumerWarps][warp] =
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
    for (int w = 0; w <= kConsumerWarps; ++w) most = fmaxf(most, scratch.stats[w][head].x);
    float sum = 0;
    float low = 0;
    float high = 0;
    if (most > -INFINITY) {
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) {
        const float weight = exp2f(scratch.stats[w][head].x - most);
        const float2 part =
            *reinterpret_cast<const float2*>(acc + w * floats_of_warp + head * Scratch::kRow + dim);
        sum += weight * scratch.stats[w][head].y;
        low += weight * part.x;
        high += weight * part.y;
      }
      const float weight = exp2f(scratch.stats[kConsumerWarps][head].x - most);
      sum += weight * scratch.stats[kConsumerWarps][head].y;
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

// Eight values of a head, merged from parts by their scores.
struct Merged {
  float most = -INFINITY;
  float sum = 0;
  float acc[8] = {};

  __device__ void add(float score, const Octet& values) {
    const float newest = fmaxf(most, score);
    if (newest == -INFINITY) return;
    const float keep = exp2f(most - newest);
    const float weight = exp2f(score - newest);
    most = newest;
    sum = sum * keep + weight;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t pair = values.words[i / 2];
      const float value = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
      acc[i] = acc[i] * keep + weight * value;
    }
  }
  [[nodiscard]] __device__ uint4 result() const {
    const float factor = sum > 0 ? 1 / sum : 0;
    return {pack(acc[0] * factor, acc[1] * factor), pack(acc[2] * factor, acc[3] * factor),
            pack(acc[4] * factor, acc[5] * factor), pack(acc[6] * factor, acc[7] * factor)};
  }
};

// Parts merged into the vector that the projection back takes.
template <int kHeadDim, int kBatch>
__device__ void take_merged(Consumer<kBatch>& consumer, const Instruction& in) {
  constexpr int kPartsAtOnce = 4;
  constexpr int kUnits = kHeadDim / 2;
  const WarpOctets<kBatch> octets(in, consumer.warp());
  const int heads = in.width / kHeadDim;
  const int count = kBatch * octets.count;
  for (int octet = consumer.lane(); octet < count; octet += 32) {
    const int column = octets.column_of(octet);
    const int place = (octets.sequence_of(octet) * heads + column / kHeadDim) * in.parts;
    const int within = column % kHeadDim / 2;
    Merged merged;
    for (int first = 0; first < in.parts; first += kPartsAtOnce) {
      Units<1> scores[kPartsAtOnce];
      Octet values[kPartsAtOnce];
      std::uint32_t spins = 0;
      bool is_ready = false;
      Merged next;
      do {
        is_ready = true;
#pragma unroll
        for (int i = 0; i < kPartsAtOnce; ++i) {
          if (first + i >= in.parts) continue;
          scores[i] = consumer.board.template look<1>(in.scores + place + first + i);
          values[i] =
              consumer.board.template look<4>(in.input + (place + first + i) * kUnits + within);
        }
        next = merged;
        // Merged before it is known whether all is there: the code is in the cache when it is.
#pragma unroll
        for (int i = 0; i < kPartsAtOnce; ++i) {
          if (first + i >= in.parts) continue;
          if (!scores[i].is_there() || !values[i].is_there()) is_ready = false;
          next.add(__uint_as_float(scores[i].words[0]), values[i]);
        }
      } while (!is_ready && !consumer.board.gives_up(spins, in.scores + place));
      merged = next;
    }
    keep(consumer, octets, octet, merged.result());
  }
  __syncwarp();
}

}  // namespace orrery::megakernel
