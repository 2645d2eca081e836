#include <array>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul_lt.h"
#include "kernels/cuda/nccl.h"
#include "kernels/harness/operands.h"
#include "kernels/probes/loads.h"
#include "kernels/probes/stream.h"

namespace orrery {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kHoldSharedBytes = 200 * 1024;  // nothing else fits beside it on the SM
constexpr long long kHoldCycles = 1'000'000;          // about 0.5 ms

class GemmLoad final : public Load {
 public:
  GemmLoad(std::int64_t m, std::int64_t n, std::int64_t k, int sms)
      : x_(normal_buffer<bf16>(static_cast<std::size_t>(m * k), 1)),
        w_(normal_buffer<bf16>(static_cast<std::size_t>(n * k), 2)),
        y_(static_cast<std::size_t>(m * n)),
        gemm_(m, n, k, sms) {}
  void launch(const cuda::Stream& stream) override {
    gemm_.launch(stream, y_.get(), x_.get(), w_.get());
  }

 private:
  cuda::DeviceBuffer<bf16> x_;
  cuda::DeviceBuffer<bf16> w_;
  cuda::DeviceBuffer<bf16> y_;
  MatmulLt gemm_;
};

class StreamLoad final : public Load {
 public:
  // `target_device` < 0: the current one.
  StreamLoad(StreamKind kind, std::size_t bytes, StreamShape shape, int target_device = -1)
      : kind_(kind),
        shape_(shape),
        bytes_(bytes),
        source_(normal_buffer<bf16>(bytes / sizeof(bf16), 1)),
        target_(buffer_on(target_device, kind == StreamKind::kRead ? 0 : bytes)),
        sum_(1) {}
  void launch(const cuda::Stream& stream) override {
    stream_memory(
        stream, kind_,
        {.source = source_.get(), .target = target_.get(), .sum = sum_.get(), .bytes = bytes_},
        shape_);
  }
  // By the copy engine.
  void copy_to_target(const cuda::Stream& stream) const {
    ORRERY_CUDA(
        cudaMemcpyAsync(target_.get(), source_.get(), bytes_, cudaMemcpyDefault, stream.get()));
  }

 private:
  static cuda::DeviceBuffer<unsigned char> buffer_on(int device, std::size_t bytes) {
    if (device < 0) return cuda::DeviceBuffer<unsigned char>(bytes);
    const cuda::DeviceGuard guard(device);
    return cuda::DeviceBuffer<unsigned char>(bytes);
  }

  StreamKind kind_;
  StreamShape shape_;
  std::size_t bytes_;
  cuda::DeviceBuffer<bf16> source_;
  cuda::DeviceBuffer<unsigned char> target_;
  cuda::DeviceBuffer<std::uint32_t> sum_;
};

class PeerCopyLoad final : public Load {
 public:
  PeerCopyLoad(std::size_t bytes, int peer) : memory_(StreamKind::kCopy, bytes, {}, peer) {}
  void launch(const cuda::Stream& stream) override { memory_.copy_to_target(stream); }

 private:
  StreamLoad memory_;
};

// NCCL's all-reduce of two GPUs. The peer's half runs on a stream of its own that waits for this
// GPU's and is waited for, so that launches follow each other on both.
class AllReduceLoad final : public Load {
 public:
  AllReduceLoad(std::size_t bytes, int device, int peer)
      : ranks_(cuda::Communicator::for_devices(std::array{device, peer})), count_(bytes / 2) {
    for (const int rank_device : {device, peer}) {
      const cuda::DeviceGuard guard(rank_device);
      buffers_.push_back(normal_buffer<bf16>(count_, 1));
      events_.emplace_back();
      streams_.emplace_back();
    }
  }
  void launch(const cuda::Stream& stream) override {
    const cuda::Stream& peer = streams_[1];
    events_[0].record(stream);
    ORRERY_CUDA(cudaStreamWaitEvent(peer.get(), events_[0].get(), 0));
    ORRERY_NCCL(cuda::nccl().group_start());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ORRERY_NCCL(cuda::nccl().all_reduce(buffers_[rank].get(), buffers_[rank].get(), count_,
                                          ncclBfloat16, ncclMax, ranks_[rank].get(),
                                          rank == 0 ? stream.get() : peer.get()));
    }
    ORRERY_NCCL(cuda::nccl().group_end());
    events_[1].record(peer);
    ORRERY_CUDA(cudaStreamWaitEvent(stream.get(), events_[1].get(), 0));
  }

 private:
  std::vector<cuda::Communicator> ranks_;
  std::size_t count_;
  std::vector<cuda::DeviceBuffer<bf16>> buffers_;
  std::vector<cuda::Event> events_;
  std::vector<cuda::Stream> streams_;
};

__global__ void hold_kernel(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) __nanosleep(500);
}

class HoldLoad final : public Load {
 public:
  explicit HoldLoad(int blocks) : blocks_(blocks) {}
  void launch(const cuda::Stream& stream) override {
    cuda::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks_)),
                  .block = dim3(32),
                  .shared_bytes = kHoldSharedBytes},
                 hold_kernel, kHoldCycles);
  }

 private:
  int blocks_;
};

LoadKind gemm(std::int64_t m, std::int64_t n, std::int64_t k, int sms = 0) {
  return {"gemm m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
              " sms=" + std::to_string(sms),
          [=] { return std::make_unique<GemmLoad>(m, n, k, sms); }};
}

// blocks = 0: small blocks, many waves.
LoadKind memory(StreamKind kind, std::size_t bytes, int blocks,
                MemorySplit split = MemorySplit::kShared) {
  const StreamShape shape{.method = blocks > 0 ? StreamMethod::kBulk : StreamMethod::kLoads,
                          .split = split,
                          .blocks = blocks};
  return {std::string(to_text(kind)) + " bytes=" + std::to_string(bytes) + " blocks=" +
              std::to_string(blocks) + (split == MemorySplit::kDefault ? " split=default" : ""),
          [=] { return std::make_unique<StreamLoad>(kind, bytes, shape); }};
}

LoadKind l2_read(std::size_t bytes, int rounds) {
  const StreamShape shape{.rounds = rounds};
  return {"l2_read bytes=" + std::to_string(bytes) + " rounds=" + std::to_string(rounds),
          [=] { return std::make_unique<StreamLoad>(StreamKind::kRead, bytes, shape); }};
}

LoadKind hold(int blocks) {
  return {"hold blocks=" + std::to_string(blocks),
          [=] { return std::make_unique<HoldLoad>(blocks); }};
}

// A device that the current one can write to, or -1.
int reachable_peer(int device) {
  int count = 0;
  ORRERY_CUDA(cudaGetDeviceCount(&count));
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer != device) ORRERY_CUDA(cudaDeviceCanAccessPeer(&can, device, peer));
    if (can == 0) continue;
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code != cudaErrorPeerAccessAlreadyEnabled) ORRERY_CUDA(code);
    static_cast<void>(cudaGetLastError());
    return peer;
  }
  return -1;
}

}  // namespace

std::vector<LoadKind> load_kinds() {
  constexpr std::size_t kLarge = 512 * kMiB;  // ten times the L2 cache
  std::vector<LoadKind> kinds{gemm(8192, 8192, 8192),      gemm(4096, 4096, 4096),
                              gemm(2048, 8192, 8192),      gemm(64, 28672, 8192),
                              gemm(4096, 4096, 4096, 100), gemm(8192, 8192, 8192, 64)};
  for (const int blocks : {16, 32, 66, 132, 0}) {
    kinds.push_back(memory(StreamKind::kRead, kLarge, blocks));
  }
  kinds.push_back(memory(StreamKind::kWrite, kLarge, 0));
  for (const int blocks : {16, 132, 0}) kinds.push_back(memory(StreamKind::kCopy, kLarge, blocks));
  kinds.push_back(memory(StreamKind::kCopy, kLarge, 0, MemorySplit::kDefault));
  kinds.push_back(l2_read(24 * kMiB, 20));
  for (const int blocks : {16, 32, 64}) kinds.push_back(hold(blocks));

  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const int peer = reachable_peer(device);
  if (peer < 0) return kinds;
  constexpr std::size_t kPeer = 128 * kMiB;
  kinds.push_back({"peer_copy bytes=" + std::to_string(kPeer),
                   [=] { return std::make_unique<PeerCopyLoad>(kPeer, peer); }});
  kinds.push_back({"peer_all_reduce bytes=" + std::to_string(kPeer),
                   [=] { return std::make_unique<AllReduceLoad>(kPeer, device, peer); }});
  for (const int blocks : {4, 8, 16, 32}) {
    kinds.push_back(
        {"peer_write bytes=" + std::to_string(kPeer) + " blocks=" + std::to_string(blocks), [=] {
           return std::make_unique<StreamLoad>(StreamKind::kCopy, kPeer,
                                               StreamShape{.blocks = blocks}, peer);
         }});
  }
  return kinds;
}

}  // namespace orrery
