#pragma once

// The ops of a mixture of experts on one rank, in double. Rows that no token chose are zeros.

#include <string_view>
#include <vector>

#include "kernels/execute/reference/kernel_call.h"

namespace orrery::reference {

// As run_kernel; null for other kernels. Experts are chosen by the scores that are given, where
// there are some: a rounding of x may move a score past another, and with it a whole expert's
// contribution, so whoever is held against this says what it found, and whether that is close to
// what is found here is for the caller to judge (score_difference). Rows without a token have
// scores of their own.
using MoeReference = std::vector<std::vector<double>> (*)(const KernelCall& call);
MoeReference find_moe_reference(std::string_view kernel);

}  // namespace orrery::reference
