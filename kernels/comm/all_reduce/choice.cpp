#include "kernels/comm/all_reduce/choice.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr std::int64_t kVectorBytes = 16;

std::int64_t vectors_of(std::int64_t bytes) { return (bytes + kVectorBytes - 1) / kVectorBytes; }

void require_ranks(int num_ranks) {
  if (num_ranks < 1 || num_ranks > kMaxRanks) {
    throw std::invalid_argument("all_reduce among " + std::to_string(num_ranks) +
                                " ranks; expected 1 to " + std::to_string(kMaxRanks));
  }
}

}  // namespace

std::string_view to_text(AllReduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllReduceAlgorithm::kOneShot:
      return "one_shot";
    case AllReduceAlgorithm::kTwoShot:
      return "two_shot";
    case AllReduceAlgorithm::kNccl:
      return "nccl";
  }
  return "";
}

AllReduceAlgorithm choose_all_reduce(std::int64_t bytes, int num_ranks) {
  require_ranks(num_ranks);
  struct Limits {
    std::int64_t one_shot;  // up to here
    std::int64_t two_shot;  // then up to here, NCCL beyond
  };
  constexpr std::int64_t kKiB = 1024;
  constexpr std::int64_t kMiB = 1024 * kKiB;
  // One-shot moves (n-1) times the buffer over each link and waits once, two-shot 2 (n-1)/n times
  // and waits twice. Eight GPUs were not measured; their limits are on the side of NCCL.
  const Limits limits = num_ranks <= 2   ? Limits{.one_shot = 3 * kMiB, .two_shot = 64 * kMiB}
                        : num_ranks <= 4 ? Limits{.one_shot = 320 * kKiB, .two_shot = 48 * kMiB}
                                         : Limits{.one_shot = 64 * kKiB, .two_shot = 4 * kMiB};
  if (bytes <= limits.one_shot) return AllReduceAlgorithm::kOneShot;
  if (bytes <= limits.two_shot) return AllReduceAlgorithm::kTwoShot;
  return AllReduceAlgorithm::kNccl;
}

AllReduceShape all_reduce_shape(AllReduceAlgorithm algorithm, std::int64_t bytes, int num_ranks) {
  require_ranks(num_ranks);
  constexpr std::int64_t kWarp = 32;
  constexpr std::int64_t kFewBlocks = 64;
  if (algorithm == AllReduceAlgorithm::kNccl) {
    throw std::invalid_argument("NCCL chooses its own launch");
  }
  const std::int64_t vectors = vectors_of(bytes);
  const std::int64_t items =
      algorithm == AllReduceAlgorithm::kOneShot ? vectors : (vectors + num_ranks - 1) / num_ranks;
  // One vector per thread while that lasts: blocks of 128 threads up to kFewBlocks, then larger
  // ones, then more blocks.
  const std::int64_t most =
      items <= kFewBlocks * kMaxAllReduceThreads ? kFewBlocks : kMaxAllReduceBlocks;
  const std::int64_t per_block = (items + most - 1) / most;
  const std::int64_t threads =
      std::clamp((per_block + kWarp - 1) / kWarp * kWarp, std::int64_t{128},
                 static_cast<std::int64_t>(kMaxAllReduceThreads));
  const std::int64_t blocks = std::clamp((items + threads - 1) / threads, std::int64_t{1}, most);
  return {.blocks = static_cast<int>(blocks), .threads = static_cast<int>(threads)};
}

std::int64_t all_reduce_slot_bytes(AllReduceAlgorithm algorithm, std::int64_t bytes,
                                   int num_ranks) {
  require_ranks(num_ranks);
  const std::int64_t vectors = vectors_of(bytes);
  switch (algorithm) {
    case AllReduceAlgorithm::kOneShot:
      return num_ranks * vectors * kVectorBytes;
    case AllReduceAlgorithm::kTwoShot:
      return std::int64_t{2} * num_ranks * ((vectors + num_ranks - 1) / num_ranks) * kVectorBytes;
    case AllReduceAlgorithm::kNccl:
      return 0;
  }
  return 0;
}

}  // namespace orrery
