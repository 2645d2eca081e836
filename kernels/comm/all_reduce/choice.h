#pragma once

// Which all-reduce serves a size, and with how many threads. No CUDA.

#include <cstdint>
#include <string_view>

namespace orrery {

enum class AllReduceAlgorithm : std::uint8_t { kOneShot, kTwoShot, kNccl };
std::string_view to_text(AllReduceAlgorithm algorithm);  // "one_shot", "two_shot", "nccl"

// The fastest of the three for a buffer of `bytes` among `num_ranks` GPUs of one NVLink domain,
// graph-captured, as measured on an H200 host (kernels/comm/all_reduce/choice.cpp has the
// crossings). Throws std::invalid_argument unless 1 <= num_ranks <= 8.
AllReduceAlgorithm choose_all_reduce(std::int64_t bytes, int num_ranks);

struct AllReduceShape {
  int blocks = 1;
  int threads = 32;  // per block
};
// Enough threads for one 16-byte vector each, up to a grid that is resident on every GPU beside
// other kernels and saturates the links. kNccl has no such shape: throws std::invalid_argument.
AllReduceShape all_reduce_shape(AllReduceAlgorithm algorithm, std::int64_t bytes, int num_ranks);

inline constexpr int kMaxRanks = 8;
inline constexpr int kMaxAllReduceBlocks = 128;  // fewer than the SMs of any Hopper part built for
inline constexpr int kMaxAllReduceThreads = 512;

// Bytes of the receive area that one call needs on each rank (one of two halves).
//   one-shot: a slot for each rank's whole input;  two-shot: a slot for each rank's share of ours
//   and one for each rank's result.
std::int64_t all_reduce_slot_bytes(AllReduceAlgorithm algorithm, std::int64_t bytes, int num_ranks);

}  // namespace orrery
