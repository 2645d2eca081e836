#include <stdexcept>
#include <string>

#include "kernels/comm/all_reduce/all_reduce.h"
#include "kernels/comm/all_reduce/slots.cuh"
#include "kernels/cuda/launch.h"

// Ranks push 16-byte vectors into the receive areas of their peers; the data is its own flag. A
// free slot holds 0xFF bytes, a NaN of every dtype that no sender writes (a NaN of that pattern is
// sent as another one), so a receiver polls its own memory until each 32-bit word differs, and
// frees the slot again. Nothing else is exchanged: one way over NVLink per hop, no fence, no
// barrier.
//
//   one-shot   push own input to all peers   | own slots: wait for n-1, sum in rank order, output
//              (n-1) bytes per link, one hop
//   two-shot   push share p of input to p    | own share: wait for n-1, sum, output, push to all
//              2 (n-1)/n bytes, two hops     | shares of the others: wait, output
//
//   receive area of a rank:   half 0                          | half 1
//   one-shot                  [from 0][from 1] … [from n-1]   | same
//   two-shot                  [my share from 0 … n-1][result of 0 … n-1]
//
// Calls use the halves in turn, by a count of calls in device memory, so a graph may be replayed.
// Two halves are enough without a barrier: a rank that starts call e + 2 has ended e + 1, for which
// it needed data that every peer sent within e + 1, thus after that peer had ended e and freed the
// half. (In two-shot a rank may hear of a peer through a third one's result.) Each kernel's end
// orders its stores before the next kernel's.
//
// A block waits for the blocks of its own index on other GPUs and never for its own grid. The grid
// (at most 128 blocks of 512 threads, one per SM) is resident at once where it finds the GPU free,
// and blocks start in order where it does not.
//
// Measured on H200s (us, graph-captured, NCCL 2.28.3 in the same run; bf16):
//   2 GPUs   256 B 2.4 (NCCL 5.6)   64 KiB 3.2 (6.9)   1 MiB 6.5 (13.6)   16 MiB 51.8 (75.5)
//   4 GPUs   256 B 2.7 (8.5)        64 KiB 3.7 (10.5)  1 MiB 9.3 (17.4)   16 MiB 79.6 (97.0)
// Small calls: 1.2 us one way over NVLink (kernels/probes/link.h) and the start of a graph node;
// large ones: what SMs store with all links busy, 355 of 478 GB/s, so 70.9 us for 16 MiB among 4.

namespace orrery {
namespace {

// Sums of a batch: vectors `offset + u * stride` of the input, and of every peer q the ones at
// slots[q * slots_stride + u * stride]; `use(u, sum)` takes each below `end`.
template <typename T, int kRanks, typename Use>
__device__ void receive_sums(Receiver& receiver, const AllReducePeers& peers, const T* input,
                             std::int64_t count, std::int64_t offset, std::int64_t end,
                             uint4* slots, std::int64_t slots_stride, std::int64_t stride,
                             const Use& use) {
  constexpr int kUnroll = kBatch<kRanks>;
  uint4 own[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (offset + u * stride < end) own[u] = load_vector(input, offset + u * stride, count);
  }
  uint4 all[kUnroll][kRanks];
  receiver.receive(
      all,
      [&](int u, int q) {
        return q < peers.num_ranks && q != peers.rank && offset + u * stride < end;
      },
      [&](int u, int q) { return slots + q * slots_stride + u * stride; });
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (offset + u * stride >= end) continue;
#pragma unroll
    for (int q = 0; q < kRanks; ++q) all[u][q] = select(q == peers.rank, own[u], all[u][q]);
    use(u, sum<T, kRanks>(all[u], peers.num_ranks));
  }
}

// Each thread loads its first vectors while it waits for the count of calls, and further ones while
// the last are on their way.
template <typename T, int kRanks>
__global__ void __launch_bounds__(kMaxAllReduceThreads)
    one_shot_kernel(const __grid_constant__ AllReducePeers peers, const T* input, T* output,
                    std::int64_t count) {
  constexpr int kPush = 4;  // vectors at once
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t vectors = (count + kPerVector<T> - 1) / kPerVector<T>;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  uint4 own[kPush];
  const auto for_batch = [&](std::int64_t begin, const auto& visit) {
#pragma unroll
    for (int u = 0; u < kPush; ++u) {
      if (begin + u * stride < vectors) visit(own[u], begin + u * stride);
    }
  };
  const auto load = [&](uint4& vector, std::int64_t at) { vector = load_vector(input, at, count); };
  for_batch(first, load);
  const int half = begin_call(peers);
  for (std::int64_t i = first; i < vectors; i += kPush * stride) {
    for_batch(i, [&](const uint4& vector, std::int64_t at) {
      const uint4 sent = without_free(vector);
#pragma unroll
      for (int k = 1; k < kRanks; ++k) {
        if (k >= peers.num_ranks) continue;
        store_slot(half_of(peers, peer_after(peers, k), half) + peers.rank * vectors + at, sent);
      }
    });
    for_batch(i + kPush * stride, load);
  }
  Receiver receiver(peers);
  uint4* const slots = half_of(peers, peers.rank, half);
  for (std::int64_t i = first; i < vectors; i += kBatch<kRanks> * stride) {
    receive_sums<T, kRanks>(
        receiver, peers, input, count, i, vectors, slots + i, vectors, stride,
        [&](int u, const uint4& sum) { store_vector(output, i + u * stride, count, sum); });
  }
}

template <typename T, int kRanks>
__global__ void __launch_bounds__(kMaxAllReduceThreads)
    two_shot_kernel(const __grid_constant__ AllReducePeers peers, const T* input, T* output,
                    std::int64_t count) {
  constexpr int kUnroll = kBatch<kRanks>;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t vectors = (count + kPerVector<T> - 1) / kPerVector<T>;
  const std::int64_t share = (vectors + peers.num_ranks - 1) / peers.num_ranks;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  // Vector u of the batch at `begin` of the share of the k-th peer, as an index into the whole;
  // past the end of either: `vectors`.
  const auto index = [&](std::int64_t begin, int u, int k) {
    const std::int64_t i = begin + u * stride;
    if (k == 0 || k >= peers.num_ranks || i >= share) return vectors;
    return min(peer_after(peers, k) * share + i, vectors);
  };
  uint4 parts[kUnroll][kRanks];
  const auto for_batch = [&](std::int64_t begin, const auto& visit) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int k = 1; k < kRanks; ++k) {
        if (const std::int64_t at = index(begin, u, k); at < vectors) visit(u, k, at);
      }
    }
  };
  // Each peer its share.
  const auto load = [&](int u, int k, std::int64_t at) {
    parts[u][k] = load_vector(input, at, count);
  };
  for_batch(first, load);
  const int half = begin_call(peers);
  for (std::int64_t begin = first; begin < share; begin += kUnroll * stride) {
    for_batch(begin, [&](int u, int k, std::int64_t) {
      store_slot(
          half_of(peers, peer_after(peers, k), half) + peers.rank * share + begin + u * stride,
          without_free(parts[u][k]));
    });
    for_batch(begin + kUnroll * stride, load);
  }
  // Own share: sum and send on.
  Receiver receiver(peers);
  uint4* const slots = half_of(peers, peers.rank, half);
  const std::int64_t results = peers.num_ranks * share;
  const std::int64_t own = peers.rank * share;
  const std::int64_t own_end = min(own + share, vectors);
  for (std::int64_t i = first; own + i < own_end; i += kUnroll * stride) {
    receive_sums<T, kRanks>(
        receiver, peers, input, count, own + i, own_end, slots + i, share, stride,
        [&](int u, const uint4& sum) {
          const std::int64_t at = own + i + u * stride;
          const uint4 result = without_free(sum);
#pragma unroll
          for (int k = 1; k < kRanks; ++k) {
            if (k >= peers.num_ranks) continue;
            store_slot(half_of(peers, peer_after(peers, k), half) + results + at, result);
          }
          store_vector(output, at, count, result);
        });
  }
  // Results of the peers.
  for (std::int64_t begin = first; begin < share; begin += kUnroll * stride) {
    receiver.receive(
        parts, [&](int u, int k) { return index(begin, u, k) < vectors; },
        [&](int u, int k) { return slots + results + index(begin, u, k); });
    for_batch(begin,
              [&](int u, int k, std::int64_t at) { store_vector(output, at, count, parts[u][k]); });
  }
}

template <typename T, int kRanks>
void launch_kernel(const cuda::Stream& stream, const AllReducePeers& peers,
                   AllReduceAlgorithm algorithm, const void* input, void* output,
                   std::int64_t count, const AllReduceShape& shape, bool programmatic) {
  const auto kernel = algorithm == AllReduceAlgorithm::kOneShot ? one_shot_kernel<T, kRanks>
                                                                : two_shot_kernel<T, kRanks>;
  cuda::launch(
      stream,
      {.grid = dim3(shape.blocks), .block = dim3(shape.threads), .programmatic = programmatic},
      kernel, peers, static_cast<const T*>(input), static_cast<T*>(output), count);
}

template <typename T>
void launch_ranks(const cuda::Stream& stream, const AllReducePeers& peers,
                  AllReduceAlgorithm algorithm, const void* input, void* output, std::int64_t count,
                  const AllReduceShape& shape, bool programmatic) {
  const auto launch = peers.num_ranks <= 2   ? launch_kernel<T, 2>
                      : peers.num_ranks <= 4 ? launch_kernel<T, 4>
                                             : launch_kernel<T, kMaxRanks>;
  launch(stream, peers, algorithm, input, output, count, shape, programmatic);
}

void require_fits(const AllReducePeers& peers, AllReduceAlgorithm algorithm, std::int64_t bytes,
                  const void* input, const void* output, const AllReduceShape& shape) {
  if ((reinterpret_cast<std::uintptr_t>(input) | reinterpret_cast<std::uintptr_t>(output)) % 16 !=
      0) {
    throw std::invalid_argument("all_reduce: pointers must be 16-byte aligned");
  }
  const std::int64_t needed = all_reduce_slot_bytes(algorithm, bytes, peers.num_ranks);
  if (algorithm == AllReduceAlgorithm::kNccl || needed > peers.half_bytes) {
    throw std::invalid_argument("all_reduce " + std::string(to_text(algorithm)) + " of " +
                                std::to_string(bytes) + " bytes needs " + std::to_string(needed) +
                                " bytes of receive area; the workspace has " +
                                std::to_string(peers.half_bytes));
  }
  if (shape.blocks < 1 || shape.blocks > kMaxAllReduceBlocks || shape.threads < 1 ||
      shape.threads > kMaxAllReduceThreads) {
    throw std::invalid_argument("all_reduce: " + std::to_string(shape.blocks) + " blocks of " +
                                std::to_string(shape.threads) + " threads; at most " +
                                std::to_string(kMaxAllReduceBlocks) + " of " +
                                std::to_string(kMaxAllReduceThreads));
  }
}

template <typename T, int kRanks>
void load_kernels() {
  cuda::load(one_shot_kernel<T, kRanks>);
  cuda::load(two_shot_kernel<T, kRanks>);
}

}  // namespace

void load_all_reduce(int num_ranks) {
  const auto load = [&]<int kRanks>() {
    load_kernels<bf16, kRanks>();
    load_kernels<fp16, kRanks>();
    load_kernels<float, kRanks>();
  };
  if (num_ranks <= 2) return load.template operator()<2>();
  if (num_ranks <= 4) return load.template operator()<4>();
  load.template operator()<kMaxRanks>();
}

void all_reduce(const cuda::Stream& stream, const AllReducePeers& peers,
                AllReduceAlgorithm algorithm, DType dtype, const void* input, void* output,
                std::int64_t count, const AllReduceShape& shape, bool programmatic) {
  const auto bytes =
      static_cast<std::int64_t>(static_cast<double>(count) * bytes_per_element(dtype));
  require_fits(peers, algorithm, bytes, input, output, shape);
  if (count == 0) return;
  if (peers.num_ranks == 1) {
    if (input == output) return;
    ORRERY_CUDA(cudaMemcpyAsync(output, input, bytes, cudaMemcpyDeviceToDevice, stream.get()));
    return;
  }
  switch (dtype) {
    case DType::kBf16:
      return launch_ranks<bf16>(stream, peers, algorithm, input, output, count, shape,
                                programmatic);
    case DType::kFp16:
      return launch_ranks<fp16>(stream, peers, algorithm, input, output, count, shape,
                                programmatic);
    case DType::kFp32:
      return launch_ranks<float>(stream, peers, algorithm, input, output, count, shape,
                                 programmatic);
    default:
      throw std::invalid_argument("all_reduce takes bf16, fp16 and fp32, not " +
                                  std::string(to_text(dtype)));
  }
}

void all_reduce(const cuda::Stream& stream, const AllReducePeers& peers,
                AllReduceAlgorithm algorithm, DType dtype, const void* input, void* output,
                std::int64_t count) {
  const auto bytes =
      static_cast<std::int64_t>(static_cast<double>(count) * bytes_per_element(dtype));
  all_reduce(stream, peers, algorithm, dtype, input, output, count,
             all_reduce_shape(algorithm, bytes, peers.num_ranks));
}

}  // namespace orrery
