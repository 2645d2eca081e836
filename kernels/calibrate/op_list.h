#pragma once

// Kernel calls to measure, one a line, as plans write them. No CUDA.
//
//   gemm bf16 m=64 n=4096 k=4096
//   rope bf16 tokens=64:tokens heads=40:qkv head_dim=128     axes may stand there, and count for
//   nothing
//
// Empty lines and lines that start with "#" are ignored.

#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/calibrate/journal.h"
#include "kernels/calibrate/schedule.h"
#include "sim/plan/plan.h"

namespace orrery::calibrate {

// Each call once, in order. Throws std::invalid_argument "<file>:<line>: …" for an unknown kernel,
// dims that are not its own or contradict each other, and when there is none.
std::vector<KernelOp> parse_ops(std::string_view text, std::string_view file);
// Throws std::invalid_argument also when the file cannot be read.
std::vector<KernelOp> read_ops(const std::filesystem::path& file);

// Times those that `journal` does not hold yet, with cold L2 in a graph, as the simulator reads
// them, in order. `goes_on` is asked after each. Throws what time_point throws.
void measure_ops(std::span<const KernelOp> ops, Journal& journal, const TimePoint& time_point,
                 const std::function<bool(std::size_t done)>& goes_on);

}  // namespace orrery::calibrate
