#pragma once

// One call of combine_shuffling or split_shuffling for the harness, and the calls that their checks
// and timings make.

#include <memory>
#include <string>
#include <vector>

#include "kernels/harness/gpu_kernel.h"

namespace orrery {

// Variants: "bound", rows from rank to rank of the padded layout, which counts "experts" in all, of
// which those of this rank begin at "first" (combining: the padded side holds the rows of all);
// "one_expert", all rows in the last slice. Takes bf16 and fp8, the latter with scales. Throws
// std::invalid_argument for another dtype.
std::unique_ptr<KernelCase> make_shuffle_case(const KernelOp& op, const CaseOptions& options,
                                              bool combines);

std::vector<KernelOp> shuffle_check_ops(const std::string& kernel);
std::vector<KernelOp> shuffle_bench_ops(const std::string& kernel);
std::vector<Grid> shuffle_grids();

}  // namespace orrery
