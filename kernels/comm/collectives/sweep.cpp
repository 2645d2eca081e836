#include "kernels/comm/collectives/sweep.h"

#include <array>
#include <memory>

#include "kernels/comm/collectives/measure.h"
#include "kernels/harness/operands.h"

namespace orrery {
namespace {

constexpr std::int64_t kLeastBytes = 256;
// NCCL changes its protocol between these, with steps in its times.
constexpr std::int64_t kFineBytes = std::int64_t{64} << 10;
constexpr std::int64_t kCoarseBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMostOwnBytes = std::int64_t{64} << 20;

struct Operands {
  cuda::DeviceBuffer<bf16> input;
  cuda::DeviceBuffer<bf16> output;
};

class Sweep {
 public:
  Sweep(std::span<const int> devices, std::int64_t most_bytes,
        const std::function<void(const CollectiveRow&)>& row)
      : group_(devices, {.one_shot_bytes = kMostOwnBytes / 8, .two_shot_bytes = kMostOwnBytes}),
        row_(row) {
    for (int rank = 0; rank < group_.size(); ++rank) {
      const cuda::DeviceGuard guard(devices[rank]);
      const std::size_t count = most_bytes / sizeof(bf16);
      operands_.push_back({.input = normal_buffer<bf16>(count, 1 + rank),
                           .output = cuda::DeviceBuffer<bf16>(count)});
    }
  }

  void measure(CollectiveKind kind, std::int64_t bytes, LaunchMode mode) {
    std::vector<CollectiveImplementation> implementations;
    std::vector<EnqueueCollective> competitors;
    for (const CollectiveImplementation implementation :
         {CollectiveImplementation::kNccl, CollectiveImplementation::kOneShot,
          CollectiveImplementation::kTwoShot}) {
      if (!group_.takes(implementation, call(kind, bytes, 0))) continue;
      implementations.push_back(implementation);
      competitors.emplace_back([=, this](int rank, const cuda::Stream& stream) {
        group_.enqueue(implementation, rank, stream, call(kind, bytes, rank));
      });
    }
    const auto times = measure_collectives(group_.team(), competitors, mode);
    for (std::size_t i = 0; i < times.size(); ++i) {
      CollectiveRow row{.kind = kind,
                        .implementation = std::string(to_text(implementations[i])),
                        .mode = mode,
                        .num_gpus = group_.size(),
                        .bytes = bytes,
                        .time = times[i]};
      const bool is_nccl = implementations[i] == CollectiveImplementation::kNccl;
      if (is_nccl) row.version = cuda::nccl_version();
      row_(row);
      if (kind == CollectiveKind::kAllReduce && implementations[i] == chosen(bytes)) {
        row.implementation = "orrery";
        row_(row);
      }
    }
  }

 private:
  [[nodiscard]] CollectiveImplementation chosen(std::int64_t bytes) const {
    switch (choose_all_reduce(bytes, group_.size())) {
      case AllReduceAlgorithm::kOneShot:
        return CollectiveImplementation::kOneShot;
      case AllReduceAlgorithm::kTwoShot:
        return CollectiveImplementation::kTwoShot;
      case AllReduceAlgorithm::kNccl:
        break;
    }
    return CollectiveImplementation::kNccl;
  }
  [[nodiscard]] CollectiveCall call(CollectiveKind kind, std::int64_t bytes, int rank) const {
    return {.kind = kind,
            .count = bytes / static_cast<std::int64_t>(sizeof(bf16)),
            .input = operands_[rank].input.get(),
            .output = operands_[rank].output.get()};
  }

  PeerGroup group_;
  const std::function<void(const CollectiveRow&)>& row_;
  std::vector<Operands> operands_;
};

}  // namespace

void sweep_collectives(std::span<const int> devices, std::int64_t most_bytes,
                       const std::function<void(const CollectiveRow&)>& row) {
  Sweep sweep(devices, most_bytes, row);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllToAll, CollectiveKind::kSendRecv, CollectiveKind::kBroadcast}) {
    if (kind == CollectiveKind::kSendRecv && devices.size() != 2) continue;
    for (std::int64_t bytes = kLeastBytes; bytes <= most_bytes; bytes *= 2) {
      const bool is_fine = bytes >= kFineBytes && bytes < kCoarseBytes;
      for (const std::int64_t size : {bytes, bytes / 2 * 3}) {
        if (size > most_bytes || (size != bytes && !is_fine)) continue;
        sweep.measure(kind, size, LaunchMode::kGraph);
        sweep.measure(kind, size, LaunchMode::kEager);
      }
    }
  }
}

}  // namespace orrery
