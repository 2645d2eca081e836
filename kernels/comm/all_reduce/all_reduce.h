#pragma once

// Sums over GPUs of one host through peer memory, without NCCL: one-shot and two-shot.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/comm/all_reduce/choice.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/handles.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

inline constexpr std::uint32_t kAllReduceAborted = 0xFFFFFFFF;

// What the kernel of one rank works with. A process per GPU would fill it from IPC handles; within
// one process AllReduceWorkspace does.
struct AllReducePeers {
  // Receive areas by rank, mapped on this rank's device: two halves of half_bytes, used in turn,
  // every byte 0xFF between calls.
  std::byte* slots[kMaxRanks] = {};
  std::uint32_t* calls = nullptr;  // own; [kMaxAllReduceBlocks] calls made so far
  // Own; 0, or the call (the first is 1) in which a peer did not come, or kAllReduceAborted.
  std::uint32_t* timed_out = nullptr;
  std::uint32_t* noticed = nullptr;  // the same in host memory, written by the call that gives up
  std::int64_t half_bytes = 0;
  std::int64_t timeout_cycles = 0;
  int rank = 0;
  int num_ranks = 1;
};

// Enqueues rank's part of the sum of all ranks' `input` into every rank's `output` (may be
// `input`), on the current device. fp32 sums in rank order, rounded once: the same bits on every
// rank and from both algorithms.
//   input, output   [count] of dtype bf16, fp16 or fp32, 16-byte aligned
// Every rank calls with the same algorithm, dtype and count, in the same order. May be captured: a
// replay counts as a call. A rank that waits longer than its timeout gives up, leaves NaN and sets
// timed_out; calls after that wait about 1 ms; the workspace is unusable until reset().
// `programmatic`: may start while the kernel before it in the stream still runs (launch.h); it
// waits for that one by itself. Throws std::invalid_argument for a dtype, alignment or size that
// does not fit, cuda::Error.
void all_reduce(const cuda::Stream& stream, const AllReducePeers& peers,
                AllReduceAlgorithm algorithm, DType dtype, const void* input, void* output,
                std::int64_t count, const AllReduceShape& shape, bool programmatic = true);
void all_reduce(const cuda::Stream& stream, const AllReducePeers& peers,
                AllReduceAlgorithm algorithm, DType dtype, const void* input, void* output,
                std::int64_t count);

// Loads the kernels for `num_ranks` onto the current device. A kernel's first launch would
// otherwise do so, and wait for what runs there: perhaps a call that waits for this thread's next
// launch.
void load_all_reduce(int num_ranks);

struct AllReduceOptions {
  // Largest buffer of each algorithm; choose_all_reduce() takes none larger. Each half of a rank's
  // receive area holds n of the first or two of the second: 256 MiB in all with these.
  std::int64_t one_shot_bytes = std::int64_t{3} << 20;
  std::int64_t two_shot_bytes = std::int64_t{64} << 20;
  Seconds timeout{10.0};
};

// The receive areas of all ranks of a team within this process.
class AllReduceWorkspace {
 public:
  AllReduceWorkspace(const cuda::DeviceTeam& team, const AllReduceOptions& options);
  [[nodiscard]] const AllReducePeers& peers(int rank) const { return peers_[rank]; }
  // The call of this rank that gave up first, 0: none has. A read of host memory.
  [[nodiscard]] std::uint32_t timed_out(int rank) const;
  // How many calls the rank has begun; while kernels run, too. Some 20 us; from one thread at a
  // time, as abort().
  [[nodiscard]] std::uint32_t calls_begun(int rank) const;
  // Makes all calls that wait give up, and those to come; while kernels run, too.
  void abort();
  // As made; call while nothing runs.
  void reset();

 private:
  struct Rank {
    cuda::DeviceBuffer<std::byte> slots;
    cuda::DeviceBuffer<std::uint32_t> state;
    cuda::Stream side;  // for what is read and written while kernels run
    cuda::PinnedBuffer<std::uint32_t> word;
    cuda::PinnedBuffer<std::uint32_t> noticed;
  };

  std::vector<int> devices_;
  std::vector<Rank> ranks_;
  std::vector<AllReducePeers> peers_;
};

}  // namespace orrery
