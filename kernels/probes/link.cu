#include <algorithm>
#include <functional>
#include <memory>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/launch.h"
#include "kernels/probes/link.h"

namespace orrery {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 64;
constexpr int kUnroll = 4;
constexpr int kRounds = 2000;  // of a ping-pong or chain of loads
constexpr int kSamples = 9;
constexpr int kWarmup = 2;
constexpr std::size_t kBytes = std::size_t{256} << 20;

__device__ void store_flag(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ std::uint32_t load_flag(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Rank 0 stores round r into the other's memory, rank 1 answers with the same; each polls its own.
__global__ void ping_pong_kernel(std::uint32_t* own, std::uint32_t* other, int rank, int rounds) {
  for (std::uint32_t round = 1; round <= static_cast<std::uint32_t>(rounds); ++round) {
    if (rank == 0) store_flag(other, round);
    while (load_flag(own) != round) {
    }
    if (rank == 1) store_flag(other, round);
  }
  *own = 0;
}

// A chain of loads, each address from the value before (all zero).
__global__ void load_chain_kernel(const volatile std::uint32_t* data, int loads,
                                  std::uint32_t* sink) {
  std::uint32_t at = 0;
  for (int i = 0; i < loads; ++i) at = data[at];
  *sink = at;
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const uint4* from, uint4* to, std::int64_t vectors) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += kUnroll * stride) {
    uint4 values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * stride < vectors) values[u] = __ldcs(from + i + u * stride);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * stride < vectors) to[i + u * stride] = values[u];
    }
  }
}

struct Memory {
  cuda::DeviceBuffer<std::byte> sent{kBytes};
  cuda::DeviceBuffer<std::byte> received{kBytes};
  cuda::DeviceBuffer<std::uint32_t> flags{32};
  cuda::Event begin;
  cuda::Event end;
};

class Links {
 public:
  explicit Links(std::span<const int> devices) : team_(devices) {
    for (int rank = 0; rank < team_.size(); ++rank) {
      const cuda::DeviceGuard guard(team_.devices()[rank]);
      memory_.push_back(std::make_unique<Memory>());
      // Loading waits for running kernels, so not behind a closed gate.
      cuda::load(ping_pong_kernel);
      cuda::load(load_chain_kernel);
      cuda::load(copy_kernel);
      Memory& memory = *memory_.back();
      ORRERY_CUDA(cudaMemsetAsync(memory.sent.get(), 0, kBytes, team_.stream(rank).get()));
      ORRERY_CUDA(cudaMemsetAsync(memory.flags.get(), 0, 32 * sizeof(std::uint32_t),
                                  team_.stream(rank).get()));
      gate_.close(team_.stream(rank));
    }
    gate_.open();
    team_.synchronize();
  }

  std::vector<LinkRow> probe() {
    for (int from = 0; from < team_.size(); ++from) {
      for (int to = 0; to < team_.size(); ++to) {
        if (from == to) continue;
        if (from < to) latency_store(from, to);
        latency_load(from, to);
        for (const std::string& method : kMethods) bandwidth(method, "one_way", {{from, to}});
        if (from < to) {
          for (const std::string& method : kMethods) {
            bandwidth(method, "both_ways", {{from, to}, {to, from}});
          }
        }
      }
    }
    if (team_.size() > 2) {
      std::vector<Flow> all;
      // In round r every GPU sends to the one r further: no two to the same one.
      for (int distance = 1; distance < team_.size(); ++distance) {
        for (int rank = 0; rank < team_.size(); ++rank) {
          all.push_back({rank, (rank + distance) % team_.size()});
        }
      }
      for (const std::string& method : kMethods) bandwidth(method, "all_to_all", all);
    }
    return std::move(rows_);
  }

 private:
  struct Flow {
    int from;
    int to;
  };
  inline static const std::vector<std::string> kMethods = {"copy_engine", "sm_store", "sm_load"};

  // Times what `queue(rank)` enqueues on each rank that `takes_part`, all let go at once.
  Seconds sample(const std::vector<bool>& takes_part, const std::function<void(int)>& queue) {
    for (int rank = 0; rank < team_.size(); ++rank) {
      if (!takes_part[rank]) continue;
      const cuda::DeviceGuard guard(team_.devices()[rank]);
      const cuda::Stream& stream = team_.stream(rank);
      gate_.close(stream);
      memory_[rank]->begin.record(stream);
      queue(rank);
      memory_[rank]->end.record(stream);
    }
    gate_.open();
    Seconds longest;
    for (int rank = 0; rank < team_.size(); ++rank) {
      if (!takes_part[rank]) continue;
      const cuda::DeviceGuard guard(team_.devices()[rank]);
      memory_[rank]->end.synchronize();
      longest = std::max(longest, memory_[rank]->end - memory_[rank]->begin);
    }
    return longest;
  }

  void add(LinkRow row, const std::vector<bool>& takes_part, int repeats,
           const std::function<void(int)>& queue) {
    std::vector<double> times;
    for (int i = 0; i < kWarmup + kSamples; ++i) {
      const Seconds time = sample(takes_part, queue);
      if (i >= kWarmup) times.push_back(time.value() / repeats);
    }
    std::ranges::sort(times);
    const double median = times[times.size() / 2];
    row.time = Seconds(median);
    row.spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / median;
    row.samples = kSamples;
    row.from = row.from < 0 ? -1 : team_.devices()[row.from];
    row.to = row.to < 0 ? -1 : team_.devices()[row.to];
    rows_.push_back(std::move(row));
  }

  void latency_store(int a, int b) {
    std::vector<bool> takes_part(team_.size());
    takes_part[a] = takes_part[b] = true;
    add({.probe = "latency_store", .method = "sm_store", .traffic = "one_way", .from = a, .to = b},
        takes_part, 2 * kRounds, [&](int rank) {
          const int peer = rank == a ? b : a;
          ping_pong_kernel<<<1, 1, 0, team_.stream(rank).get()>>>(
              memory_[rank]->flags.get(), memory_[peer]->flags.get(), rank == a ? 0 : 1, kRounds);
          ORRERY_CUDA(cudaPeekAtLastError());
        });
  }

  void latency_load(int from, int to) {
    std::vector<bool> takes_part(team_.size());
    takes_part[to] = true;
    add({.probe = "latency_load",
         .method = "sm_load",
         .traffic = "one_way",
         .from = from,
         .to = to},
        takes_part, kRounds, [&](int rank) {
          load_chain_kernel<<<1, 1, 0, team_.stream(rank).get()>>>(
              reinterpret_cast<const std::uint32_t*>(memory_[from]->sent.get()), kRounds,
              memory_[rank]->flags.get() + 1);
          ORRERY_CUDA(cudaPeekAtLastError());
        });
  }

  // `method` moves each flow's part of kBytes; the GPU that issues it is the receiver for loads,
  // the sender otherwise.
  void bandwidth(const std::string& method, const std::string& traffic,
                 const std::vector<Flow>& flows) {
    const bool is_load = method == "sm_load";
    std::vector<bool> takes_part(team_.size());
    for (const Flow& flow : flows) takes_part[is_load ? flow.to : flow.from] = true;
    const bool is_single = flows.size() <= 2;
    const std::size_t bytes = is_single ? kBytes : kBytes / team_.size();
    add({.probe = "bandwidth",
         .method = method,
         .traffic = traffic,
         .from = is_single ? flows[0].from : -1,
         .to = is_single ? flows[0].to : -1,
         .bytes = Bytes(static_cast<double>(bytes))},
        takes_part, 1, [&](int rank) {
          std::size_t offset = 0;
          for (const Flow& flow : flows) {
            if (rank != (is_load ? flow.to : flow.from)) continue;
            move(method, flow, rank, offset, bytes);
            offset += bytes;
          }
        });
  }

  void move(const std::string& method, const Flow& flow, int rank, std::size_t offset,
            std::size_t bytes) {
    const std::byte* const from = memory_[flow.from]->sent.get() + offset;
    std::byte* const to = memory_[flow.to]->received.get() + offset;
    const cuda::Stream& stream = team_.stream(rank);
    if (method == "copy_engine") {
      ORRERY_CUDA(cudaMemcpyPeerAsync(to, team_.devices()[flow.to], from,
                                      team_.devices()[flow.from], bytes, stream.get()));
      return;
    }
    copy_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(reinterpret_cast<const uint4*>(from),
                                                        reinterpret_cast<uint4*>(to),
                                                        static_cast<std::int64_t>(bytes / 16));
    ORRERY_CUDA(cudaPeekAtLastError());
  }

  cuda::DeviceTeam team_;
  cuda::Gate gate_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<LinkRow> rows_;
};

}  // namespace

std::vector<LinkRow> probe_link(std::span<const int> devices) { return Links(devices).probe(); }

}  // namespace orrery
