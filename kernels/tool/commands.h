#pragma once

// The commands of orrery-gpu. Each returns the exit code (0 done, 1 failed) and throws
// std::invalid_argument for bad usage (exit 2).

#include <span>
#include <string_view>

namespace orrery::tool {

// Checks all kernels or those named, communication among the GPUs present ("collectives"), the
// records of kernels ("trace"), steps of small models ("execute"); prints a line per call and
// "N passed, N failed".
int check(std::span<const std::string_view> arguments);
// Times the benchmark shapes of all kernels or those named. Besides: "launch" the costs of
// launching, "trace" of tracing, "memory" what a program holds besides its buffers, "machine" of
// barriers, values between SMs and products within a kernel, "probes" launches, streams, events
// and clocks, "corun" pairs of loads side by side, "collectives", "links" and "kv_transfer"
// communication among GPUs.
int time(std::span<const std::string_view> arguments);
// Times kernels into tables under a directory, or with --check judges such tables; resumable.
int calibrate(std::span<const std::string_view> arguments);
// The operand of execute and serve.
inline constexpr std::string_view kPreparedDirectory = "the directory that orrery validate wrote";
// Runs the prepared steps of a directory on the GPUs here; writes DIR/executed, whole or as far as
// it came, and a line per step to standard output.
int execute(std::span<const std::string_view> arguments);

// Replays the workload of a directory in real time against the GPUs here; writes DIR/executed,
// whole or as far as it came, and the latencies to standard output.
int serve(std::span<const std::string_view> arguments);

// Decode steps of a few models as one kernel beside the replayed graph of the same plan: a line
// each to standard output. Exit code 1 where a step throws.
int megakernel(std::span<const std::string_view> arguments);
// Writes when the blocks of a layer of experts that is one kernel did what, a file for each number
// of tokens, and a line each to standard output.
int moe_trace(std::span<const std::string_view> arguments);

// One rank of `check fused_moe_processes`, which starts it: RANK RANKS CASE, on the GPU of the
// rank's number, with a socket to that process (SocketProcesses). CASE: all, steps,
// killed-before or killed-amid. Rank 0 prints a line per case.
int fused_moe_process(std::span<const std::string_view> arguments);

// Throws std::invalid_argument when there is no usable GPU: none present, no driver, or one whose
// architecture this program holds no code for (it says which it holds).
void require_gpu();

}  // namespace orrery::tool
