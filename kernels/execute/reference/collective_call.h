#pragma once

// One collective of a plan among tensors of its ranks, in double.

#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery::reference {

// `inputs`: what each rank of the group has of `input`, in the group's order. Result: what each
// rank has of `output` then. all_gather puts parts together along the axis in which output is
// longer, or one behind the other where output has one more axis in front; reduce_scatter cuts
// along the one in which it is shorter; where the parts do not divide the whole, the last is padded
// with zeros; all_to_all exchanges equal parts. send_recv is a copy, which the interpreter makes
// itself. Throws std::invalid_argument, naming the op, for other kinds and for shapes that do not
// fit.
std::vector<std::vector<double>> run_collective(const std::string& name, CollectiveKind kind,
                                                const Tensor& input, const Tensor& output,
                                                const std::vector<std::vector<double>>& inputs);

// Columns [first, first + count) of rows of `width`.
std::vector<double> column_slice(const std::vector<double>& rows, std::int64_t width,
                                 std::int64_t count, std::int64_t first);

// all_to_all of as many rows as counts say, without gaps: by rank, [rows, columns] of which the
// first are for rank 0 and so on, counts of what is sent and counts of what is received, in the
// order of the ranks and as many for each. Result: as `output`, zeros behind what has arrived.
// Throws std::invalid_argument, naming the op, where the two sides' counts contradict each other.
std::vector<std::vector<double>> all_to_all_v(const std::string& name, const Tensor& output,
                                              const std::vector<std::vector<double>>& rows,
                                              const std::vector<std::vector<double>>& sent,
                                              const std::vector<std::vector<double>>& received);

}  // namespace orrery::reference
