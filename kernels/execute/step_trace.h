#pragma once

// Which op of a step each recorded kernel or copy belongs to. No CUDA.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/kernel_trace.h"
#include "kernels/execute/rank_program.h"
#include "sim/plan/launch_mode.h"
#include "sim/timeline/timeline.h"

namespace orrery {

// What one rank enqueued for a step: one copy of inputs, num_before memsets, num_nodes[i] kernels
// and copies for each task i, num_after copies of results.
struct RankTrace {
  int rank = 0;
  int device = 0;
  // kGraph: all but the first and the last copies are nodes of one graph.
  LaunchMode mode = LaunchMode::kEager;
  std::span<const Task> tasks;
  std::span<const int> num_nodes;
  int num_before = 0;
  int num_after = 0;
};

// A span for each task that enqueued something, from the start of its first record to the end of
// its last, in seconds of the records' clock. A kernel that was launched before its predecessor in
// the stream ended (programmatic dependent launch) only waits at first: its span starts when what
// is before it on the stream has ended. `records` are those of the step on all devices, by start.
// Relies on:
//   * a graph's nodes have ids that rise in the order of capture, so records sorted by id are those
//     of the tasks in order, on whatever streams they ran;
//   * launched eagerly, the records of one stream start in order, and the copy of inputs on
//     stream 0 is the first record of a device. Which further stream of the plan a recorded stream
//     is follows from the number of records, among equals from who begins first.
// Throws std::runtime_error when records are missing or too many.
std::vector<Span> trace_spans(const Plan& plan, const RankTrace& trace,
                              std::span<const KernelRecord> records);

// A kernel of the GPU, or a copy, that an op launched on a rank, in all its copies.
struct LaunchedKernel {
  OpId op = 0;
  int rank = 0;
  int stream = 0;      // of the plan
  std::string kernel;  // as its source has it, "memcpy" or "memset"
  std::int64_t launches = 0;
  Seconds time;  // each from when what is before it on the stream has ended
};

// A traced step.
struct StepTrace {
  Timeline timeline;
  std::vector<LaunchedKernel> kernels;  // rank by rank
};

// What the tasks of a rank launched, by op and then by name; of the same records, with what
// trace_spans relies on and throws.
std::vector<LaunchedKernel> launched_kernels(const Plan& plan, const RankTrace& trace,
                                             std::span<const KernelRecord> records);

// A collective starts when the last of its ranks has come to it, as `simulate` has it: until then
// the others wait. `spans` are those of all ranks.
void start_collectives_together(std::vector<Span>& spans);

}  // namespace orrery
