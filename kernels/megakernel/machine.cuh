#pragma once

// The machine on which instructions run: one block on each SM, whose warps are
//
//   loader    walks the SM's instructions ahead of all others and asks for their weights and keys,
//             page after page, as soon as a page is free. It waits for nothing else, so that the
//             memory is busy while others wait for values: pages are the prefetch.
//   16 consumers   run the instructions one after the other: wait for the values that it reads,
//             multiply page by page and hand each page back; the warp whose turn it is adds up
//             the 16 warps' sums and writes the results to the board.
//
// A page (kPageBytes) holds 16 rows of a weight, 1,024 columns of each, or four tiles of keys and
// values. Pages form a ring: an instruction takes as many as it needs in order and hands them on to
// the next one, on which the loader is at work by then.

#include <cstdint>

#include "kernels/cuda/sm90.cuh"
#include "kernels/megakernel/parameters.h"

namespace orrery::megakernel {

inline constexpr int kConsumerWarps = 16;
inline constexpr int kConsumers = kConsumerWarps * 32;
inline constexpr int kThreads = kConsumers + 128;  // of the last four warps one loads: registers
                                                   // move between whole warpgroups
inline constexpr int kLoaderRegisters = 40;
inline constexpr int kConsumerRegisters = 112;
inline constexpr int kRows = 16;                     // of a page
inline constexpr int kColumns = 1024;                // of a page
inline constexpr int kRowBytes = kColumns * 2 + 16;  // rows lie apart: no bank conflicts
inline constexpr int kPageBytes = 33 * 1024;  // kRows * kRowBytes, in whole periods of the swizzle
static_assert(kRows * kRowBytes <= kPageBytes);
inline constexpr int kMostPages = 6;

// Shared memory behind the pages.
struct Control {
  std::uint64_t full[kMostPages];
  std::uint64_t empty[kMostPages];
  float sums[kConsumerWarps];
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
    word = __ldg(reinterpret_cast<const std::int32_t*>(instruction) + threadIdx.x % 32);
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
  // All that has no address.
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
    return in;
  }
};

__device__ inline std::int64_t nanoseconds() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// What is written and read between SMs. A unit's upper word is the number of the forward that wrote
// it, and unit and number arrive together: a reader that finds this forward's number has the value.
class Board {
 public:
  __device__ Board(const Parameters& parameters, std::uint32_t forward)
      : parameters_(parameters), forward_(forward) {}

  __device__ void put(std::int32_t unit, std::uint32_t value) const {
    if (unit == parameters_.lost_unit) return;
    const std::uint64_t word = static_cast<std::uint64_t>(forward_) << 32 | value;
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(parameters_.board + unit), "l"(word)
                 : "memory");
  }
  // Two neighbouring units as they are now; the first is of an even number.
  struct Two {
    std::uint64_t words[2];
    [[nodiscard]] __device__ std::uint32_t value(int i) const {
      return static_cast<std::uint32_t>(words[i]);
    }
  };
  [[nodiscard]] __device__ Two look(std::int32_t unit) const {
    Two two;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(two.words[0]), "=l"(two.words[1])
                 : "l"(parameters_.board + unit)
                 : "memory");
    return two;
  }
  [[nodiscard]] __device__ std::uint64_t look_at_one(std::int32_t unit) const {
    std::uint64_t word;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];"
                 : "=l"(word)
                 : "l"(parameters_.board + unit)
                 : "memory");
    return word;
  }
  [[nodiscard]] __device__ bool has(std::uint64_t word) const {
    return static_cast<std::uint32_t>(word >> 32) == forward_;
  }
  [[nodiscard]] __device__ bool has(const Two& two) const {
    return has(two.words[0]) && has(two.words[1]);
  }
  // One unit, waited for. `seen`: what it was when it was looked at before.
  __device__ std::uint32_t take(std::int32_t unit, std::uint64_t seen) const {
    std::uint32_t spins = 0;
    while (!has(seen) && !gives_up(spins, unit)) seen = look_at_one(unit);
    return static_cast<std::uint32_t>(seen);
  }
  __device__ std::uint32_t take(std::int32_t unit) const { return take(unit, look_at_one(unit)); }
  // Until the unit is there, by one lane of the warp for all of them. All threads that wait at
  // once, on all SMs, would take from the weights what the L2 cache can pass on.
  __device__ void await(std::int32_t unit, bool is_wanted) const {
    if (is_wanted && threadIdx.x % 32 == 0) static_cast<void>(take(unit));
    __syncwarp();
  }
  // `pairs` pairs of units from `first` on, dealt out to `threads` threads: use(pair, values).
  // kAtOnce loads of a thread are under way together, and again for those that did not find theirs.
  template <int kAtOnce, typename Use>
  __device__ void take_pairs(std::int32_t first, int pairs, int thread, int threads,
                             const Use& use) const {
    for (int base = thread; base < pairs; base += kAtOnce * threads) {
      Two two[kAtOnce];
      const int count = min(kAtOnce, (pairs - base + threads - 1) / threads);
      std::uint32_t missing = (1U << count) - 1;
      std::uint32_t spins = 0;
      do {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if ((missing >> i & 1) != 0) two[i] = look(first + 2 * (base + i * threads));
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if ((missing >> i & 1) != 0 && has(two[i])) missing &= ~(1U << i);
        }
      } while (missing != 0 && !gives_up(spins, first + 2 * base));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i < count) use(base + i * threads, two[i]);
      }
    }
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
  std::int32_t at_ = 0;
  mutable std::int64_t started_ = 0;
};

// What a consumer warp has on its way through the instructions.
template <int kBatch>
struct Consumer {
  const Parameters& parameters;
  Board board;
  char* pages;
  char* scratch;  // an instruction's own
  float* sums;    // [2][kConsumerWarps][kBatch * kRows]
  Control& control;
  PageCursor cursor;
  int block = 0;            // of rows, of all instructions: whose turn it is
  std::int64_t waited = 0;  // for pages, in cycles; of thread 0, where records are kept

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
  __device__ void give_back() {
    __syncwarp();
    if (lane() == 0) sm90::barrier_arrive(&control.empty[cursor.page]);
    cursor.advance(parameters.stages);
  }
};

// The loader's side of the ring.
struct Loader {
  const Parameters& parameters;
  char* pages;
  Control& control;
  PageCursor cursor;
  std::uint64_t policy;

  // Waits until the page is free and says how many bytes come; `copy(page, barrier, lane)` asks for
  // them.
  template <typename Copy>
  __device__ void fill(std::uint32_t bytes, const Copy& copy) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint64_t* const full = &control.full[cursor.page];
    sm90::barrier_wait(&control.empty[cursor.page], cursor.phase ^ 1);
    if (lane == 0) sm90::barrier_arrive_expect(full, bytes);
    __syncwarp();
    copy(pages + cursor.page * kPageBytes, full, lane);
    cursor.advance(parameters.stages);
  }
};

}  // namespace orrery::megakernel
