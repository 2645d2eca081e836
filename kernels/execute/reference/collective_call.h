#pragma once

// One collective of a plan among tensors of its ranks, in double.

#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery::reference {

// `inputs`: what each rank of the group has of `input`, in the group's order. Result: what each
// rank has of `output` then. all_gather puts parts together along the axis in which output is
// longer, reduce_scatter cuts along the one in which it is shorter; where the parts do not divide
// the whole, the last is padded with zeros. send_recv is a copy, which the interpreter makes
// itself. Throws std::invalid_argument, naming the op, for other kinds and for shapes that do not
// fit.
std::vector<std::vector<double>> run_collective(const std::string& name, CollectiveKind kind,
                                                const Tensor& input, const Tensor& output,
                                                const std::vector<std::vector<double>>& inputs);

}  // namespace orrery::reference
