#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/flags.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/probes/machine.h"

namespace orrery {
namespace {

constexpr int kSamples = 51;
constexpr int kRounds = 1000;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 16;
constexpr int kColumns = 1024;
constexpr int kRowBytes = kColumns * 2 + 64;  // no bank conflicts
constexpr std::string_view kNanoseconds = "ns";

__device__ std::int64_t now() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Cycles of kRounds, by the first thread.
__global__ void barrier_passed(std::int64_t* cycles) {
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    sm90::barrier_init(&barrier, 1);
    sm90::fence_barrier_init();
    sm90::barrier_arrive(&barrier);
  }
  __syncwarp();
  const std::int64_t begin = clock64();
  for (int i = 0; i < kRounds; ++i) sm90::barrier_wait(&barrier, 0);
  if (threadIdx.x == 0) *cycles = clock64() - begin;
}

// Two warps, each of which waits for the other.
__global__ void barrier_round(std::int64_t* cycles) {
  __shared__ std::uint64_t there;
  __shared__ std::uint64_t back;
  if (threadIdx.x == 0) {
    sm90::barrier_init(&there, 1);
    sm90::barrier_init(&back, 1);
    sm90::fence_barrier_init();
  }
  __syncthreads();
  const bool is_first = threadIdx.x < 32;
  const bool arrives = threadIdx.x % 32 == 0;
  const std::int64_t begin = clock64();
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    if (is_first) {
      if (arrives) sm90::barrier_arrive(&there);
      sm90::barrier_wait(&back, i & 1);
    } else {
      sm90::barrier_wait(&there, i & 1);
      if (arrives) sm90::barrier_arrive(&back);
    }
  }
  if (threadIdx.x == 0) *cycles = clock64() - begin;
}

__global__ void block_barrier(std::int64_t* cycles) {
  __syncthreads();
  const std::int64_t begin = clock64();
  for (int i = 0; i < kRounds; ++i) __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - begin;
}

__device__ void wait_for(const std::uint32_t* word, std::uint32_t value) {
  std::uint32_t found;
  do {
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(found) : "l"(word) : "memory");
  } while (found != value);
}
__device__ void write(std::uint32_t* word, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Blocks, one to an SM, in turns: a value goes from block 0 to `other` and back.
__global__ void sm_value(std::uint32_t* words, int other, std::int64_t* cycles) {
  constexpr int kApart = 64;  // words: lines of their own
  if (threadIdx.x != 0 || (blockIdx.x != 0 && static_cast<int>(blockIdx.x) != other)) return;
  const std::int64_t begin = clock64();
  for (std::uint32_t i = 1; i <= kRounds; ++i) {
    if (blockIdx.x == 0) {
      write(words, i);
      wait_for(words + kApart, i);
    } else {
      wait_for(words, i);
      write(words + kApart, i);
    }
  }
  if (blockIdx.x == 0) *cycles = clock64() - begin;
}

__global__ void grid_barrier(std::uint32_t* counter, std::int64_t* cycles) {
  if (threadIdx.x != 0) return;
  const std::int64_t begin = clock64();
  for (std::uint32_t i = 1; i <= kRounds; ++i) {
    sm90::add_release(counter, 1);
    while (sm90::load_acquire(counter) < i * gridDim.x) {
    }
  }
  if (blockIdx.x == 0) *cycles = clock64() - begin;
}

__device__ uint4 load_shared(const void* at) {
  uint4 value;
  asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(sm90::shared_address(at)));
  return value;
}

// A warp's eighth of the columns of a page in shared memory.
struct Page {
  const char* rows;  // of this lane: row lane / 4 and its columns of the warp's
  __device__ explicit Page(const char* page)
      : rows(page + threadIdx.x % 32 / 4 * kRowBytes + threadIdx.x / 32 * (kColumns / kWarps * 2) +
             threadIdx.x % 4 * 16) {}
  static constexpr int kSteps = kColumns / kWarps * 2 / 64;
};

__device__ void fill(char* page, bf16* x) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kRowBytes / 2; i += kThreads) {
    reinterpret_cast<bf16*>(page)[i] = __float2bfloat16_rn(static_cast<float>(i % 13) - 6);
  }
  for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kThreads) {
    x[i] = __float2bfloat16_rn(static_cast<float>(i % 7) - 3);
  }
  __syncthreads();
}

// As the megakernel's: sequences are the columns of the right-hand side, of which it has eight.
__global__ void page_tensor(std::int64_t* cycles, float* out) {
  __shared__ __align__(16) char page[kRows * kRowBytes];
  __shared__ __align__(16) bf16 x[kColumns];
  fill(page, x);
  const Page own(page);
  const bf16* const columns = x + threadIdx.x / 32 * (kColumns / kWarps) + threadIdx.x % 4 * 8;
  float d[2][4] = {};
  const std::int64_t begin = clock64();
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int step = 0; step < Page::kSteps; ++step) {
      const uint4 upper = load_shared(own.rows + step * 64);
      const uint4 lower = load_shared(own.rows + step * 64 + kRows / 2 * kRowBytes);
      const uint4 by = load_shared(columns + step * 32);
      const std::uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y},
                                     {upper.z, lower.z, upper.w, lower.w}};
      const std::uint32_t b[2][2] = {{by.x, by.y}, {by.z, by.w}};
      sm90::mma_bf16(d[0], a[0], b[0]);
      sm90::mma_bf16(d[1], a[1], b[1]);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - begin;
  out[threadIdx.x] = d[0][0] + d[1][0] + d[0][1] + d[1][1] + d[0][2] + d[1][3];
}

__device__ float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float high(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }
__device__ float multiply(const uint4& a, const float (&x)[8], float sum) {
  const std::uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(low(words[i]), x[2 * i], sum);
    sum = fmaf(high(words[i]), x[2 * i + 1], sum);
  }
  return sum;
}

// The same layout; a lane's columns of the vector stay in registers as fp32, and the four lanes of
// a row add up what they have.
__global__ void page_cuda(std::int64_t* cycles, float* out) {
  __shared__ __align__(16) char page[kRows * kRowBytes];
  __shared__ __align__(16) bf16 x[kColumns];
  fill(page, x);
  const Page own(page);
  float columns[Page::kSteps][8];
#pragma unroll
  for (int step = 0; step < Page::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = static_cast<int>(threadIdx.x) / 32 * (kColumns / kWarps) + step * 32 +
                     static_cast<int>(threadIdx.x) % 4 * 8 + i;
      columns[step][i] = __bfloat162float(x[at]);
    }
  }
  float results[2] = {};
  const std::int64_t begin = clock64();
  for (int i = 0; i < kRounds; ++i) {
    float sums[2] = {};
#pragma unroll
    for (int step = 0; step < Page::kSteps; ++step) {
      const uint4 upper = load_shared(own.rows + step * 64);
      const uint4 lower = load_shared(own.rows + step * 64 + kRows / 2 * kRowBytes);
      sums[0] = multiply(upper, columns[step], sums[0]);
      sums[1] = multiply(lower, columns[step], sums[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] += __shfl_xor_sync(0xFFFFFFFF, sums[half], 1);
      sums[half] += __shfl_xor_sync(0xFFFFFFFF, sums[half], 2);
      results[half] += sums[half];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - begin;
  out[threadIdx.x] = results[0] + results[1];
}

// The SM's clock while it runs a chain of shifts, in cycles of a nanosecond.
__global__ void clock_rate(double* rate) {
  constexpr std::int64_t kLong = 2'000'000;
  const std::int64_t began = now();
  const std::int64_t begin = clock64();
  while (now() - began < kLong) {
  }
  *rate = static_cast<double>(clock64() - begin) / static_cast<double>(now() - began);
}

class Machine {
 public:
  Machine() {
    cuda::DeviceBuffer<double> rate(1);
    cuda::launch(stream_, {.grid = dim3(1), .block = dim3(1)}, clock_rate, rate.get());
    ORRERY_CUDA(cudaMemcpyAsync(&cycles_of_ns_, rate.get(), sizeof(double), cudaMemcpyDeviceToHost,
                                stream_.get()));
    stream_.synchronize();
  }
  // Nanoseconds of a round; `launch()` runs a kernel that writes the cycles of kRounds.
  template <typename Launch>
  double round(const Launch& launch) {
    launch();
    std::int64_t cycles = 0;
    ORRERY_CUDA(cudaMemcpyAsync(&cycles, cycles_.get(), sizeof(cycles), cudaMemcpyDeviceToHost,
                                stream_.get()));
    stream_.synchronize();
    return static_cast<double>(cycles) / kRounds / cycles_of_ns_;
  }
  // `parts`: what of a round counts.
  template <typename Launch>
  ProbeRow row(std::string name, std::string parameters, double parts, const Launch& launch) {
    std::vector<double> samples;
    static_cast<void>(round(launch));
    for (int i = 0; i < kSamples; ++i) samples.push_back(round(launch) * parts);
    return probe_row(std::move(name), std::move(parameters), kNanoseconds, std::move(samples));
  }
  template <typename... Parameters, typename... Arguments>
  void launch(int blocks, int threads, bool is_cooperative, void (*kernel)(Parameters...),
              Arguments... arguments) {
    // So much shared memory that an SM has room for one block.
    constexpr std::size_t kOneOfAnSm = 120 * 1024;
    cuda::launch(stream_,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(static_cast<unsigned>(threads)),
                  .shared_bytes = is_cooperative ? kOneOfAnSm : 0,
                  .cooperative = is_cooperative},
                 kernel, arguments...);
  }
  [[nodiscard]] std::int64_t* cycles() const { return cycles_.get(); }
  [[nodiscard]] float* out() const { return out_.get(); }
  std::uint32_t* cleared_words() {
    ORRERY_CUDA(
        cudaMemsetAsync(words_.get(), 0, words_.size() * sizeof(std::uint32_t), stream_.get()));
    return words_.get();
  }

 private:
  cuda::Stream stream_;
  cuda::DeviceBuffer<std::int64_t> cycles_{1};
  cuda::DeviceBuffer<float> out_{kThreads};
  cuda::DeviceBuffer<std::uint32_t> words_{128};
  double cycles_of_ns_ = 0;
};

}  // namespace

std::vector<ProbeRow> probe_machine() {
  Machine machine;
  const int sms = cuda::device_properties().multiProcessorCount;
  std::int64_t* const cycles = machine.cycles();
  std::vector<ProbeRow> rows;
  rows.push_back(machine.row("barrier_passed", "", 1,
                             [&] { machine.launch(1, 32, false, barrier_passed, cycles); }));
  rows.push_back(machine.row("barrier_round", "", 0.5,
                             [&] { machine.launch(1, 64, false, barrier_round, cycles); }));
  rows.push_back(machine.row("block_barrier", "threads=256", 1,
                             [&] { machine.launch(1, kThreads, false, block_barrier, cycles); }));
  std::vector<double> between;
  for (int other = 1; other < sms; ++other) {
    const auto go = [&] {
      machine.launch(sms, 32, true, sm_value, machine.cleared_words(), other, cycles);
    };
    static_cast<void>(machine.round(go));
    between.push_back(machine.round(go) / 2);
  }
  const auto [least, most] = std::ranges::minmax(between);
  rows.push_back(probe_row("sm_value", "", kNanoseconds, between));
  rows.push_back(probe_row("sm_value_least", "", kNanoseconds, {least}));
  rows.push_back(probe_row("sm_value_most", "", kNanoseconds, {most}));
  rows.push_back(machine.row("grid_barrier", "sms=" + std::to_string(sms), 1, [&] {
    machine.launch(sms, 32, true, grid_barrier, machine.cleared_words(), cycles);
  }));
  rows.push_back(machine.row("page_tensor", "rows=16 columns=1024", 1, [&] {
    machine.launch(1, kThreads, false, page_tensor, cycles, machine.out());
  }));
  rows.push_back(machine.row("page_cuda", "rows=16 columns=1024", 1, [&] {
    machine.launch(1, kThreads, false, page_cuda, cycles, machine.out());
  }));
  return rows;
}

}  // namespace orrery
