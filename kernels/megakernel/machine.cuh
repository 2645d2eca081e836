#pragma once

// The machine on which instructions run: one block on each SM, whose warps are
//
//   loader    walks the SM's instructions ahead of all others and asks for their weights and keys,
//             page after page, as soon as a page is free. It waits for nothing else, so that the
//             memory is busy while others wait for values: pages are the prefetch.
//   8 consumers   run the instructions one after the other: each takes its columns of the first
//             pages into registers, waits for the values that these are multiplied by, multiplies
//             page by page and hands each page back.
//             At the end of a block of 16 rows it leaves its sums and goes on; no consumer waits
//             for another.
//   3 storers   take turns at the blocks: add up the 8 sums, turn them into results (norm,
//             residual, SiLU) and write these to the board.
//
// A page (kPageBytes) holds 16 rows of a weight, 2 KB of each (1,024 columns in bf16, 2,048 in
// fp8), or four tiles of keys and values. Pages form a ring: an instruction takes as many as it
// needs in order and hands them on to the next one, on which the loader is at work by then.

#include <cstdint>

#include "kernels/cuda/sm90.cuh"
#include "kernels/megakernel/parameters.h"

namespace orrery::megakernel {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kConsumers = kConsumerWarps * 32;
inline constexpr int kStorerWarps = 3;
inline constexpr int kStorers = kStorerWarps * 32;
inline constexpr int kThreads = kConsumers + 32 + kStorers;
inline constexpr int kRows = kPageRows;
inline constexpr int kRowBytes = kPageRowBytes + 64;  // rows lie apart: no bank conflicts
inline constexpr int kPageBytes = 33 * 1024;  // kRows * kRowBytes, in whole periods of the swizzle
static_assert(kRows * kRowBytes <= kPageBytes);
inline constexpr int kMostPages = 6;
inline constexpr int kPagesAsked = 2;  // that are under way at once

// Places for blocks' sums. More than storers: a storer that comes to a place has seen the block
// before in it, so that the phase tells the two apart.
inline constexpr int kSlots = 4;
static_assert(kSlots > kStorerWarps);

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

// Shared memory behind the pages.
struct Control {
  std::uint64_t full[kMostPages];
  std::uint64_t empty[kMostPages];
  std::uint64_t sums_full[kSlots];
  std::uint64_t sums_empty[kSlots];
  float largest[kMostSequences][kStorerWarps];  // logits
  std::int32_t largest_rows[kMostSequences][kStorerWarps];
};

// What the consumers leave of a block of rows.
template <int kBatch>
struct BlockSums {
  float rows[kConsumerWarps][kBatch * kRows];
  float squares[kConsumerWarps][kBatch];  // of each warp's share of the input, where it is normed
};
// A place in the ring of pages.
struct PageCursor {
  int page = 0;
  std::uint32_t phase = 0;
  __device__ void advance(int pages) {
    if (++page == pages) {
      page = 0;
      phase ^= 1;
    }
  }
};

// The words of an instruction, one in each lane.
struct Words {
  std::int32_t word;
  __device__ void load(const Instruction* instruction) {
    // Volatile, so that it is asked for here and not where it is needed, an instruction later.
    asm volatile("ld.global.nc.b32 %0, [%1];"
                 : "=r"(word)
                 : "l"(reinterpret_cast<const std::int32_t*>(instruction) + threadIdx.x % 32));
  }
  [[nodiscard]] __device__ std::int32_t at(int index) const {
    return __shfl_sync(0xFFFFFFFF, word, index);
  }
  template <typename T>
  [[nodiscard]] __device__ const T* address(int index) const {
    const auto low = static_cast<std::uint32_t>(at(index));
    const auto high = static_cast<std::uint32_t>(at(index + 1));
    return reinterpret_cast<const T*>(static_cast<std::uint64_t>(high) << 32 | low);
  }
  // All that has no address. A kernel for bf16 alone is 2 % faster if it knows that it is.
  template <bool kMayBeFp8>
  [[nodiscard]] __device__ Instruction fields() const {
    Instruction in;
    in.opcode = static_cast<Opcode>(at(0));
    in.layer = at(1);
    in.first_row = at(2);
    in.num_rows = at(3);
    in.width = at(4);
    in.whole_rows = at(7);
    in.input = at(8);
    in.output = at(9);
    in.residual = at(10);
    in.part = at(11);
    in.parts = at(12);
    in.scores = at(13);
    in.weight_bytes = kMayBeFp8 ? at(14) : 2;
    return in;
  }
};

__device__ inline std::int64_t nanoseconds() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// What is written and read between SMs: units of 4 bytes in two copies, of which forwards use one
// and the other in turns. A unit that was not written yet holds kMissing, which no result is: a
// reader that finds something else has the value. Who writes a unit makes it missing in the other
// copy, which the forward before this one, ended by now, has read.
inline constexpr std::uint32_t kMissing = 0xFFFFFFFF;  // as two bf16: NaNs that no conversion gives

// Neighbouring units as they were when they were looked at.
template <int kUnits>
struct Units {
  std::uint32_t words[kUnits];
  [[nodiscard]] __device__ bool is_there() const {
    bool all = true;
#pragma unroll
    for (const std::uint32_t word : words) all &= word != kMissing;
    return all;
  }
};

class Board {
 public:
  __device__ Board(const Parameters& parameters, std::uint32_t forward)
      : parameters_(parameters),
        forward_(forward),
        units_(parameters.board + (forward % 2 == 0 ? 0 : parameters.board_units)),
        others_(parameters.board + (forward % 2 == 0 ? parameters.board_units : 0)) {}

  // The next forward of the same launch: the copies change places.
  __device__ void begin_next() {
    std::uint32_t* const units = units_;
    units_ = others_;
    others_ = units;
    ++forward_;
    ++ahead_;
  }
  // Forwards of this launch that have ended: as many tokens has each sequence more by now.
  [[nodiscard]] __device__ int ahead() const { return ahead_; }
  // A sequence's newest token: the step's, or what the forward before picked. Who has the latter
  // sees all that was written before it was picked.
  __device__ std::int32_t token(int sequence) const {
    if (ahead_ == 0) return parameters_.token_ids[sequence];
    const std::int32_t unit = parameters_.token_unit + sequence;
    std::uint32_t spins = 0;
    std::uint32_t token = kMissing;
    do {
      asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];"
                   : "=r"(token)
                   : "l"(others_ + unit)
                   : "memory");
    } while (token == kMissing && !gives_up(spins, unit));
    __threadfence();
    return token == kMissing ? 0 : static_cast<std::int32_t>(token);
  }

  __device__ void put(std::int32_t unit, std::uint32_t value) const {
    if (unit == parameters_.lost_unit) return;
    asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(units_ + unit), "r"(value) : "memory");
    others_[unit] = kMissing;
  }
  // kUnits units as they are now; the first is a multiple of kUnits.
  template <int kUnits>
  [[nodiscard]] __device__ Units<kUnits> look(std::int32_t unit) const {
    static_assert(kUnits == 1 || kUnits == 2 || kUnits == 4);
    Units<kUnits> found;
    std::uint32_t(&w)[kUnits] = found.words;
    const std::uint32_t* const at = units_ + unit;
    if constexpr (kUnits == 1) {
      asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(w[0]) : "l"(at) : "memory");
    } else if constexpr (kUnits == 2) {
      asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
                   : "=r"(w[0]), "=r"(w[1])
                   : "l"(at)
                   : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "l"(at)
                   : "memory");
    }
    return found;
  }
  // One unit, waited for. `seen`: what it was when it was looked at before.
  __device__ std::uint32_t take(std::int32_t unit, Units<1> seen) const {
    std::uint32_t spins = 0;
    while (!seen.is_there() && !gives_up(spins, unit)) seen = look<1>(unit);
    return seen.words[0];
  }
  // `count` groups of kUnits units, dealt out to the lanes of a warp: use(place, i, group) of that
  // at unit_of(i), as they come. kAtOnce loads of a lane, at places 0 to kAtOnce - 1, are under way
  // together, and again for those that did not find theirs; after them, finish(i of place 0).
  // kTogether: used when all of them are there, by all lanes at once, not one by one as they come.
  template <int kUnits, int kAtOnce, bool kTogether, typename UnitOf, typename Use, typename Finish>
  __device__ void take_groups(int count, const UnitOf& unit_of, const Use& use,
                              const Finish& finish) const {
    constexpr int kLanes = 32;
    for (int base = static_cast<int>(threadIdx.x) % kLanes; base < count;
         base += kAtOnce * kLanes) {
      Units<kUnits> groups[kAtOnce];
      const int own = min(kAtOnce, (count - base + kLanes - 1) / kLanes);
      std::uint32_t missing = (1U << own) - 1;
      std::uint32_t spins = 0;
      do {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if ((missing >> i & 1) != 0) groups[i] = look<kUnits>(unit_of(base + i * kLanes));
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if ((missing >> i & 1) == 0 || !groups[i].is_there()) continue;
          missing &= ~(1U << i);
          if constexpr (!kTogether) use(i, base + i * kLanes, groups[i]);
        }
      } while (missing != 0 && !gives_up(spins, unit_of(base)));
      if constexpr (kTogether) {
        const int lanes = count - base + static_cast<int>(threadIdx.x) % kLanes;  // with a group
        __syncwarp(lanes >= kLanes ? 0xFFFFFFFF : (1U << lanes) - 1);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (i < own) use(i, base + i * kLanes, groups[i]);
        }
      }
      finish(base);
    }
  }
  template <int kUnits, int kAtOnce, bool kTogether = false, typename UnitOf, typename Use>
  __device__ void take_groups(int count, const UnitOf& unit_of, const Use& use) const {
    take_groups<kUnits, kAtOnce, kTogether>(count, unit_of, use, [](int) {});
  }
  // Whether waiting has no end: it took too long here or elsewhere. Says where, the first time.
  __device__ bool gives_up(std::uint32_t& spins, std::int32_t unit) const {
    constexpr std::uint32_t kLook = 256;
    if (++spins % kLook != 0) return false;
    volatile std::uint32_t* const stop = parameters_.forward + 1;
    if (*stop != 0) return true;
    if (spins == kLook) started_ = nanoseconds();
    if (nanoseconds() - started_ < parameters_.limit_ns) return false;
    if (atomicExch(parameters_.forward + 1, 1U) == 0) {
      Failure& failure = *parameters_.failure;
      failure.sm = static_cast<std::int32_t>(blockIdx.x);
      failure.instruction = at_;
      failure.unit = unit;
      __threadfence_system();
      failure.is_set = 1;
    }
    return true;
  }
  __device__ void begin_instruction(std::int32_t at) { at_ = at; }
  [[nodiscard]] __device__ std::uint32_t forward() const { return forward_; }

 private:
  const Parameters& parameters_;
  std::uint32_t forward_;
  std::uint32_t* units_;
  std::uint32_t* others_;
  std::int32_t at_ = 0;
  std::int32_t ahead_ = 0;
  mutable std::int64_t started_ = 0;
};

// Of a sequence that has grown by `ahead` tokens since the launch: its keys with the newest
// token's, 0 where it is padding.
__device__ inline int length_of(const Parameters& parameters, int sequence, int ahead) {
  const int length = parameters.lengths[sequence];
  return length > 0 ? length + ahead : 0;
}
// Where the cache has the newest token's; -1: nowhere.
__device__ inline std::int64_t slot_of(const Parameters& parameters, int sequence, int ahead) {
  const std::int64_t slot = parameters.slots[sequence];
  if (ahead == 0 || slot < 0) return slot;
  const int position = length_of(parameters, sequence, ahead) - 1;
  const std::int64_t block = parameters.block_table[sequence * parameters.blocks_per_sequence +
                                                    (position >> parameters.block_shift)];
  return block << parameters.block_shift | (position & ((1 << parameters.block_shift) - 1));
}

// A place in the ring of blocks' sums.
template <int kBatch>
struct SumsCursor {
  std::uint32_t block = 0;  // of all instructions
  [[nodiscard]] __device__ std::uint32_t slot() const { return block % kSlots; }
  [[nodiscard]] __device__ std::uint32_t phase() const { return block / kSlots & 1; }
};

// What a consumer warp has on its way through the instructions.
template <int kBatch>
struct Consumer {
  const Parameters& parameters;
  Board board;
  char* pages;
  bf16* input;              // [kBatch][its columns], kInputPad apart; attention: the warp's sums
  char* attention;          // AttentionScratch
  BlockSums<kBatch>* sums;  // [kSlots]
  Control& control;
  PageCursor cursor;
  SumsCursor<kBatch> block;
  float squares[kBatch] = {};  // of its columns of the input
  std::int64_t waited = 0;     // for pages, in cycles; of thread 0, where records are kept

  [[nodiscard]] __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  [[nodiscard]] __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static void sync() { sm90::named_barrier_sync(1, kConsumers); }

  // The page that the loader fills next; give_back() when this warp has read it.
  __device__ const char* take_page() {
    const bool is_timed = parameters.records != nullptr && threadIdx.x == 0;
    const std::int64_t before = is_timed ? clock64() : 0;
    sm90::barrier_wait(&control.full[cursor.page], cursor.phase);
    if (is_timed) waited += clock64() - before;
    return pages + cursor.page * kPageBytes;
  }
  // Whether it has come.
  [[nodiscard]] __device__ bool has_page() const {
    const bool has_come = sm90::barrier_test(&control.full[cursor.page], cursor.phase);
    return __any_sync(0xFFFFFFFF, has_come);
  }
  __device__ void give_back() {
    __syncwarp();
    if (lane() == 0) sm90::barrier_arrive(&control.empty[cursor.page]);
    cursor.advance(parameters.stages);
  }
};

// A storer warp.
template <int kBatch>
struct Storer {
  const Parameters& parameters;
  Board board;
  const BlockSums<kBatch>* sums;
  Control& control;
  SumsCursor<kBatch> block;
  const float* scales = nullptr;  // of the rows of the instruction's weight: fp8

  [[nodiscard]] __device__ static int warp() {
    return static_cast<int>(threadIdx.x - kConsumers) / 32 - 1;
  }
  [[nodiscard]] __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static void sync() { sm90::named_barrier_sync(2, kStorers); }
  [[nodiscard]] __device__ bool is_turn() const {
    return static_cast<int>(block.block % kStorerWarps) == warp();
  }
};

// The loader's side of the ring.
struct Loader {
  const Parameters& parameters;
  char* pages;
  Control& control;
  PageCursor cursor;
  std::uint64_t policy;
  Board board;
  int seen_ahead = 0;      // forwards of the launch whose keys are known to be there
  PageCursor landed = {};  // the page whose bytes are waited for before more are asked for
  int asked = 0;           // pages, `landed` and those after it

  // Waits until the page is free and says how many bytes come; `copy(page, barrier, lane)` asks for
  // them. No more are under way than the memory needs to be busy: what is asked for beyond that
  // only delays values, which come the same way.
  template <typename Copy>
  __device__ void fill(std::uint32_t bytes, const Copy& copy) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (asked == kPagesAsked) {
      sm90::barrier_wait(&control.full[landed.page], landed.phase);
      landed.advance(parameters.stages);
      --asked;
    }
    ++asked;
    std::uint64_t* const full = &control.full[cursor.page];
    sm90::barrier_wait(&control.empty[cursor.page], cursor.phase ^ 1);
    if (lane == 0) sm90::barrier_arrive_expect(full, bytes);
    __syncwarp();
    copy(pages + cursor.page * kPageBytes, full, lane);
    cursor.advance(parameters.stages);
  }
};

}  // namespace orrery::megakernel
