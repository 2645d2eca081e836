#pragma once

// The ops of multi-head latent attention on one rank, in double. Rows of a projection are
//   [latent of q, if any | latent of keys and values | rotated key]
// and those of the cache [latent of keys and values, normed | rotated key].

#include <string_view>
#include <vector>

#include "kernels/execute/reference/kernel_call.h"

namespace orrery::reference {

// As run_kernel; null for calls that are none of MLA's.
using MlaReference = std::vector<std::vector<double>> (*)(const KernelCall& call);
MlaReference find_mla_reference(const KernelCall& call);
// Kernels that only MLA has.
bool is_mla_kernel(std::string_view kernel);

}  // namespace orrery::reference
